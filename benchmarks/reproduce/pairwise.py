"""Test accuracy with noise that cancels between pairs of clients, against local noise and secure aggregation.

    python benchmarks/reproduce/pairwise.py [--quick] [--data mnist] [--out DIR]

Softmax regression, privacy unit sample, replace-one, delta 1e-5, at equal true epsilon: federated gradient descent and
inexact ADMM on a star; gradient tracking, D-PSGD and dual averaging on a star, an Erdos-Renyi graph and a ring; 10, 50
and 100 agents; 1, n/10 and n/3 colluders, all pairs share secrets. Settings were chosen once for each strategy, with
little noise, and not changed: they are not the best for local noise. Secure aggregation is used for the two strategies
in which a server adds up messages. Every cell is a mean over `--seeds`; finished runs are kept in `--out` and not
repeated. Writes a table and a picture. `--data mnist` uses MNIST's plain pixels (`FEDPRIV_DATA=<folder with mnist/>`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedpriv.config import load_config
from fedpriv.config.building import build

mpl.use("Agg")
CONFIG = Path(__file__).parents[2] / "configs" / "digits_iadmm.yaml"
DATA = {
    "digits": "data={name: digits, transforms: [center, unit]}",
    "mnist": "data={name: mnist, flat: true, transforms: [unit]}",
}
ROUNDS = {1: 20, 3: 40, 8: 60}
STAR = {
    "gradient descent": "fedavg, learning_rate: 60, average: 2",
    "inexact ADMM": "iadmm_prox, linearize_at: received, rho: {scale: 6.25e-3}, eta: {scale: 68.6, power: 0}",
}
EVERYWHERE = {
    "gradient tracking": "gradient_tracking, step_size: {scale: 60}, gradient_at: mixed, average: 2",
    "D-PSGD": "decentralized_sgd, step_size: {scale: 60}, average: 2",
    "dual averaging": "dual_averaging, regularizer: {l2: {lam: 2.0e-3}}",
}
EDGES = {10: 0.5, 50: 0.2, 100: 0.1}  # probability of an edge of the random graph
NETWORKS = {
    "star": "network={{topology: star}}",
    "random graph": "network={{topology: {{name: erdos_renyi, p: {p}, seed: 0}}, mixing_steps: 10}}",
    "ring": "network={{topology: ring, mixing_steps: {n}}}",
}
TRUSTS = ("local", "pairs, n/3 collude", "pairs, n/10 collude", "pairs, 1 colludes", "secure aggregation")


@dataclass(frozen=True)
class Cell:
    """A setting of the comparison."""

    strategy: str
    network: str
    agents: int
    epsilon: int
    trust: str

    def overrides(self, data: str, seed: int) -> list[str]:
        """Returns the settings that differ from the configuration."""
        network = NETWORKS[self.network].format(p=EDGES[self.agents], n=self.agents)
        partition = f"data.partition={{kind: iid, n_clients: {self.agents}}}"
        strategy = f"strategy={{name: {(STAR | EVERYWHERE)[self.strategy]}}}"
        amount = [f"privacy.epsilon={self.epsilon}", f"rounds={ROUNDS[self.epsilon]}", f"privacy.trust={self._trust()}"]
        quiet = "log={evaluate_every: 1000, stop_on: nothing}"
        return [DATA[data], partition, strategy, network, *amount, quiet, f"seed={seed}"]

    def _trust(self) -> str:
        colluders = {TRUSTS[1]: self.agents // 3, TRUSTS[2]: self.agents // 10, TRUSTS[3]: 1}
        if self.trust in colluders:
            ratio = 3 if self.network == "star" else 1
            return f"{{pairwise: {{colluders: {colluders[self.trust]}, ratio: {ratio}}}}}"
        return "local" if self.trust == "local" else f"{{secure_aggregation: {{min_honest: {self.agents}}}}}"

    def accuracy(self, data: str, seed: int) -> float:
        """Returns the accuracy of one run."""
        config = load_config(CONFIG, self.overrides(data, seed))
        training = build(config)
        for _ in training:
            pass
        found = training.result()
        assert found.spent.epsilon <= self.epsilon and found.rounds == config.rounds
        return found.test_accuracy or 0.0


def cells(agents: list[int], epsilons: list[int]) -> Iterator[Cell]:
    """Yields all settings, grouped by strategy and network."""
    pairs = [(strategy, "star") for strategy in STAR]
    pairs += [(strategy, network) for strategy in EVERYWHERE for network in NETWORKS]
    for strategy, network in pairs:
        for n in agents:
            for epsilon in epsilons:
                for trust in TRUSTS if strategy in STAR else TRUSTS[:-1]:
                    if not (n == 10 and trust == TRUSTS[2]):  # a tenth of ten is one
                        yield Cell(strategy, network, n, epsilon, trust)


def main() -> None:
    """Performs unfinished runs, prints and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ten agents at epsilon 1, one seed")
    parser.add_argument("--data", choices=list(DATA), default="digits")
    parser.add_argument("--agents", type=int, nargs="+", default=list(EDGES), choices=list(EDGES))
    parser.add_argument("--epsilons", type=int, nargs="+", default=list(ROUNDS), choices=list(ROUNDS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[*STAR, *EVERYWHERE], choices=[*STAR, *EVERYWHERE], metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("runs/pairwise"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.quick:
        options.agents, options.epsilons, options.seeds = [10], [1], 1
    options.out.mkdir(parents=True, exist_ok=True)
    kept = options.out / f"{options.data}.jsonl"
    found: dict[str, float] = {}
    for line in kept.read_text(encoding="utf-8").splitlines() if kept.exists() else ():
        found.update(json.loads(line))
    wanted = [cell for cell in cells(options.agents, options.epsilons) if cell.strategy in options.only]
    with kept.open("a", encoding="utf-8") as file:
        for cell in track(wanted, description=f"{options.data}, {options.seeds} seeds"):
            for seed in range(options.seeds):
                if (name := f"{cell} {seed}") not in found:
                    found[name] = cell.accuracy(options.data, seed)
                    print(json.dumps({name: found[name]}), file=file, flush=True)
    means = {cell: 100 * mean(found[f"{cell} {seed}"] for seed in range(options.seeds)) for cell in wanted}
    show(means)
    draw(means, options.out / f"pairwise_{options.data}.png")


def show(means: dict[Cell, float]) -> None:
    """Prints a row for each strategy, network, number of agents and epsilon."""
    table = Table("strategy", "network", "agents", "epsilon", *TRUSTS)
    rows: dict[tuple[str, str, int, int], dict[str, float]] = {}
    for cell, accuracy in means.items():
        rows.setdefault((cell.strategy, cell.network, cell.agents, cell.epsilon), {})[cell.trust] = accuracy
    for (strategy, network, agents, epsilon), row in rows.items():
        told = [f"{row[trust]:.1f}" if trust in row else "" for trust in TRUSTS]
        table.add_row(strategy, network, str(agents), str(epsilon), *told)
    Console(width=150).print(table)


def draw(means: dict[Cell, float], path: Path) -> None:
    """Draws a panel for each strategy and network, a column for each epsilon and number of agents."""
    panels = sorted({(cell.strategy, cell.network) for cell in means}, key=[*_panels(means)].index)
    figure = Figure(figsize=(13, 9), dpi=80, layout="constrained")
    axes = figure.subplots(3, 4, sharey=True).flatten()
    columns = sorted({(cell.epsilon, cell.agents) for cell in means})
    agents = {cell.agents for cell in means}
    for panel, (strategy, network) in zip(axes, panels, strict=False):
        for trust, marker in zip(TRUSTS, "ov^so", strict=True):
            wanted = strategy, network, trust
            at = {(c.epsilon, c.agents): a for c, a in means.items() if (c.strategy, c.network, c.trust) == wanted}
            where = [columns.index(column) for column in at]
            panel.plot(where, list(at.values()), marker, label=trust, alpha=0.8)
        middle = [len(agents) // 2 + at for at in range(0, len(columns), len(agents))]
        names = [f"{n}\nepsilon {e}" if at in middle else f"{n}" for at, (e, n) in enumerate(columns)]
        panel.set_xticks(range(len(columns)), names, fontsize=7)
        panel.set_title(f"{strategy}, {network}", fontsize=9, loc="left")
        panel.grid(color="#E6E8EB")
    for spare in axes[len(panels) :]:
        spare.axis("off")
    handles, labels = axes[0].get_legend_handles_labels()
    axes[-1].legend(handles, labels, frameon=False, loc="center")
    figure.supxlabel("number of agents")
    figure.supylabel("test accuracy, %")
    figure.savefig(path)


def _panels(means: dict[Cell, float]) -> Iterator[tuple[str, str]]:
    for cell in means:
        yield cell.strategy, cell.network


if __name__ == "__main__":
    main()
