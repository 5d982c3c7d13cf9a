"""The statistics section of a configuration: a list of private statistics, which are released together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import model_validator

from fedpriv.config.base import Plugin, Section, check
from fedpriv.config.files import override
from fedpriv.config.network import NetworkSection
from fedpriv.config.privacy import PrivacySection
from fedpriv.errors import ConfigError
from fedpriv.settings import Registry, RegistryEntry, Whole
from fedpriv.statistics import (
    Correlations,
    Counts,
    CrossTable,
    GroupMeans,
    Histogram,
    Mean,
    Quantiles,
)
from fedpriv.statistics.description import JoinedStatistics
from fedpriv.storage import strict_yaml

_KINDS = (Correlations, Counts, CrossTable, GroupMeans, Histogram, Mean, Quantiles)
STATISTICS = Registry(
    {
        "mean": RegistryEntry(Mean, "mean, standard deviation and share of missing values of a number"),
        "quantiles": RegistryEntry(Quantiles, "quantiles, mean and deviation of a number, from one noisy curve"),
        "histogram": RegistryEntry(Histogram, "number of rows in bins of a number"),
        "counts": RegistryEntry(Counts, "number of rows with each value of a column"),
        "cross_table": RegistryEntry(CrossTable, "number of rows with each pair of values of two columns"),
        "group_means": RegistryEntry(GroupMeans, "mean of a number in each group of rows"),
        "correlations": RegistryEntry(Correlations, "correlations of numbers"),
    },
    _KINDS,
)
"""The names of statistics in YAML."""


class StatisticSection(Plugin):
    """One statistic: its name, followed by the arguments that it has in Python."""

    field, registry = "statistics", STATISTICS


def join_sections(sections: Sequence[StatisticSection]) -> JoinedStatistics:
    """Returns the statistics that sections name, joined to one vector.

    Raises:
        ConfigError: If there are none, two have the same name, or bounds or categories cannot be used.
    """
    return JoinedStatistics.of([section.build() for section in sections])


class StatisticsConfig(Section):
    """The configuration of private statistics: what is asked, at which privacy cost, and over which network.

    Attributes:
        statistics: The statistics; all of them are released together.
        privacy: The privacy settings.
        network: A server (the default), or a graph that links every two owners.
        seed: The public seed; None draws one.
    """

    statistics: list[StatisticSection]
    privacy: PrivacySection
    network: NetworkSection = NetworkSection()
    seed: Whole | None = None

    @model_validator(mode="after")
    def _can_be_joined(self) -> Self:
        join_sections(self.statistics)  # raises for statistics that cannot be released together
        return self


def is_statistics_file(path: Path) -> bool:
    """True if a file has the section of statistics; errors in it are raised when it is loaded."""
    try:
        raw = strict_yaml.read(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError, ConfigError):
        return False
    return isinstance(raw, dict) and "statistics" in raw


def load_statistics(path: Path, overrides: Sequence[str] = ()) -> StatisticsConfig:
    """Reads and validates a configuration of statistics.

    Args:
        path: YAML file.
        overrides: `dotted.name=value`, the value as YAML; later ones win.

    Raises:
        ConfigError: If the file or a setting cannot be used.
    """
    raw = strict_yaml.read(path.read_text(encoding="utf-8"), str(path))
    for setting in overrides:
        raw = override(raw, setting)
    return check(StatisticsConfig, raw, overrides=[setting.partition("=")[0] for setting in overrides])
