"""The privacy section of a configuration."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, ClassVar

from pydantic import model_validator

from fedpriv.config.base import Choice, YamlFormat, options_section, with_field_errors
from fedpriv.config.yaml_formats import fields_format, get_choice, keyed_format
from fedpriv.errors import ConfigError
from fedpriv.papers.recipe import Recipe
from fedpriv.privacy import (
    BLT,
    BSR,
    NOISE_DISTRIBUTIONS,
    Allocation,
    Banded,
    Central,
    Complete,
    Custom,
    Cyclic,
    FixedSize,
    FullBatch,
    Geometric,
    Independent,
    Local,
    Noise,
    NoiseDistributionName,
    Pairwise,
    Poisson,
    Privacy,
    RandomRegular,
    Sampling,
    Schedule,
    Secrets,
    SecureAggregation,
    Topology,
    Trust,
    Uniform,
)
from fedpriv.settings import PositiveOrInfinite, plugins

SAMPLING = keyed_format(
    "full",
    FullBatch(),
    poisson=Poisson,
    allocation=Allocation,
    fixed_size=FixedSize,
    cyclic=Cyclic,
)

MATRIX = keyed_format("independent", None, bsr=BSR, banded=Banded, blt=BLT)
get_choice(MATRIX).words["independent"] = Independent  # the value if there is no matrix
SECRETS = keyed_format("complete", Complete(), random_regular=RandomRegular, topology=Topology)
TRUST = keyed_format(
    "local",
    Local(),
    secure_aggregation=SecureAggregation,
    central=Central,
    pairwise=fields_format(Pairwise, {Secrets: SECRETS}),
)


class ScheduleChoice(Choice):
    """The division of the budget among rounds; `function` is the `package.module:name` of a function of the round."""

    neither = "uniform"
    words: ClassVar = {"uniform": Uniform, "geometric": Geometric, "function": Custom}

    geometric: Annotated[Geometric, YamlFormat(with_field_errors(Geometric))] | None = None
    function: str | None = None

    def build(self) -> Schedule:
        """Builds the schedule."""
        if self.function:
            return Custom(plugins.resolve_round_function(self.function, float, "privacy.schedule.function"))
        return self.geometric or Uniform()


class NoiseChoice(Choice):
    """Noise that is independent between rounds, or partly cancels over them: `{correlated: {bsr: {band: 16}}}`."""

    neither = "independent"

    correlated: Annotated[BSR | Banded | BLT, YamlFormat(MATRIX)] | None = None

    def build(self) -> Noise:
        """Builds the noise."""
        return self.correlated or Independent()


_SPELLINGS: dict[Any, Any] = {Trust: TRUST, Sampling: SAMPLING}
# these have another form in YAML, or are filled in
_NOT_AS_IN_PYTHON = ("mechanism", "schedule", "noise", "published", "invariants", "budget")
_SETTINGS = {field.name for field in fields(Privacy)}
_AS_IN_PYTHON: Any = options_section(Privacy, _SETTINGS - {*_NOT_AS_IN_PYTHON}, _SPELLINGS)


class PrivacySection(_AS_IN_PYTHON):
    """The privacy settings: the fields of `fedpriv.Privacy`, some with another form in YAML.

    Set the total `epsilon`, or the `noise_multiplier`; `epsilon_bar` is for published variants.
    `budget` names the file of the data's lifetime budget (`fedpriv budget`); a run that would exceed it raises an
    error.
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
        # an unknown mechanism, of any type, raises an error later
        distribution = next(
            (distribution for name, distribution in NOISE_DISTRIBUTIONS.items() if name == raw.get("mechanism")),
            NOISE_DISTRIBUTIONS["gaussian"],
        )
        return {**raw, "clip": {"bound": 1.0, "norm": distribution.norm, **raw.get("clip", {})}}

    def _check_published(self, published: bool) -> None:
        """Raises an error for `epsilon_bar` with sound strategies, or target or multiplier with published variants."""
        if not published and self.epsilon_bar is not None:
            fix = (
                "is only for strategy.variant: published; leave it out, and set the epsilon of the whole run as "
                "privacy.epsilon"
            )
            raise ConfigError("privacy.epsilon_bar", self.epsilon_bar, fix)
        if not published:
            return
        for name in ("epsilon", "noise_multiplier"):
            if getattr(self, name) is not None:
                fix = (
                    "cannot be used with strategy.variant: published, whose noise follows from privacy.epsilon_bar: "
                    "leave it out"
                )
                raise ConfigError(f"privacy.{name}", getattr(self, name), fix)

    def build(self, recipe: Recipe) -> Privacy:
        """Builds the settings `fedpriv.Privacy`.

        Args:
            recipe: The strategy, with its own schedule or published noise, if any.

        Raises:
            ConfigError: If settings contradict each other or the strategy.
        """
        self._check_published(recipe.published is not None)
        schedule = self.schedule.build()
        if recipe.schedule is not None and not isinstance(schedule, Uniform):
            value = self.schedule.model_dump(mode="json")
            raise ConfigError(
                "privacy.schedule", value, "cannot be set, because this strategy sets its own schedule: leave it out"
            )
        options: dict[str, Any] = {name: value for name, value in self if name in _SETTINGS}
        if self.noise_on == "none" or recipe.published is not None:
            options |= {"epsilon": None, "noise_multiplier": None}
        options |= {
            "noise": self.noise.build(),
            "mechanism": NOISE_DISTRIBUTIONS[self.mechanism].mechanism,
            "schedule": recipe.schedule or schedule,
        }
        return Privacy(**options, published=recipe.published)
