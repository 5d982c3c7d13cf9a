"""The privacy settings of a run: how much noise, on what, and against whom."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from fedpriv.errors import ConfigError
from fedpriv.privacy.clipping import ROUNDING, Clip
from fedpriv.privacy.correlated import CorrelatedNoise
from fedpriv.privacy.matrices import BLT, BSR, Banded
from fedpriv.privacy.mechanisms import NOISE_DISTRIBUTIONS, Gaussian, Mechanism
from fedpriv.privacy.pairwise import PairRatio, Pairwise
from fedpriv.privacy.record import Relation, Unit
from fedpriv.privacy.schedules import Schedule, Uniform
from fedpriv.privacy.unprotected_noise import UnprotectedNoise
from fedpriv.settings.checks import Bound, Count, Fraction, Positive, Probability, Ratio, checked
from fedpriv.storage.identity import ASIDE

At = Literal["gradient", "message", "none"]
Batches = Annotated[int, Bound("must be a whole number from 2 to 1000000", 2, 1e6, "[]")]
Amount = Annotated[float, Bound("must be positive and finite; for no noise set at to 'none'", 0)]


LEAST_AMOUNT = 1e-20  # of an epsilon or a noise multiplier: its square is still a number


@checked("privacy.sampling")
@dataclass(frozen=True)
class FullBatch:
    """Every answer uses all of a client's examples."""


@checked("privacy.sampling")
@dataclass(frozen=True)
class Poisson:
    """Each example joins the batch with probability `rate`, independently; batches may be empty.

    Nobody learns which examples were drawn, so an answer costs less epsilon for `unit="sample"` (amplification by
    subsampling). For `unit="client"` it costs the same.
    """

    rate: Probability


@checked("privacy.sampling")
@dataclass(frozen=True)
class FixedSize:
    """Exactly `size` examples without replacement (all of them, where a client has fewer)."""

    size: Count


@checked("privacy.sampling")
@dataclass(frozen=True)
class Cyclic:
    """Each client's examples lie in `blocks` fixed slots, example i in slot `i mod blocks`; slot `t mod blocks` is the
    batch of round t.

    Nothing is secret and nothing is amplified: each example takes part in every `blocks`-th round, and epsilon follows
    from that. Neighbouring data sets have all other examples in the same slots.

    With a `rate` below 1 each example of the slot joins the batch with this probability, independently and in secret,
    which costs less (Choquette-Choo et al. 2023). Noise over time then needs a band of at most `blocks` rounds.
    """

    blocks: Count
    rate: Probability = 1.0


@checked("privacy.sampling")
@dataclass(frozen=True)
class Allocation:
    """Random allocation: in each epoch every example is in exactly one of `batches` batches, drawn uniformly,
    independently of the others and in secret; batch `t mod batches` is that of round t.

    It is what shuffled epochs mean, with a price: below that of `Poisson(1 / batches)` under add_remove, and about the
    same under replace_one. Sizes of batches vary and are secret. A round with several answers has a batch
    for each, from draws of their own. The whole price of an epoch is charged with its first answer; an epoch that ends
    early costs no less. Needs Gaussian noise. For `unit="client"` it costs what full batches cost.

    Args:
        batches: Batches of an epoch, from 2 to 1 000 000.

    Source: Chua, Ghazi, Harrison, Leeman, Kamath, Kumar, Manurangsi, Sinha, Zhang 2025 (balls and bins); Feldman,
    Shenfeld 2025 (random allocation).
    """

    batches: Batches


Sampling = FullBatch | Poisson | FixedSize | Cyclic | Allocation


@checked("privacy.noise")
@dataclass(frozen=True)
class Independent:
    """The noise of each round is independent of that of all others."""


Noise = Independent | BSR | Banded | BLT | CorrelatedNoise


@checked("privacy.trust")
@dataclass(frozen=True)
class Local:
    """Nobody is trusted: an observer sees every message, so each client adds all the noise that it needs."""

    sums_only: ClassVar[bool] = False

    def shares(self, n_clients: int) -> int:
        """Returns 1: each client adds all noise of its release itself."""
        return 1

    def __str__(self) -> str:
        return "local"


