"""Test accuracy against epsilon for every strategy of the library, under one budget, unit and trust.

    FEDPRIV_DATA=<folder with mnist/ and femnist/> python benchmarks/reproduce/strategies.py [--quick] [--out FOLDER]

Softmax regression on MNIST (10 clients) and on FEMNIST (20 clients, each with about 20 writers), images deskewed,
band-passed and scaled to norm 1. Privacy unit sample, replace-one, delta 1e-5, local trust: each message is observed,
so each client needs its own noise, with or without a server. Settings were chosen once for each strategy, for MNIST at
epsilon 3, and not changed; one seed. `--quick` has MNIST at epsilon 3 only; with `--out` a picture, `strategies.png`.

`proximal_al` is missing, since it has no privacy guarantee, and `private_al` is for problems with constraints.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure

import fedpriv as fp
from fedpriv.algorithms.svrg import Epochs
from fedpriv.config import Config, load_config
from fedpriv.config.building import load_data, make_population
from fedpriv.data import Split

mpl.use("Agg")
CONFIG = Path(__file__).parents[2] / "configs" / "mnist_iadmm.yaml"
# rounds for each epsilon: a larger budget allows more rounds
ROUNDS = {"MNIST": {1: 50, 3: 80, 8: 120}, "FEMNIST": {1: 25, 3: 40, 8: 60}}
GRAPH = "network={topology: {name: erdos_renyi, p: 0.5, seed: 0}, mixing_steps: 5}"
DRAWN = "privacy.sampling={poisson: {rate: 0.2}}"


@dataclass(frozen=True)
class Entry:
    """A strategy in a configuration, with its further settings."""

    strategy: str
    extra: tuple[str, ...] = ()
    epochs: Epochs | None = None

    def rounds(self, wanted: int) -> int:
        """Returns `wanted`, or if epochs double the nearest end of one, since later rounds are not reported."""
        if self.epochs is None:
            return wanted
        whole = self.epochs.whole(wanted)
        return min((self.epochs.rounds(whole), self.epochs.rounds(whole + 1)), key=lambda found: abs(found - wanted))


STRATEGIES = {
    "inexact ADMM, proximal": Entry(
        "iadmm_prox, linearize_at: received, rho: {scale: 2.5e-4}, eta: {scale: 444, power: 0}"
    ),
    "inexact ADMM, trust region": Entry(
        "iadmm_trust, linearize_at: received, rho: {scale: 2.5e-4}, radius: {scale: 0.3, power: 0.5}"
    ),
    "inexact ADMM, output noise": Entry(
        "iadmm_output, linearize_at: received, rho: {scale: 2.5e-4}, eta: {scale: 1500, power: 0.5}"
    ),
    "FedAvg, 1 local step": Entry("fedavg, learning_rate: 300, average: 2"),
    "FedAvg, 2 local steps": Entry("fedavg, learning_rate: 150, local_steps: 2, average: 2"),
    "FedProx": Entry("fedprox, learning_rate: 150, local_steps: 2, proximal_mu: 1.0e-3, average: 2"),
    "FedOpt (Adam)": Entry("fedopt, learning_rate: 10, server_learning_rate: 0.3, tau: 1.0e-2, average: 2"),
    "SCAFFOLD": Entry("scaffold, learning_rate: 150, local_steps: 2"),
    "DP-GD": Entry("dp_gd, learning_rate: 300, output: average, average: 2"),
    "DP-SGD": Entry("dp_gd, learning_rate: 300, output: average, average: 2", (DRAWN,)),
    "DP-SVRG": Entry("dp_svrg, learning_rate: 100, epoch_length: 5, anchor_share: 2, smoothness: 0.5", (DRAWN,)),
    "DP-SVRG++": Entry(
        "dp_svrg_plus_plus, learning_rate: 100, epoch_length: 2, anchor_share: 2, smoothness: 0.5",
        (DRAWN,),
        Epochs(2, doubling=True),
    ),
    "DP-AccMD, l2 ball": Entry("dp_accmd, radius: 80, smoothness: 5.0e-3"),
    "dual averaging": Entry("dual_averaging, regularizer: {l2: {lam: 3.0e-4}}", (GRAPH,)),
    "gradient tracking": Entry(
        "gradient_tracking, step_size: {scale: 300}, beta: 3.0e-4, gradient_at: mixed, average: 2", (GRAPH,)
    ),
    "gradient tracking, two variables": Entry("gradient_tracking_pair, step_size: {scale: 200}, average: 2", (GRAPH,)),
    "D-PSGD": Entry("decentralized_sgd, step_size: {scale: 300}, average: 2", (GRAPH,)),
    "DPOP": Entry("dpop, gamma: 600, q1: 0.98, q2: 0.99, average: 2", (GRAPH,)),
    "PP-DOAGT, Diff-TV-AB": Entry("pp_doagt, gamma: 300, q1: 0.98, average: 2", (GRAPH,)),
}  # fmt: skip
FEMNIST = (
    "data={name: femnist, files: [femnist_iadmm5pct.npz, femnist_extra.npz], flat: true, "
    "transforms: [deskew, bandpass, unit], partition: {kind: by_writer, n_clients: 20}}"
)


def config_of(data: str, entry: Entry, epsilon: int) -> Config:
    """The run's configuration."""
    own = [FEMNIST] if data == "FEMNIST" else []
    rounds = entry.rounds(ROUNDS[data][epsilon])
    settings = [f"strategy={{name: {entry.strategy}}}", f"privacy.epsilon={epsilon}", f"rounds={rounds}"]
    return load_config(CONFIG, [*own, *settings, *entry.extra, "seed=0", "secret_seed=0"])


