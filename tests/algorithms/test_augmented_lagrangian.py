"""The exact augmented Lagrangian against known optima, independent solvers and its own certificates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.utils.data import Subset, TensorDataset

import fedpriv as fp
from fedpriv.data import labels_of, load, partition
from fedpriv.evaluation.constrained.centralised import centralised_al
from fedpriv.evaluation.constrained.optimality import kkt
from fedpriv.models import LogisticRegression, resolve_loss
from fedpriv.strategies.proximal import L1, Ball
from fedpriv.strategies.solvers import Newton, Quadratic

FLOAT64 = fp.Compute(dtype="float64", device="cpu")
NEYMAN_PEARSON = fp.Problem(fp.class_loss(0), (fp.ClassLossAtMost(1, 0.2),))
EXACT = fp.Privacy(noise_on="none")
TIGHT = fp.Outer(beta=300.0, tolerance=1e-4, stationarity=1e-4, feasibility=1e-6)


def run_to_json(training: fp.Training) -> dict:
    list(training)
    return training.result().to_json()


def wdbc(
    n_clients: int, strategy: fp.Strategy, rounds: int = 3000, *, privacy: fp.Privacy = EXACT, compare: bool = False
) -> fp.Training:
    """Mean texture, smoothness and symmetry, and a constant."""
    train = load("breast_cancer", variant="diagnostic", features=[1, 4, 8], protocol="paper").train
    parts = partition("stratified", labels_of(train), n_clients, torch.Generator().manual_seed(0))
    sets = [Subset(train, part.tolist()) for part in parts]
    clients = fp.make_clients(LogisticRegression(4), resolve_loss("logistic"), sets, NEYMAN_PEARSON)
    return fp.Training(clients, strategy, privacy, rounds=rounds, compute=FLOAT64, compare_centralized=compare)


def test_neyman_pearson_known_optimum() -> None:
    training = wdbc(1, fp.proximal_al(TIGHT, 0.01, solver=Newton()))
    result = run_to_json(training)
    assert result["converged"]
    assert result["objective"] == pytest.approx(0.99125188, abs=1e-3)
    assert result["multipliers"][0][0] == pytest.approx(3.20, abs=1e-2)
    assert result["max_violation"] < 1e-5
    np.testing.assert_allclose(training.result().params, [1.401, 0.8965, 0.46305, 0.92702], atol=2e-3)


def test_three_clients_optimum_equals_scipy() -> None:
    training = wdbc(3, fp.proximal_al(TIGHT, 0.3, solver=Newton()), compare=True)
    result = run_to_json(training)
    parts = [[t.double().numpy() for t in client.examples()] for client in training.population.clients]

    def loss(w: np.ndarray, part: list[np.ndarray], label: int) -> float:
        x, y = part
        return float(np.logaddexp(0, -(2 * label - 1) * (x[y == label] @ w)).mean())

    best = minimize(
        lambda w: np.mean([loss(w, part, 0) for part in parts]),
        np.zeros(4),
        method="SLSQP",
        constraints=[{"type": "ineq", "fun": lambda w, part=part: 0.2 - loss(w, part, 1)} for part in parts],
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert best.success
    assert result["converged"]
    assert result["objective"] == pytest.approx(best.fun, rel=1e-3)
    assert result["max_violation"] < 1e-3
    assert result["relative_difference"] < 1e-3


def test_client_penalties_same_optimum_and_equal_ones_same_path() -> None:
    one, equal, different = (
        wdbc(3, fp.proximal_al(TIGHT, 0.3, solver=Newton(), client_rho=penalties))
        for penalties in (None, (0.3, 0.3, 0.3), [0.1, 0.3, 0.9])
    )
    first, second, third = (run_to_json(training) for training in (one, equal, different))
    assert first["rounds"] == second["rounds"] != third["rounds"]
    np.testing.assert_allclose(second["objective"], first["objective"], rtol=1e-9)
    assert third["converged"]
    assert third["objective"] == pytest.approx(first["objective"], rel=1e-3)


@pytest.mark.parametrize("penalties", [(0.1,), (0.1, 0.3), (0.1, 0.3, 0.9, 0.1)])
def test_client_penalties_other_number_than_clients_raises(penalties) -> None:
    with pytest.raises(fp.ConfigError, match=r"strategy.client_rho = .* has .*the run has 3 clients: list one"):
        run_to_json(wdbc(3, fp.proximal_al(TIGHT, 0.3, solver=Newton(), client_rho=penalties)))


@pytest.mark.parametrize("penalties", [(0.1, -1.0), (float("nan"),), ("0.1",)])
def test_client_penalty_not_positive_raises(penalties) -> None:
    with pytest.raises(fp.ConfigError, match="positive, finite numbers"):
        fp.proximal_al(client_rho=penalties)


def quadratic_run(dim: int, n: int, m: int, seed: int) -> tuple[fp.Training, np.ndarray, np.ndarray]:
    """The paper's random programs (appendix E.2), a server with constraints of its own included; and their solution."""
    rng = np.random.default_rng(seed)

    def sphere(size: int) -> np.ndarray:
        v = rng.normal(size=size)
        return v / np.linalg.norm(v)

    problems, total, linear, rows, offsets = [], np.zeros((dim, dim)), np.zeros(dim), [], []
    for i in range(n + 1):
        c, d = rng.normal(scale=dim**-0.5, size=(m, dim)), sphere(m)
        rows.append(c)
        offsets.append(d)
        line = fp.LinearEquality(torch.tensor(c), torch.tensor(d))
        if i == n:
            problems.append(fp.Problem(None, (line,)))
            continue
        u = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
        a, b = u @ np.diag(rng.uniform(0.5, 1, dim)) @ u.T, sphere(dim)
        total, linear = total + a / n, linear + b / n
        problems.append(fp.Problem(_quadratic(torch.tensor(a), torch.tensor(b)), (line,)))
    nothing = TensorDataset(torch.zeros(1, dim), torch.zeros(1))
    model = torch.nn.Linear(dim, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    clients = [fp.make_clients(model, torch.nn.MSELoss(), [nothing], problem)[0] for problem in problems]
    strategy = fp.proximal_al(fp.Outer(10.0, 1e-1, 1e-4, 1e-5), 1.0, solver=Quadratic())
    training = fp.Training(
        clients, strategy, fp.Privacy(noise_on="none"), rounds=3000, compute=FLOAT64, compare_centralized=True
    )
    c, d = np.concatenate(rows), np.concatenate(offsets)
    system = np.block([[total, c.T], [c, np.zeros((len(c), len(c)))]])
    solution = np.linalg.solve(system, -np.concatenate([linear, d]))
    return training, solution[:dim], solution[dim:]


def _quadratic(a: torch.Tensor, b: torch.Tensor) -> fp.Function:
    return fp.Function(lambda model, x, y: (model.params @ a @ model.params / 2 + b @ model.params).view(1))


@pytest.mark.parametrize(("n", "m"), [(1, 1), (4, 2)])
def test_quadratic_program_equals_linear_system(n: int, m: int) -> None:
    training, w, multipliers = quadratic_run(20, n, m, seed=n)
    result = run_to_json(training)
    assert result["converged"]
    np.testing.assert_allclose(training.result().params, w, atol=1e-3)
    np.testing.assert_allclose(np.concatenate(result["multipliers"]), multipliers, atol=1e-3)
    assert result["relative_difference"] < 1e-3
    central = centralised_al(training.oracle.engine.problem, torch.zeros(20, dtype=torch.float64))
    np.testing.assert_allclose(central.params, w, atol=1e-3)


def test_capped_inner_rounds_not_converged() -> None:
    """Few inner rounds: whatever the run then says must agree with scipy's view of its point."""
    loose = fp.Outer(300.0, tolerance=1e-3, stationarity=0.05, feasibility=1.0)  # the outer rule alone would stop
    training = wdbc(3, fp.proximal_al(loose, 0.3, solver=Newton(), inner_rounds=2), rounds=30)
    result = run_to_json(training)
    assert result["status"] == "round limit"
    assert not result["converged"]
    w = training.result().params.numpy()
    parts = [[t.double().numpy() for t in client.examples()] for client in training.population.clients]
    slope, worst = np.zeros(4), 0.0
    for (x, y), (mu,) in zip(parts, result["multipliers"], strict=True):
        for label, weight in ((0, 1 / 3), (1, mu)):
            chosen, sign = x[y == label], 2 * label - 1
            slope += weight * (-sign / (1 + np.exp(sign * (chosen @ w))) @ chosen) / len(chosen)
        worst = max(worst, float(np.logaddexp(0, -(x[y == 1] @ w)).mean() - 0.2))
    assert result["kkt"]["stationarity"] == pytest.approx(np.abs(slope).max(), abs=1e-9)
    assert result["max_violation"] == pytest.approx(max(worst, 0), abs=1e-9)
    assert max(result["kkt"].values()) > 1e-2


def test_reported_metrics_at_broadcast_point() -> None:
    """Also in inner rounds; stationarity is an upper bound, and omitted while it is unknown."""
    training = wdbc(3, fp.proximal_al(fp.Outer(300.0), 0.3, solver=Newton()), rounds=30)
    problem, before, reports = training.oracle.engine.problem, training.progress, []
    for report in training:
        w, shown = before.received[0, :-2], report.metrics
        values = problem(w.expand(3, -1))[1].detach()
        found = kkt(problem, w, (before.local.multipliers + 300 * values).clamp_min(0))
        assert shown["objective"] == pytest.approx(found.objective, abs=1e-12)
        assert shown["violation"] == pytest.approx(found.feasibility, abs=1e-12)
        assert shown["complementarity"] == pytest.approx(found.complementarity, abs=1e-9)
        assert shown.get("stationarity", np.inf) >= found.stationarity - 1e-9
        before = training.progress
        reports.append(shown)
    assert "stationarity" not in reports[0]
    assert len({shown["objective"] for shown in reports}) > 20


def test_unconstrained_l1_gives_soft_threshold() -> None:
    """Mean of `(w0 - 1)^2 / 2 + (w1 - 0.1)^2 / 2` and `.2 ||w||_1`: soft thresholds, (.8, 0)."""
    goal = torch.tensor([1.0, 0.1], dtype=torch.float64)
    objective = fp.Function(lambda model, x, y: ((model.params - goal).square().sum() / 2).view(1))
    nothing = TensorDataset(torch.zeros(1, 2), torch.zeros(1))
    model = torch.nn.Linear(2, 1, bias=False)
    clients = fp.make_clients(model, torch.nn.MSELoss(), [nothing] * 3, fp.Problem(objective))
    strategy = fp.proximal_al(fp.Outer(10.0, 1e-3, 1e-4, 1e-4), 0.3, regularizer=L1(0.2), solver=Quadratic())
    training = fp.Training(clients, strategy, fp.Privacy(noise_on="none"), rounds=1000, compute=FLOAT64)
    result = run_to_json(training)
    assert result["converged"]
    assert result["kkt"]["stationarity"] < 1e-3
    w = training.result().params
    np.testing.assert_allclose(w, [0.8, 0.0], atol=1e-3)
    assert w[1] == 0


def test_compare_unsupported_run_raises() -> None:
    for strategy, privacy, message in (
        (
            fp.proximal_al(regularizer=Ball(0.3)),
            fp.Privacy(noise_on="none"),
            r"but the strategy has Ball\(radius=0\.3\)",
        ),
        (
            fp.private_al(),
            fp.Privacy(epsilon=1, statistics=fp.Statistics(public_counts=True)),
            "only a run of proximal_al without noise",
        ),
        (fp.inexact_admm(), fp.Privacy(epsilon=1), "only a run of proximal_al without noise"),
    ):
        with pytest.raises(fp.ConfigError, match=rf"problem\.compare_centralized = True.*{message}"):
            wdbc(2, strategy, 3, privacy=privacy, compare=True)


def test_centralised_starts_at_model_of_run() -> None:
    """A network with only zeros but a last bias cannot move: it would end at log 2, the loss of a fair coin."""
    torch.manual_seed(0)
    x = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]], dtype=torch.float64)
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    sets = [TensorDataset(x, torch.tensor([0, 1, 1, 0]))]
    clients = fp.make_clients(model, resolve_loss("logistic"), sets, fp.Problem(constraints=(fp.LossAtMost(0.3),)))
    training = fp.Training(
        clients,
        fp.proximal_al(rho=0.1),
        fp.Privacy(noise_on="none"),
        rounds=3,
        compute=FLOAT64,
        compare_centralized=True,
    )
    assert run_to_json(training)["centralised"]["objective"] < 0.3 + 1e-3


