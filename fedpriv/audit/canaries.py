"""Canary check: an attacker who observes all releases guesses which canaries took part.

A canary is one privacy unit with a gradient as long as the clip allows, along a separate coordinate. A secret coin
decides its sign (neighbouring relation replace_one) or its participation (add_remove). A toy run with only canaries
uses the same strategy, oracle, clip, noise and ledger as the real run. The statistic is the likelihood ratio of all
releases, whitened if rounds or pairs share noise. Under random allocation it is the ratio for whole epochs: the mean of
the ratios of the batches that may have contained the canary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fedpriv.audit.bounds import Array, Bounds, Marks, bounds_from_scores, largest_mu
from fedpriv.audit.check_result import CheckResult
from fedpriv.audit.observed_release import ObservedRelease
from fedpriv.audit.probing import Trace, trace_run
from fedpriv.audit.residuals import compute_covariance, select_uncorrelated
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.clients import make_clients
from fedpriv.models import Loss
from fedpriv.privacy.accounting import account, compute_ratio, round_up

NAME = "canaries"
CONFIDENCE = 0.95
_SURE = 1 - 1e-4  # confidence at which a bound above the guarantee counts as found
_CANARIES = 1000
REPLICAS = 40
_ROUNDS = 20
_LENGTH = 10.0  # of a canary's gradient, over the clip bound
_LOSS = Loss(lambda outputs, targets: outputs[:, 0])


@dataclass(frozen=True)
class Game:
    """Scores of canaries, larger for canaries that appear to have taken part, and the truth.

    Attributes:
        scores: The score of each canary, `[m]`.
        took_part: True if it took part, `[m]`.
        promised: Epsilon of the toy run according to its ledger.
        delta: Delta of the toy run.
        normal: True if scores are normal: Gaussian noise, and no secret draws.
    """

    scores: Array
    took_part: Marks
    promised: float
    delta: float
    normal: bool

    def bounds(self, confidence: float = CONFIDENCE) -> Bounds:
        """Returns the lower bounds on epsilon from guessing by the scores."""
        return bounds_from_scores(self.scores, self.took_part, self.delta, confidence, normal=self.normal)


def check_canaries(subject: AuditTarget, data: Data) -> CheckResult:
    """Plays the game in one run with many canaries, and in many runs with one canary for each client."""
    noise = subject.plan().privacy.noise_multiplier
    subject = replace(subject, privacy=replace(subject.privacy, noise_multiplier=noise, epsilon=None))
    rounds = min(subject.rounds, _ROUNDS)
    reached = compute_reach(subject, 1, rounds)
    replicas = [run_game(subject, 1, rounds, reached) for _ in range(REPLICAS)]
    games = {"replicated runs": merge_games(replicas)}
    if subject.privacy.unit == "sample":
        games = {"one run": run_game(subject, max(_CANARIES // len(data), 1), rounds), **games}
    main_game = next(iter(games.values()))

    broken: list[str] = []
    summaries: list[str] = []
    for name, game in games.items():
        sure = game.bounds(_SURE)
        worst = max(sure.clopper_pearson, sure.one_run, sure.of_mu)
        if worst > game.promised:
            broken.append(
                f"{name}: guesses prove epsilon above {worst:.3g}, more than the claimed {round_up(game.promised)}"
            )
        summaries.append(f"{_format_bounds(game.bounds())} from {len(game.scores)} canaries of {name}")
    promised = f"claimed {round_up(main_game.promised)}"
    evidence = f"lower bounds on epsilon of {rounds} rounds (95 % confidence): {'; '.join(summaries)}; {promised}"

    numbers = {"promised": main_game.promised, "delta": main_game.delta}
    for name, game in games.items():
        numbers |= {f"{name}: {key}": value for key, value in game.bounds()._asdict().items()}
    if broken:
        verdict = "found"
    else:
        verdict = "held"
    return CheckResult(NAME, verdict, "; ".join([*broken, evidence]), _power(main_game), numbers)


def _format_bounds(bounds: Bounds) -> str:
    texts = [f"{bounds.clopper_pearson:.2f} (Clopper-Pearson)", f"{bounds.one_run:.2f} (one-run guesses)"]
    if bounds.mu:
        texts.append(f"{bounds.of_mu:.2f} (normal scores, mu {bounds.mu:.2f})")
    return ", ".join(texts)


def _power(game: Game) -> str:
    """Returns a text with the smallest noise deficit that the bounds could have detected."""
    perfect = Game(game.took_part.astype(float), game.took_part, game.promised, game.delta, normal=False).bounds(_SURE)
    ceiling = max(perfect.clopper_pearson, perfect.one_run)
    text = f"without assumptions, this number of canaries can prove at most epsilon {ceiling:.1f}"
    if not game.normal:
        return text
    # reduce the noise in steps until normal scores of the same number yield a bound above the guarantee
    draw = np.random.default_rng(0).standard_normal(len(game.scores))
    took_part = game.took_part
    mu = compute_ratio(game.promised, game.delta)
    fraction = 1.0
    while fraction > 0.05 and largest_mu((draw + mu / fraction)[took_part], draw[~took_part], _SURE) <= mu:
        fraction -= 0.05
    return f"{text}; with normal scores, noise below about {fraction:.2f} of the claim would be found"


def merge_games(games: Sequence[Game]) -> Game:
    """Returns all canaries of independent runs as one game; each canary belongs to one run only."""
    scores = np.concatenate([game.scores for game in games])
    took_part = np.concatenate([game.took_part for game in games])
    return replace(games[0], scores=scores, took_part=took_part)


def run_game(subject: AuditTarget, per_client: int, rounds: int, reached: Mapping[str, float] | None = None) -> Game:
    """Performs one toy run with `per_client` canaries at every client, and scores them.

    Args:
        subject: The run that provides strategy, privacy and network.
        per_client: Number of canaries of each client.
        rounds: Number of rounds.
        reached: The result of `compute_reach`; None computes it.

    Raises:
        ConfigError: If the strategy cannot run on the toy.
    """
    n_clients = len(subject.clients)
    privacy = subject.privacy
    coins = np.random.default_rng().random((n_clients, per_client)) < 0.5
    toy = _toy_target(subject, coins)
    trace = trace_run(toy, toy.data(), rounds)
    records = [release.record for release in trace.releases]
    promised = account(records, n_clients, privacy.delta).epsilon
    normal = privacy.mechanism.name == "gaussian" and all(record.sampling == "full" for record in records)
    if reached is None:
        reached = compute_reach(subject, per_client, rounds)
    scores = _scores(trace, n_clients, per_client, reached)
    order = np.random.default_rng().permutation(scores.size)
    return Game(scores.ravel()[order], coins.ravel()[order], promised, privacy.delta, normal)


def _toy_target(subject: AuditTarget, coins: NDArray[np.bool_]) -> AuditTarget:
    """Returns a run of canaries with a linear loss: the gradient of an example is its input.

    Args:
        subject: The run that provides strategy, privacy and network.
        coins: True if the canary takes part, `[n_clients, per_client]`.
    """
    n_clients, per_client = coins.shape
    length = _LENGTH * subject.privacy.clip.bound
    if subject.privacy.relation == "replace_one":
        absent = -length
    else:
        absent = 0.0
    rows = torch.zeros(n_clients, per_client, n_clients * per_client, dtype=torch.float64)
    for client in range(n_clients):
        for canary in range(per_client):
            coordinate = client * per_client + canary
            if coins[client, canary]:
                rows[client, canary, coordinate] = length
            else:
                rows[client, canary, coordinate] = absent
    layer = nn.Linear(n_clients * per_client, 1, bias=False)
    nn.init.zeros_(layer.weight)
    data = [TensorDataset(x, torch.arange(per_client) % 2) for x in rows]
    clients = make_clients(nn.Sequential(layer), _LOSS, data)
    for client, original in zip(clients, subject.clients, strict=True):
        client.problem = original.problem
    toy: dict[str, Any] = {"clients": clients, "test": None, "options": {}, "folder": None}
    return replace(subject, **toy)


def compute_reach(subject: AuditTarget, per_client: int, rounds: int) -> dict[str, float]:
    """Returns the signed change of a release due to a canary, by the name of its query.

    An attacker can compute this number from the algorithm. It is measured in a run in which every canary takes part, so
    that the score of an absent canary is the same function of the releases.
    """
    toy = _toy_target(subject, np.ones((len(subject.clients), per_client), dtype=bool))
    reached: dict[str, float] = {}
    for release in trace_run(toy, toy.data(), rounds).releases:
        query = release.record.query
        size = math.copysign(float(release.exact.abs().max()), float(release.exact.sum()))
        reached[query] = max(reached.get(query, 0.0), size, key=abs)
    return reached


def _scores(trace: Trace, n_clients: int, per_client: int, reached: Mapping[str, float]) -> Array:
    """Returns the logarithm of the likelihood ratio of each canary, `[n_clients, per_client]`."""
    scores = np.zeros((n_clients, per_client))
    releases: list[ObservedRelease] = []
    for release in trace.releases:
        if release.exact.shape[1] == n_clients * per_client:  # constraint values are not gradients
            exact = torch.full_like(release.exact, reached[release.record.query])
            releases.append(replace(release, exact=exact))
    epochs: dict[tuple[int, int, int], list[_BatchRatios]] = {}
    for release in select_uncorrelated(releases):
        record = release.record
        row_clients = release.row_clients(n_clients)
        for row, client in enumerate(row_clients):
            # a sum contains the canaries of all clients
            for owner in range(n_clients) if client < 0 else [client]:
                coordinates = slice(owner * per_client, (owner + 1) * per_client)
                if record.batches is None:
                    scores[owner] += _log_ratio(release, row_clients, row, coordinates)
                    continue
                epoch = owner, record.index, record.round // record.batches
                epochs.setdefault(epoch, []).append(_batch_ratios(release, row_clients, row, coordinates))
    for (owner, _, _), ratios in epochs.items():
        scores[owner] += _log_ratio_of_epoch(ratios)
    return scores


@dataclass(frozen=True)
class _BatchRatios:
    """Log-likelihood ratios of one batch of random allocation, for canaries that may have been in it.

    Attributes:
        present: Likelihood of the query result with the canary in the batch, over the likelihood without it,
            `[per_client]`.
        absent: The same with the canary's replacement in the batch; 0 if there is no replacement.
        batches: Number of batches of the epoch.
    """

    present: Array
    absent: Array
    batches: int


def _batch_ratios(release: ObservedRelease, row_clients: Sequence[int], row: int, coordinates: slice) -> _BatchRatios:
    """Returns the likelihood ratios of one batch for its owner's canaries."""
    size = float(release.exact[row, 0])
    weights = _precision(release, row_clients, row)
    rows = release.released[:, coordinates].double().cpu()
    linear = ((weights[:, None] * rows).sum(0) * size).numpy()
    half_square = size**2 * float(weights[row]) / 2
    if release.record.relation == "add_remove":
        absent = np.zeros_like(linear)
    else:
        absent = -linear - half_square
    return _BatchRatios(linear - half_square, absent, release.record.batches or 1)


