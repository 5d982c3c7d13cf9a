"""Inexact ADMM on MNIST: the sound default compared with the published variant, at the same total epsilon.

    FEDPRIV_DATA=<folder with mnist/> python benchmarks/reproduce/mnist_iadmm.py [--seeds 3] [--quick]

The published variant has no epsilon at all, since its noise scale is measured on the data. To its advantage,
`epsilon_bar` is chosen so that its Laplace noise would have the same total cost over the run if its scale were a public
bound. Writes a table and a picture into `--out`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from rich.console import Console
from rich.table import Table

from fedpriv.config import build, load_config
from fedpriv.privacy.accounting.calibration import calibrate
from fedpriv.privacy.record import Record

CONFIGS = Path(__file__).parents[2] / "configs"
PLAIN = "data.transforms=[center,unit]"
LOW_BUDGET = ("rounds=60", "strategy.rho.scale=4.3e-4", "strategy.eta.scale=582")
DELTA = 1e-5


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    method: str
    epsilon: float
    total: str
    rounds: int
    config: str
    overrides: tuple[str, ...]


def epsilon_bar(total: float, rounds: int) -> float:
    """Returns the paper's per-round epsilon that composes to `total` over `rounds`, if its scale were a bound."""
    plan = [Record(k, "gradient", 0, "laplace", 1.0, "sample", "add_remove", norm="l1") for k in range(rounds)]
    return 1 / calibrate(plan, 1, total, DELTA)


def rows(quick: bool) -> list[Row]:
    """Returns the comparison. Published rounds: as many as the sound run, and the paper's order of magnitude."""
    found: list[Row] = []
    for total in (1.0, 3.0):
        budget = f"privacy.epsilon={total}"
        low = LOW_BUDGET if total == 1 else ()
        rounds = 60 if total == 1 else 100
        found.append(Row("sound, deskewed", total, "true", rounds, "mnist_iadmm.yaml", (budget, *low)))
        plain = (budget, *low, PLAIN) if total == 1 else (budget, PLAIN, "rounds=60", "strategy.rho.scale=2e-4")
        found.append(Row("sound, plain pixels", total, "true", 60, "mnist_iadmm.yaml", plain))
        for length in (rounds,) if quick else (rounds, 1000):
            bar = epsilon_bar(total, length)
            options = (f"privacy.epsilon_bar={bar}", f"rounds={length}", "log.evaluate_every=1000")
            name = f"published, eps_bar={bar:.3g}"
            found.append(Row(name, total, "if its scale were a bound", length, "mnist_published.yaml", options))
    return found


def accuracies(row: Row, seeds: int) -> list[float]:
    """Test accuracy in percent for each seed."""
    found: list[float] = []
    for seed in range(seeds):
        config = load_config(CONFIGS / row.config, (*row.overrides, f"seed={seed}", f"secret_seed={seed}"))
        training = build(config)
        for _ in training:
            pass
        result = training.result()
        assert result.rounds == row.rounds, result
        found.append(100 * (result.test_accuracy or 0.0))
    return found


def main() -> None:
    """Prints the table and draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="leave out the long published runs")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    table = Table("method", "epsilon (delta=1e-5)", "which is", "rounds", "test accuracy %", "sd")
    measured: list[tuple[Row, list[float]]] = []
    for row in rows(arguments.quick):
        found = accuracies(row, arguments.seeds)
        measured.append((row, found))
        spread = statistics.stdev(found) if len(found) > 1 else 0.0
        mean = statistics.mean(found)
        table.add_row(row.method, f"{row.epsilon:g}", row.total, str(row.rounds), f"{mean:.2f}", f"{spread:.2f}")
        Console(stderr=True).print(row.method, row.epsilon, row.rounds, found)
    Console(width=120).print(table)
    lines = [{"method": r.method, "epsilon": r.epsilon, "rounds": r.rounds, "test_accuracy": a} for r, a in measured]
    (arguments.out / "mnist_iadmm.json").write_text(json.dumps(lines, indent=1))
    draw(measured, arguments.out / "mnist_iadmm.png")


def draw(measured: list[tuple[Row, list[float]]], path: Path) -> None:
    """Bars of mean accuracy, one group for each total epsilon."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharex=True, layout="constrained")
    for axis, total in zip(axes, (1.0, 3.0), strict=True):
        shown = [(r, a) for r, a in measured if r.epsilon == total][::-1]
        names = [f"{r.method}\n{r.rounds} rounds" for r, _ in shown]
        colours = ["#0072B2" if r.total == "true" else "#D55E00" for r, _ in shown]
        bars = axis.barh(names, [statistics.mean(a) for _, a in shown], color=colours)
        axis.bar_label(bars, fmt="%.1f", padding=3)
        axis.set(title=f"total epsilon {total:g}, delta 1e-5", xlabel="test accuracy %", xlim=(0, 105))
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
