"""What a run promises: every privacy setting, and nothing that is about speed."""

from __future__ import annotations

import math
import warnings
from dataclasses import InitVar, dataclass, field
from typing import Annotated, ClassVar, Literal

from fedpriv.checks import Bound, Count, Fraction, Positive, Probability, Ratio, checked
from fedpriv.errors import ConfigError
from fedpriv.privacy.as_published import Published
from fedpriv.privacy.clipping import ROUNDING, Clip
from fedpriv.privacy.mechanisms import Gaussian, Mechanism
from fedpriv.privacy.record import Relation, Unit
from fedpriv.privacy.schedules import Schedule, Uniform

SECURE_IS_GONE = "has no effect any more: noise is cryptographic in every run, and secret unless secret_seed is given"
At = Literal["gradient", "message", "none"]
Amount = Annotated[float, Bound("must be positive and finite; use at: none for no noise", 0)]


_LEAST = 1e-20  # of an epsilon or a noise multiplier: its square is still a number


@dataclass(frozen=True)
class FullBatch:
    """Every answer uses all of a client's examples."""


@checked("privacy.sampling")
@dataclass(frozen=True)
class Poisson:
    """Each example is in the batch with probability `rate`, on its own; batches may be empty.

    The batch is secret, which lowers the price of an answer about a sample. It says nothing about a whole client.
    """

    rate: Probability


@checked("privacy.sampling")
@dataclass(frozen=True)
class FixedSize:
    """Exactly `size` examples without replacement (all of them, where a client has fewer)."""

    size: Count


Sampling = FullBatch | Poisson | FixedSize


@dataclass(frozen=True)
class Local:
    """Nobody is trusted: each client's every message is seen on its own."""

    sums_only: ClassVar[bool] = False

    def shares(self, n_clients: int) -> int:
        """Each row has noise of its own."""
        return 1

    def __str__(self) -> str:
        return "local"


@checked("privacy.trust")
@dataclass(frozen=True)
class SecureAggregation:
    """Only sums over a round's participants are seen. Simulated: fedpriv adds the shares but runs no cryptography.

    Args:
        min_honest: So many participants follow the protocol; each adds a share of the noise that is large enough for
            that many. A round with fewer participants is not released.
    """

    sums_only: ClassVar[bool] = True

    min_honest: Count

    def shares(self, n_clients: int) -> int:
        """The noise of so many participants is enough."""
        return self.min_honest

    def __str__(self) -> str:
        return f"secure_aggregation(min_honest={self.min_honest}, simulated)"


@checked("privacy.trust")
@dataclass(frozen=True)
class Central:
    """A curator is trusted with everything: it alone sees what clients say, and shows sums with noise added once.

    The noise on a sum is the same whoever took part, and nobody else learns who did, so a cohort that is drawn client
    by client amplifies the privacy of clients, as Poisson batches amplify that of examples.

    Args:
        cohort_rate: Probability with which each client takes part in a round, on its own and in secret; sums are
            divided by the expected number. Below 1 it needs `unit: client`.
    """

    sums_only: ClassVar[bool] = True

    cohort_rate: Probability = 1.0

    def shares(self, n_clients: int) -> int:
        """The noise comes in a share for each client, drawn or not, so that its sum does not depend on the cohort."""
        return n_clients

    def __str__(self) -> str:
        return "central" if self.cohort_rate == 1 else f"central(cohort_rate={self.cohort_rate:g}, secret)"


Trust = Local | SecureAggregation | Central


@checked("privacy.statistics")
@dataclass(frozen=True)
class Statistics:
    """How statistics of losses (constraint values) are bounded and paid for.

    Args:
        bound: Losses are clipped to `[0, bound]`.
        share: Fraction of a round's budget that a statistic takes beside a gradient, in (0, 1).
        public_counts: Take the sizes of groups and classes as public. Else constraints must state public fractions.
    """

    bound: Positive = 4.0
    share: Ratio = 0.2
    public_counts: bool = False

    def relative_share(self, norm: str) -> float:
        """Budget share relative to a gradient's: noise adds up in squares for l2, plainly for l1."""
        odds = self.share / (1 - self.share)
        return odds if norm == "l1" else math.sqrt(odds)


