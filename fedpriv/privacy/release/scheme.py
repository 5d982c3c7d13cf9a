"""What all release schemes share: which answer of a run is released, what it costs, and where its noise comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.privacy.clipping import ROUNDING, Clip
from fedpriv.privacy.correlated import INDEPENDENT, CorrelatedNoise, spread
from fedpriv.privacy.ledger import Release
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.privacy.record import PerClient, Record
from fedpriv.privacy.schedules import LEAST_SHARE
from fedpriv.privacy.settings import Allocation, Cyclic, FixedSize, FullBatch, Poisson, Privacy, Sampling
from fedpriv.randomness.streams import PairSecrets, Randomness

# answers that use all of a client's examples, however batches are drawn
_UNSAMPLED = frozenset({"message", "full_gradient"})
_ONCE_A_ROUND = frozenset({"gradient", "client_gradient", "message"})


@dataclass(frozen=True)
class Answer:
    """Which answer of a run is released. It names the noise, and the ledger's record.

    Attributes:
        round: The round, from 0.
        index: Which answer of the round, from 0.
        query: What was asked, e.g. `"gradient"`.
        clients: Numbers of the round's participants, in all processes.
        clip: How each unit's contribution was bounded.
        budget_share: Share of the budget, where a gradient of the same round has 1.
        excluded: Those of `clients` who have signed beforehand that they do not answer.
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
        """The participants that answer."""
        if not self.excluded:
            return self.clients
        return [client for client in self.clients if client not in self.excluded]


@dataclass(frozen=True)
class Price:
    """What an answer costs.

    Attributes:
        record: The line that the ledger gets.
        noise_scales: Noise scale of each participant's row, `len(answer.clients)` numbers; one number for a sum.
    """

    record: Record
    noise_scales: Sequence[float]


@dataclass(frozen=True)
class NoiseStreams:
    """Where the noise of a run comes from.

    Attributes:
        randomness: The run's random streams.
        history: Filters unit noise, where the noise of rounds is correlated; None: each round has noise of its own.
        pair_secrets: What the only client of this process has agreed with the others; None where one process draws the
            noise of all pairs.
    """

    randomness: Randomness
    history: NoiseHistory | None = None
    pair_secrets: PairSecrets | None = None


