"""Tables of He, Peng and Sun (2024): Neyman-Pearson, fairness and quadratic programs, compared with a central solver.

    python benchmarks/reproduce/constrained.py np --data breast_cancer --clients 1 5 10 20
    python benchmarks/reproduce/constrained.py fairness --clients 1 5 --picture fairness.png
    python benchmarks/reproduce/constrained.py private --epsilon 1 3 8
    python benchmarks/reproduce/constrained.py private_np --epsilon 1 3 8
    python benchmarks/reproduce/constrained.py qp

All except the last read $FEDPRIV_DATA. A row: objective; mean and largest constraint loss (or gap); relative difference
from the centralised method; stationarity of the Lagrangian, recomputed; outer rounds, rounds, processor seconds here
and in one place, megabytes sent both ways; the certificate's verdict.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Subset, TensorDataset

import fedpriv as fp
from fedpriv.data import Split, labels_of, load, partition
from fedpriv.models import LogisticRegression, resolve_loss
from fedpriv.strategies.proximal import L2
from fedpriv.strategies.solvers import LBFGS, Newton, Quadratic

COMPUTE = fp.Compute(dtype="float64", device="cpu")
HEADER = ("problem", "n", "objective", "mean", "max", "rel. diff.", "stationarity", "outer", "rounds", "cpu s")
HEADER += ("cpu s, one place", "MB", "status")
PRIVATE_NP = ("epsilon", "class 0, test", "class 1, test", "class 1, train", "class 1 estimated", "half-width", "spent")
PRIVATE = ("epsilon", "gap allowed", "test accuracy", "test gap", "gap estimated", "spent")


def clients_of(split: Split, n: int, kind: str, problem: fp.Problem, server: fp.Problem | None = None):
    parts = partition(kind, labels_of(split.train), n, torch.Generator().manual_seed(0))
    model, loss = LogisticRegression(split.train[0][0].numel()), resolve_loss("logistic")
    clients = fp.make_clients(model, loss, [Subset(split.train, part.tolist()) for part in parts], problem)
    return clients + (fp.make_clients(model, loss, [split.test], server) if server else [])


def run(
    name: str, clients: list[fp.Client], strategy: fp.Strategy, bound: float, rounds: int, picture: Path | None = None
) -> None:
    n = sum(client.problem.objective is not None for client in clients)
    training = fp.Training(
        clients, strategy, fp.Privacy(noise_on="none"), rounds=rounds, compute=COMPUTE, compare_centralized=True
    )
    start, curve = time.process_time(), []
    for report in training:
        numbers = report.metrics
        curve.append((report.round, numbers["objective"], numbers["violation"], numbers.get("stationarity", np.nan)))
        if report.round % 20 == 0:
            shown = " · ".join(f"{key} {numbers[key]:.5g}" for key in ("objective", "violation", "stationarity"))
            print(f"\r{name}, n = {n}: round {report.round} · {shown}", end="   ", file=sys.stderr)
    print(end="\r", file=sys.stderr)
    seconds = time.process_time() - start
    result = training.result().to_json()
    values = np.array(result["constraint_values"])
    losses = (np.abs(values) if bound == 0 else values + bound).max(1)
    row(
        name,
        n,
        f"{result['objective']:.5f}",
        f"{losses.mean():.4f}",
        f"{losses.max():.4f}",
        f"{result['relative_difference']:.1e}",
        f"{result['kkt']['stationarity']:.1e}",
        result["outer_rounds"],
        result["rounds"],
        f"{seconds:.1f}",
        f"{result['centralised']['cpu_seconds']:.1f}",
        f"{1e-6 * result['bytes_sent']:.2f}",
        result["status"],
    )
    if picture:
        draw(curve, picture.with_stem(f"{picture.stem}-{n}"))  # one picture for each n


def draw(curve: list[tuple[int, float, float, float]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    rounds, objective, violation, stationarity = zip(*curve, strict=True)
    above.plot(rounds, objective)
    above.set_ylabel("objective")
    for values, label in ((violation, "largest violation"), (stationarity, "stationarity, by the certificate")):
        below.semilogy(rounds, np.where(np.array(values) > 0, values, np.nan), label=label)  # no zero on a log scale
    below.set(xlabel="round")
    below.legend()
    figure.savefig(path, dpi=150)


def row(*cells: object) -> None:
    print("| " + " | ".join(f"{cell}" for cell in cells) + " |", flush=True)


# penalty of the inner ADMM, for the sum over clients: near the geometric mean of the curvatures at the solution
RHO = {"breast_cancer": 0.1, "adult": 0.6, "monks": 1.0, "fairness": 0.25}
LOOSE = fp.Outer(100.0, 3e-3, 1e-3, 1e-4)
# an objective of .05 needs smaller gradients than a larger one for the same relative difference
OUTER = {
    "breast_cancer": fp.Outer(300.0, 1e-3, 2e-4, 1e-4),
    "adult": fp.Outer(30.0, 2e-2, 1e-3, 3e-4),
    "monks": LOOSE,
}


def neyman_pearson(args: argparse.Namespace) -> None:
    problem = fp.Problem(fp.class_loss(0), (fp.ClassLossAtMost(1, 0.2),))
    # the paper tests on its training rows, standardised by their own moments; Adult includes a test file
    split = load(args.data) if args.data == "adult" else load(args.data, protocol="paper")
    for n in args.clients:
        solver = LBFGS() if args.data == "adult" else Newton()
        # monks-1 alone has no minimiser: all rows with a5 = 1 are in class 1, so that weight grows forever
        h = L2(1e-3) if args.data == "monks" else None
        strategy = fp.proximal_al(OUTER[args.data], (args.rho or RHO[args.data]) / n, regularizer=h, solver=solver)
        run(args.data, clients_of(split, n, "stratified", problem), strategy, 0.2, args.rounds, args.picture)


def fairness(args: argparse.Namespace) -> None:
    gap, split = fp.GroupLossGap(-1, 0.1), load("adult")
    for n in args.clients:
        clients = clients_of(split, n, "iid", fp.Problem(constraints=(gap,)), fp.Problem(None, (gap,)))
        strategy = fp.proximal_al(LOOSE, (args.rho or RHO["fairness"]) / n, solver=LBFGS())
        run("adult, gap", clients, strategy, 0.1, args.rounds, args.picture)


def quadratic(args: argparse.Namespace) -> None:
    for n, dim in ((n, dim) for dim in args.dim for n in args.clients):
        rng = np.random.default_rng(0)
        model = torch.nn.Linear(dim, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        clients, form, rows, right = [], np.zeros((dim, dim + 1)), [], []
        for i in range(n + 1):
            c = torch.tensor(rng.normal(scale=dim**-0.5, size=(args.rows, dim)))
            u, d, b = np.linalg.qr(rng.normal(size=(dim, dim)))[0], rng.normal(size=args.rows), rng.normal(size=dim)
            a = torch.tensor(u * rng.uniform(0.5, 1, dim) @ u.T)
            line = fp.LinearEquality(c, torch.tensor(d / np.linalg.norm(d)))
            objective = None if i == n else quadratic_form(a, torch.tensor(b / np.linalg.norm(b)))
            rows, right = [*rows, *c.numpy()], [*right, *line.offset.numpy()]
            if i < n:
                form += np.hstack([a.numpy(), (b / np.linalg.norm(b))[:, None]]) / n
            nothing = TensorDataset(torch.zeros(1, dim), torch.zeros(1))
            clients += fp.make_clients(model, torch.nn.MSELoss(), [nothing], fp.Problem(objective, (line,)))
        strategy = fp.proximal_al(fp.Outer(10.0, 0.1, 1e-3, 1e-4), args.rho or 1.0, solver=Quadratic())
        run(f"qp, d = {dim}", clients, strategy, 0.0, args.rounds)
        print(f"qp, d = {dim}: the KKT system's solution has objective {kkt_objective(form, rows, right):.5f}")


def kkt_objective(form: np.ndarray, rows: list[np.ndarray], right: list[float]) -> float:
    """Smallest `w' A w / 2 + b' w` with `C w + d = 0`, by one linear solve: `[dim, dim + 1]` holds A and b."""
    a, b, c = form[:, :-1], form[:, -1], np.stack(rows)
    system = np.block([[a, c.T], [c, np.zeros((len(c), len(c)))]])
    w = np.linalg.solve(system, -np.concatenate([b, right]))[: len(b)]
    return float(w @ a @ w / 2 + b @ w)


def quadratic_form(a: torch.Tensor, b: torch.Tensor) -> fp.Function:
    return fp.Function(lambda model, x, y: (model.params @ a @ model.params / 2 + b @ model.params).view(1))


def private(args: argparse.Namespace) -> None:
    """Accuracy and loss gap on the test data: without constraint (a gap of at most 100) and with."""
    split, n, rounds = load("adult"), args.clients[0], 120
    x, y = split.test.tensors
    curves: dict[float, list[tuple[float, float]]] = {}
    for epsilon, bound in ((epsilon, bound) for epsilon in args.epsilon for bound in (100.0, 0.2, 0.15, 0.1, 0.05)):
        problem = fp.Problem(constraints=(fp.GroupLossGap(-1, bound, fraction=0.676),))
        # without a constraint the values get almost nothing of the budget
        statistics = fp.Statistics(3.0, 0.02 if bound > 1 else 0.3)
        privacy = fp.Privacy(epsilon=epsilon, clip=fp.Clip(3.0), statistics=statistics)
        found = []
        for seed in range(args.seeds):
            strategy = fp.private_al(beta=0.5, max_multiplier=0.5, learning_rate=16.0)
            clients = clients_of(split, n, "iid", problem)
            result = fp.train(clients, strategy, privacy, rounds=rounds, seed=seed, secret_seed=seed)
            scores = x @ result.params.double()
            losses = torch.nn.functional.softplus(-(2 * y - 1) * scores)
            gap = float(losses[x[:, -1] == 1].mean() - losses[x[:, -1] == 0].mean())
            accuracy = float(((scores > 0) == (y == 1)).double().mean())
            estimate = np.array(result.measures["constraint_estimates"])[:, 0].mean() + bound
            found.append((100 * accuracy, gap, estimate, result.spent.epsilon))
        mean, spread = np.mean(found, 0), np.std(found, 0)
        cells = f"{mean[0]:.2f} ± {spread[0]:.2f} %", f"{mean[1]:.3f} ± {spread[1]:.3f}", f"{mean[2]:.3f}"
        row(epsilon, "none" if bound > 1 else bound, *cells, f"{mean[3]:.3f}")
        curves.setdefault(epsilon, []).append((float(mean[1]), float(mean[0])))
    if args.picture:
        draw_trade_off(curves, args.picture)


def private_neyman_pearson(args: argparse.Namespace) -> None:
    """Neyman-Pearson on Adult: mean losses of both classes, and the statement that a client may make about its own."""
    split, n, rounds, bound = load("adult"), args.clients[0], 120, 0.2
    problem = fp.Problem(fp.class_loss(0, 0.751), (fp.ClassLossAtMost(1, bound, 0.249),))
    for epsilon in args.epsilon:
        privacy = fp.Privacy(epsilon=epsilon, clip=fp.Clip(16.0), statistics=fp.Statistics(3.0, 0.3))
        found = []
        for seed in range(args.seeds):
            strategy = fp.private_al(beta=1.0, max_multiplier=8.0, learning_rate=4.0)
            clients = clients_of(split, n, "stratified", problem)
            result = fp.train(clients, strategy, privacy, rounds=rounds, seed=seed, secret_seed=seed)
            losses = [class_losses(part, result.params.double()) for part in (split.test, split.train)]
            estimate = np.array(result.measures["constraint_estimates"]).mean() + bound
            width = result.measures["constraint_confidence"]["half_width"][0][0]
            found.append((losses[0][0], losses[0][1], losses[1][1], estimate, width, result.spent.epsilon))
        mean, spread = np.mean(found, 0), np.std(found, 0)
        cells = (f"{m:.3f} ± {s:.3f}" for m, s in zip(mean[:4], spread[:4], strict=True))
        row(epsilon, *cells, f"{mean[4]:.3f}", f"{mean[5]:.3f}")


def class_losses(data: TensorDataset, w: torch.Tensor) -> tuple[float, float]:
    x, y = data.tensors
    losses = torch.nn.functional.softplus(-(2 * y - 1) * (x @ w))
    return float(losses[y == 0].mean()), float(losses[y == 1].mean())


def draw_trade_off(curves: dict[float, list[tuple[float, float]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for epsilon, points in curves.items():
        gaps, accuracies = zip(*sorted(points), strict=True)
        axes.plot(gaps, accuracies, "o-", label=f"epsilon {epsilon:g}")
    axes.set(xlabel="loss gap on the test data", ylabel="test accuracy, %")
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("np", "fairness", "private", "private_np", "qp"))
    parser.add_argument("--data", default="breast_cancer", choices=("breast_cancer", "adult", "monks"))
    parser.add_argument("--clients", type=int, nargs="+", default=[5])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0])
    parser.add_argument("--rho", type=float, help="summed over clients (np, fairness)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dim", type=int, nargs="+", default=[100, 300, 500])
    parser.add_argument("--rows", type=int, default=2, help="constraints of each client of a quadratic program")
    parser.add_argument("--rounds", type=int, default=20_000, help="at most (np, fairness, qp)")
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    header = {"private": PRIVATE, "private_np": PRIVATE_NP}.get(args.what, HEADER)
    row(*header)
    row(*("---" for _ in header))
    commands = {"np": neyman_pearson, "fairness": fairness, "private": private, "qp": quadratic}
    (commands | {"private_np": private_neyman_pearson})[args.what](args)


if __name__ == "__main__":
    main()