def test_resumed_run_equals_uninterrupted(tmp_path) -> None:
    whole = run_to_json(wdbc(2, fp.proximal_al(fp.Outer(300.0), 0.3, solver=Newton()), rounds=12))

    def part(rounds: int, *, resume: bool) -> fp.Training:
        fresh = wdbc(2, fp.proximal_al(fp.Outer(300.0), 0.3, solver=Newton()), rounds=12)
        return fp.Training(
            fp.make_clients(
                fresh.population.model,
                fresh.population.loss,
                [c.loader.dataset for c in fresh.population.clients],
                NEYMAN_PEARSON,
            ),
            fresh.strategy,
            fp.Privacy(noise_on="none"),
            rounds=12,
            compute=FLOAT64,
            folder=tmp_path,
            checkpoint_every=5,
            resume=resume,
        )

    for report in part(12, resume=False):
        if report.round == 7:
            break
    resumed = run_to_json(part(12, resume=True))
    assert resumed["params_l2"] == whole["params_l2"]
    assert resumed["multipliers"] == whole["multipliers"]


def test_bytes_sent_counts_all_numbers() -> None:
    """Down: w, the phase and the tolerance; up: the shifted primal and five numbers; of eight bytes."""
    result = run_to_json(wdbc(3, fp.proximal_al(fp.Outer(300.0), 0.3, solver=Newton()), rounds=7))
    assert result["bytes_sent"] == 7 * 3 * ((4 + 2) + (4 + 5)) * 8
