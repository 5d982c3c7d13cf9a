"""Measures the share of the claimed epsilon that attacks prove, for each trust and mechanism.

A toy run of canaries uses the real strategy, oracle, clip, noise and ledger (`fedpriv.audit.canaries`). The attacker
observes everything that the trust setting allows an observer to see, has full knowledge of the algorithm and all other
data, and scores each canary by its likelihood ratio. Two attacks: few runs with many canaries each (Steinke, Nasr and
Jagielski 2023), and many runs
its likelihood ratio. Two attacks: few runs with many canaries each (Steinke, Nasr and Jagielski 2023), and many runs
with one canary at each client (Nasr and others 2023). Three estimators of a lower bound on epsilon at delta 1e-5, each
at 95 % confidence, over the epsilon that the ledger claims:

* rates: Clopper and Pearson's intervals of the attacker's error rates, for any mechanism;
* guesses: theorem 5.2 of Steinke, Nasr and Jagielski (2023), for any mechanism;
* law: the distribution of the release is known up to its scale (Nasr and others 2023). For Gaussian noise without
  secret draws, scores are normal, and their distance has an exact noncentral t interval, which gives mu of Gaussian
  differential privacy (Dong, Roth and Su 2022) and thus epsilon. Otherwise it is the smallest noise multiplier for
  which the pair of error rates is still possible under fedpriv's privacy curve, at the best threshold in a quarter of
  the canaries, by Clopper and Pearson's intervals in the others.

The likelihood ratio combines all releases, so no information of a round is lost; normal scores are limited by the
number of canaries. In simulations, n canaries prove at least 80 % of the claim with probability 0.69 (n = 1200) or 0.99
(4000).

    python benchmarks/audit/lower_bounds.py --markdown lower_bounds.md      (most of an hour on one busy core)
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.audit import AuditTarget
from fedpriv.audit.canaries import Game, compute_reach, merge_games, run_game
from fedpriv.models import Loss
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.record import Record

EPSILON, DELTA, CLIENTS, CONFIDENCE = 3.0, 1e-5, 4, 0.95
LOSS = Loss(lambda outputs, targets: (outputs[:, 0] - targets) ** 2)
DELTAS = (
    1e-6,
    1e-4,
    1e-3,
    0.01,
    0.03,
    0.06,
    0.1,
    0.15,
    0.2,
    0.25,
    0.3,
    0.35,
    0.4,
    0.5,
    0.6,
)  # noise levels at which the privacy curve is compared with error rates
LAPLACE = {"mechanism": fp.Laplace(), "clip": fp.Clip(1.0, "l1")}
SUMS = {"trust": fp.SecureAggregation(min_honest=CLIENTS)}
CENTRAL = {"unit": "client", "noise_on": "message", "relation": "add_remove"}
CASES: dict[str, tuple[dict[str, object], int]] = {
    "local, Gaussian": ({}, 1),
    "local, Gaussian, 10 rounds": ({}, 10),
    "local, Laplace": (LAPLACE, 1),
    "local, Laplace, 10 rounds": (LAPLACE, 10),
    "local, Gaussian over time, 8 rounds": ({"noise": fp.BSR(4), "sampling": fp.Cyclic(4)}, 8),
    "local, Gaussian, Poisson batches (0.5)": ({"sampling": fp.Poisson(0.5)}, 1),
    "local, Gaussian, Poisson batches (0.1)": ({"sampling": fp.Poisson(0.1)}, 1),
    "local, Gaussian, Poisson batches (0.1), 10 rounds": ({"sampling": fp.Poisson(0.1)}, 10),
    "sums, Gaussian": (SUMS, 1),
    "sums, Laplace": ({**SUMS, **LAPLACE}, 1),
    "pairs, Gaussian": ({"trust": fp.Pairwise(colluders=0, ratio=3.0)}, 1),
    "central, Gaussian": ({**CENTRAL, "trust": fp.Central()}, 1),
    "central, Gaussian, secret cohorts (0.5)": ({**CENTRAL, "trust": fp.Central(cohort_rate=0.5)}, 1),
}


def subject_of(options: dict[str, object], rounds: int) -> AuditTarget:
    """A run that costs epsilon 3 at delta 1e-5."""
    data = [TensorDataset(torch.randn(20, 8), torch.randint(2, (20,))) for _ in range(CLIENTS)]
    clients = fp.make_clients(nn.Linear(8, 1, bias=False), LOSS, data)
    promise = fp.Privacy(**{"epsilon": EPSILON, "delta": DELTA, **options})
    subject = AuditTarget.of(clients, fp.fedavg(0.5), promise, rounds=rounds)
    noise = subject.plan().privacy.noise_multiplier
    privacy = replace(subject.privacy, noise_multiplier=noise, epsilon=None)
    return replace(subject, privacy=privacy)


def scaled(records: Sequence[Record], factor: float) -> list[Record]:
    """The records of the same run with `factor` times the noise."""
    changed: list[Record] = []
    for record in records:
        noise = record.noise_multiplier
        noise = tuple(n * factor for n in noise) if isinstance(noise, tuple) else noise * factor
        changed.append(replace(record, noise_multiplier=noise))
    return changed


def rates_of(game: Game) -> tuple[float, float]:
    """Returns a lower bound on the hit rate and an upper bound on the false alarm rate, with joint confidence."""
    first = len(game.scores) // 4
    scores, took_part = game.scores[:first], game.took_part[:first]
    cuts = np.quantile(scores, np.linspace(0.02, 0.98, 49))
    differences = [(scores[took_part] > cut).mean() - (scores[~took_part] > cut).mean() for cut in cuts]
    guess, truth = game.scores[first:] > cuts[int(np.argmax(differences))], game.took_part[first:]
    failure = (1 - CONFIDENCE) / 2
    hits, alarms = int((guess & truth).sum()), int((guess & ~truth).sum())
    n_inside, n_outside = int(truth.sum()), int((~truth).sum())
    least = float(stats.beta.ppf(failure, hits, n_inside - hits + 1)) if hits else 0.0
    largest = float(stats.beta.ppf(1 - failure, alarms + 1, n_outside - alarms)) if alarms < n_outside else 1.0
    return least, largest


def is_possible(hits: float, alarms: float, epsilons: Sequence[float]) -> bool:
    """True if a mechanism with these epsilons at `DELTAS` can have these error rates, in both directions."""
    for epsilon, delta in zip(epsilons, DELTAS, strict=True):
        if hits > np.exp(epsilon) * alarms + delta or 1 - alarms > np.exp(epsilon) * (1 - hits) + delta:
            return False
    return True


def epsilon_by_curve(game: Game, price: Callable[[float, float], float]) -> float:
    """Returns the epsilon of the largest noise for which the attacker's error rates are possible.

    Args:
        game: Scores of canaries.
        price: Epsilon of the run with a multiple of the noise, at a delta; it falls with the noise.
    """
    hits, alarms = rates_of(game)
    low, high = 0.5, 50.0  # times the noise: possible, impossible
    if is_possible(hits, alarms, [price(high, delta) for delta in DELTAS]):
        return 0.0
    for _ in range(9):
        middle = float(np.sqrt(low * high))
        if is_possible(hits, alarms, [price(middle, delta) for delta in DELTAS]):
            low = middle
        else:
            high = middle
    return price(high, DELTA)


def shares(subject: AuditTarget, game: Game) -> list[str]:
    """The three bounds over the claim."""
    bounds = game.bounds(CONFIDENCE)
    if game.normal:
        law = bounds.of_mu
    else:
        records = subject.plan().records
        law = epsilon_by_curve(game, lambda factor, delta: account(scaled(records, factor), CLIENTS, delta).epsilon)
    return [f"{value / game.promised:.0%}" for value in (bounds.clopper_pearson, bounds.one_run, law)]


def games_of(subject: AuditTarget, rounds: int, canaries: int, per_client: int) -> Game:
    """Plays the game with `canaries` canaries in total, in runs with `per_client` canaries per client."""
    reached = compute_reach(subject, per_client, rounds)
    count = -(-canaries // (CLIENTS * per_client))
    return merge_games([run_game(subject, per_client, rounds, reached) for _ in range(count)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--canaries", type=int, default=8000, help="in a few runs of 1000")
    parser.add_argument("--many", type=int, default=4000, help="in runs with one at each client")
    parser.add_argument("--each", type=int, default=250, help="canaries of a client in a run of many")
    parser.add_argument("--only", nargs="*", default=[*CASES])
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", fp.errors.PromiseWarning)
    torch.set_num_threads(1)
    names = [f"{few}: {how}" for few in ("few runs", "many runs") for how in ("rates", "guesses", "law")]
    rows = [["release", "claimed", *names]]
    rows.append(["---"] * len(rows[0]))
    for name in arguments.only:
        begun = time.perf_counter()
        options, rounds = CASES[name]
        subject = subject_of(options, rounds)
        games = []
        if subject.privacy.unit == "sample":
            games.append(games_of(subject, rounds, arguments.canaries, arguments.each))
        many = games_of(subject, rounds, arguments.many, 1)
        row = [name, f"{many.promised:.3g}"]
        if not games:
            row += ["-"] * 3
        for game in (*games, many):
            row += shares(subject, game)
        rows.append(row)
        print(*row, f"({time.perf_counter() - begun:.0f} s)", sep=" | ", flush=True)
    if arguments.markdown is not None:
        arguments.markdown.write_text("".join(f"| {' | '.join(row)} |\n" for row in rows))


if __name__ == "__main__":
    main()