class ReleaseScheme(ABC):
    """Prices the answers of a run and adds their noise. Prices are functions of public numbers, never of data.

    Args:
        privacy: The privacy settings.
        sizes: Public number of examples of each client.
    """

    sums_only = False
    """Whether only the sum over clients is released."""

    def __init__(self, privacy: Privacy, sizes: Sequence[int] | Sequence[float]) -> None:
        self.privacy, self.sizes = privacy, sizes

    @property
    def n_clients(self) -> int:
        """Number of clients of the run."""
        return len(self.sizes)

    @abstractmethod
    def price(self, answer: Answer, factors: Sequence[float]) -> Price:
        """Returns the record of an answer and the noise scale of each row.

        Args:
            answer: Which answer it is.
            factors: Public number by which each participant's row is multiplied: row i has sensitivity
                `factors[i] * privacy.sensitivity_of(answer.clip)`.

        Raises:
            ConfigError: there is no noise multiplier yet, or a budget share is out of range.
            PrivacyError: the answer has no price with these participants.
        """

    @abstractmethod
    def add_noise(self, answer: Answer, rows: Tensor, price: Price, positions: Sequence[int]) -> Release:
        """Returns rows with the noise of their price, as a `Release` that only a ledger opens.

        Args:
            answer: Which answer it is.
            rows: Bounded rows of the participants in this process, `[j, dim]`; for `sums_only` their sum over all
                processes, `[1, dim]`.
            price: What `price` returned.
            positions: Where in `answer.clients` these participants are, `[j]`.

        Raises:
            PrivacyError: too few participants share the noise, or rows would share noise.
        """

    @abstractmethod
    def noise_variances(
        self, price: Price, clients: Sequence[int], positions: Sequence[int]
    ) -> tuple[list[float], list[float]]:
        """Returns the variance of the noise in each row, and each row's part in that of the mean of all rows.

        Args:
            price: The price of the answer.
            clients: Numbers of the round's participants.
            positions: Of those of them whose rows these are.
        """

    def with_noise_from(self, streams: NoiseStreams) -> ReleaseScheme:
        """Returns this scheme, which draws noise from these streams from now on."""
        self.streams = streams
        return self

    def sampling_of(self, query: str) -> Sampling:
        """Returns how the examples behind an answer are drawn."""
        if query in _UNSAMPLED:
            return FullBatch()
        return self.privacy.sampling

    def unprotected(self, answer: Answer) -> Record:
        """Returns the record of an answer without noise, or with a paper's: its epsilon is infinite."""
        published = self.privacy.published
        if published is None:
            reason = "exact answers, no noise"
        else:
            reason = published.why_not
        record = self._record(answer, 0.0)
        return replace(record, mechanism="none", sampling="full", rate=1.0, batches=None, non_private=reason)

    def relative_noise(self, answer: Answer) -> float:
        """Returns noise scale over sensitivity of an answer: the noise multiplier over its share of the budget.

        Raises:
            ConfigError: there is no noise multiplier yet, a share is out of range, or noise that is correlated between
                rounds does not cover the query.
        """
        privacy, round_index = self.privacy, answer.round
        if privacy.noise_multiplier is None:
            raise ConfigError("privacy.noise_multiplier", None, "calibrate the run first (fedpriv.train does)")
        if privacy.allocation_rounds is not None:
            round_index -= round_index % privacy.allocation_rounds  # one price an epoch, so one noise an epoch
        share = answer.budget_share * privacy.schedule.share(round_index)
        if not LEAST_SHARE <= share <= 1 / LEAST_SHARE:
            least, most = LEAST_SHARE, 1 / LEAST_SHARE
            fix = f"round {answer.round} needs a share from {least:g} to {most:g}; only ratios matter"
            raise ConfigError("privacy.schedule", share, fix)
        if privacy.over_time is not None:
            check_once_a_round(answer.query, answer.index, privacy.over_time)
        return privacy.noise_multiplier / share

    def growth_over_time(self, round_index: int) -> float:
        """Returns the variance of a round's noise over that of its unit noise: 1 unless rounds are correlated."""
        if self.privacy.over_time is None:
            return 1.0
        return float(spread(self.privacy.over_time.factor, round_index + 1)[-1])

    def record(self, answer: Answer, noise_multiplier: float, paid: PerClient) -> Record:
        """Returns the ledger's record of a noised answer.

        Args:
            answer: Which answer it is.
            noise_multiplier: Noise scale over the sensitivity of a row with factor 1.
            paid: Noise scale over each answering client's own sensitivity; one number where all have the same.
        """
        bound = answer.clip.bound * (1 + ROUNDING)
        record = self._record(answer, noise_multiplier)
        return replace(record, norm=answer.clip.norm, bound=bound, noise_multiplier=paid)

    def _record(self, answer: Answer, noise_multiplier: float) -> Record:
        privacy, clients, sampling = self.privacy, answer.answering, self.sampling_of(answer.query)
        kind, rate, batches = "full", 1.0, None
        if privacy.unit == "sample" and isinstance(sampling, Allocation):
            kind, rate, batches = "allocation", 1 / sampling.batches, sampling.batches
        elif privacy.unit == "sample" and isinstance(sampling, Poisson | Cyclic) and sampling.rate < 1:
            kind, rate = "poisson", sampling.rate
        elif privacy.unit == "sample" and isinstance(sampling, FixedSize):
            kind = "without_replacement"
            rate = compact([min(1.0, sampling.size / self.sizes[client]) for client in clients])
        elif privacy.cohort_rounds is not None:
            kind, rate, batches = "allocation", privacy.cohort_rate, privacy.cohort_rounds
        elif privacy.cohort_rate < 1:
            kind, rate = "poisson", privacy.cohort_rate
        over_time = privacy.over_time
        # with correlated noise, rounds that a client skips still reveal something about those that it joined
        everyone = len(clients) == len(self.sizes) or over_time is not None
        return Record(
            round=answer.round,
            query=answer.query,
            index=answer.index,
            mechanism=privacy.mechanism.name,
            noise_multiplier=noise_multiplier,
            unit=privacy.unit,
            relation=privacy.relation,
            shared=privacy.shared,
            clients=None if everyone else tuple(clients),
            norm=privacy.clip.norm,
            bound=privacy.clip.bound,
            sampling=kind,
            rate=rate,
            trust=privacy.trusted,
            time=None if over_time is None else over_time.at(answer.round),
            batches=batches,
        )


def check_once_a_round(query: str, index: int, noise: CorrelatedNoise) -> None:
    """Refuse a query that correlated noise, or cyclic batches, do not cover.

    Raises:
        ConfigError: it is not the only gradient or message of its round.
    """
    if query in _ONCE_A_ROUND and (index == 0 or query == "message"):  # local steps come before a message
        return
    if index == 0:
        asked = query
    else:
        asked = f"{query}, answer {index + 1} of a round"
    fix = "noise that is correlated between rounds, and cyclic batches, cover one gradient or message a round"
    if noise.factor == INDEPENDENT:
        raise ConfigError("privacy.sampling", asked, f"{fix}: use a strategy that asks no more, or poisson batches")
    raise ConfigError("privacy.noise", asked, f"{fix}: use a strategy that asks no more, or independent noise")


def compact(values: Sequence[float]) -> PerClient:
    """Returns one number where all are the same, else all."""
    if len(set(values)) == 1:
        return values[0]
    return tuple(values)
