"""Traces a few rounds of a run: every release, together with its value without noise and the scale of its noise.

Four kinds of oracles compute the results of the same queries at the same points, with the same draws of examples:

* the real one, which provides the results for the strategy;
* a silent one, with zero noise: its result is the exact clipped aggregate;
* a level one, with noise that is one everywhere: its result minus the silent one's is the factor of the noise;
* silent ones on neighbouring data: their results show the largest change of the aggregate due to one unit.

The noise is thus compared with the ledger without trusting the code that computed its scale. The noise multiplier of
all but the real oracle is scaled down by `FINE`, so that grids and noise of pairs hardly change their results.
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
from fedpriv.clients import Population
from fedpriv.network import initial_state, run_rounds, server_view
from fedpriv.oracle import Backend, ClippedSums, DataQueryEngine, Oracle, data_oracle, select_backend
from fedpriv.planning import Plan
from fedpriv.privacy import Ledger, Mechanism, NoiseDistributionName, Privacy, Release, release_scheme
from fedpriv.privacy.accounting import Accountant
from fedpriv.randomness import Randomness

QUERIES = frozenset(
    {"gradient", "client_gradient", "full_gradient", "gradient_difference", "lagrangian_gradient", "statistic"}
)
FINE = 2.0**-20  # factor on the noise multiplier of silent and level oracles
_FAR = 1e6  # length of an extreme message, in units of the clip bound


@dataclass(frozen=True)
class Trace:
    """All releases of some rounds.

    Attributes:
        plan: The plan of these rounds.
        releases: The releases, in order.
        unrecorded: Names of queries that were answered without a record in the ledger.
        population: The clients.
        backend: The backend that computed their sums.
    """

    plan: Plan
    releases: Sequence[ObservedRelease]
    unrecorded: Sequence[str]
    population: Population
    backend: Backend


@dataclass(frozen=True)
class _Level:
    """A noise distribution that returns a constant.

    Attributes:
        law: The noise distribution of the run.
        value: The constant.
        amounts: For each draw, the number of copies of the noise that it represents.
    """

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


class _OpenedLedger(Ledger):
    """A ledger in memory that stores the most recently opened value."""

    opened: Tensor

    def open(self, release: Release) -> Tensor:
        self.opened = super().open(release)
        return self.opened


class _ParallelOracles:
    """Passes every query of the real oracle to the other oracles as well.

    Args:
        lead: The real oracle; its results are returned.
        others: The silent one, the level one, and the ones on neighbouring data.
        near: The neighbouring data; None for none.
        on_answer: Called after each query with its name, and with True if the ledger has a record of it.
    """

    def __init__(
        self,
        lead: Oracle[DataQueryEngine],
        others: Sequence[Oracle[DataQueryEngine]],
        near: Neighbours | None,
        on_answer: Callable[[str, bool], None],
    ) -> None:
        self._lead = lead
        self._others = others
        self._near = near
        self._on_answer = on_answer

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever an oracle has
        attribute = getattr(self._lead, name)
        if name in QUERIES:
            return self._ask_all(name, attribute)
        return attribute

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> Tensor | None:
        for other in self._others:
            other.begin_round(round_index, cohort, received)
        senders = self._lead.begin_round(round_index, cohort, received)
        if senders is None:
            self._senders = cohort
        else:
            self._senders = cohort[senders]
        return senders

    def release_message(self, message: Tensor) -> Tensor:
        if self._lead.privacy.boundary != "message":
            return message
        n_records = len(self._lead.engine.ledger.records)
        answer = self._lead.release_message(message)
        if self._near is None:
            row = None
        else:
            row = self._near.row(self._senders.tolist())
        length = _FAR * self._lead.privacy.clip.bound
        for number, other in enumerate(self._others):
            # the silent and the level oracle come first; neighbours alternate in sign, for the largest distance
            if number < 2:
                other.release_message(message)
            else:
                other.release_message(_extreme_message(message, row, (-1.0) ** number * length))
        self._on_answer("message", len(self._lead.engine.ledger.records) > n_records)
        return answer

    def _ask_all(self, name: str, query: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def ask(*arguments: Any) -> Tensor:  # noqa: ANN401 - the arguments of any query
            n_records = len(self._lead.engine.ledger.records)
            answer = query(*arguments)
            for other in self._others:
                getattr(other, name)(*arguments)
            self._on_answer(name, len(self._lead.engine.ledger.records) > n_records)
            return answer

        return ask


def _extreme_message(message: Tensor, row: int | None, value: float) -> Tensor:
    """Returns the message with one client's row set to a large value everywhere."""
    changed = message.clone()
    if row is not None:
        changed[row] = value
    return changed


