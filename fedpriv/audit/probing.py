"""A few rounds of a run, with every release heard together with what stands under its noise.

Four kinds of oracles are asked the same questions at the same points, with the same draws of examples:

* the real one, whose answers the strategy goes on with;
* a silent one, whose noise is zero: the exact clipped aggregate;
* a level one, whose noise is one everywhere: with the silent answer subtracted, the scale that noise is multiplied by;
* silent ones on neighbouring data: how far one unit can move the aggregate.

So noise is compared with the ledger's claim without trusting the code that computed its scale. The rest of the noise
multiplier (grids, noise of pairs) is scaled down by `FINE` in all but the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedpriv.audit.neighbours import Neighbours
from fedpriv.audit.observed_release import ObservedRelease
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.clients.population import Population
from fedpriv.network.rounds import initial_state, run_rounds, server_view
from fedpriv.oracle.backend_selection import select_backend
from fedpriv.oracle.backends.base import Backend
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.data_answerer import DataAnswerer, data_oracle
from fedpriv.oracle.oracle import Oracle
from fedpriv.planning.plan import Plan
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.ledger import Ledger, Release
from fedpriv.privacy.mechanisms import Mechanism
from fedpriv.privacy.record import NoiseDistributionName
from fedpriv.privacy.settings import Privacy
from fedpriv.randomness.streams import Randomness

QUESTIONS = frozenset(
    {"gradient", "client_gradient", "full_gradient", "gradient_difference", "lagrangian_gradient", "statistic"}
)
FINE = 2.0**-20
_FAR = 1e6  # how much longer than the clip bound a forged message is


@dataclass(frozen=True)
class Trace:
    """All that was heard in some rounds.

    Attributes:
        plan: Of these rounds.
        heard: The releases, in order.
        beside: Names of questions that were answered without a line in the ledger.
        population: The clients.
        backend: What computed their sums.
    """

    plan: Plan
    heard: Sequence[ObservedRelease]
    beside: Sequence[str]
    population: Population
    backend: Backend


@dataclass(frozen=True)
class _Level:
    """Noise of one value, which counts how many copies it stands for."""

    law: Mechanism
    value: float
    amounts: list[float]

    @property
    def name(self) -> NoiseDistributionName:
        return self.law.name

    @property
    def deviation(self) -> float:
        return self.law.deviation

    def draw(self, keys: Tensor, dim: int, amount: float = 1.0) -> Tensor:
        self.amounts.append(amount)
        return torch.full((len(keys), dim), self.value, dtype=torch.float64, device=keys.device)


class _Overheard(Ledger):
    """A ledger in memory that keeps what it opened last."""

    opened: Tensor

    def open(self, release: Release) -> Tensor:
        self.opened = super().open(release)
        return self.opened


class _Chorus:
    """The real oracle; whatever it is asked, the others are asked too."""

    def __init__(
        self,
        lead: Oracle[DataAnswerer],
        others: Sequence[Oracle[DataAnswerer]],
        near: Neighbours | None,
        hear: Callable[[str, bool], None],
    ) -> None:
        self._lead, self._others, self._near, self._hear = lead, others, near, hear

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever an oracle has
        found = getattr(self._lead, name)
        if name in QUESTIONS:
            return self._together(name, found)
        return found

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> Tensor | None:
        for other in self._others:
            other.begin_round(round_index, cohort, received)
        drawn = self._lead.begin_round(round_index, cohort, received)
        if drawn is None:
            self._senders = cohort
        else:
            self._senders = cohort[drawn]
        return drawn

    def release_message(self, message: Tensor) -> Tensor:
        if self._lead.privacy.boundary != "message":
            return message
        before, answer = len(self._lead.answerer.ledger.records), self._lead.release_message(message)
        if self._near is None:
            row = None
        else:
            row = self._near.row(self._senders.tolist())
        far = _FAR * self._lead.privacy.clip.bound
        for number, other in enumerate(self._others):
            other.release_message(message if number < 2 else _forged(message, row, (-1.0) ** number * far))
        self._hear("message", len(self._lead.answerer.ledger.records) > before)
        return answer

    def _together(self, name: str, question: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def ask(*given: Any) -> Tensor:  # noqa: ANN401 - the arguments of any question
            before, answer = len(self._lead.answerer.ledger.records), question(*given)
            for other in self._others:
                getattr(other, name)(*given)
            self._hear(name, len(self._lead.answerer.ledger.records) > before)
            return answer

        return ask


def _forged(message: Tensor, row: int | None, far: float) -> Tensor:
    """A message in which one client says as much as it can in one direction."""
    changed = message.clone()
    if row is not None:
        changed[row] = far
    return changed


def listen(
    subject: AuditTarget, data: Data, rounds: int, near: Neighbours | None = None, randomness: Randomness | None = None
) -> Trace:
    """Run some rounds and hear every release.

    Args:
        subject: The run.
        data: The clients' data.
        rounds: How many rounds at most.
        near: Data sets in which one unit is another; none by default.
        randomness: The streams of draws and noise; new ones by default.

    Raises:
        ConfigError: the run cannot be made.
    """
    short = subject.shortened(rounds)
    plan, population = short.plan(), short.population(data)
    start = population.reset_models()
    backend = select_backend(short.compute.backend, population, population.chunk, short.compute.precision).backend
    randomness, privacy = randomness or Randomness(), plan.privacy

    def oracle(people: Population, promise: Privacy) -> Oracle[DataAnswerer]:
        sums = ClippedSums(backend, len(people), people.device)
        ledger = _Overheard(Accountant(plan.n_clients, promise.delta))
        return data_oracle(people, sums, promise, ledger, randomness)

    amounts = list[float]()

    def hushed(value: float) -> Privacy:
        multiplier = (privacy.noise_multiplier or 1.0) * FINE
        level = _Level(privacy.mechanism, value, amounts)
        return replace(privacy, mechanism=level, noise_multiplier=multiplier, epsilon=None)

    lead, silent, level = oracle(population, privacy), oracle(population, hushed(0.0)), oracle(population, hushed(1.0))
    if near is None:
        others = []
    else:
        others = [oracle(short.population(other), hushed(0.0)) for other in near.data]
    heard, beside = list[ObservedRelease](), list[str]()

    def hear(question: str, written: bool) -> None:
        recorded = question == "message" or privacy.boundary != "message"
        if not written:
            beside.extend([question] if recorded else [])
            return
        released, exact, levels = (_opened(one) for one in (lead, silent, level))
        record, above, amount = lead.answerer.ledger.records[-1], (levels - exact) / FINE, amounts[-1]
        found = ObservedRelease(record, released, exact, above, amount)
        heard.append(found if near is None else near.compared(found, [_opened(one) for one in others]))

    chorus: Any = _Chorus(lead, [silent, level, *others], near, hear)
    network = short.network
    progress = initial_state(short.strategy, start.expand(len(population), -1))
    seen = server_view(network, privacy)
    for _ in run_rounds(short.strategy, chorus, network, progress, randomness, rounds=short.rounds, seen=seen):
        pass
    return Trace(plan, heard, beside, population, backend)


def _opened(oracle: Oracle[DataAnswerer]) -> Tensor:
    ledger = oracle.answerer.ledger
    assert isinstance(ledger, _Overheard)
    return ledger.opened.clone()
