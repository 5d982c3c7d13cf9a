"""Check 9: an attacker who sees all releases guesses which canaries took part.

A canary is one unit whose gradient is as long as the clip allows, along a coordinate of its own; by a secret coin it
points there or away (relation replace_one), or is there or not (add_remove). A toy run of canaries alone goes through
the same strategy, oracle, clip, noise and ledger as the real one. The statistic is the likelihood ratio of all that was
released, whitened where rounds or pairs share noise. Under random allocation it is that of whole epochs: the mean of
the ratios of the batches in which the canary may have been.
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

from fedpriv.audit.bounds import Array, Bounds, Marks, largest_mu, of_scores
from fedpriv.audit.check_result import CheckResult
from fedpriv.audit.observed_release import ObservedRelease
from fedpriv.audit.probing import Trace, listen
from fedpriv.audit.residuals import covariance, uncorrelated
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.clients.client import make_clients
from fedpriv.models import Loss
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.gaussian import ratio_of
from fedpriv.privacy.accounting.spent import round_up

NAME = "canaries"
CONFIDENCE = 0.95
_SURE = 1 - 1e-4  # with which a bound above the promise is a finding
_CANARIES, REPLICAS, _ROUNDS = 1000, 40, 20
_LONG = 10.0  # a canary's gradient over the clip bound
_LOSS = Loss(lambda outputs, targets: outputs[:, 0])


@dataclass(frozen=True)
class Game:
    """Scores of canaries, larger for those that seem to have taken part, and the truth.

    Attributes:
        scores: `[m]`.
        took_part: `[m]`.
        promised: Epsilon of the toy run by its ledger.
        delta: Its delta.
        normal: Whether scores are normal: Gaussian noise, and no secret draws.
    """

    scores: Array
    took_part: Marks
    promised: float
    delta: float
    normal: bool

    def bounds(self, confidence: float = CONFIDENCE) -> Bounds:
        """What the guesses prove."""
        return of_scores(self.scores, self.took_part, self.delta, confidence, normal=self.normal)


def canaries(subject: AuditTarget, data: Data) -> CheckResult:
    """Play the game in one run of many canaries, and in many runs of one."""
    noise = subject.plan().privacy.noise_multiplier
    subject = replace(subject, privacy=replace(subject.privacy, noise_multiplier=noise, epsilon=None))
    rounds = min(subject.rounds, _ROUNDS)
    reached = reach(subject, 1, rounds)
    single = [play(subject, 1, rounds, reached) for _ in range(REPLICAS)]
    games = {"replicated runs": together(single)}
    if subject.privacy.unit == "sample":
        games = {"one run": play(subject, max(_CANARIES // len(data), 1), rounds), **games}
    one = next(iter(games.values()))
    broken, said = list[str](), list[str]()
    for name, game in games.items():
        sure, found = game.bounds(_SURE), game.bounds()
        worst = max(sure.clopper_pearson, sure.one_run, sure.of_mu)
        if worst > game.promised:
            broken.append(
                f"{name}: guesses prove epsilon above {worst:.3g}, and {round_up(game.promised)} was promised"
            )
        said.append(f"by {len(game.scores)} canaries of {name} {_told(found)}")
    promised = f"promised {round_up(one.promised)}"
    evidence = f"epsilon of {rounds} rounds is, at 95 % confidence, at least {'; '.join(said)}; {promised}"
    numbers = {"promised": one.promised, "delta": one.delta}
    for name, game in games.items():
        numbers |= {f"{name}: {key}": value for key, value in game.bounds()._asdict().items()}
    return CheckResult(NAME, "found" if broken else "held", "; ".join([*broken, evidence]), _power(one), numbers)


def _told(found: Bounds) -> str:
    parts = [f"{found.clopper_pearson:.2f} (Clopper-Pearson)", f"{found.one_run:.2f} (one-run guesses)"]
    parts += [f"{found.of_mu:.2f} (normal scores, mu {found.mu:.2f})"] if found.mu else []
    return ", ".join(parts)


def _power(game: Game) -> str:
    """What deficit of noise the bounds could have shown."""
    perfect = Game(game.took_part.astype(float), game.took_part, game.promised, game.delta, normal=False).bounds(_SURE)
    ceiling = max(perfect.clopper_pearson, perfect.one_run)
    said = f"without assumptions no more than epsilon {ceiling:.1f} could be proved by so many canaries"
    if not game.normal:
        return said
    draw, part, took_part = np.random.default_rng(0).standard_normal(len(game.scores)), 1.0, game.took_part
    mu = ratio_of(game.promised, game.delta)
    while part > 0.05 and largest_mu((draw + mu / part)[took_part], draw[~took_part], _SURE) <= mu:
        part -= 0.05
    return f"{said}; with normal scores noise below about {part:.2f} of the claim would be found"


def together(games: Sequence[Game]) -> Game:
    """All canaries of independent runs, as one game: each canary is in one of them only."""
    scores, took_part = (np.concatenate([getattr(game, name) for game in games]) for name in ("scores", "took_part"))
    return replace(games[0], scores=scores, took_part=took_part)


def play(subject: AuditTarget, each: int, rounds: int, reached: Mapping[str, float] | None = None) -> Game:
    """One toy run with `each` canaries at every client; see `reach`.

    Raises:
        ConfigError: the strategy cannot run on the toy.
    """
    count, privacy = len(subject.clients), subject.privacy
    coins = np.random.default_rng().random((count, each)) < 0.5
    toy = _toy(subject, coins)
    transcript = listen(toy, toy.data(), rounds)
    records = [heard.record for heard in transcript.heard]
    promised = account(records, count, privacy.delta).epsilon
    normal = privacy.mechanism.name == "gaussian" and all(record.sampling == "full" for record in records)
    scores = _scores(transcript, count, each, reach(subject, each, rounds) if reached is None else reached)
    order = np.random.default_rng().permutation(scores.size)
    return Game(scores.ravel()[order], coins.ravel()[order], promised, privacy.delta, normal)


def _toy(subject: AuditTarget, coins: NDArray[np.bool_]) -> AuditTarget:
    """A run of canaries: a linear loss, whose gradient for an example is its input."""
    count, each = coins.shape
    long = _LONG * subject.privacy.clip.bound
    if subject.privacy.relation == "replace_one":
        away = -long
    else:
        away = 0.0
    rows = torch.zeros(count, each, count * each, dtype=torch.float64)
    for client in range(count):
        for place in range(each):
            if coins[client, place]:
                rows[client, place, client * each + place] = long
            else:
                rows[client, place, client * each + place] = away
    layer = nn.Linear(count * each, 1, bias=False)
    nn.init.zeros_(layer.weight)
    data = [TensorDataset(x, torch.arange(each) % 2) for x in rows]
    clients = make_clients(nn.Sequential(layer), _LOSS, data)
    for client, like in zip(clients, subject.clients, strict=True):
        client.problem = like.problem
    toy: dict[str, Any] = {"clients": clients, "test": None, "options": {}, "folder": None}
    return replace(subject, **toy)


def reach(subject: AuditTarget, each: int, rounds: int) -> dict[str, float]:
    """How far, and which way, a canary moves an answer, by the name of the answer.

    Who knows the algorithm knows it: it is heard in a run in which every canary takes part, so that the score of a
    canary that is not there is the same function of what was released.
    """
    toy, found = _toy(subject, np.ones((len(subject.clients), each), dtype=bool)), dict[str, float]()
    for heard in listen(toy, toy.data(), rounds).heard:
        size = math.copysign(float(heard.exact.abs().max()), float(heard.exact.sum()))
        found[heard.record.query] = max(found.get(heard.record.query, 0.0), size, key=abs)
    return found


def _scores(transcript: Trace, count: int, each: int, reached: Mapping[str, float]) -> Array:
    """The likelihood ratio of each canary, `[count, each]`."""
    scores, answers = np.zeros((count, each)), list[ObservedRelease]()
    for heard in transcript.heard:
        if heard.exact.shape[1] == count * each:  # constraint values are no gradients
            answers.append(replace(heard, exact=torch.full_like(heard.exact, reached[heard.record.query])))
    epochs: dict[tuple[int, int, int], list[_BatchRatios]] = {}
    for heard in uncorrelated(answers):
        whose, record = heard.whose(count), heard.record
        for row, client in enumerate(whose):
            for owner in range(count) if client < 0 else [client]:
                own = slice(owner * each, (owner + 1) * each)
                if record.batches is None:
                    scores[owner] += _ratio(heard, whose, row, own)
                else:
                    key = owner, record.index, record.round // record.batches
                    epochs.setdefault(key, []).append(_ratios_of_batch(heard, whose, row, own))
    for (owner, _, _), ratios in epochs.items():
        scores[owner] += _ratio_of_epoch(ratios)
    return scores


@dataclass(frozen=True)
class _BatchRatios:
    """What one batch of random allocation tells of canaries, if they were in it.

    Attributes:
        here: Log of the likelihood of the answer with a canary that takes part, over that without any, `[each]`.
        away: The same with a canary that does not: its replacement, or nothing.
        batches: Batches of the epoch.
    """

    here: Array
    away: Array
    batches: int


def _ratios_of_batch(heard: ObservedRelease, whose: Sequence[int], row: int, own: slice) -> _BatchRatios:
    """What one batch tells of its owner's canaries."""
    size, batches = float(heard.exact[row, 0]), heard.record.batches or 1
    rows, weights = heard.released[:, own].double().cpu(), _precision(heard, whose, row)
    linear = ((weights[:, None] * rows).sum(0) * size).numpy()
    half_square = size**2 * float(weights[row]) / 2
    if heard.record.relation == "add_remove":
        away = np.zeros_like(linear)
    else:
        away = -linear - half_square
    return _BatchRatios(linear - half_square, away, batches)