def trace_run(
    subject: AuditTarget, data: Data, rounds: int, near: Neighbours | None = None, randomness: Randomness | None = None
) -> Trace:
    """Runs some rounds and records every release.

    Args:
        subject: The run.
        data: The clients' data.
        rounds: Maximum number of rounds.
        near: Data sets that differ in one unit; none by default.
        randomness: The streams of draws and noise; new streams by default.

    Raises:
        ConfigError: If the run cannot be made.
    """
    short = subject.shortened(rounds)
    plan = short.plan()
    privacy = plan.privacy
    population = short.population(data)
    start = population.reset_models()
    backend = select_backend(short.compute.backend, population, population.chunk, short.compute.precision).backend
    randomness = randomness or Randomness()
    amounts: list[float] = []

    def make_oracle(clients: Population, settings: Privacy) -> Oracle[DataQueryEngine]:
        sums = ClippedSums(backend, len(clients), clients.device)
        ledger = _OpenedLedger(Accountant(plan.n_clients, settings.delta))
        table = plan.releases
        if settings is not privacy and privacy.private:
            table = table.priced(release_scheme(settings, clients.shard.all_sizes))
        return data_oracle(clients, sums, settings, ledger, randomness, table=table)

    def constant_noise(value: float) -> Privacy:
        multiplier = (privacy.noise_multiplier or 1.0) * FINE
        level = _Level(privacy.mechanism, value, amounts)
        return replace(privacy, mechanism=level, noise_multiplier=multiplier, epsilon=None)

    # the real oracle, and the oracles that measure its results
    lead = make_oracle(population, privacy)
    silent = make_oracle(population, constant_noise(0.0))
    level = make_oracle(population, constant_noise(1.0))
    if near is None:
        neighbours = []
    else:
        neighbours = [make_oracle(short.population(other), constant_noise(0.0)) for other in near.data]

    releases: list[ObservedRelease] = []
    unrecorded: list[str] = []

    def add_release(query: str, is_recorded: bool) -> None:
        if not is_recorded:
            # with messages as boundary, only these are released
            if query == "message" or privacy.boundary != "message":
                unrecorded.append(query)
            return
        exact = _last_opened(silent)
        release = ObservedRelease(
            record=lead.engine.ledger.records[-1],
            released=_last_opened(lead),
            exact=exact,
            level=(_last_opened(level) - exact) / FINE,
            amount=amounts[-1],
        )
        if near is not None:
            release = near.with_movements(release, [_last_opened(oracle) for oracle in neighbours])
        releases.append(release)

    oracles: Any = _ParallelOracles(lead, [silent, level, *neighbours], near, add_release)
    network = short.network
    progress = initial_state(short.strategy, start.expand(len(population), -1))
    view = server_view(network, privacy)
    for _ in run_rounds(short.strategy, oracles, network, progress, randomness, rounds=short.rounds, seen=view):
        pass
    return Trace(plan, releases, unrecorded, population, backend)


def _last_opened(oracle: Oracle[DataQueryEngine]) -> Tensor:
    ledger = oracle.engine.ledger
    assert isinstance(ledger, _OpenedLedger)
    return ledger.opened.clone()
