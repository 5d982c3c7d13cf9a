"""Accuracy against epsilon of gradient tracking on MNIST: random graphs and rings of 50 and 100 agents, and a star.

    FEDPRIV_DATA=<folder with mnist/> python benchmarks/reproduce/mnist_tracking.py [--quick] [--out DIR]

Figure 10 of Xie, Liu and Chai (2025) at a true epsilon: `configs/mnist_cnn_tracking.yaml`, sample level, replace-one,
delta 1e-5, local trust. Every cell is a run in a folder of `--out`. A finished cell is not run again, and an
interrupted one is resumed. A ring mixes slowly, so it exchanges a hundred times per round; the exchanged values were
released before, so this has no privacy cost. Writes a table and a picture.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

CONFIG = Path(__file__).parents[2] / "configs" / "mnist_cnn_tracking.yaml"
# an l2 step that suits epsilon 3 is dominated by noise at epsilon 1
BUDGETS = {
    1.0: ("rounds=100", "strategy.step_size.scale=0.5", "strategy.beta=0.2", "strategy.average=6"),
    3.0: (),
    8.0: (),
}
NETWORKS = {
    "Erdos-Renyi": (),
    "ring": ("network.topology=ring", "network.mixing_steps=100"),
    # one model for all: its late iterates are averaged, and a shorter step leaves less noise in them
    "star": ("network.topology=star", "network.mixing_steps=1", "strategy.step_size.scale=0.7", "strategy.average=8"),
}


@dataclass(frozen=True)
class Cell:
    """One run."""

    network: str
    agents: int
    epsilon: float

    def overrides(self, quick: bool) -> list[str]:
        """Settings that differ from the configuration's."""
        settings = [f"data.partition.n_clients={self.agents}", f"privacy.epsilon={self.epsilon:g}"]
        short = ["rounds=20", "log.evaluate_every=20"] if quick else []
        return [*settings, *NETWORKS[self.network], *BUDGETS[self.epsilon], *short]

    def result(self, out: Path, quick: bool) -> dict[str, float]:
        """Trains, resumes, or reads the finished run."""
        folder = out / f"{self.network.lower()}-{self.agents}-{self.epsilon:g}"
        command = [sys.executable, "-m", "fedpriv"]
        if not (folder / "result.json").exists():
            started = (folder / "checkpoint.pt").exists()
            what = ["resume", str(folder)] if started else ["train", str(CONFIG), *self.overrides(quick)]
            subprocess.run(
                [*command, *what, *([] if started else ["--out", str(folder)])], check=True, stdout=sys.stderr
            )
        return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def main() -> None:
    """Runs all cells, prints and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 rounds, which is far from the end")
    parser.add_argument("--agents", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(BUDGETS), choices=list(BUDGETS))
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--out", type=Path, default=Path("runs/mnist_tracking"))
    arguments = parser.parse_args()
    table = Table("network", "agents", "epsilon (true)", "rounds", "test accuracy %", "nodes' %", "apart")
    measured: dict[Cell, float] = {}
    cells = [Cell(w, n, e) for w in arguments.networks for n in arguments.agents for e in arguments.epsilons]
    for cell in cells:
        found = cell.result(arguments.out, arguments.quick)
        measured[cell] = 100 * found["test_accuracy"]
        table.add_row(cell.network, str(cell.agents), f"{found['epsilon']:.3f}", *_shown(found))
    Console(width=110).print(table)
    draw(measured, arguments.out / "mnist_tracking.png")


def _shown(found: dict[str, object]) -> list[str]:
    nodes = found.get("node_test_accuracy")
    each = f"{100 * nodes['min']:.1f} to {100 * nodes['max']:.1f}" if isinstance(nodes, dict) else "one model"
    apart = found.get("consensus_distance", 0.0)
    return [str(found["rounds"]), f"{100 * float(str(found['test_accuracy'])):.2f}", each, f"{apart:.3g}"]


def draw(measured: dict[Cell, float], path: Path) -> None:
    """Accuracy against epsilon, a line for each network and number of agents."""
    figure = Figure(figsize=(6.4, 4), dpi=150, layout="constrained")
    axes = figure.subplots()
    colours = dict(zip(NETWORKS, ("#0072B2", "#D55E00", "#009E73"), strict=True))
    for network, agents in sorted({(cell.network, cell.agents) for cell in measured}):
        points = sorted((c.epsilon, a) for c, a in measured.items() if (c.network, c.agents) == (network, agents))
        style = "o-" if agents == max(c.agents for c in measured) else "s--"
        axes.plot(*zip(*points, strict=True), style, color=colours[network], label=f"{network}, {agents} agents")
    axes.set(xscale="log", xlabel="true epsilon of an example (replace-one, delta 1e-5)", ylabel="test accuracy %")
    axes.set_xticks([1, 3, 8], ["1", "3", "8"])
    axes.minorticks_off()
    axes.grid(color="#E6E8EB")
    axes.legend(frameon=False, fontsize=8)
    axes.set_title("MNIST, CNN, gradient tracking, nobody trusted", loc="left", fontsize=10)
    figure.savefig(path)


if __name__ == "__main__":
    main()