@checked("privacy.trust")
@dataclass(frozen=True)
class SecureAggregation:
    """An observer sees only the sum over a round's participants. Simulated: no cryptography is run.

    Args:
        min_honest: How many participants are assumed to add their noise. Each adds so much that the noise of this
            many is enough; a round with fewer participants raises PrivacyError.
        cohort_rounds: As for `Central`. All clients send their noise in every round, so that nobody sees who takes
            part; only the one round in which a client adds its contribution is secret.
    """

    sums_only: ClassVar[bool] = True

    min_honest: Count
    cohort_rounds: Batches | None = None

    def shares(self, n_clients: int) -> int:
        """Returns `min_honest`, the number of clients whose noise together is enough."""
        return self.min_honest

    def __str__(self) -> str:
        if self.cohort_rounds is None:
            return f"secure_aggregation(min_honest={self.min_honest}, simulated)"
        return f"secure_aggregation(min_honest={self.min_honest}, cohort_rounds={self.cohort_rounds}, simulated)"


@checked("privacy.trust")
@dataclass(frozen=True)
class Central:
    """One server is trusted: it alone sees what clients send, and releases sums with noise added once.

    Args:
        cohort_rate: Probability with which each client takes part in a round, independently and in secret. Sums are
            divided by the expected number of participants. Below 1 a round costs less epsilon (amplification by
            subsampling of clients), and `unit="client"` is needed.
        cohort_rounds: Instead of a rate: each client takes part in exactly one of so many rounds, which is drawn
            uniformly, independently and in secret, anew for each such epoch (random allocation). Costs less than a
            rate of `1 / cohort_rounds`. Needs Gaussian noise and `unit="client"`.
    """

    sums_only: ClassVar[bool] = True

    cohort_rate: Probability = 1.0
    cohort_rounds: Batches | None = None

    def __post_init__(self) -> None:
        if self.cohort_rounds is not None and self.cohort_rate != 1:
            fix = "a client takes part with a probability or once in so many rounds: give one of cohort_rate and it"
            raise ConfigError("privacy.trust.cohort_rounds", self.cohort_rounds, fix)

    def shares(self, n_clients: int) -> int:
        """Returns the number of all clients, drawn or not: the noise on a sum does not depend on the cohort."""
        return n_clients

    def __str__(self) -> str:
        if self.cohort_rounds is not None:
            return f"central(cohort_rounds={self.cohort_rounds}, secret)"
        if self.cohort_rate == 1:
            return "central"
        return f"central(cohort_rate={self.cohort_rate:g}, secret)"


Trust = Local | SecureAggregation | Central | Pairwise


@checked("privacy.statistics")
@dataclass(frozen=True)
class Statistics:
    """How constraint values, which are averages of losses, are clipped, and their part of the privacy budget.

    Args:
        bound: Each example's loss is clipped to `[0, bound]`.
        share: Part of a round's privacy budget that goes to constraint values, in (0, 1); the gradient gets the rest.
        public_counts: Whether the sizes of groups and classes are public. If not, constraints must state public
            fractions.
        ratio: As `Pairwise.ratio`, for constraint values. A client also uses its values by themselves, where pairwise
            noise does not cancel; so 0, individual noise alone, is best for every strategy that is shipped.
    """

    bound: Positive = 4.0
    share: Ratio = 0.2
    public_counts: bool = False
    ratio: PairRatio = 0.0

    def relative_share(self, norm: str) -> float:
        """Returns the noise multiplier of a gradient over that of a statistic at which they split a budget by `share`.

        `(sensitivity / noise)**2` adds up for l2 clips (Gaussian noise), `sensitivity / noise` for l1 (Laplace).
        """
        odds = self.share / (1 - self.share)
        if norm == "l1":
            return odds
        return math.sqrt(odds)


