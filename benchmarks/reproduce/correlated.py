"""Test accuracy with noise that cancels over time, against independent noise on the same fixed batches.

    FEDPRIV_DATA=<folder with mnist/> python benchmarks/reproduce/correlated.py [--quick]

MNIST, softmax regression on deskewed rows of norm 1, one owner whose server is trusted, 10 epochs of 100 fixed cyclic
batches, add/remove, delta 1e-5. What is reported is the moving average of the rounds' models over about an epoch.
`--rates` tries all learning rates with one seed; `--quick` takes 20
rounds of the small data set `digits`, which says nothing of accuracy.
"""

from __future__ import annotations

import argparse
from statistics import mean, stdev
from typing import Any

from fedpriv.config import Config
from fedpriv.config.building import build

CYCLIC = {"cyclic": {"blocks": 100}}
NOISES: dict[str, tuple[float, Any, Any]] = {
    "independent": (20.0, "independent", CYCLIC),
    "banded square root, 10": (40.0, {"time": {"bsr": {"band": 10}}}, CYCLIC),
    "banded square root, 100": (40.0, {"time": {"bsr": {"band": 100}}}, CYCLIC),
    "optimised band of 100": (40.0, {"time": {"banded": {"band": 100}}}, CYCLIC),
    "4 buffers": (40.0, {"time": {"blt": {"buffers": 4}}}, CYCLIC),
}
RATES = (10.0, 20.0, 40.0, 80.0)


def accuracy(noise: Any, sampling: Any, rate: float, epsilon: float, seed: int, quick: bool) -> float:
    """Test accuracy of one run."""
    settings = {
        "data": {
            **({"name": "digits"} if quick else {"name": "mnist", "transforms": ["deskew", "unit"], "flat": True}),
            "partition": {"kind": "in_order", "n_clients": 1},
        },
        "model": "softmax",
        "loss": "cross_entropy",
        "strategy": {"name": "fedavg", "learning_rate": rate, "average": {"decay": 0.99}},
        "privacy": {
            "epsilon": epsilon,
            "relation": "add_remove",
            "clip": {"bound": 0.2},
            "trust": "central",
            "sampling": sampling,
            "noise": noise,
        },
        "rounds": 20 if quick else 1000,
        "log": {"evaluate_every": 1000},
        "seed": seed,
        "secret_seed": seed,
    }
    training = build(Config.model_validate(settings))
    list(training)
    found = training.result()
    assert found.spent.epsilon <= epsilon and found.test_accuracy is not None
    return 100 * found.test_accuracy


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    for name, (rate, noise, sampling) in NOISES.items():
        if asked.only not in name:
            continue
        for tried in RATES if asked.rates else (rate,):
            found = [
                accuracy(noise, sampling, tried, asked.epsilon, seed, asked.quick)
                for seed in range(1 if asked.rates else asked.seeds)
            ]
            spread = f" +- {stdev(found):.2f}" if len(found) > 1 else ""
            print(f"{name:<28} learning rate {tried:<4g} {mean(found):.2f} %{spread}", flush=True)


if __name__ == "__main__":
    main()
