"""Epsilon of random allocation, Poisson draws, and batches without amplification, at the same noise.

    python benchmarks/reproduce/allocation.py

Each example is in one of k secret batches of an epoch; Poisson draws have rate 1 / k, and fixed batches are public.
Delta is 1e-5 and noise is over the clip bound. The second table has the noise of each at epsilon 1 and 3, and the
processor seconds of computing the cost and of calibration. `--quick` prints the first line of each.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product
from time import process_time
from typing import Any, get_args

from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.calibration import calibrate
from fedpriv.privacy.record import Record, Relation

DELTA = 1e-5
SETTINGS = ((0.6, 100, 1), (0.5, 20, 1), (1.0, 100, 20), (0.7, 10, 1), (1.0, 20, 10), (1.0, 1000, 20))
TARGETS = ((20, 3), (30, 6), (100, 10), (1000, 20))


def plan_of(sampling: str, batches: int, epochs: int, noise: float, relation: Relation) -> list[Record]:
    """Returns the releases of a run, with noise over the clip bound C, or over 2C if an example is replaced."""
    if relation == "replace_one":
        noise = noise / 2
    first = Record(0, "gradient", 0, "gaussian", noise, "sample", relation)
    if sampling == "fixed":
        # with public batches an example is in one query of each epoch
        return [replace(first, round=t) for t in range(epochs)]
    drawn: dict[str, Any] = {"sampling": sampling, "rate": 1 / batches}
    if sampling == "allocation":
        drawn["batches"] = batches
    return [replace(first, round=t, **drawn) for t in range(batches * epochs)]


def print_epsilons(lines: int | None) -> None:
    """Prints one line for each setting and relation, or at most `lines`."""
    print("| noise, batches x epochs | relation | allocation | Poisson | fixed, known |\n|---|---|---|---|---|")
    for (noise, batches, epochs), relation in [*product(SETTINGS, get_args(Relation))][:lines]:
        plans = [plan_of(s, batches, epochs, noise, relation) for s in ("allocation", "poisson", "fixed")]
        cells = [f"{account(plan, 1, DELTA).epsilon:.4g}" for plan in plans]
        print(f"| {noise:g}, {batches} x {epochs} | {relation} | {' | '.join(cells)} |", flush=True)


def print_noises(lines: int | None) -> None:
    """Prints one line for each number of batches and epochs, relation and target, or at most `lines`."""
    print("\n| batches x epochs | relation | epsilon | noise, over that of Poisson draws | price | calibration |")
    print("|---|---|---|---|---|---|")
    for (batches, epochs), relation, epsilon in [*product(TARGETS, get_args(Relation), (1.0, 3.0))][:lines]:
        allocated = plan_of("allocation", batches, epochs, 1.0, relation)
        start = process_time()
        needed = calibrate(allocated, 1, epsilon, DELTA)
        calibration = process_time() - start
        ratio = needed / calibrate(plan_of("poisson", batches, epochs, 1.0, relation), 1, epsilon, DELTA)
        start = process_time()
        account([replace(record, noise_multiplier=needed * 1.01) for record in allocated], 1, DELTA)
        price = process_time() - start
        cells = f"{epsilon:g} | {ratio:.3f} | {price:.2g} s | {calibration:.2g} s"
        print(f"| {batches} x {epochs} | {relation} | {cells} |", flush=True)


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    lines = 1 if parser.parse_args().quick else None
    print_epsilons(lines)
    print_noises(lines)


if __name__ == "__main__":
    main()
