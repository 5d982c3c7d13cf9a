"""Centres and scales by which columns are standardised, from one private release.

The release is the noised mean of `(u, 1 - u^2, 0)` of each column (`Mean`), where u is the value mapped from its bounds
to [-1, 1]: means and deviations come from one vector of norm at most 1 for each row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpriv.errors import ConfigError
from fedpriv.privacy import Privacy
from fedpriv.statistics.description import Description, describe
from fedpriv.statistics.estimates import Answer
from fedpriv.statistics.numbers import Bounds, Mean
from fedpriv.statistics.query import Floats, Table

Scale = tuple[float, float]
"""Centre and scale of a column: a value v becomes (v - centre) / scale."""


@dataclass(frozen=True)
class Scales:
    """Private centres and scales of columns.

    Attributes:
        by_column: The centre and the positive scale of each column.
        notes: Columns whose mean or deviation is hidden by the noise, with what they are scaled by instead.
        description: The release from which they were computed, with its privacy cost.
    """

    by_column: Mapping[str, Scale]
    notes: tuple[str, ...]
    description: Description


def list_means(bounds: Mapping[str, Bounds]) -> list[Mean]:
    """Returns the statistics from which scales are computed.

    Args:
        bounds: Public range of each column.

    Raises:
        ConfigError: If there is no column, or bounds are not finite or not in ascending order.
    """
    if not bounds:
        raise ConfigError("bounds", {}, "must be the public range of at least one column, e.g. {'age': (0, 120)}")
    return [Mean(column, limits) for column, limits in bounds.items()]


def release_scales(
    tables: Sequence[Table],
    bounds: Mapping[str, Bounds],
    privacy: Privacy,
    *,
    folder: Path | None = None,
    secret_seed: int | None = None,
) -> Scales:
    """Releases the means and deviations of columns, and returns the centres and scales that follow from them.

    Args:
        tables: A table for each owner.
        bounds: Public range of each column; values outside count as the nearest end.
        privacy: The privacy settings; see `fedpriv.describe`.
        folder: A new folder for the ledger; None keeps it in memory.
        secret_seed: Seed of the noise, for tests.

    Guarantee: the differential privacy of `description.spent`. Scales are computed from released values only.

    Raises:
        FedprivError: See `fedpriv.describe`.
    """
    means = list_means(bounds)
    description = describe(tables, means, privacy, folder=folder, secret_seed=secret_seed)
    by_column, notes = dict[str, Scale](), list[str]()
    for column, limits in bounds.items():
        by_column[column], note = choose_scale(description[column], limits)
        if note:
            notes.append(f"{column}: {note}")
    return Scales(by_column, tuple(notes), description)


def choose_scale(answer: Answer, bounds: Bounds) -> tuple[Scale, str]:
    """Returns a column's centre and scale, and a note if the noise hides its mean or its deviation, else "".

    A scale that is too small would turn noise into large values. So if the interval of the deviation contains 0, the
    scale is the upper end of that interval; without a mean, the column is mapped from its bounds to [-1, 1].
    """
    low, high = bounds
    if "mean" not in answer.values:
        return ((low + high) / 2, (high - low) / 2), "the noise hides the mean, so its bounds are mapped to [-1, 1]"
    centre, deviation = float(answer["mean"].value), answer["sd"]
    if deviation.low > 0:
        return (centre, float(deviation.value)), ""
    if deviation.high > 0:
        return (
            centre,
            float(deviation.high),
        ), "the noise hides the deviation, so its scale is the largest likely deviation"
    return (centre, (high - low) / 2), "the noise hides the deviation, so its scale is half of its range"


def standardize(values: Floats, bounds: Bounds, scale: Scale) -> Floats:
    """Returns standardised values; values outside the bounds count as the nearest end, missing ones as the centre.

    Args:
        values: A column, NaN where a value is missing, `[n]`.
        bounds: Its public range.
        scale: Its centre and scale.
    """
    centre, size = scale
    return np.nan_to_num((np.clip(values, *bounds) - centre) / size)
