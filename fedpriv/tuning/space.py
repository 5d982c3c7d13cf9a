"""The settings that a search may choose: fields of a configuration, each with a range or a list of values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import model_validator

from fedpriv.config.base import Section, check
from fedpriv.errors import ConfigError
from fedpriv.settings import validate_arguments
from fedpriv.storage import strict_yaml

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Value = str | int | float | bool | None
# fields in which trials may differ; data, privacy unit, adversary and delta are the same in the whole search
_MAY_CHANGE = (
    "strategy",
    "model",
    "loss",
    "rounds",
    "network",
    "privacy.epsilon",
    "privacy.noise_multiplier",
    "privacy.clip",
    "privacy.sampling",
    "privacy.schedule",
    "privacy.noise",
    "privacy.statistics",
    "data.transforms",
    "data.augment",
)


class Range(Section):
    """Numbers from `low` to `high`, inclusive; integers if both are integers. `log`: on a logarithmic scale."""

    low: int | float
    high: int | float
    log: bool = False

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"must have low below high, but low = {self.low} and high = {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"must have low above 0 for a logarithmic scale, but low = {self.low}")
        return self

    @property
    def distribution(self) -> BaseDistribution:
        """The distribution for optuna."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if isinstance(self.low, int) and isinstance(self.high, int):
            return IntDistribution(self.low, self.high, log=self.log)
        return FloatDistribution(float(self.low), float(self.high), log=self.log)


@dataclass(frozen=True)
class Choices:
    """One of several values."""

    values: tuple[Value, ...]

    @property
    def distribution(self) -> BaseDistribution:
        """The distribution for optuna."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.values)


@validate_arguments("space")
@dataclass(frozen=True)
class Space:
    """The fields of a search.

    Attributes:
        fields: A range or choices by dotted name, e.g. `"strategy.learning_rate"`.
    """

    fields: Mapping[str, Range | Choices]

    @staticmethod
    def read(path: Path) -> Space:
        """Reads a space from a YAML file.

        Raises:
            ConfigError: If the file cannot be read, or a field cannot be searched.
        """
        try:
            return Space.of(strict_yaml.read(path.read_text(encoding="utf-8"), str(path)))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("space", str(path), f"cannot be read ({error}): correct the path") from None

    @staticmethod
    def of(raw: object) -> Space:
        """Returns a space from the content of a YAML file.

        Raises:
            ConfigError: If a field cannot be searched.
        """
        if not isinstance(raw, dict) or not raw:
            fix = (
                "must be a mapping of fields to ranges, e.g. strategy.learning_rate: {low: 0.01, high: 1.0, log: true}"
            )
            raise ConfigError("space", raw, fix)
        return Space({str(name): _field(str(name), values) for name, values in raw.items()})

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The distributions for optuna, by field."""
        return {name: field.distribution for name, field in self.fields.items()}

    def plain(self) -> dict[str, Any]:
        """Returns the space in its YAML form."""
        return {
            name: field.model_dump() if isinstance(field, Range) else list(field.values)
            for name, field in self.fields.items()
        }


def as_overrides(chosen: Mapping[str, Value]) -> list[str]:
    """Returns chosen values as settings of the command line, `name=value`."""
    return [f"{name}={json.dumps(value)}" for name, value in chosen.items()]


def _field(name: str, raw: object) -> Range | Choices:
    """Returns the range or the choices of a field from their YAML content."""
    if not any(name == allowed or name.startswith(f"{allowed}.") for allowed in _MAY_CHANGE):
        fix = (
            f"cannot be changed by a search: leave it out; a search can change only {', '.join(_MAY_CHANGE)} and their "
            "fields"
        )
        raise ConfigError("space", name, fix)
    if not isinstance(raw, list):
        return check(Range, raw, f"space.{name}")
    plain = all(value is None or isinstance(value, Value.__args__[:-1]) for value in raw)
    if not raw or not plain or len({json.dumps(value) for value in raw}) < len(raw):
        raise ConfigError(f"space.{name}", raw, "must be a list of plain values, each once, e.g. [0.1, 0.3, 1.0]")
    return Choices(tuple(raw))
