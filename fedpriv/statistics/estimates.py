"""Estimates with intervals, and the result of one statistic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

Z95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution, for intervals that cover 95 %."""


_OF_PANDAS = {"std": "sd", "median": "50 %"}
_EXTREME = "; an extreme is the value of one row, so ask Quantiles for probabilities 0.01 and 0.99"
_REMEDIES = {"min": _EXTREME, "max": _EXTREME, "count": "; see n_rows and missing"}


@dataclass(frozen=True)
class Estimate:
    """A noised number with its 95 % interval.

    The interval is for the statistic of these rows and accounts for the noise. It does not account for sampling: the
    statistic of a larger population may lie outside.

    Attributes:
        value: The estimate.
        low: Lower end of the interval; NaN if there is none.
        high: Upper end of the interval; NaN if there is none.
    """

    value: float
    low: float = math.nan
    high: float = math.nan

    @staticmethod
    def normal(value: float, deviation: float, bias: float = 0.0) -> Estimate:
        """Returns an estimate with normal noise.

        Args:
            value: The estimate.
            deviation: Standard deviation of its noise.
            bias: Bound on its error without noise, for example by the width of bins.
        """
        half = Z95 * deviation + bias
        return Estimate(value, value - half, value + half)

    @property
    def half_width(self) -> float:
        """Half of the interval's width; NaN if there is no interval."""
        return (self.high - self.low) / 2

    def clamped(self, low: float, high: float) -> Estimate:
        """Returns the estimate and its interval, clamped to a range that certainly contains the statistic."""
        return Estimate(*(min(max(number, low), high) for number in (self.value, self.low, self.high)))

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.value:.4g}"
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True)
class Answer:
    """The result of one statistic.

    Attributes:
        name: Name of the statistic, for example "age".
        values: The estimates, by label.
        notes: Remarks for the reader, for example why there is no interval.
        curve: Points of a curve for the picture, by the name of the axis; empty without a curve.
    """

    name: str
    values: Mapping[str, Estimate]
    notes: tuple[str, ...] = ()
    curve: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])

    def __getitem__(self, label: str) -> Estimate:
        """Returns an estimate by its label, or by the name that pandas has for it (std, median, 25%).

        Raises:
            KeyError: If there is none; the error names the labels.
        """
        known = _OF_PANDAS.get(label, label)
        if label.endswith("%"):
            known = f"{label.removesuffix('%').rstrip()} %"
        if known not in self.values:
            labels = ", ".join(self.values)
            raise KeyError(f"{label!r}; the labels of {self.name} are {labels}{_REMEDIES.get(label, '')}")
        return self.values[known]
