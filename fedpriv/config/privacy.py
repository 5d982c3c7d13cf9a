"""The privacy section of a configuration."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, ClassVar

from pydantic import model_validator

from fedpriv.config.base import Choice, Spelled, named_fields, options_section
from fedpriv.config.spelling import by_fields, by_key, choice_of
from fedpriv.errors import ConfigError
from fedpriv.papers.recipe import Recipe
from fedpriv.privacy import pairwise, settings
from fedpriv.privacy.matrices import BLT, BSR, Banded
from fedpriv.privacy.mechanisms import NOISE_DISTRIBUTIONS
from fedpriv.privacy.record import NoiseDistributionName
from fedpriv.privacy.schedules import Custom, Geometric, Schedule, Uniform
from fedpriv.settings import plugins
from fedpriv.settings.checks import PositiveOrInfinite

SAMPLING = by_key(
    "full",
    settings.FullBatch(),
    poisson=settings.Poisson,
    allocation=settings.Allocation,
    fixed_size=settings.FixedSize,
    cyclic=settings.Cyclic,
)

_FOR = {"iterate": "for"}  # `for` cannot be a name in Python
MATRIX = by_key("independent", None, bsr=BSR, banded=by_fields(Banded, {}, _FOR), blt=by_fields(BLT, {}, _FOR))
choice_of(MATRIX).words["independent"] = settings.Independent  # which a run has where there is no matrix
SECRETS = by_key("complete", pairwise.Complete(), random_regular=pairwise.RandomRegular, topology=pairwise.Topology)
TRUST = by_key(
    "local",
    settings.Local(),
    secure_aggregation=settings.SecureAggregation,
    central=settings.Central,
    pairwise=by_fields(pairwise.Pairwise, {pairwise.Secrets: SECRETS}),
)


class ScheduleChoice(Choice):
    """How rounds share the budget; `function` is `package.module:name` of a function from a round to its share."""

    neither = "uniform"
    words: ClassVar = {"uniform": Uniform, "geometric": Geometric, "function": Custom}

    geometric: Annotated[Geometric, Spelled(named_fields(Geometric))] | None = None
    function: str | None = None

    def build(self) -> Schedule:
        """Builds the schedule."""
        if self.function:
            return Custom(plugins.function_of_round(self.function, float, "privacy.schedule.function"))
        return self.geometric or Uniform()


class NoiseChoice(Choice):
    """Noise that is independent between rounds, or partly cancels over them: `{time: {bsr: {band: 16}}}`."""

    neither = "independent"

    time: Annotated[BSR | Banded | BLT, Spelled(MATRIX)] | None = None

    def build(self) -> settings.Noise:
        """Builds the noise."""
        return self.time or settings.Independent()


_SPELLINGS: dict[Any, Any] = {settings.Trust: TRUST, settings.Sampling: SAMPLING}
# these have another form in YAML, or are filled in
_NOT_AS_IN_PYTHON = ("mechanism", "schedule", "noise", "published", "shared", "budget")
_SETTINGS = {field.name for field in fields(settings.Privacy)}
_AS_IN_PYTHON: Any = options_section(settings.Privacy, _SETTINGS - {*_NOT_AS_IN_PYTHON}, _SPELLINGS)


class PrivacySection(_AS_IN_PYTHON):
    """The privacy settings: those of `fedpriv.Privacy`, and what YAML writes in another way.

    Give the total `epsilon`, or the `noise_multiplier`; `epsilon_bar` is for published variants.
    `budget` names the file of the data's lifetime budget (`fedpriv budget`), which refuses a run that would overspend.
    """

    epsilon_bar: PositiveOrInfinite | None = None
    mechanism: NoiseDistributionName = "gaussian"
    schedule: ScheduleChoice = ScheduleChoice()
    noise: NoiseChoice = NoiseChoice()
    budget: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _clip_suits_noise(cls, raw: object) -> object:
        """Fills in an l2 clip for Gaussian noise and an l1 clip for Laplace noise, unless a norm is set."""
        if not isinstance(raw, dict) or not isinstance(raw.get("clip", {}), dict):
            return raw
        # an unknown mechanism, of any type, is refused later
        distribution = next(
            (distribution for name, distribution in NOISE_DISTRIBUTIONS.items() if name == raw.get("mechanism")),
            NOISE_DISTRIBUTIONS["gaussian"],
        )
        return {**raw, "clip": {"bound": 1.0, "norm": distribution.norm, **raw.get("clip", {})}}

    def _check_published(self, published: bool) -> None:
        """Refuses `epsilon_bar` for sound strategies, and a target or noise multiplier for published variants."""
        if not published and self.epsilon_bar is not None:
            fix = "it belongs to strategy.variant: published; give the run's total as privacy.epsilon"
            raise ConfigError("privacy.epsilon_bar", self.epsilon_bar, fix)
        if not published:
            return
        for name in ("epsilon", "noise_multiplier"):
            if getattr(self, name) is not None:
                fix = "variant: published makes no promise; leave it out, epsilon_bar sets the noise"
                raise ConfigError(f"privacy.{name}", getattr(self, name), fix)

    def build(self, recipe: Recipe) -> settings.Privacy:
        """Builds the settings `fedpriv.Privacy`.

        Args:
            recipe: The strategy, with the schedule or published noise that it brings.

        Raises:
            ConfigError: settings contradict each other or the strategy.
        """
        self._check_published(recipe.published is not None)
        schedule = self.schedule.build()
        if recipe.schedule is not None and not isinstance(schedule, Uniform):
            value = self.schedule.model_dump(mode="json")
            raise ConfigError("privacy.schedule", value, "the strategy sets the schedule; leave it out")
        options: dict[str, Any] = {name: value for name, value in self if name in _SETTINGS}
        if self.at == "none" or recipe.published is not None:
            options |= {"epsilon": None, "noise_multiplier": None}
        options |= {
            "noise": self.noise.build(),
            "mechanism": NOISE_DISTRIBUTIONS[self.mechanism].mechanism,
            "schedule": recipe.schedule or schedule,
        }
        return settings.Privacy(**options, published=recipe.published)
