"""The privacy settings of a run: the amount of noise, the values it is added to, and the trust assumption."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from fedpriv.errors import ConfigError
from fedpriv.privacy.clipping import ROUNDING, Clip
from fedpriv.privacy.correlated import CorrelatedNoise
from fedpriv.privacy.hulls import RowClip
from fedpriv.privacy.matrices import BLT, BSR, Banded
from fedpriv.privacy.mechanisms import NOISE_DISTRIBUTIONS, Gaussian, Mechanism
from fedpriv.privacy.pairwise import PairRatio, Pairwise
from fedpriv.privacy.record import Relation, Unit
from fedpriv.privacy.schedules import Schedule, Uniform
from fedpriv.privacy.unprotected_noise import UnprotectedNoise
from fedpriv.settings.checks import Bound, Count, Fraction, Positive, Probability, Ratio, validate_arguments
from fedpriv.storage.identity import ASIDE

NoiseOn = Literal["gradient", "message", "none"]
Batches = Annotated[int, Bound("must be a whole number from 2 to 1000000", 2, 1e6, "[]")]
Amount = Annotated[float, Bound("must be positive and finite; for no noise, set privacy.noise_on to 'none'", 0)]


LEAST_AMOUNT = 1e-20  # of an epsilon or a noise multiplier: its square is still a number


@validate_arguments("privacy.sampling")
@dataclass(frozen=True)
class FullBatch:
    """Every query uses all examples of a client.

    Batches are not drawn at random, so there is no amplification by subsampling.

    Examples:
        >>> import fedpriv
        >>> privacy = fedpriv.Privacy(epsilon=1.0, sampling=fedpriv.FullBatch())
        >>> privacy.sampling
        FullBatch()
    """


@validate_arguments("privacy.sampling")
@dataclass(frozen=True)
class Poisson:
    """Each example joins the batch with probability `rate`, independently of the others; batches may be empty.

    The drawn batch is secret, so each query costs less epsilon with the privacy unit `"sample"` (amplification by
    subsampling). With the unit `"client"` the cost is the same as with full batches.

    Args:
        rate: Probability that an example joins the batch of a query, in (0, 1].

    Examples:
        >>> import fedpriv
        >>> full = fedpriv.Privacy(noise_multiplier=2.0)
        >>> sampled = fedpriv.Privacy(noise_multiplier=2.0, sampling=fedpriv.Poisson(rate=0.1))
        >>> costs = [fedpriv.plan([100], fedpriv.fedavg(0.1), p, rounds=10).spent.epsilon for p in (full, sampled)]
        >>> costs[1] < costs[0]
        True
    """

    rate: Probability


@validate_arguments("privacy.sampling")
@dataclass(frozen=True)
class FixedSize:
    """A batch has exactly `size` examples, drawn without replacement; a client with fewer examples uses all of them.

    With the privacy unit `"sample"` this needs the neighbouring relation `"replace_one"`.

    Args:
        size: Number of examples in a client's batch.

    Examples:
        >>> import fedpriv
        >>> fedpriv.Privacy(epsilon=1.0, sampling=fedpriv.FixedSize(size=20)).sampling
        FixedSize(size=20)
    """

    size: Count


@validate_arguments("privacy.sampling")
@dataclass(frozen=True)
class Cyclic:
    """Fixed slots of examples take turns: example i is in slot `i mod blocks`, and round t uses slot `t mod blocks`.

    With `rate = 1` batches are not drawn in secret, so there is no amplification: each example takes part in every
    `blocks`-th round, and epsilon is computed for this participation. Neighbouring data sets have all other examples in
    the same slots.

    With a `rate` below 1, each example of the slot joins the batch with this probability, independently and in secret,
    which costs less epsilon (Choquette-Choo et al. 2023). Correlated noise then needs a band of at most `blocks`
    rounds.

    Args:
        blocks: Number of slots. An example is used at most once in this number of consecutive rounds.
        rate: Probability that an example of the slot joins the batch, in (0, 1]; 1 by default.

    Examples:
        >>> import fedpriv
        >>> fedpriv.Privacy(epsilon=1.0, sampling=fedpriv.Cyclic(blocks=10)).sampling
        Cyclic(blocks=10, rate=1.0)
    """

    blocks: Count
    rate: Probability = 1.0


@validate_arguments("privacy.sampling")
@dataclass(frozen=True)
class Allocation:
    """Random allocation: in each epoch every example is in exactly one of `batches` batches.

    The batch of an example is drawn uniformly, in secret and independently of other examples; round t uses batch `t mod
    batches`. The sizes of batches vary and are secret. A round with several queries draws a separate batch for each.
    Random allocation is similar to shuffled epochs, but has a known privacy cost. Its cost is lower than the cost of
    `Poisson(1 / batches)` under `"add_remove"`, and about equal to it under `"replace_one"`. The whole cost of an epoch
    is counted at its first query; an epoch that ends early has the same cost. Random allocation needs Gaussian noise.
    With the privacy unit `"client"` the cost is the same as with full batches.

    Args:
        batches: Number of batches in an epoch, from 2 to 1 000 000.

    Source: Chua, Ghazi, Harrison, Leeman, Kamath, Kumar, Manurangsi, Sinha, Zhang 2025 (balls and bins); Feldman,
    Shenfeld 2025 (random allocation).

    Examples:
        >>> import fedpriv
        >>> fedpriv.Privacy(epsilon=1.0, sampling=fedpriv.Allocation(batches=10)).hides_round_size
        True
    """

    batches: Batches


Sampling = FullBatch | Poisson | FixedSize | Cyclic | Allocation


@validate_arguments("privacy.noise")
@dataclass(frozen=True)
class Independent:
    """The noise of each round is independent of the noise of all other rounds (the default).

    Examples:
        >>> import fedpriv
        >>> fedpriv.Privacy(epsilon=1.0).noise
        Independent()
    """


Noise = Independent | BSR | Banded | BLT | CorrelatedNoise


@validate_arguments("privacy.trust")
@dataclass(frozen=True)
class Local:
    """No other party is trusted. An observer can read every message, so each client itself adds all the noise that it
    needs.

    This is the default.

    Examples:
        >>> import fedpriv
        >>> str(fedpriv.Privacy(epsilon=1.0, trust=fedpriv.Local()).trust)
        'local'
    """

    sums_only: ClassVar[bool] = False

    def shares(self, n_clients: int) -> int:
        """Returns 1, because each client itself adds all the noise that its release needs."""
        return 1

    def __str__(self) -> str:
        return "local"


@validate_arguments("privacy.trust")
@dataclass(frozen=True)
class SecureAggregation:
    """An observer can read only the sum of the messages of a round's participants.

    This is a simulation, without cryptography.

    Args:
        min_honest: Number of participants that are assumed to add their noise. Each participant adds enough noise that
            the noise of this number of participants is sufficient. A round with fewer participants raises PrivacyError.
        cohort_rounds: As for `Central`; None (the default) uses the cohorts of the network. All clients send their
            noise in every round, which hides the clients that take part; only the round in which a client adds its
            contribution is secret.

    Examples:
        >>> import fedpriv
        >>> str(fedpriv.SecureAggregation(min_honest=8))
        'secure_aggregation(min_honest=8, simulated)'
    """

    sums_only: ClassVar[bool] = True

    min_honest: Count
    cohort_rounds: Batches | None = None

    def shares(self, n_clients: int) -> int:
        """Returns `min_honest`, because the noise of this many clients together is sufficient."""
        return self.min_honest

    def __str__(self) -> str:
        if self.cohort_rounds is None:
            return f"secure_aggregation(min_honest={self.min_honest}, simulated)"
        return f"secure_aggregation(min_honest={self.min_honest}, cohort_rounds={self.cohort_rounds}, simulated)"


@validate_arguments("privacy.trust")
@dataclass(frozen=True)
class Central:
    """The server is trusted: it alone receives the clients' messages, and it releases sums with noise added once.

    Args:
        cohort_rate: Probability with which each client takes part in a round, independently and in secret; 1 by
            default. Sums are divided by the expected number of participants. A rate below 1 lowers the privacy cost of
            a round (amplification by subsampling of clients) and needs the privacy unit `"client"`.
        cohort_rounds: Alternative to a rate: the number of rounds in an epoch, in which each client takes part exactly
            once. For each epoch, the round of a client is drawn anew, uniformly, independently and in secret (random
            allocation). The privacy cost is lower than with a rate of `1 / cohort_rounds`. This needs Gaussian noise
            and the unit `"client"`.

    Raises:
        ConfigError: If both options are given, or one is out of range.

    Examples:
        >>> import fedpriv
        >>> privacy = fedpriv.Privacy(epsilon=1.0, unit="client", trust=fedpriv.Central(cohort_rate=0.1))
        >>> str(privacy.trust)
        'central(cohort_rate=0.1, secret)'
    """

    sums_only: ClassVar[bool] = True

    cohort_rate: Probability = 1.0
    cohort_rounds: Batches | None = None

    def __post_init__(self) -> None:
        if self.cohort_rounds is not None and self.cohort_rate != 1:
            fix = (
                "cannot be combined with cohort_rate: set cohort_rate if clients take part with a probability, or "
                "cohort_rounds if each takes part once in this number of rounds"
            )
            raise ConfigError("privacy.trust.cohort_rounds", self.cohort_rounds, fix)

    def shares(self, n_clients: int) -> int:
        """Returns the number of all clients, drawn or not, because the noise on a sum does not depend on the cohort."""
        return n_clients

    def __str__(self) -> str:
        if self.cohort_rounds is not None:
            return f"central(cohort_rounds={self.cohort_rounds}, secret)"
        if self.cohort_rate == 1:
            return "central"
        return f"central(cohort_rate={self.cohort_rate:g}, secret)"


Trust = Local | SecureAggregation | Central | Pairwise


@validate_arguments("privacy.statistics")
@dataclass(frozen=True)
class Statistics:
    """Settings for private constraint values (averages of losses): clipping, and their part of the privacy budget.

    Args:
        bound: Upper end of the interval `[0, bound]` to which each example's loss is clipped, in units of the loss.
        share: Part of a round's privacy budget that is used for constraint values, in (0, 1); the gradient uses the
            rest.
        public_counts: True if the sizes of groups and classes are public. If False, constraints must contain public
            fractions.
        ratio: Like `Pairwise.ratio`, for constraint values. A client also uses its own values, in which pairwise noise
            does not cancel. Therefore 0 (individual noise only) is the best choice for all strategies of fedpriv.

    Examples:
        >>> import fedpriv
        >>> fedpriv.Privacy(epsilon=1.0, statistics=fedpriv.Statistics(bound=2.0, share=0.3)).statistics.share
        0.3
    """

    bound: Positive = 4.0
    share: Ratio = 0.2
    public_counts: bool = False
    ratio: PairRatio = 0.0

    def relative_share(self, norm: str) -> float:
        """Returns the noise multiplier of a gradient over the multiplier of a statistic for a budget split by `share`.

        For l2 clips (Gaussian noise), the values `(sensitivity / noise)**2` add up; for l1 clips (Laplace noise), the
        values `sensitivity / noise` do.
        """
        odds = self.share / (1 - self.share)
        if norm == "l1":
            return odds
        return math.sqrt(odds)


@validate_arguments("privacy")
@dataclass(frozen=True)
class Privacy:
    """The differential privacy of a run.

    Pass `epsilon`, a limit for the whole run from which the noise is computed, or `noise_multiplier`, from which
    epsilon is computed. With both, the noise is computed from `noise_multiplier`, and the run stops before a release (a
    noised query result) that would exceed the limit.

    Guarantee: all releases of a run together are (epsilon, delta)-differentially private, for every pair of data sets
    that are neighbours under `relation` and `unit`, against any observer who can read only the messages that `trust`
    allows.

    Args:
        epsilon: Limit for the whole run; a release that would exceed it is not made.
        delta: Failure probability, far below 1 over the number of units; 1e-5 by default. 0 for pure epsilon (Laplace
            noise only).
        noise_multiplier: Noise scale (standard deviation, or b of Laplace noise) divided by sensitivity, in a round
            whose `schedule` share is 1.
        clip: Bound on the norm of one unit's contribution; by default 1 in the l2 norm.
        mechanism: Distribution of the noise: `Gaussian()` (default) or `Laplace()`.
        unit: The privacy unit: `"sample"` (default), one example, or `"client"`, everything that one client holds.
        relation: The neighbouring relation: in the two data sets one unit has different values (`"replace_one"`,
            default), or one unit is present in only one of them (`"add_remove"`; the numbers of examples still count as
            public).
        noise_on: The values that noise is added to: every `"gradient"` that a client update uses (default), every
            `"message"` that a client sends (needs `unit="client"`), or `"none"`: no noise. A run with `"none"` is not
            private.
        trust: Trust assumption: `Local()` (default), `SecureAggregation(min_honest)` or `Central(cohort_rate)`; or
            `Pairwise(colluders, ratio)`, where no other party is trusted and pairs of clients add noise that cancels.
        sampling: Drawing of batches: `FullBatch()` (default), `Poisson(rate)`, `Allocation(batches)`,
            `FixedSize(size)` or `Cyclic(blocks, rate)`.
        schedule: Division of the privacy budget over rounds: `Uniform()` (default), `Geometric(ratio)` or
            `Custom(function)`.
        published: Noise as published in a paper, which replaces fedpriv's noise to reproduce the paper. Such a run is
            not private.
        statistics: Bound and budget share of constraint values, for strategies that query them.
        fsync: True (default) waits until a round's ledger lines are on the physical disk before values computed from
            the round's queries leave the process. With False a power cut can lose lines, and the printed `trust`
            contains `no_power_cut`.
        noise: `Independent()` noise in each round (default), or correlated noise, which partly cancels over rounds:
            `BSR(band)`, `Banded(band)`, `BLT(buffers)`. Correlated noise needs Gaussian noise, one query a round, full
            or cyclic batches, and no cohorts.
        budget: Path of the lifetime budget of these data (`fedpriv budget`). The run reserves the cost of all its
            planned releases in this file before the first of them, and does not start if the budget is too small.
        invariants: Further facts that neighbouring data sets have in common, printed with `relation`; the run itself
            sets this field.

    Raises:
        ConfigError: If a setting is out of range, or two settings contradict each other.

    Examples:
        >>> import fedpriv
        >>> privacy = fedpriv.Privacy(epsilon=3.0, delta=1e-5, clip=fedpriv.Clip(0.5))
        >>> privacy.unit, privacy.relation, privacy.sensitivity >= 2 * 0.5
        ('sample', 'replace_one', True)
    """

    epsilon: Amount | None = None
    delta: Fraction = 1e-5
    noise_multiplier: Amount | None = None
    clip: Clip = field(default_factory=lambda: Clip(1.0))
    mechanism: Mechanism = field(default_factory=Gaussian)
    unit: Unit = "sample"
    relation: Relation = "replace_one"
    noise_on: NoiseOn = "gradient"
    trust: Trust = field(default_factory=Local)
    sampling: Sampling = field(default_factory=FullBatch)
    schedule: Schedule = field(default_factory=Uniform)
    published: UnprotectedNoise | None = None
    statistics: Statistics = field(default_factory=Statistics)
    invariants: str = ""
    fsync: bool = True
    noise: Noise = Independent()
    budget: str | Path | None = field(default=None, metadata=ASIDE)

    def __post_init__(self) -> None:
        # a mechanism may be a class of the user; its name selects the distribution that is accounted for
        if getattr(self.mechanism, "name", None) not in tuple(NOISE_DISTRIBUTIONS):
            raise ConfigError("privacy.mechanism", self.mechanism, "must be Gaussian() or Laplace()")
        if self.private:
            self._check_amount()
        if self.noise_on == "message" and self.unit != "client":
            raise ConfigError(
                "privacy.unit",
                self.unit,
                "with noise_on 'message', whole messages are clipped, so the privacy unit must be 'client'; to "
                "protect single examples, set noise_on to 'gradient'",
            )
        if isinstance(self.sampling, FixedSize) and self.relation == "add_remove" and self.unit == "sample":
            raise ConfigError(
                "privacy.sampling",
                "fixed_size",
                "no bound on the privacy cost is known under add_remove; use replace_one, or poisson batches",
            )
        if isinstance(self.sampling, Allocation) and self.private and self.mechanism.name != "gaussian":
            fix = (
                "random allocation has a known privacy cost only for Gaussian noise; use Gaussian noise, or Poisson "
                "batches"
            )
            raise ConfigError("privacy.sampling", "allocation", fix)
        if isinstance(self.trust, Pairwise) and self.private and self.mechanism.name != "gaussian":
            fix = "noise that cancels between pairs has a known privacy cost only if it is Gaussian: use Gaussian noise"
            raise ConfigError("privacy.mechanism", self.mechanism.name, fix)
        self._check_cohort()
        self._check_clip()
        if not self.private and not isinstance(self.noise, Independent):
            raise ConfigError(
                "privacy.noise", str(self.noise), "correlated noise needs a private run; leave this setting out"
            )

    def _check_clip(self) -> None:
        """Raises if the diameter of a `RowClip` is used where a price assumes a norm of half the diameter."""
        if not (isinstance(self.clip, RowClip) and self.private):
            return
        needed = {
            "mechanism": (self.mechanism.name, self.mechanism.name == "gaussian", "Gaussian noise"),
            "sampling": (self.sampling, self.sampling == FullBatch(), "full batches"),
            "trust": (str(self.trust), self.cohort_rate == 1, "no secret cohorts"),
            "noise": (str(self.noise), isinstance(self.noise, Independent), "independent noise"),
            "noise_on": (self.noise_on, self.noise_on == "gradient", "noise on gradients"),
        }
        for name, (value, is_met, words) in needed.items():
            if not is_met:
                fix = (
                    f"{type(self.clip).__name__} has a known privacy cost only with {words}: use that, or fedpriv.Clip"
                )
                raise ConfigError(f"privacy.{name}", value, fix)

    def _check_cohort(self) -> None:
        if self.cohort_rate == 1:
            return
        if self.cohort_rounds is None:
            name, value = "privacy.trust.cohort_rate", self.cohort_rate
        else:
            name, value = "privacy.trust.cohort_rounds", float(self.cohort_rounds)
        if not self.private:
            raise ConfigError(name, value, "secret cohorts need a private run; in other runs, use network.cohort")
        if self.unit != "client":
            fix = "sampling whole clients does not lower the epsilon of single examples; set unit to 'client'"
            raise ConfigError(name, value, fix)
        if self.cohort_rounds is not None and self.mechanism.name != "gaussian":
            fix = "cohort_rounds has a known privacy cost only for Gaussian noise; use Gaussian noise, or cohort_rate"
            raise ConfigError(name, value, fix)

    def _check_amount(self) -> None:
        if self.epsilon is None and self.noise_multiplier is None:
            raise ConfigError("privacy.epsilon", None, "set a target epsilon or a noise_multiplier, e.g. epsilon=3.0")
        for name, value in (("epsilon", self.epsilon), ("noise_multiplier", self.noise_multiplier)):
            if value is not None and not LEAST_AMOUNT <= value <= 1 / LEAST_AMOUNT:
                raise ConfigError(
                    f"privacy.{name}",
                    value,
                    f"must be from {LEAST_AMOUNT:g} to {1 / LEAST_AMOUNT:g}, the range in which privacy costs are "
                    "computed",
                )
        if self.delta == 0 and not NOISE_DISTRIBUTIONS[self.mechanism.name].pure:
            raise ConfigError(
                "privacy.delta",
                0,
                f"{self.mechanism.name.capitalize()} noise needs delta > 0, e.g. 1e-5; for delta=0, use Laplace noise "
                "with an l1 clip",
            )
        if self.delta == 0 and self.clip.norm == "l2":
            raise ConfigError(
                "privacy.clip.norm",
                "l2",
                "delta=0 (pure epsilon) needs an l1 clip: set norm to 'l1', or set delta, e.g. 1e-5",
            )

    @property
    def private(self) -> bool:
        """True if releases have noise with a privacy guarantee; False for `noise_on="none"` and for a paper's noise."""
        return self.noise_on != "none" and self.published is None

    @property
    def over_time(self) -> CorrelatedNoise | None:
        """The correlation of noise between rounds, once the run is known; None if rounds have independent noise."""
        if isinstance(self.noise, CorrelatedNoise):
            return self.noise
        return None

    @property
    def trusted(self) -> str:
        """The trust assumption, as printed: `trust`, and `no_power_cut` without `fsync`."""
        if self.fsync:
            return str(self.trust)
        return f"{self.trust}+no_power_cut"

    @property
    def boundary(self) -> str:
        """The value that noise is added to, private or as published: `"gradient"`, `"message"`, or `"none"`."""
        if self.published is None:
            return self.noise_on
        return self.published.noise_on

    @property
    def cohort_rate(self) -> float:
        """Probability with which a client is in a round's secret cohort; 1 if cohorts are not secret."""
        if self.cohort_rounds is not None:
            return 1 / self.cohort_rounds
        if isinstance(self.trust, Central):
            return self.trust.cohort_rate
        return 1.0

    @property
    def cohort_rounds(self) -> int | None:
        """Number of rounds in an epoch in which each client takes part once, in secret; None for other cohorts."""
        if isinstance(self.trust, Central | SecureAggregation):
            return self.trust.cohort_rounds
        return None

    @property
    def allocation_rounds(self) -> int | None:
        """Number of rounds in an epoch of random allocation, of examples or of clients; None without allocation."""
        if self.cohort_rounds is not None:
            return self.cohort_rounds
        if isinstance(self.sampling, Allocation) and self.unit == "sample":
            return self.sampling.batches
        return None

    @property
    def orders_examples(self) -> bool:
        """True if the privacy cost depends on the order of examples or clients, which assigns them to rounds."""
        takes_turns = isinstance(self.sampling, (Cyclic, Allocation)) or self.cohort_rounds is not None
        return self.private and (takes_turns or self.over_time is not None)

    @property
    def samples_clients_before_compute(self) -> bool:
        """True if clients are drawn in secret before they compute anything: runs with noise on messages."""
        return self.boundary == "message" and self.cohort_rate < 1

    @property
    def hides_round_size(self) -> bool:
        """True if the number of examples or clients in a round is secret, so that the duration must not reveal it."""
        if isinstance(self.sampling, Allocation):
            samples_examples = True
        else:
            samples_examples = isinstance(self.sampling, Poisson | Cyclic) and self.sampling.rate < 1
        return self.private and (samples_examples or self.cohort_rate < 1)

    @property
    def sensitivity(self) -> float:
        """Largest change of a clipped sum between neighbours, in the clip's norm: C for add_remove, the clip's diameter
        (2C, or less for a `ConvexHull`) for replace_one, plus the effect of rounding.
        """
        return self.sensitivity_of(self.clip)

    def sensitivity_of(self, clip: Clip) -> float:
        """Returns the `sensitivity` for another clip."""
        return self.radius_of(clip) * (2.0 if self.relation == "replace_one" else 1.0)

    def radius_of(self, clip: Clip) -> float:
        """Returns the bound C of a clip, or half of its diameter for replace_one, plus the effect of rounding."""
        if self.relation == "add_remove":
            return clip.bound * (1 + ROUNDING)
        return clip.diameter / 2 * (1 + ROUNDING)
