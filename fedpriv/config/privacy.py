"""The privacy section of a configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, PositiveInt, model_validator

from fedpriv import plugins
from fedpriv.config.base import Choice, Section
from fedpriv.errors import ConfigError
from fedpriv.privacy import settings
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.mechanisms import MECHANISMS
from fedpriv.privacy.schedules import Custom, Geometric, Schedule, Uniform
from fedpriv.published.recipe import Recipe

Positive = Annotated[FiniteFloat, Field(gt=0)]
Probability = Annotated[float, Field(gt=0, le=1)]


class ClipSection(Section):
    """Bound on one unit's contribution. The norm is l2 unless the noise is Laplace."""

    norm: Literal["l1", "l2"] = "l2"
    bound: Positive = 1.0


class PoissonSampling(Section):
    """Each example on its own."""

    rate: Probability


class FixedSizeSampling(Section):
    """Without replacement."""

    size: PositiveInt


class SamplingChoice(Choice):
    """How a batch is drawn."""

    neither = "full"

    poisson: PoissonSampling | None = None
    fixed_size: FixedSizeSampling | None = None

    def build(self) -> settings.Sampling:
        """The setting."""
        if self.poisson:
            return settings.Poisson(self.poisson.rate)
        return settings.FixedSize(self.fixed_size.size) if self.fixed_size else settings.FullBatch()


class SecureAggregation(Section):
    """Only sums over a cohort are seen."""

    min_honest: PositiveInt


class Central(Section):
    """A curator that sees everything and draws its cohorts in secret."""

    cohort_rate: Probability = 1.0


class TrustChoice(Choice):
    """Who is trusted with what."""

    neither = "local"

    secure_aggregation: SecureAggregation | None = None
    central: Central | None = None

    def build(self) -> settings.Trust:
        """The setting."""
        if self.central:
            return settings.Central(self.central.cohort_rate)
        secure = self.secure_aggregation
        return settings.SecureAggregation(secure.min_honest) if secure else settings.Local()


class GeometricSchedule(Section):
    """Shares `ratio**k`."""

    ratio: Positive


class ScheduleChoice(Choice):
    """How the budget is shared over rounds; `function` is `package.module:name` of a public function of the round."""

    neither = "uniform"

    geometric: GeometricSchedule | None = None
    function: str | None = None

    def build(self) -> Schedule:
        """The setting."""
        if self.function:
            return Custom(plugins.function_of_round(self.function, float, "privacy.schedule.function"))
        return Geometric(self.geometric.ratio) if self.geometric else Uniform()


class StatisticsSection(Section):
    """Bound and budget of statistics such as constraint values; see `fedpriv.privacy.settings.Statistics`."""

    bound: Positive = 4.0
    share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    public_counts: bool = False

    def build(self) -> settings.Statistics:
        """The setting."""
        return settings.Statistics(self.bound, self.share, self.public_counts)


class PrivacySection(Section):
    """The promise: a total `epsilon` for the run, or the noise; `epsilon_bar` is a paper's epsilon per round."""

    epsilon: Positive | None = None
    noise_multiplier: Positive | None = None
    epsilon_bar: Annotated[float, Field(gt=0)] | None = None
    delta: Annotated[float, Field(ge=0, lt=1)] = 1e-5
    unit: Literal["sample", "client"] = "sample"
    relation: Literal["replace_one", "add_remove"] = "replace_one"
    at: Literal["gradient", "message", "none"] = "gradient"
    trust: TrustChoice = TrustChoice()
    mechanism: Literal["gaussian", "laplace"] = "gaussian"
    clip: ClipSection = ClipSection()
    sampling: SamplingChoice = SamplingChoice()
    schedule: ScheduleChoice = ScheduleChoice()
    secure: Annotated[bool | None, Field(exclude=True)] = None  # read, and said to have no effect
    statistics: StatisticsSection = StatisticsSection()
    durable: bool = True

    @model_validator(mode="before")
    @classmethod
    def _clip_suits_noise(cls, given: object) -> object:
        if isinstance(given, dict) and given.get("mechanism") == "laplace" and isinstance(given.get("clip", {}), dict):
            return {**given, "clip": {"norm": "l1", **given.get("clip", {})}}
        return given

    def _check_published(self, published: bool) -> None:
        if not published and self.epsilon_bar is not None:
            fix = "it belongs to strategy.variant: published; give the run's total as privacy.epsilon"
            raise ConfigError("privacy.epsilon_bar", self.epsilon_bar, fix)
        for name in ("epsilon", "noise_multiplier") if published else ():
            if getattr(self, name) is not None:
                fix = "variant: published makes no promise; leave it out, epsilon_bar sets the noise"
                raise ConfigError(f"privacy.{name}", getattr(self, name), fix)

    def build(self, recipe: Recipe) -> settings.Privacy:
        """The promise, as the strategy needs it.

        Raises:
            ConfigError: settings that contradict each other or the strategy.
        """
        self._check_published(recipe.published is not None)
        schedule = self.schedule.build()
        if recipe.schedule is not None and not isinstance(schedule, Uniform):
            value = self.schedule.model_dump(mode="json")
            raise ConfigError("privacy.schedule", value, "the strategy sets the schedule; leave it out")
        private = self.at != "none" and recipe.published is None
        return settings.Privacy(
            epsilon=self.epsilon if private else None,
            delta=self.delta,
            noise_multiplier=self.noise_multiplier if private else None,
            clip=Clip(self.clip.bound, self.clip.norm),
            mechanism=MECHANISMS[self.mechanism],  # pyright: ignore[reportArgumentType] - the two that there are
            unit=self.unit,
            relation=self.relation,
            at=self.at,
            trust=self.trust.build(),
            sampling=self.sampling.build(),
            schedule=recipe.schedule or schedule,
            published=recipe.published,
            statistics=self.statistics.build(),
            durable=self.durable,
        )