@checked("privacy")
@dataclass(frozen=True)
class Privacy:
    """The differential privacy of a run.

    Give `epsilon`, a limit for the whole run from which the noise is computed, or `noise_multiplier`, the noise from
    which epsilon is computed. With both, the noise is as given and the run stops before it passes the limit.

    Guarantee: all that a run releases is together (epsilon, delta)-differentially private, for every pair of data
    sets that `relation` and `unit` call neighbours and against whoever sees what `trust` allows.

    Args:
        epsilon: Limit for the whole run; a release that would pass it is refused.
        delta: Failure probability, far below 1 over the number of units; 0 for pure epsilon (Laplace noise only).
        noise_multiplier: Noise scale (standard deviation, or b of Laplace noise) over sensitivity, in a round whose
            `schedule` share is 1.
        clip: Bound on the norm of one unit's contribution.
        mechanism: Distribution of the noise: `Gaussian()` or `Laplace()`.
        unit: What is protected: `"sample"`, one example, or `"client"`, everything that one client holds.
        relation: Which data sets are neighbours: one unit has another value (`"replace_one"`), or is there in only
            one of them (`"add_remove"`, in which the numbers of examples still count as public).
        at: Where noise is added: to every `"gradient"` that a local step uses, to every `"message"` that a client
            sends (needs `unit="client"`), or nowhere: `"none"` (no privacy).
        trust: Who is trusted: `Local()`, `SecureAggregation(min_honest)` or `Central(cohort_rate)`; or nobody, with
            noise that cancels between pairs of clients: `Pairwise(colluders, ratio)`.
        sampling: How batches are drawn: `FullBatch()`, `Poisson(rate)`, `Allocation(batches)`, `FixedSize(size)` or
            `Cyclic(blocks, rate)`.
        schedule: How the budget is shared over rounds.
        published: Use a paper's noise instead, to reproduce the paper. Not private.
        statistics: Bound and budget of constraint values, for strategies that ask for them.
        durable: Wait until a round's ledger lines are on the physical disk before anything computed from its answers
            leaves the process. Without it a power cut can lose lines, and the printed `trust` says `no_power_cut`.
        noise: Whether noise is `Independent()` between rounds, or partly cancels over them: `BSR(band)`,
            `Banded(band)`, `BLT(buffers)`. These need Gaussian noise, one query a round, full or cyclic batches, and
            no cohorts.
        budget: Path of the lifetime budget of these data (`fedpriv budget`). The run reserves its whole plan there
            before it releases anything, and does not start if the budget is too small.
        shared: Further facts that neighbouring data sets have in common, printed beside `relation`; a run fills it in.

    Raises:
        ConfigError: a setting is out of range, or two contradict each other.
    """

    epsilon: Amount | None = None
    delta: Fraction = 1e-5
    noise_multiplier: Amount | None = None
    clip: Clip = field(default_factory=lambda: Clip(1.0))
    mechanism: Mechanism = field(default_factory=Gaussian)
    unit: Unit = "sample"
    relation: Relation = "replace_one"
    at: At = "gradient"
    trust: Trust = field(default_factory=Local)
    sampling: Sampling = field(default_factory=FullBatch)
    schedule: Schedule = field(default_factory=Uniform)
    published: UnprotectedNoise | None = None
    statistics: Statistics = field(default_factory=Statistics)
    shared: str = ""
    durable: bool = True
    noise: Noise = Independent()
    budget: str | Path | None = field(default=None, metadata=ASIDE)

    def __post_init__(self) -> None:
        # a mechanism may be a class of the user; its name says which law prices it
        if getattr(self.mechanism, "name", None) not in tuple(NOISE_DISTRIBUTIONS):
            raise ConfigError("privacy.mechanism", self.mechanism, "make it with Gaussian() or Laplace()")
        if self.private:
            self._check_amount()
        if self.at == "message" and self.unit != "client":
            raise ConfigError("privacy.unit", self.unit, "at: message clips whole messages, so the unit must be client")
        if isinstance(self.sampling, FixedSize) and self.relation == "add_remove" and self.unit == "sample":
            raise ConfigError(
                "privacy.sampling",
                "fixed_size",
                "has no sound add/remove price: no bound on its epsilon is known; use replace_one or poisson",
            )
        if isinstance(self.sampling, Allocation) and self.private and self.mechanism.name != "gaussian":
            fix = "no price is known for other noise than Gaussian; use Gaussian noise, or Poisson batches"
            raise ConfigError("privacy.sampling", "allocation", fix)
        if isinstance(self.trust, Pairwise) and self.private and self.mechanism.name != "gaussian":
            fix = "noise that cancels between pairs has a price only if it is Gaussian: use Gaussian noise"
            raise ConfigError("privacy.mechanism", self.mechanism.name, fix)
        self._check_cohort()
        if not self.private and not isinstance(self.noise, Independent):
            raise ConfigError("privacy.noise", str(self.noise), "the run adds no private noise; leave it out")

    def _check_cohort(self) -> None:
        if self.cohort_rate == 1:
            return
        if self.cohort_rounds is None:
            name, value = "privacy.trust.cohort_rate", self.cohort_rate
        else:
            name, value = "privacy.trust.cohort_rounds", float(self.cohort_rounds)
        if not self.private:
            raise ConfigError(name, value, "a secret cohort belongs to private runs; use network.cohort")
        if self.unit != "client":
            fix = "drawing whole clients does not lower the epsilon of single examples; set unit to 'client'"
            raise ConfigError(name, value, fix)
        if self.cohort_rounds is not None and self.mechanism.name != "gaussian":
            fix = "no price is known for other noise than Gaussian; use Gaussian noise, or cohort_rate"
            raise ConfigError(name, value, fix)

    def _check_amount(self) -> None:
        if self.epsilon is None and self.noise_multiplier is None:
            raise ConfigError("privacy.epsilon", None, "give a target epsilon or a noise_multiplier, e.g. epsilon=3.0")
        for name, value in (("epsilon", self.epsilon), ("noise_multiplier", self.noise_multiplier)):
            if value is not None and not LEAST_AMOUNT <= value <= 1 / LEAST_AMOUNT:
                raise ConfigError(
                    f"privacy.{name}", value, f"must be from {LEAST_AMOUNT:g} to {1 / LEAST_AMOUNT:g} to be computed"
                )
        if self.delta == 0 and not NOISE_DISTRIBUTIONS[self.mechanism.name].pure:
            raise ConfigError(
                "privacy.delta",
                0,
                f"{self.mechanism.name.capitalize()} noise needs delta > 0; use Laplace noise with an l1 clip",
            )
        if self.delta == 0 and self.clip.norm == "l2":
            raise ConfigError("privacy.clip.norm", "l2", "pure epsilon needs an l1 clip")

    @property
    def private(self) -> bool:
        """Whether answers are noised with a privacy guarantee: not for `at="none"`, nor with a paper's noise."""
        return self.at != "none" and self.published is None

    @property
    def over_time(self) -> CorrelatedNoise | None:
        """How the noise of rounds is correlated, once the run is known; None if rounds have independent noise."""
        if isinstance(self.noise, CorrelatedNoise):
            return self.noise
        return None

    @property
    def trusted(self) -> str:
        """The trust assumption, as printed: `trust`, and `no_power_cut` where the run is not durable."""
        if self.durable:
            return str(self.trust)
        return f"{self.trust}+no_power_cut"

    @property
    def boundary(self) -> str:
        """What noise is added to, private or as published: `"gradient"`, `"message"`, or `"none"`."""
        if self.published is None:
            return self.at
        return self.published.at

    @property
    def cohort_rate(self) -> float:
        """Probability with which a client is in a round's secret cohort; 1 where cohorts are not secret."""
        if self.cohort_rounds is not None:
            return 1 / self.cohort_rounds
        if isinstance(self.trust, Central):
            return self.trust.cohort_rate
        return 1.0

    @property
    def cohort_rounds(self) -> int | None:
        """Rounds in exactly one of which each client takes part, in secret; None where cohorts are drawn otherwise."""
        if isinstance(self.trust, Central | SecureAggregation):
            return self.trust.cohort_rounds
        return None

    @property
    def allocation_rounds(self) -> int | None:
        """Rounds of an epoch of random allocation, of examples or of clients; None where nothing is drawn so."""
        if self.cohort_rounds is not None:
            return self.cohort_rounds
        if isinstance(self.sampling, Allocation) and self.unit == "sample":
            return self.sampling.batches
        return None

    @property
    def orders_examples(self) -> bool:
        """Whether the order of examples or clients decides who takes part in which rounds, and so enters the price."""
        takes_turns = isinstance(self.sampling, (Cyclic, Allocation)) or self.cohort_rounds is not None
        return self.private and (takes_turns or self.over_time is not None)

    @property
    def samples_clients_before_compute(self) -> bool:
        """Whether clients are drawn in secret before they compute anything: those that send a message."""
        return self.boundary == "message" and self.cohort_rate < 1

    @property
    def hides_round_size(self) -> bool:
        """Whether the number of examples or clients in a round is secret, so that the time it takes must be too."""
        if isinstance(self.sampling, Allocation):
            samples_examples = True
        else:
            samples_examples = isinstance(self.sampling, Poisson | Cyclic) and self.sampling.rate < 1
        return self.private and (samples_examples or self.cohort_rate < 1)

    @property
    def sensitivity(self) -> float:
        """Largest change of a clipped sum between neighbours, in the clip's norm: C for add_remove, 2C for
        replace_one, plus what rounding may add.
        """
        return self.sensitivity_of(self.clip)

    def sensitivity_of(self, clip: Clip) -> float:
        """Returns the `sensitivity` for another clip."""
        if self.relation == "add_remove":
            factor = 1.0
        else:
            factor = 2.0
        return clip.bound * (1 + ROUNDING) * factor
