"""Measures the cost of unannounced absences of sites, for noise that cancels between pairs.

    FEDPRIV_DATA=<folder with adult/> python benchmarks/reproduce/pair_dropouts.py [--quick] [--markdown FILE]

Logistic regression on Adult by gradient descent as in configs/hospitals.yaml, with rows divided at random among 5, 20
and 100 sites. Each site is absent from each round with probability 5 %, independently, after the others have sent.
Every line has the same epsilon. The mean over the replying sites keeps the noise of their pairs with absent ones.

Lines: local noise; pairs among all, without absences, and with absences; the best ratio for this number of absences;
few partners for each site; and a second phase, in which the replying sites reveal the noise that they share with the
absent ones, so that it is subtracted. Revealed noise protects no one. The cost of the second phase is therefore
computed with `d` more colluding sites; more than `d` are absent in less than one of 200 rounds, which would be lost.
The second phase assumes a server that never reports a site as absent after receiving its message; for the importance of
this see docs/design/0013-dropouts.md.

`noise` is the expected deviation of the noise in a round's mean (root mean square), relative to local noise.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import binom

from fedpriv.clients.layout import Layout
from fedpriv.clients.population import Population
from fedpriv.config import load_config
from fedpriv.config.building import load_data, make_population
from fedpriv.evaluation.evaluator import Evaluator
from fedpriv.forecast.pair_absences import find_best_ratio
from fedpriv.network.local import Star
from fedpriv.network.rounds import ClientInput, client_update, initial_state, server_update
from fedpriv.oracle.backend_selection import select_backend
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.data_query_engine import data_oracle
from fedpriv.planning.plan import make_plan
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.pairwise import RandomRegular
from fedpriv.privacy.settings import Local
from fedpriv.randomness.streams import Randomness
from fedpriv.sites.federation import RespondingStar
from fedpriv.strategies.state import shared_leaves

CONFIG = Path(__file__).parents[2] / "configs" / "hospitals.yaml"
ABSENT = 0.05
RATIO = 3.0
COLLUDERS = 1
MANY = 5_000  # rounds over which the noise is averaged
LOST = 5e-3  # probability of a round with more absent sites than a second phase allows for


@dataclass(frozen=True)
class Scheme:
    """A scheme of noise, and the part of it that remains in a mean.

    Attributes:
        name: Printed name.
        trust: `privacy.trust` of the configuration.
        degree: Number of partners of a site; None for all.
        ratio: Ratio of a pair's noise to a site's individual noise.
        leaves: True if the noise of pairs with absent sites remains in the mean.
        absent: Probability that a site is absent.
    """

    name: str
    trust: str
    degree: int | None = None
    ratio: float = 0.0
    leaves: bool = False
    absent: float = ABSENT

    @property
    def is_second_phase(self) -> bool:
        """True if the noise that is shared with absent sites is revealed and subtracted."""
        return self.ratio > 0 and not self.leaves and self.absent > 0


def pairs(ratio: float, colluders: int = COLLUDERS, degree: int | None = None) -> str:
    secrets = "" if degree is None else f", secrets: {{random_regular: {{degree: {degree}}}}}"
    return f"{{pairwise: {{colluders: {colluders}, ratio: {ratio}{secrets}}}}}"


def schemes(n: int) -> Sequence[Scheme]:
    best = find_best_ratio(n, COLLUDERS, ABSENT)
    allowed = int(binom.ppf(1 - LOST, n, ABSENT))
    lines = [
        Scheme("local noise", "local"),
        Scheme("all pairs, nobody absent", pairs(RATIO), None, RATIO, absent=0.0),
        Scheme("all pairs", pairs(RATIO), None, RATIO, leaves=True),
        Scheme(f"all pairs, best ratio {best:g}", pairs(best), None, best, leaves=True),
    ]
    for degree in (4, 10):
        if degree < n - 1:
            lines.append(Scheme(f"{degree} partners", pairs(RATIO, degree=degree), degree, RATIO, leaves=True))
    if allowed + COLLUDERS < n - 1:
        trust = pairs(RATIO, COLLUDERS + allowed)
        lines.append(Scheme(f"second phase, at most {allowed} absent", trust, None, RATIO))
    return lines


def absences(n: int, rounds: int, seed: int, probability: float) -> list[list[int]]:
    """Returns the sites that reply, by round; at least one per round."""
    random = np.random.default_rng([seed, n])
    present = random.random((rounds, n)) >= probability
    present[:, 0] |= ~present.any(1)
    return [np.flatnonzero(row).tolist() for row in present]


def noise_of(scheme: Scheme, n: int, own: float, answered: Sequence[Sequence[int]]) -> float:
    """Returns the root mean square of the noise in the rounds' means, in units of one row's sensitivity."""
    variances = []
    links = None if scheme.degree is None else RandomRegular(scheme.degree).edges(n)
    for present in answered:
        cut = 0  # pairs of one replying and one absent site
        if scheme.leaves and links is None:
            cut = len(present) * (n - len(present))
        elif scheme.leaves and links is not None:
            there = {*present}
            cut = sum((a in there) != (b in there) for a, b in links)
        variances.append(own**2 * (len(present) + cut * scheme.ratio**2) / len(present) ** 2)
    return math.sqrt(mean(variances))


def run(scheme: Scheme, n: int, epsilon: float, seed: int) -> tuple[float, float]:
    """Returns the test accuracy, and the noise in a mean."""
    overrides = [
        f"data.partition={{kind: iid, n_clients: {n}, seed: {seed}}}",
        f"privacy.epsilon={epsilon}",
        f"privacy.trust={scheme.trust}",
        f"seed={seed}",
    ]
    config = load_config(CONFIG, overrides)
    split = load_data(config)
    clients = make_population(config, split)
    population = Population(clients)
    strategy = config.recipe(n).strategy
    network = RespondingStar(n)
    randomness = Randomness(seed, seed + 1000)
    sizes = [client.public_size for client in clients]
    plan = make_plan(strategy, config.promise(n), sizes, Star(n), rounds=config.rounds, randomness=randomness)
    own = float(np.max(plan.records[0].noise_multiplier))  # of a site's individual noise: sizes are equal, or nearly so
    answered = absences(n, config.rounds, seed, scheme.absent)

    privacy = plan.privacy
    if scheme.is_second_phase:
        # noise that replying sites share with each other cancels in the mean, and noise shared with absent sites is
        # subtracted: only their individual noise remains
        privacy = replace(privacy, trust=Local(), noise_multiplier=own)
    ledger = Ledger(Accountant(n, privacy.delta))
    sums = ClippedSums(select_backend("auto", population).backend, n, torch.device("cpu"))
    oracle = data_oracle(population, sums, privacy, ledger, randomness)
    start = population.reset_models(Layout.of(clients[0].model).row_of(clients[0].model))
    progress = initial_state(strategy, start.expand(n, -1))
    for index, present in enumerate(answered):
        cohort = network.participants(index, randomness)
        client_input = ClientInput(index, cohort, progress.received, shared_leaves(progress.local))
        message, local = client_update(strategy, oracle, client_input, progress.local)
        network.restrict_to(torch.tensor(present))
        reply = server_update(strategy, network, message[present], progress.reply)
        progress = replace(
            progress,
            round=index + 1,
            received=reply.received,
            local=local,
            server=reply.server,
            output=reply.output,
            models=reply.models,
        )
    evaluate = Evaluator(clients[0].model, config.loss.build(), split.test)
    many_rounds = absences(n, MANY, 0, scheme.absent)
    return evaluate(progress.models.mean(0))["test_accuracy"], noise_of(scheme, n, own, many_rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five sites, one seed")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--markdown", type=Path, help="file for the table")
    options = parser.parse_args()
    counts = (5,) if options.quick else (5, 20, 100)
    seeds = range(1 if options.quick else options.seeds)

    header = ["sites", "noise is added", "noise", *(f"accuracy, epsilon {value:g}" for value in options.epsilons)]
    rows: list[list[str]] = []
    for n in counts:
        local = None
        for scheme in schemes(n):
            cells: list[str] = []
            noises: list[float] = []
            for epsilon in options.epsilons:
                results = [run(scheme, n, epsilon, seed) for seed in seeds]
                cells.append(f"{100 * mean(accuracy for accuracy, _ in results):.2f} %")
                noises.append(mean(noise for _, noise in results))
            if local is None:
                local = noises[0]
            rows.append([str(n), scheme.name, f"{100 * noises[0] / local:.0f} %", *cells])
            Console().print(*rows[-1], sep=" | ")
    table = Table(*header)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if options.markdown is not None:
        lines = [header, ["---"] * len(header), *rows]
        options.markdown.write_text("".join(f"| {' | '.join(line)} |\n" for line in lines))


if __name__ == "__main__":
    main()
