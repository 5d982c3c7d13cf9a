"""The base class of release schemes, and the dataclasses of queries, planned releases and random streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.privacy.clipping import ROUNDING, Clip
from fedpriv.privacy.correlated import INDEPENDENT, CorrelatedNoise, compute_row_variances
from fedpriv.privacy.ledger import Release
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.privacy.record import PerClient, Record
from fedpriv.privacy.schedules import LEAST_SHARE
from fedpriv.privacy.settings import Allocation, Cyclic, FixedSize, FullBatch, Poisson, Privacy, Sampling
from fedpriv.randomness.streams import PairSecrets, Randomness

# queries that use all of a client's examples, independent of the sampling of batches
_UNSAMPLED = frozenset({"message", "full_gradient"})
_ONCE_A_ROUND = frozenset({"gradient", "client_gradient", "message"})


@dataclass(frozen=True)
class Answer:
    """The identity of one query result of a run, which also identifies its noise and its ledger record.

    Attributes:
        round: The round, from 0.
        index: Number of the query within its round, from 0.
        query: The query, e.g. `"gradient"`.
        clients: Numbers of the round's participants, in all processes.
        clip: The bound on each unit's contribution.
        budget_share: Share of the privacy budget, relative to a gradient of the same round, which has share 1.
        excluded: Members of `clients` that declared in a signed message before the round that they do not reply.
    """

    round: int
    index: int
    query: str
    clients: Sequence[int]
    clip: Clip
    budget_share: float = 1.0
    excluded: frozenset[int] = frozenset()

    @property
    def answering(self) -> Sequence[int]:
        """The participants that reply."""
        if not self.excluded:
            return self.clients
        return [client for client in self.clients if client not in self.excluded]


@dataclass(frozen=True)
class PlannedRelease:
    """One release before it is made, with its participants, clip bound, noise, and ledger record.

    Two planned releases are equal if they differ only in the round for which their cost was computed.

    Attributes:
        record: The ledger's record, without a checksum.
        clients: Numbers of the round's participants.
        clip: The bound on each unit's contribution.
        noise: Noise scale over the sensitivity of a row with factor 1; 0 for a query without noise.
        factors: Public factor of each participant's row, if the record depends on these factors; else empty.
        answer: The query with this cost.
    """

    record: Record
    clients: Sequence[int]
    clip: Clip
    noise: float
    factors: tuple[float, ...]
    answer: Answer = field(compare=False)

    @staticmethod
    def of(answer: Answer, record: Record, noise: float, factors: Sequence[float] = ()) -> PlannedRelease:
        """Returns the planned release of a query with its cost."""
        return PlannedRelease(record, answer.clients, answer.clip, noise, tuple(factors), answer)

    def in_round(self, round_index: int) -> PlannedRelease:
        """Returns the release of the same kind in another round."""
        record = self.record.changed(round=round_index)
        return PlannedRelease(record, self.clients, self.clip, self.noise, self.factors, self.answer)

    def without_clients(self) -> PlannedRelease:
        """Returns this release without its clients, if its privacy cost per client is the same for any participants.

        In this case the rounds of all cohorts are one kind of release. Otherwise the release itself is returned.
        """
        if self.factors or not self.record.costs_each_client_alike:
            return self
        return self.with_clients(())

    def with_clients(self, clients: tuple[int, ...]) -> PlannedRelease:
        """Returns this release with these participants, if `without_clients` returned it."""
        record = self.record.changed(clients=clients)
        return PlannedRelease(record, clients, self.clip, self.noise, self.factors, self.answer)

    def within(self, clip: Clip) -> PlannedRelease:
        """Returns this release with a smaller clip bound and the same cost; the noise is reduced in proportion to the
        bound.
        """
        record = self.record.changed(bound=clip.bound * (1 + ROUNDING))
        return PlannedRelease(record, self.clients, clip, self.noise, self.factors, self.answer)


@dataclass(frozen=True)
class NoiseStreams:
    """The sources of a run's noise.

    Attributes:
        randomness: The run's random streams.
        history: Filters unit noise, if the noise of rounds is correlated; None if rounds have independent noise.
        pair_secrets: The secrets that the only client of this process has agreed with the others; None if one process
            draws the noise of all pairs.
    """

    randomness: Randomness
    history: NoiseHistory | None = None
    pair_secrets: PairSecrets | None = None


class ReleaseScheme(ABC):
    """Computes the privacy cost of a run's queries and adds their noise. Costs depend on public numbers only, never on
    data.

    Args:
        privacy: The privacy settings.
        sizes: Public number of examples of each client.
    """

    sums_only = False
    """True if only the sum over clients is released."""

    def __init__(self, privacy: Privacy, sizes: Sequence[int] | Sequence[float]) -> None:
        self.privacy = privacy
        self.sizes = sizes

    @property
    def n_clients(self) -> int:
        """Number of clients of the run."""
        return len(self.sizes)

    @abstractmethod
    def price(self, answer: Answer, factors: Sequence[float]) -> PlannedRelease:
        """Returns a query result with its noise and its record.

        Args:
            answer: The query.
            factors: Public number by which each participant's row is multiplied. Row i has sensitivity `factors[i] *
                privacy.sensitivity_of(answer.clip)`.

        Raises:
            ConfigError: If there is no noise multiplier yet, or a budget share is out of range.
            PrivacyError: If no cost is known for this query with these participants.
        """

    @abstractmethod
    def noise_scales(self, planned: PlannedRelease, factors: Sequence[float]) -> Sequence[float]:
        """Returns the noise scale of each participant's row, `len(planned.clients)` numbers; one number for a sum.

        Args:
            planned: The release.
            factors: Public number by which each participant's row is multiplied.
        """

    @abstractmethod
    def add_noise(
        self, planned: PlannedRelease, rows: Tensor, factors: Sequence[float], positions: Sequence[int]
    ) -> Release:
        """Returns rows with their noise, as a `Release` that only a ledger opens.

        Args:
            planned: The release.
            rows: Bounded rows of the participants in this process, `[j, dim]`; for `sums_only` their sum over all
                processes, `[1, dim]`.
            factors: Public number by which each participant's row was multiplied.
            positions: Indices into `planned.clients` of these participants, `[j]`.

        Raises:
            PrivacyError: If too few participants contribute noise, or if two rows would have the same noise.
        """

    @abstractmethod
    def noise_variances(
        self, planned: PlannedRelease, factors: Sequence[float], positions: Sequence[int]
    ) -> tuple[list[float], list[float]]:
        """Returns the variance of the noise in each row, and each row's share of the variance of the mean of all rows.

        Args:
            planned: The release.
            factors: Public number by which each participant's row was multiplied.
            positions: Indices into `planned.clients` of the participants of these rows.
        """

    def depends_on_clients(self, query: str) -> bool:
        """Returns True if the privacy cost of a release may depend on the participants of the round."""
        return True

    def with_noise_from(self, streams: NoiseStreams) -> ReleaseScheme:
        """Makes this scheme draw its noise from these streams, and returns it."""
        self.streams = streams
        return self

    def sampling_of(self, query: str) -> Sampling:
        """Returns the sampling of the examples of a query."""
        if query in _UNSAMPLED:
            return FullBatch()
        return self.privacy.sampling

    def unprotected(self, answer: Answer) -> PlannedRelease:
        """Returns the planned release of a query without noise, or with the noise of a paper, which has infinite
        epsilon.
        """
        published = self.privacy.published
        if published is None:
            reason = "exact query results, no noise"
        else:
            reason = published.why_not
        record = self._record(answer, 0.0, self.privacy.clip.bound)
        record = replace(record, mechanism="none", sampling="full", rate=1.0, batches=None, non_private=reason)
        return PlannedRelease.of(answer, record, 0.0)

    def relative_noise(self, answer: Answer) -> float:
        """Returns the noise scale of a query divided by its sensitivity, which is the noise multiplier divided by the
        query's share of the budget.

        Raises:
            ConfigError: If there is no noise multiplier yet, a share is out of range, or noise that is correlated
                between rounds does not cover the query.
        """
        privacy, round_index = self.privacy, answer.round
        if privacy.noise_multiplier is None:
            raise ConfigError(
                "privacy.noise_multiplier",
                None,
                "the noise is not calibrated yet: use fedpriv.train, which calibrates it, or set a noise multiplier",
            )
        if privacy.allocation_rounds is not None:
            round_index -= round_index % privacy.allocation_rounds  # one cost per epoch, so one noise level per epoch
        share = answer.budget_share * privacy.schedule.share(round_index)
        if not LEAST_SHARE <= share <= 1 / LEAST_SHARE:
            limits = f"from {LEAST_SHARE:g} to {1 / LEAST_SHARE:g}"
            fix = f"the share of round {answer.round} must be {limits}; only the ratios of shares matter"
            raise ConfigError("privacy.schedule", share, fix)
        if privacy.over_time is not None:
            check_once_a_round(answer.query, answer.index, privacy.over_time)
        return privacy.noise_multiplier / share

    def growth_over_time(self, round_index: int) -> float:
        """Returns the variance of a round's noise divided by the variance of its unit noise; it is 1 unless noise is
        correlated between rounds.
        """
        if self.privacy.over_time is None:
            return 1.0
        return float(compute_row_variances(self.privacy.over_time.factor, round_index + 1)[-1])

    def record(self, answer: Answer, noise_multiplier: PerClient) -> Record:
        """Returns the ledger's record of a noised query result.

        Args:
            answer: The query.
            noise_multiplier: Noise scale divided by the sensitivity, for each client that replies; a single number if
                it is the same for all.
        """
        return self._record(answer, noise_multiplier, self.privacy.radius_of(answer.clip))

    def _record(self, answer: Answer, noise_multiplier: PerClient, bound: float) -> Record:
        privacy = self.privacy
        clients = answer.answering
        sampling = self.sampling_of(answer.query)
        kind, rate, batches = "full", 1.0, None
        if privacy.unit == "sample" and isinstance(sampling, Allocation):
            kind, rate, batches = "allocation", 1 / sampling.batches, sampling.batches
        elif privacy.unit == "sample" and isinstance(sampling, Poisson | Cyclic) and sampling.rate < 1:
            kind, rate = "poisson", sampling.rate
        elif privacy.unit == "sample" and isinstance(sampling, FixedSize):
            kind = "without_replacement"
            rate = collapse_equal([min(1.0, sampling.size / self.sizes[client]) for client in clients])
        elif privacy.cohort_rounds is not None:
            kind, rate, batches = "allocation", privacy.cohort_rate, privacy.cohort_rounds
        elif privacy.cohort_rate < 1:
            kind, rate = "poisson", privacy.cohort_rate
        # with correlated noise, rounds that a client skips still reveal something about those that it joined
        concerns_everyone = len(clients) == len(self.sizes) or privacy.over_time is not None
        if privacy.over_time is None:
            time = None
        else:
            time = privacy.over_time.for_round(answer.round)
            self._check_block(answer, time)
        return Record(
            round=answer.round,
            query=answer.query,
            index=answer.index,
            mechanism=privacy.mechanism.name,
            noise_multiplier=noise_multiplier,
            unit=privacy.unit,
            relation=privacy.relation,
            shared=privacy.invariants,
            clients=None if concerns_everyone else tuple(clients),
            norm=answer.clip.norm,
            bound=bound,
            sampling=kind,
            rate=rate,
            trust=privacy.trusted,
            time=time,
            batches=batches,
        )

    def _check_block(self, answer: Answer, time: CorrelatedNoise) -> None:
        """Raises an error if blocks of clients take turns and the participants are not the block of this round."""
        takes_turns = time.separation > 1 and not (
            self.privacy.unit == "sample" and isinstance(self.privacy.sampling, Cyclic)
        )
        if takes_turns and list(answer.clients) != list(range(time.slot, self.n_clients, time.separation)):
            raise PrivacyError(
                f"round {answer.round}: the participants must be the block of clients of this round, one of "
                f"{time.separation} blocks"
            )


def has_own_rates(scheme: ReleaseScheme, query: str) -> bool:
    """Returns True if clients have different sampling rates, or correlated noise depends on the participants."""
    return isinstance(scheme.sampling_of(query), FixedSize) or scheme.privacy.over_time is not None


def check_once_a_round(query: str, index: int, noise: CorrelatedNoise) -> None:
    """Raises an error for a query that is not supported with correlated noise or cyclic batches.

    Raises:
        ConfigError: If the query is not the only gradient or message of its round.
    """
    # the index of a message may be above 0, since local steps without noise come before it
    if query in _ONCE_A_ROUND and (index == 0 or query == "message"):
        return
    if index == 0:
        answer = query
    else:
        answer = f"{query}, query {index + 1} of a round"
    fix = "correlated noise and cyclic batches cover only one gradient or message per round"
    if noise.factor == INDEPENDENT:
        raise ConfigError(
            "privacy.sampling", answer, f"{fix}: use a strategy that makes only this query, or poisson batches"
        )
    raise ConfigError(
        "privacy.noise", answer, f"{fix}: use a strategy that makes only this query, or independent noise"
    )


def collapse_equal(values: Sequence[float]) -> PerClient:
    """Returns a single number if all are the same, else all of them."""
    if len(set(values)) == 1:
        return values[0]
    return tuple(values)