@checked("privacy")
@dataclass(frozen=True)
class Privacy:
    """The promise of a run.

    Give `epsilon` (a limit for the whole run: calibration turns it into noise) or `noise_multiplier` (the noise;
    epsilon follows). With both the noise is as given and the run stops before it passes the limit.

    Args:
        epsilon: Limit for the whole run; the release that would pass it is refused.
        delta: Failure probability; 0 for pure epsilon (Laplace only).
        noise_multiplier: Noise scale over sensitivity in a round of share 1.
        clip: Bound on one unit's contribution.
        mechanism: Law of the noise.
        unit: `"sample"` protects one example, `"client"` everything a client has.
        relation: `"replace_one"`: neighbours differ in one unit's value. `"add_remove"`: in its presence, with
            sizes public.
        at: Where the boundary stands: `"gradient"`, `"message"` or `"none"` (no privacy).
        trust: Who is trusted: `Local()`, `SecureAggregation(min_honest)` or `Central(cohort_rate)`.
        sampling: How batches are drawn.
        schedule: How the budget is shared over rounds.
        published: As-published noise instead (not private).
        statistics: Bound and budget of statistics, for strategies that ask for them.
        durable: Wait until a round's records are on the disk itself before anything made of its answers leaves the
            process. Without it a power cut can make the ledger forget, and `trust` says `no_power_cut`.
        shared: What neighbouring data sets have in common besides, as printed beside `relation`; a run fills it in.
        secure: Has no effect: noise is cryptographic in every run, and secret unless a `secret_seed` is given.

    Raises:
        ConfigError: settings that are out of range or contradict each other.
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
    published: Published | None = None
    statistics: Statistics = field(default_factory=Statistics)
    shared: str = ""
    durable: bool = True
    secure: InitVar[bool | None] = None

    def __post_init__(self, secure: bool | None) -> None:
        if secure is not None:
            warnings.warn(f"privacy.secure {SECURE_IS_GONE}", FutureWarning, stacklevel=4)
        # a mechanism may be the user's own; its name says which law prices it
        if getattr(self.mechanism, "name", None) not in ("gaussian", "laplace"):
            raise ConfigError("privacy.mechanism", self.mechanism, "make it with Gaussian() or Laplace()")
        if self.private:
            self._check_amount()
        if self.at == "message" and self.unit != "client":
            raise ConfigError("privacy.unit", self.unit, "at: message clips whole messages, so the unit must be client")
        if isinstance(self.sampling, FixedSize) and self.relation == "add_remove" and self.unit == "sample":
            raise ConfigError(
                "privacy.sampling", "fixed_size", "has no sound add/remove price; use replace_one or poisson"
            )
        self._check_cohort()

    def _check_cohort(self) -> None:
        if self.cohort_rate == 1:
            return
        if not self.private:
            fix = "a secret cohort belongs to private runs; use network.cohort"
            raise ConfigError("privacy.trust.cohort_rate", self.cohort_rate, fix)
        if self.unit != "client":
            fix = "drawing whole clients does not amplify the privacy of one example beside others; use unit: client"
            raise ConfigError("privacy.trust.cohort_rate", self.cohort_rate, fix)

    def _check_amount(self) -> None:
        if self.epsilon is None and self.noise_multiplier is None:
            raise ConfigError("privacy.epsilon", None, "give a target epsilon or a noise_multiplier")
        for name, value in (("epsilon", self.epsilon), ("noise_multiplier", self.noise_multiplier)):
            if value is not None and not _LEAST <= value <= 1 / _LEAST:
                raise ConfigError(f"privacy.{name}", value, f"must be from {_LEAST:g} to {1 / _LEAST:g} to be computed")
        if self.delta == 0 and self.mechanism.name == "gaussian":
            raise ConfigError(
                "privacy.delta", 0, "Gaussian noise needs delta > 0; use mechanism: laplace with an l1 clip"
            )
        if self.delta == 0 and self.clip.norm == "l2":
            raise ConfigError("privacy.clip.norm", "l2", "pure epsilon needs an l1 clip")

    @property
    def private(self) -> bool:
        """Whether the run makes any promise at all."""
        return self.at != "none" and self.published is None

    @property
    def trusted(self) -> str:
        """Who and what is trusted, as printed."""
        return str(self.trust) if self.durable else f"{self.trust}+no_power_cut"

    @property
    def boundary(self) -> str:
        """Where noise stands, as published or private: `"gradient"`, `"message"`, or `"none"`."""
        return self.at if self.published is None else self.published.at

    @property
    def cohort_rate(self) -> float:
        """Probability with which a client is drawn in secret; 1 where cohorts are not secret."""
        return self.trust.cohort_rate if isinstance(self.trust, Central) else 1.0

    @property
    def draws_in_secret(self) -> bool:
        """Whether how many examples or clients a round uses is a secret, and so how long it takes."""
        return self.private and (isinstance(self.sampling, Poisson) or self.cohort_rate < 1)

    @property
    def sensitivity(self) -> float:
        """Largest change of a clipped sum between neighbours, in the clip's norm: C, or 2C for replace_one; and what
        rounding may add.
        """
        return self.sensitivity_of(self.clip)

    def sensitivity_of(self, clip: Clip) -> float:
        """The same for another clip."""
        return clip.bound * (1 + ROUNDING) * (1.0 if self.relation == "add_remove" else 2.0)
