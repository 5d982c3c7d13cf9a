"""Rows that are linear combinations of normal draws, as real numbers. Several rows may contain the same draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedpriv.privacy.real_noise import GaussianRows, WeightedDraws, add_intervals, multiply_interval
from fedpriv.randomness.keystream import NARROW
from fedpriv.randomness.normal_rows import fill_undecided_rows
from fedpriv.randomness.real_draws import Interval, real_normal
from fedpriv.randomness.short_rows import BoundedRows

_UNIT = 2.0**-53
_LIMITS = NARROW


class Term(NamedTuple):
    """A draw in a row, with the factor ``multiple * weight``.

    Attributes:
        draw: Number of the draw.
        multiple: A whole number, negative if the draw is subtracted.
        weight: The weight of the draw.
    """

    draw: int
    multiple: int
    weight: float = 1.0


@dataclass(frozen=True)
class NormalCombinations:
    """Rows ``factor * sum_j multiple_j weight_j Z_j`` of real normal numbers Z, where all factors are exact.

    Attributes:
        keys: Key of each draw's random stream, 32 bytes each.
        terms: The terms of each row.
        factor: Factor by which all rows are multiplied.
        dim: Length of a row.
    """

    keys: Sequence[bytes]
    terms: Sequence[Sequence[Term]]
    factor: float
    dim: int

    def times(self, factor: float) -> NormalCombinations:
        """Returns all rows times a factor; the product with the existing factor is rounded."""
        return replace(self, factor=self.factor * factor)

    @cached_property
    def rows(self) -> BoundedRows:
        """All rows in float64 without NaN, with bounds on their errors. They are computed once, and each stream is
        drawn once.

        The error bound of all rows is computed from the largest error of any draw. The noise of pairs is many times
        larger than the individual noise, which determines the rounding grid of sums. Therefore the few draws with large
        errors are replaced by their rounded real values; otherwise a hundred times as many sums would be undecided.

        The error of a row of n terms with weights of sum A is at most the sum of: A times the error of a draw; 3
        rounding errors of each weight and one of each product; and n rounding errors of sums, where each sum is at most
        A times the largest draw.
        """
        total = torch.zeros(len(self.terms), self.dim, dtype=torch.float64)
        uses: list[list[tuple[int, float]]] = [[] for _ in self.keys]
        for row, terms in enumerate(self.terms):
            for term in terms:
                uses[term.draw].append((row, term.multiple * term.weight * self.factor))
        error, largest = 0.0, 0.0
        for key, rows in zip(self.keys, uses, strict=True):
            if not rows:
                continue
            draws = fill_undecided_rows(GaussianRows([key], [1.0], self.dim, _LIMITS).approximate(slice(0, 1)), [key])
            for row, weight in rows:
                total[row].add_(torch.from_numpy(draws.draws[0]), alpha=weight)
            error, largest = max(error, float(draws.errors[0, 0])), max(largest, draws.largest)
        sums = np.array([[sum(abs(term.multiple * term.weight) for term in terms)] for terms in self.terms])
        sums = 1.01 * abs(self.factor) * sums.reshape(-1, 1)
        counts = np.array([[len(terms)] for terms in self.terms]).reshape(-1, 1)
        errors = sums * (error + (counts + 4) * _UNIT * largest)
        return BoundedRows(total.numpy(), errors, 1.01 * largest * float(sums.max(initial=0.0)))

    def approximate(self, rows: slice) -> BoundedRows:
        """See `RealNoise`."""
        return BoundedRows(self.rows.draws[rows].copy(), self.rows.errors[rows], self.rows.largest)

    def in_float64(self) -> Tensor:
        """Returns all rows in float64, `[k, dim]`, without NaN."""
        return torch.from_numpy(self.rows.draws)

    def interval(self, row: int, column: int, extra: int) -> Interval | None:
        """See `RealNoise`."""
        from mpmath.libmp import fzero

        total: Interval = (fzero, fzero)
        for term in self.terms[row]:
            draw = real_normal(self.keys[term.draw], self.dim, column, extra)
            scaled = multiply_interval(multiply_interval(draw, float(term.multiple)), term.weight)
            if scaled is None:
                return None
            total = add_intervals(total, scaled)
        return multiply_interval(total, self.factor)

    def weighted_draws(self, row: int) -> WeightedDraws:
        """See `RealNoise`."""
        terms = self.terms[row]
        weights = np.array([term.weight for term in terms], dtype=np.longdouble)
        weights *= np.array([term.multiple for term in terms], dtype=np.longdouble)
        return WeightedDraws([self.keys[term.draw] for term in terms], weights * np.longdouble(self.factor))
