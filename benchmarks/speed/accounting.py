"""Measures the time of accounting for a long run: its ledger, its noise, and its plan.

    python benchmarks/speed/accounting.py [--rounds 20000] [--planned 600000]

Times are processor seconds. The targets: 20 000 rounds of different noise levels accounted for within 8 s and
calibrated within 5 s, and the plan of dual averaging at its paper's 600 000 rounds, one link a round among 20 nodes,
within 30 s. The plan is measured for fewer rounds and scaled proportionally, unless `--planned` is set.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import process_time

import networkx as nx

import fedpriv as fp
from fedpriv.planning.plan import make_plan
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.calibration import calibrate
from fedpriv.privacy.record import Record

NODES, EXAMPLES, PAPER = 20, 20_000, 600_000


def laplace(rounds: int) -> list[Record]:
    """Returns records with a budget that falls from .05 per round."""
    noises = [1 / (0.05 * 0.9998**t + 1e-4) for t in range(rounds)]
    return [Record(t, "gradient", 0, "laplace", b, "sample", "replace_one", norm="l1") for t, b in enumerate(noises)]


def sampled(rounds: int) -> list[Record]:
    """Returns records of Poisson batches at rate .01, with noise that rises from 1 to 2."""
    noises = [1 + t / rounds for t in range(rounds)]
    made = {"sampling": "poisson", "rate": 0.01}
    return [Record(t, "gradient", 0, "gaussian", s, "sample", "add_remove", **made) for t, s in enumerate(noises)]


def plan(rounds: int) -> None:
    """Plans dual averaging with one link a round; the noise is given, so that only the plan itself is measured."""
    network = fp.Graph(nx.complete_graph(NODES), activity=fp.RandomEdges(1))
    privacy = fp.Privacy(noise_multiplier=1.0, sampling=fp.Poisson(1 / EXAMPLES))
    make_plan(fp.dual_averaging(), privacy, [EXAMPLES] * NODES, network, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--planned", type=int, default=60_000)
    options = parser.parse_args()
    for name, records in (("Laplace", laplace(options.rounds)), ("sampled", sampled(options.rounds))):
        tell(f"account, {name}, {options.rounds} levels", lambda told=records: account(told, 10, 1e-5))
        tell(f"calibrate, {name}, {options.rounds} levels", lambda told=records: calibrate(told, 10, 3.0, 1e-5))
    seconds = tell(f"plan, {options.planned} rounds", lambda: plan(options.planned))
    name = f"plan, the paper's {PAPER} rounds, in proportion"
    print(f"{name:<45}  {seconds * PAPER / options.planned:8.2f} s")


def tell(name: str, work: Callable[[], object]) -> float:
    """Prints and returns the processor seconds."""
    start = process_time()
    work()
    seconds = process_time() - start
    print(f"{name:<45}  {seconds:8.2f} s", flush=True)
    return seconds


if __name__ == "__main__":
    main()