def _log_ratio_of_epoch(ratios: Sequence[_BatchRatios]) -> Array:
    """Returns the log-likelihood ratio of an epoch: the attacker averages over the batches, which are secret."""
    unseen = max(ratios[0].batches - len(ratios), 0)  # batches after the end of the toy run have ratio 1
    if unseen:
        log_unseen = math.log(unseen)
    else:
        log_unseen = -math.inf
    silent = np.full_like(ratios[0].present, log_unseen)
    present = np.logaddexp.reduce([silent, *(batch.present for batch in ratios)])
    absent = np.logaddexp.reduce([silent, *(batch.absent for batch in ratios)])
    return present - absent


def _log_ratio(release: ObservedRelease, row_clients: Sequence[int], row: int, coordinates: slice) -> Array:
    """Returns the logarithm of the likelihood ratio of a row's coordinates, up to a constant."""
    scale = float(release.level[row].median())
    size = float(release.exact[row, 0])
    if release.record.relation == "add_remove":
        absent = 0.0
    else:
        absent = -size
    if release.record.mechanism == "laplace":
        values = release.released[row, coordinates]
        return ((values - absent).abs() - (values - size).abs()).div(scale).cpu().numpy()
    rows: Tensor = release.released[:, coordinates].double().cpu()
    values = (_precision(release, row_clients, row)[:, None] * rows).sum(0)
    return (values * (size - absent)).numpy()


def _precision(release: ObservedRelease, row_clients: Sequence[int], row: int) -> Tensor:
    """Returns the row's part in the inverse covariance of the noise of all rows, `[rows]`."""
    scale = float(release.level[row].median())
    # rows that share pair noise are whitened by the inverse of its covariance
    if release.record.pairs is not None and len(row_clients) > 1:
        weights = torch.from_numpy(np.linalg.inv(compute_covariance(release.record.pairs, row_clients)))[row]
    else:
        weights = torch.eye(len(release.released), dtype=torch.float64)[row]
    return weights / scale**2
