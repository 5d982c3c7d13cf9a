"""Optimality gap against gradient evaluations and time at equal true epsilon: DP-SVRG, DP-SVRG++, DP-GD, DP-SGD.

    FEDPRIV_DATA=... python benchmarks/reproduce/covertype.py [--quick] [--examples N] [--out FOLDER]

The experiment of Wang, Ye, Xu (2017, appendix A) on Covertype (class 2 against the rest, logistic loss, rows of norm 1,
delta 1e-3), with noise calibrated to the whole run: privacy unit sample, replace-one, one owner. DP-SGD is DP-GD on
Poisson batches with the late iterates averaged; DP-GD with momentum is Nesterov's method on private gradients. Rows of
the table are means over seeds; the optimum is computed by scipy. With `--out` the gap during one run of each method is
drawn to `covertype.png`. `--quick` runs one seed, and epsilon 1 only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.optimize import minimize

import fedpriv as fp
from fedpriv.algorithms.svrg import AnchorBudget, Epochs, svrg
from fedpriv.data import Split, load
from fedpriv.models import LogisticRegression, resolve_loss
from fedpriv.strategies.erm import gradient_descent
from fedpriv.strategies.proximal import L2, Proximal, Zero

mpl.use("Agg")
Gap = Callable[[np.ndarray], float]
LAMBDAS = (1e-2, 0.0)
EPSILONS = (0.2, 0.5, 1.0)
BASE = fp.Privacy(epsilon=1.0, delta=1e-3)


@dataclass(frozen=True)
class Problem:
    """Mean logistic loss plus `lam/2 ||w||^2` on rows `x [n, d]` with signs `s [n]`."""

    x: np.ndarray
    s: np.ndarray
    lam: float

    def objective(self, w: np.ndarray) -> float:
        """Returns the objective."""
        return float(np.logaddexp(0, -self.s * (self.x @ w)).mean() + self.lam / 2 * w @ w)

    def gradient(self, w: np.ndarray) -> np.ndarray:
        """Returns the gradient."""
        slopes = -self.s / (1 + np.exp(self.s * (self.x @ w)))
        return self.x.T @ slopes / len(self.x) + self.lam * w

    def gap(self, w: np.ndarray) -> float:
        """Returns the difference of the objective from its minimum."""
        return self.objective(w) - self.optimum

    @cached_property
    def optimum(self) -> float:
        """Minimum of the objective, by L-BFGS in float64."""
        options = {"maxiter": 400, "ftol": 1e-13, "gtol": 1e-9}
        start = np.zeros(self.x.shape[1])
        return float(minimize(self.objective, start, jac=self.gradient, method="L-BFGS-B", options=options).fun)


@dataclass(frozen=True)
class Contender:
    """A method with its settings; `privacy` is without a target."""

    name: str
    strategy: fp.Strategy
    rounds: int
    privacy: fp.Privacy = BASE


@dataclass(frozen=True)
class Run:
    """The gap along one run, with the gradient evaluations (over the number of examples) and seconds so far."""

    gaps: list[float]
    evaluations: list[float]
    seconds: list[float]
    accuracy: float
    planned: fp.Privacy


def contenders(h: Proximal) -> list[Contender]:
    """Returns the best settings that were found for each method, the same for every epsilon."""
    drawn = replace(BASE, sampling=fp.Poisson(0.02))
    if isinstance(h, L2):
        return [
            Contender("DP-GD, 80 steps", gradient_descent(4.0, h), 80),
            Contender("DP-GD, momentum .7, 20 steps", gradient_descent(4.0, h, momentum=0.7), 20),
            Contender("DP-SGD, 400 steps", gradient_descent(1.0, h, average=3), 400, drawn),
            reduced("DP-SVRG, 8 epochs of 20", 3.0, Epochs(20), 8, h),
            reduced("DP-SVRG++, 6 epochs from 4", 2.0, Epochs(2, True), 6, h),
            reduced("DP-SVRG, bounds 2 G", 3.0, Epochs(20), 8, h, smoothness=None),
        ]
    return [
        Contender("DP-GD, 100 steps", gradient_descent(8.0, h), 100),
        Contender("DP-GD, momentum .95, 100 steps", gradient_descent(4.0, h, momentum=0.95), 100),
        Contender("DP-SGD, 400 steps", gradient_descent(8.0, h, average=3), 400, drawn),
        reduced("DP-SVRG, 20 epochs of 5", 8.0, Epochs(5), 20, h),
        reduced("DP-SVRG++, 5 epochs from 6", 4.0, Epochs(3, True), 5, h),
    ]


def reduced(
    name: str, step: float, epochs: Epochs, count: int, h: Proximal, smoothness: float | None = 0.25
) -> Contender:
    """DP-SVRG or DP-SVRG++."""
    strategy = svrg(step, epochs.length, h, smoothness=smoothness, doubling=epochs.doubling)
    privacy = replace(BASE, sampling=fp.Poisson(0.05), schedule=AnchorBudget(epochs, 2.0))
    return Contender(name, strategy, epochs.rounds(count), privacy)


def measure(
    split: Split, contender: Contender, privacy: fp.Privacy, gap: Callable[[np.ndarray], float], seed: int
) -> Run:
    """Performs one run with about thirty evaluations, which are not included in the time."""
    clients = fp.make_clients(LogisticRegression(55), resolve_loss("logistic"), [split.train])
    compute = fp.Compute(device="cpu", max_physical_batch_size=131072)
    training = fp.Training(
        clients,
        contender.strategy,
        privacy,
        rounds=contender.rounds,
        seed=seed,
        secret_seed=seed,
        evaluate_every=10**6,
        compute=compute,
    )
    values, evaluations, seconds, spent = [], [], [], 0.0
    start = time.process_time()
    for report in training:
        spent += time.process_time() - start
        if report.round % max(1, contender.rounds // 30) == 0 or report.round == contender.rounds:
            values.append(gap(training.progress.models[0].double().numpy()))
            evaluations.append(sum(training.plan.evaluations[: report.round]) / len(split.train))
            seconds.append(spent)
        start = time.process_time()
    x, y = split.test.tensors
    accuracy = float(((x @ training.progress.models[0] > 0) == y).double().mean())
    return Run(values, evaluations, seconds, accuracy, training.plan.privacy)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", metavar="WORD", help="methods whose name begins with it")
    parser.add_argument("--examples", type=int, default=80_000, help="rows to train on")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    split = load("covertype", n_train=options.examples)
    x, y = split.train.tensors
    inputs, signs = x.double().numpy(), 2.0 * y.numpy() - 1
    print("| lambda | epsilon | method | gap | gradient evaluations / n | seconds | test accuracy |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    curves: dict[tuple[float, float], dict[str, Run]] = {}
    for lam in LAMBDAS:
        problem = Problem(inputs, signs, lam)
        for epsilon in EPSILONS[-1:] if options.quick else EPSILONS:
            curves[lam, epsilon] = {}
            for contender in contenders(L2(lam) if lam else Zero()):
                if not contender.name.startswith(options.only):
                    continue
                runs, privacy = [], replace(contender.privacy, epsilon=epsilon)
                for seed in range(1 if options.quick else 3):
                    runs.append(measure(split, contender, privacy, problem.gap, seed))
                    privacy = replace(runs[0].planned, epsilon=None)  # the noise is known now
                curves[lam, epsilon][contender.name] = runs[0]
                print(f"| {lam:g} | {epsilon:g} | {contender.name} | {row(runs)} |", flush=True)
    if options.out:
        draw(curves, options.out / "covertype.png")


def row(runs: list[Run]) -> str:
    """Means over seeds."""
    gap, seconds = np.mean([run.gaps[-1] for run in runs]), np.mean([run.seconds[-1] for run in runs])
    accuracy = np.mean([run.accuracy for run in runs])
    return f"{gap:.1e} | {runs[0].evaluations[-1]:.1f} | {seconds:.1f} | {accuracy:.1%}"


def draw(curves: dict[tuple[float, float], dict[str, Run]], path: Path) -> None:
    """Gap against evaluations and against time: a column for each epsilon, a legend below for each lambda."""
    width = len(curves) // len(LAMBDAS)
    figure = Figure(figsize=(3.2 * len(curves), 7), layout="constrained")
    for lam, part in zip(LAMBDAS, figure.subfigures(1, len(LAMBDAS)), strict=True):
        panels = part.subplots(2, width, sharey=True, squeeze=False)
        for column, epsilon in enumerate(epsilon for known, epsilon in curves if known == lam):
            upper, lower = panels[:, column]
            for name, run in curves[lam, epsilon].items():
                for panel, cost in ((upper, run.evaluations), (lower, run.seconds)):
                    panel.loglog(cost, run.gaps, label=name, linestyle=":" if "2 G" in name else "-")
            upper.set(title=f"lambda {lam:g}, epsilon {epsilon:g}", xlabel="gradient evaluations / n", ylim=(1e-5, 1))
            lower.set(xlabel="seconds", ylim=(1e-5, 1))
            upper.grid(alpha=0.3)
            lower.grid(alpha=0.3)
        for panel in panels[:, 0]:
            panel.set_ylabel("optimality gap")
        part.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=width)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
