"""Test accuracy with noise that cancels over time, against independent noise and secret draws at the same epsilon.

    FEDPRIV_DATA=<folder with mnist/ and femnist/> python benchmarks/reproduce/correlated.py [--study NAME ...]

Studies, all with delta 1e-5 and softmax regression:

* `mnist`: examples protected, a trusted server, one owner, 10 epochs of 100 fixed batches (add/remove).
* `local`: examples protected, ten owners with local trust, 10 epochs of 20 fixed batches (replace one).
* `femnist`: whole writers protected, 397 of them behind secure aggregation, cohorts that take turns (replace one).
* `graph`: examples protected, 16 nodes of a random graph with local trust, gradient tracking (replace one).

The reported model is a moving average of the rounds' models. Learning rates were chosen with seed 0 at epsilon 1
(femnist: 8) on the test data, for each noise separately (`--rates` tests them). `--picture FILE` draws the table;
`--quick` runs 20 rounds of the small data set `digits`, which gives no information about accuracy.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib.figure import Figure

from fedpriv.config import Config
from fedpriv.config.building import build

RATES = (0.5, 1.0, 2.0)  # times the chosen one
COLOURS = {
    "band": "#D55E00",
    "buffers": "#009E73",
    "secret": "#999999",
    "everyone": "#999999",
    "allocation": "#CC79A7",
    "": "#0072B2",
}


@dataclass(frozen=True)
class Noise:
    """A way to protect a run: settings of `privacy` and of `network`, and a suitable learning rate."""

    name: str
    rate: float
    privacy: dict[str, Any] = field(default_factory=dict[str, Any])
    network: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Study:
    """Runs that differ only in their noise."""

    data: dict[str, Any]
    strategy: dict[str, Any]
    privacy: dict[str, Any]
    noises: tuple[Noise, ...]
    rounds: int
    rate: str = "learning_rate"
    epsilons: tuple[float, ...] = (1.0, 3.0, 8.0)


def turns(blocks: int, **more: Any) -> dict[str, Any]:
    """Returns settings of alternating batches, and further settings of privacy."""
    return {"sampling": {"cyclic": {"blocks": blocks}}, **more}


def shared(min_honest: int, **more: Any) -> dict[str, Any]:
    """Returns settings of secure aggregation with `min_honest` noise shares, and further settings of privacy."""
    return {"trust": {"secure_aggregation": {"min_honest": min_honest}}, **more}


BLT, AVERAGE = {"correlated": {"blt": {"buffers": 4}}}, {"average": {"decay": 0.99}}
MNIST = {"name": "mnist", "transforms": ["deskew", "unit"], "flat": True}
SAMPLE = {"clip": {"bound": 0.2}, "relation": "replace_one", "trust": "local"}
COHORTS = {"cohort": {"cyclic": {"blocks": 8}}}
GRAPH = {"topology": {"name": "erdos_renyi", "p": 0.4, "seed": 0}, "mixing": "metropolis", "mixing_steps": 4}
STUDIES = {
    "mnist": Study(
        {**MNIST, "partition": {"kind": "in_order", "n_clients": 1}},
        {"name": "fedavg", **AVERAGE},
        {**SAMPLE, "relation": "add_remove", "trust": "central"},
        (
            Noise("fixed batches, independent", 20, turns(100)),
            Noise("fixed batches, band of 100", 40, turns(100, noise={"correlated": {"bsr": {"band": 100}}})),
            Noise("fixed batches, 4 buffers", 40, turns(100, noise=BLT)),
            Noise("secret draws, independent", 40, {"sampling": {"poisson": {"rate": 0.01}}}),
            Noise("random allocation, independent", 80, {"sampling": {"allocation": {"batches": 100}}}),
        ),
        1000,
    ),
    "local": Study(
        {**MNIST, "partition": {"kind": "iid", "n_clients": 10}},
        {"name": "fedavg", "average": {"decay": 0.95}},
        SAMPLE,
        (
            Noise("fixed batches, independent", 20, turns(20)),
            Noise("fixed batches, 4 buffers", 40, turns(20, noise=BLT)),
            Noise("secret draws, independent", 40, {"sampling": {"poisson": {"rate": 0.05}}}),
        ),
        200,
    ),
    "femnist": Study(
        {
            "name": "femnist",
            "files": ["femnist_iadmm5pct.npz", "femnist_extra.npz"],
            "transforms": ["deskew", "edges", "center", "unit"],
            "flat": True,
            "partition": {"kind": "by_writer"},
        },
        {"name": "fedavg", "average": 2},
        {
            "noise_on": "message",
            "unit": "client",
            "relation": "replace_one",
            "clip": {"bound": 10.0},
        },
        (
            Noise("cohorts take turns, independent", 100, shared(49), COHORTS),
            Noise("cohorts take turns, 4 buffers", 400, shared(397, noise=BLT), COHORTS),
            Noise("everyone every round, independent", 200, shared(397)),
        ),
        100,
    ),
    "graph": Study(
        {**MNIST, "partition": {"kind": "iid", "n_clients": 16}},
        {"name": "gradient_tracking", "beta": 0.02, "gradient_at": "mixed", **AVERAGE},
        SAMPLE,
        (
            Noise("fixed batches, independent", 10, turns(20), GRAPH),
            Noise("fixed batches, 4 buffers", 20, turns(20, noise=BLT), GRAPH),
            Noise("secret draws, independent", 20, {"sampling": {"poisson": {"rate": 0.05}}}, GRAPH),
        ),
        200,
        rate="step_size",
    ),
}


def accuracy(study: Study, noise: Noise, factor: float, epsilon: float, seed: int, quick: bool) -> float:
    """Test accuracy of one run, in percent."""
    partition = {"kind": "iid", "n_clients": 397} if study.privacy.get("unit") == "client" else study.data["partition"]
    settings = {
        "data": {"name": "digits", "partition": partition} if quick else study.data,
        "model": "softmax",
        "loss": "cross_entropy",
        "strategy": {**study.strategy, study.rate: noise.rate * factor},
        "privacy": {"epsilon": epsilon, "delta": 1e-5, **study.privacy, **noise.privacy},
        "network": noise.network,
        "rounds": 20 if quick else study.rounds,
        "log": {"evaluate_every": study.rounds},
        "compute": {"max_physical_batch_size": 65536},
        "seed": seed,
        "secret_seed": seed,
    }
    training = build(Config.model_validate(settings))
    list(training)
    found = training.result()
    assert found.spent.epsilon <= epsilon and found.test_accuracy is not None
    return 100 * found.test_accuracy


Found = dict[tuple[str, str, float], list[float]]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", nargs="+", choices=STUDIES, default=list(STUDIES))
    parser.add_argument("--epsilon", type=float, nargs="+", help="only these")
    parser.add_argument("--only", default="", metavar="WORD", help="noise whose name has it")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--picture", type=Path, metavar="FILE")
    asked = parser.parse_args()
    found: Found = {}
    print("| study | noise | epsilon | learning rate | test accuracy |\n|---|---|---|---|---|")
    for name in asked.study:
        study = STUDIES[name]
        epsilons = asked.epsilon or (study.epsilons[:1] if asked.quick else study.epsilons)
        for noise in (noise for noise in study.noises if asked.only in noise.name):
            for epsilon in epsilons:
                for factor in RATES if asked.rates else (1.0,):
                    runs = [accuracy(study, noise, factor, epsilon, s, asked.quick) for s in range(asked.seeds)]
                    found[name, noise.name, epsilon] = runs
                    spread = f" +- {stdev(runs):.2f}" if len(runs) > 1 else ""
                    cells = (
                        name,
                        noise.name,
                        f"{epsilon:g}",
                        f"{noise.rate * factor:g}",
                        f"{mean(runs):.2f} %{spread}",
                    )
                    print("| " + " | ".join(cells) + " |", flush=True)
    if asked.picture:
        draw(found, asked.study, asked.picture)


def draw(found: Found, studies: Sequence[str], path: Path) -> None:
    """A panel for each study, a line for each noise; every seed is a point."""
    figure = Figure(figsize=(4.2 * len(studies), 3.8), dpi=120, layout="constrained")
    for panel, study in zip(figure.subplots(1, len(studies), squeeze=False)[0], studies, strict=True):
        for noise in STUDIES[study].noises:
            colour = next(colour for word, colour in COLOURS.items() if word in noise.name)
            of = {epsilon: runs for (s, name, epsilon), runs in found.items() if (s, name) == (study, noise.name)}
            panel.plot(list(of), [mean(runs) for runs in of.values()], "-", color=colour, label=noise.name)
            for epsilon, runs in of.items():
                panel.plot([epsilon] * len(runs), runs, "o", color=colour, markersize=3)
        panel.set_xscale("log")
        panel.set_xticks(ticks := STUDIES[study].epsilons, [f"{tick:g}" for tick in ticks])
        panel.minorticks_off()
        panel.set_title(f"{study}: test accuracy, %", loc="left", fontsize=9)
        panel.set_xlabel("epsilon")
        panel.grid(color="#E6E8EB")
        panel.legend(frameon=False, fontsize=7, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()