def measure(config: Config, split: Split) -> fp.Result:
    """Performs one run."""
    clients = make_population(config, split)
    training = fp.Training(
        clients, config.recipe().strategy, config.promise(), rounds=config.rounds, seed=0, secret_seed=0,
        test=split.test, network=config.network.build(len(clients)), compute=config.compute,
        evaluate_every=10**6,
    )  # fmt: skip
    for _ in training:
        pass
    return training.result()


def main() -> None:
    """Prints a table for each data set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", default=list(STRATEGIES), choices=list(STRATEGIES), metavar="NAME")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    epsilons = (3,) if options.quick else tuple(ROUNDS["MNIST"])
    tables: dict[str, dict[str, list[float]]] = {}
    for data in ("MNIST",) if options.quick else ("MNIST", "FEMNIST"):
        tables[data] = {}
        split = load_data(config_of(data, STRATEGIES["DP-GD"], 3))
        print(f"\n| {data} | " + " | ".join(f"epsilon {e}" for e in epsilons) + " | seconds |", flush=True)
        print("|---" * (len(epsilons) + 2) + "|", flush=True)
        for name, entry in ((name, STRATEGIES[name]) for name in options.only):
            start, row = time.process_time(), []
            for epsilon in epsilons:
                config = config_of(data, entry, epsilon)
                result = measure(config, split)
                assert result.spent.epsilon <= epsilon and result.rounds == config.rounds
                row.append(result.test_accuracy or 0.0)
            tables[data][name] = row
            shown = " | ".join(f"{accuracy:.1%}" for accuracy in row)
            print(f"| {name} | {shown} | {time.process_time() - start:.0f} |", flush=True)
    if options.out:
        draw(tables, epsilons, options.out / "strategies.png")


def draw(tables: dict[str, dict[str, list[float]]], epsilons: tuple[int, ...], path: Path) -> None:
    """Draws a panel for each data set, with a row of dots for each strategy."""
    figure = Figure(figsize=(5 * len(tables), 5), layout="constrained")
    for panel, (data, table) in zip(figure.subplots(1, len(tables), squeeze=False)[0], tables.items(), strict=True):
        names = list(table)[::-1]
        for index, epsilon in enumerate(epsilons):
            panel.plot([100 * table[name][index] for name in names], names, "o", label=f"epsilon {epsilon}")
        panel.set(title=data, xlabel="test accuracy, %")
        panel.grid(alpha=0.3)
        panel.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
