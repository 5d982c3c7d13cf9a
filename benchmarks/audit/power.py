"""Measures which noise deficits an audit detects, with which probability, by numbers of canaries, toy runs and draws.

A strategy promises epsilon 3 at delta 1e-5 for each example of three clients, but draws only a part of the noise in its
ledger. Three methods search for the deficit: guesses in one run of many canaries, guesses in many runs of one canary
per client, and the test of the noise itself in a few rounds of releases. Each cell shows the fraction of repetitions in
which the 95 % lower bound on epsilon exceeds the promise and, after the slash, the fraction in which the audit reports
a finding (at 99.99 %, or six standard deviations of the noise). At a part of 1 the first may be 5 %, up to chance, and
the second 0.

    python benchmarks/audit/power.py --markdown power.md      (half an hour on one core)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.audit import AuditTarget
from fedpriv.audit.canaries import Game, compute_reach, merge_games, run_game
from fedpriv.audit.noise import check_trace_noise
from fedpriv.audit.probing import trace_run
from fedpriv.models import Loss

EPSILON, DELTA, CLIENTS, ROUNDS, DIM = 3.0, 1e-5, 3, 3, 640
LOSS = Loss(lambda outputs, targets: (outputs[:, 0] - targets) ** 2)
USUAL, SURE = 0.95, 1 - 1e-4


@dataclass(frozen=True)
class Less(fp.Gaussian):
    """A mechanism that claims Gaussian noise of unit scale, but draws only a part of it."""

    part: float = 1.0

    def draw(self, keys: Tensor, dim: int, amount: float = 1.0) -> Tensor:
        """See `Gaussian`."""
        return self.part * super().draw(keys, dim, amount)


def subject(part: float, rounds: int) -> AuditTarget:
    """A run with the noise of the whole promise, or a part of it."""
    data = [TensorDataset(torch.randn(20, DIM), torch.randint(2, (20,))) for _ in range(CLIENTS)]
    clients = fp.make_clients(nn.Linear(DIM, 1, bias=False), LOSS, data)
    law, strategy = Less(part=part), fp.fedavg(0.5)
    promise = fp.Privacy(epsilon=EPSILON, delta=DELTA, mechanism=law)
    noise = AuditTarget.of(clients, strategy, promise, rounds=rounds).plan().privacy.noise_multiplier
    return AuditTarget.of(clients, strategy, replace(promise, epsilon=None, noise_multiplier=noise), rounds=rounds)


def share(hits: Sequence[bool]) -> float:
    return sum(hits) / len(hits)


def proved(games: Iterable[Game]) -> list[str]:
    """Returns, for guesses and for normal scores, the frequency with which the bounds exceed the promise."""
    bounds = [(game.promised, game.bounds(USUAL), game.bounds(SURE)) for game in games]
    guesses = [[max(one.clopper_pearson, one.one_run) > most for one in both] for most, *both in bounds]
    normal = [[one.of_mu > most for one in both] for most, *both in bounds]
    return [" / ".join(f"{share(hits):.0%}" for hits in zip(*rows, strict=True)) for rows in (guesses, normal)]


def row(part: float, given: argparse.Namespace) -> list[str]:
    """Returns the table row of one noise level, with all methods."""
    toy, cells = subject(part, ROUNDS), [f"{part:g}"]
    for canaries in given.canaries:
        each = canaries // CLIENTS
        known = compute_reach(toy, each, ROUNDS)
        cells += proved(run_game(toy, each, ROUNDS, known) for _ in range(given.repeats))
    known = compute_reach(toy, 1, ROUNDS)
    single = [run_game(toy, 1, ROUNDS, known) for _ in range(given.pool)]
    for runs in given.runs:
        cells += proved(merge_games(single[k : k + runs]) for k in range(0, given.pool - runs + 1, runs))
    for rounds in given.rounds:
        run = subject(part, rounds)
        found = [check_trace_noise(trace_run(run, run.data(), rounds)).verdict == "found" for _ in range(given.repeats)]
        cells.append(f"{share(found):.0%}")
    return cells


def table(rows: Sequence[Sequence[str]], given: argparse.Namespace) -> str:
    """Returns the table in Markdown."""
    head = ["noise over the claim"]
    ways: list[tuple[Sequence[int], Callable[[int], str]]] = [
        (given.canaries, lambda n: f"one run of {n} canaries"),
        (given.runs, lambda n: f"{n} toy runs of {CLIENTS} canaries"),
    ]
    for numbers, name in ways:
        head += [f"{name(n)}: {how}" for n in numbers for how in ("guesses", "normal scores")]
    head += [f"test of {rounds * CLIENTS * DIM} draws of noise" for rounds in given.rounds]
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=float, nargs="+", default=[1.0, 0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3])
    parser.add_argument("--canaries", type=int, nargs="+", default=[99, 999], help="in one run")
    parser.add_argument("--runs", type=int, nargs="+", default=[40, 200], help="toy runs")
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 6, 24, 52], help="of the test of the noise")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--pool", type=int, default=2000, help="toy runs that are divided into repetitions")
    parser.add_argument("--markdown", type=Path, help="write the table there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = list[list[str]]()
    for part in given.parts:
        begun = time.perf_counter()
        rows.append(row(part, given))
        print(*rows[-1], f"({time.perf_counter() - begun:.0f} s)", sep="  ", flush=True)
    text = table(rows, given)
    print(text)
    if given.markdown is not None:
        given.markdown.write_text(text)


if __name__ == "__main__":
    main()