def _ratio_of_epoch(ratios: Sequence[_BatchRatios]) -> Array:
    """Log of the likelihood ratio of an epoch: whoever guesses does not know the batch, which was any of all."""
    unseen = max(ratios[0].batches - len(ratios), 0)  # batches that the toy run does not reach tell nothing
    whole = list[Array]()
    for parts in ([one.here for one in ratios], [one.away for one in ratios]):
        silent = np.full_like(parts[0], math.log(unseen) if unseen else -math.inf)
        whole.append(np.logaddexp.reduce([*parts, silent]))
    return whole[0] - whole[1]


def _ratio(heard: ObservedRelease, whose: Sequence[int], row: int, own: slice) -> Array:
    """Logarithm of the likelihood ratio of a row's coordinates, but for a constant."""
    scale, size = float(heard.level[row].median()), float(heard.exact[row, 0])
    if heard.record.relation == "add_remove":
        away = 0.0
    else:
        away = -size
    if heard.record.mechanism == "laplace":
        seen = heard.released[row, own]
        return ((seen - away).abs() - (seen - size).abs()).div(scale).cpu().numpy()
    rows: Tensor = heard.released[:, own].double().cpu()
    seen = (_precision(heard, whose, row)[:, None] * rows).sum(0)
    return (seen * (size - away)).numpy()


def _precision(heard: ObservedRelease, whose: Sequence[int], row: int) -> Tensor:
    """The row's part in the inverse covariance of the noise in all rows, `[rows]`."""
    scale = float(heard.level[row].median())
    if heard.record.pairs is not None and len(whose) > 1:
        weights = torch.from_numpy(np.linalg.inv(covariance(heard.record.pairs, whose)))[row]
    else:
        weights = torch.eye(len(heard.released), dtype=torch.float64)[row]
    return weights / scale**2
