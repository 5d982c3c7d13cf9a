"""Gradients of tables with few nonzero rows, such as an embedding's, also if the table is a linear layer's weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedpriv.oracle.backends.factors import LONGEST, Dense, Gradients, OuterProducts, bounded_norms
from fedpriv.oracle.backends.functional import is_on_cpu
from fedpriv.privacy.clipping import Clip, NormName


@dataclass(frozen=True)
class FewRows(Gradients):
    """Gradients of a table `[n_rows, d]` that are zero in most rows, such as an embedding's.

    Attributes:
        rows: Indices of the rows that are not zero, `[k, b, t]`; an index may occur several times.
        values: Gradients of these rows, `[k, b, t, d]`; gradients of the same row add up.
        n_rows: Number of rows of the table.
    """

    rows: Tensor
    values: Tensor
    n_rows: int

    @property
    def size(self) -> int:
        """See `Gradients`."""
        return self.n_rows * self.values.shape[3]

    @property
    def numbers(self) -> int:
        """See `Gradients`."""
        return self.values[0, 0].numel()

    def whole(self) -> Tensor:
        """See `Gradients`."""
        clients, examples, _, width = self.values.shape
        table = self.values.new_zeros(clients, examples, self.n_rows, width)
        return table.scatter_add_(2, self.rows.unsqueeze(3).expand_as(self.values), self.values).flatten(2)

    def norms(self, clip: Clip) -> Tensor:
        """See `Gradients`."""
        norms = self._norms(clip, clip.norms)
        # a gradient that overflows its type is broken, though its norm, computed in float64, may be finite
        return norms.where(norms <= torch.finfo(self.values.dtype).max, torch.inf)

    def unchecked_norms(self, clip: Clip) -> Tensor:
        """See `Gradients`."""
        return self._norms(clip, clip.unchecked_norms)

    def _norms(self, clip: Clip, row_norms: Callable[[Tensor], Tensor]) -> Tensor:
        if self._added is None:
            return row_norms(self.values.flatten(2))
        cells, totals = self._added
        if cells is None:
            return row_norms(totals.flatten(2))
        norms = row_norms(self.values.flatten(2))
        norms.view(-1).index_copy_(0, cells, row_norms(totals.flatten(1)))
        return norms

    def squares(self) -> Tensor:
        """Returns the squared norms in float64, `[k, b]`."""
        return self._weighted(torch.ones_like(self.rows[:, :, 0], dtype=torch.float64)).square().sum((2, 3))

    def add_to(self, sums: Tensor, weights: Tensor) -> None:
        """See `Gradients`."""
        for table, rows, values in zip(sums, self.rows, self._weighted(weights), strict=True):
            table.view(self.n_rows, -1).index_add_(0, rows.flatten(), values.flatten(0, 1))

    def _weighted(self, weights: Tensor) -> Tensor:
        """Returns values times the example's weight in float64, `[k, b, t, d]`.

        If a row occurs several times, its values are added up at one position and are zero at the others.
        """
        factors = weights[:, :, None, None]
        cells = None
        totals = None
        if self._added is not None:
            cells, totals = self._added
        if totals is not None and cells is None:
            return totals * factors
        values = self.values.to(torch.float64, copy=True, memory_format=torch.contiguous_format)
        if totals is not None and cells is not None:
            values.flatten(0, 1).index_copy_(0, cells, totals)
        return values.mul_(factors)  # twice as fast as a product of two types

    def masked(self, cells: Tensor) -> Gradients:
        """See `Gradients`."""
        return FewRows(self.rows, self.values.where(cells[:, :, None, None], 0), self.n_rows)

    def times(self, weights: Tensor) -> Gradients:
        """See `Gradients`."""
        return FewRows(self.rows, self.values * weights[:, :, None, None], self.n_rows)

    def settled(self, norm: NormName) -> Gradients:
        """See `Gradients`."""
        if self.rows.shape[2] >= self.n_rows:
            return Dense(self.whole())
        return self

    def plus(self, other: Gradients) -> Gradients:
        """See `Gradients`."""
        if isinstance(other, OuterProducts):
            return TiedGradients(other, self)
        if isinstance(other, TiedGradients):
            return other.plus(self)
        if not isinstance(other, FewRows):
            return super().plus(other)
        rows = torch.cat([self.rows, other.rows], 2)
        return FewRows(rows, torch.cat([self.values, other.values], 2), self.n_rows)

    def minus(self, other: Gradients) -> Gradients:
        """See `Gradients`."""
        if not isinstance(other, FewRows):
            return super().minus(other)
        if is_on_cpu(self.rows) and torch.equal(self.rows, other.rows):
            return FewRows(self.rows, self.values - other.values, self.n_rows)
        return self.plus(FewRows(other.rows, -other.values, self.n_rows))

    @cached_property
    def _added(self) -> tuple[Tensor | None, Tensor] | None:
        """Returns the examples with repeated rows, and their values with equal rows added up in float64.

        The result is a pair: the indices `[c]` of these examples among all `k * b` examples, and the values `[c, t,
        d]`. If many examples repeat rows, or if finding them would wait for an accelerator, the result is None and the
        values `[k, b, t, d]` of all examples. If no example repeats rows, the function returns None.
        """
        rows = self.rows.flatten(0, 1)
        values = self.values.flatten(0, 1)
        if is_on_cpu(rows):
            cells = torch.from_numpy(np.flatnonzero(_mark_repeated_rows(rows).any(-1)))
            if len(cells) == 0:
                return None
            if 2 * len(cells) < len(rows):
                return cells, _sum_equal_rows(rows.index_select(0, cells), values.index_select(0, cells))
        return None, _sum_equal_rows(rows, values).view(self.values.shape)


class OneVector(FewRows):
    """`FewRows` on a CPU for the case that all positions of an example have the same gradient, for example words that
    are averaged.

    Each position is added separately, for at most `LONGEST` positions of an example. Terms do not cancel, so the
    rounding error of a sum is smaller than the error that is allowed for products over as many positions.
    """

    def _norms(self, clip: Clip, row_norms: Callable[[Tensor], Tensor]) -> Tensor:
        positions = self.rows.shape[2]
        norms = row_norms(self.values[:, :, 0])
        if clip.norm == "l1":
            return norms * positions
        return norms * self._pairs.sqrt()

    def squares(self) -> Tensor:
        """See `FewRows`."""
        return self.values[:, :, 0].double().square().sum(2) * self._pairs

    def _weighted(self, weights: Tensor) -> Tensor:
        """See `FewRows`; each position of a repeated row has its value."""
        return (self.values[:, :, 0].double() * weights.unsqueeze(2)).unsqueeze(2).expand(self.values.shape)

    def masked(self, cells: Tensor) -> Gradients:
        """See `Gradients`. The result is still one vector for each example, so a non-finite example changes no bit of
        the sum of the others.
        """
        vectors = self.values[:, :, :1].where(cells[:, :, None, None], 0)
        return OneVector(self.rows, vectors.expand(self.values.shape), self.n_rows)

    @cached_property
    def _pairs(self) -> Tensor:
        """Returns the sum over rows of the squared number of positions with that row, in float64, `[k, b]`."""
        positions = self.rows.shape[2]
        repeats = _mark_repeated_rows(self.rows)
        cells = repeats.any(-1)
        pairs = np.full(cells.shape, float(positions))
        if cells.any():
            # the first position of equal rows determines the number of pairs of each with earlier ones
            firsts = np.maximum.accumulate(np.arange(1, positions) * ~repeats[cells], -1)
            pairs[cells] = positions**2 - 2 * firsts.sum(-1)
        return torch.from_numpy(pairs)


def few_rows(rows: Tensor, values: Tensor, n_rows: int) -> FewRows:
    """Returns the gradients of a table; see `FewRows`."""
    if values.stride(2) == 0 and 1 < values.shape[2] <= LONGEST and is_on_cpu(values):
        return OneVector(rows, values, n_rows)
    return FewRows(rows, values, n_rows)


def _mark_repeated_rows(rows: Tensor) -> npt.NDArray[np.bool_]:
    """Returns True where a sorted row equals the row before it, for each example, `[..., t - 1]`.

    It is computed in numpy, which takes a third of torch's time for operations on few numbers.
    """
    ordered = np.sort(rows.numpy(), -1)
    return ordered[..., 1:] == ordered[..., :-1]


def _sort_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the rows of each example in order, and their original positions, both `[n, t]`."""
    if not is_on_cpu(rows):
        return rows.sort(-1)
    # numpy sorts in a third of torch's time on processors with AVX-512
    order = torch.from_numpy(rows.numpy().argsort(-1))
    return rows.gather(-1, order), order


def _sum_equal_rows(rows: Tensor, values: Tensor) -> Tensor:
    """Returns sums of the values of equal rows in float64, each at one of their positions, with zeros at the others.

    Args:
        rows: Rows of n examples, `[n, t]`.
        values: Their values, `[n, t, d]`.
    """
    examples, positions, _ = values.shape
    ordered, order = _sort_rows(rows)
    firsts = order.gather(-1, torch.searchsorted(ordered, rows.contiguous()))
    starts = torch.arange(0, examples * positions, positions, device=rows.device).unsqueeze(1)
    wide = values.flatten(0, 1).double()
    sums = wide.new_zeros(wide.shape).index_add_(0, (firsts + starts).flatten(), wide)
    return sums.view(values.shape)


@dataclass(frozen=True)
class TiedGradients(Gradients):
    """Gradients of a table that is also the weight of a linear layer: products and a few rows.

    Attributes:
        products: `left [k, b, t, n_rows], right [k, b, t, d]`.
        few: Rows `[k, b, s]` and their values `[k, b, s, d]`.
    """

    products: OuterProducts
    few: FewRows

    @property
    def size(self) -> int:
        """See `Gradients`."""
        return self.products.size

    @property
    def numbers(self) -> int:
        """See `Gradients`."""
        return self.products.numbers + self.few.numbers

    def whole(self) -> Tensor:
        """See `Gradients`."""
        return self.products.whole() + self.few.whole()

    def norms(self, clip: Clip) -> Tensor:
        """See `Gradients`; for l2 norms only. A row is also a product, namely the indicator vector of the row times its
        values.
        """
        left = self.products.left
        right = self.products.right
        # products of the positions of both kinds: entries of `left` at the rows
        index = self.few.rows.unsqueeze(2).expand(-1, -1, left.shape[2], -1)
        inner = right.double() @ self.few.values.double().mT
        both = (left.gather(3, index).double() * inner).sum((2, 3))
        position_norms = torch.cat([clip.norms(left) * clip.norms(right), clip.norms(self.few.values)], 2)
        norms = bounded_norms(self.products.squares() + self.few.squares() + 2 * both, position_norms)
        # a gradient that overflows its type is broken, though its norm, computed from factors, may be finite
        return norms.where(norms <= torch.finfo(left.dtype).max, torch.inf)

    def add_to(self, sums: Tensor, weights: Tensor) -> None:
        """See `Gradients`."""
        self.products.add_to(sums, weights)
        self.few.add_to(sums, weights)

    def masked(self, cells: Tensor) -> Gradients:
        """See `Gradients`."""
        return self.products.masked(cells).plus(self.few.masked(cells))

    def times(self, weights: Tensor) -> Gradients:
        """See `Gradients`."""
        return self.products.times(weights).plus(self.few.times(weights))

    def settled(self, norm: NormName) -> Gradients:
        """See `Gradients`."""
        if isinstance(self.products.settled(norm), OuterProducts) and norm == "l2":
            return self
        return Dense(self.whole())

    def plus(self, other: Gradients) -> Gradients:
        """See `Gradients`."""
        if isinstance(other, OuterProducts):
            return self.products.plus(other).plus(self.few)
        if isinstance(other, FewRows):
            return self.products.plus(self.few.plus(other))
        if isinstance(other, TiedGradients):
            return self.plus(other.products).plus(other.few)
        return super().plus(other)

    def minus(self, other: Gradients) -> Gradients:
        """See `Gradients`."""
        if not isinstance(other, TiedGradients):
            return super().minus(other)
        return self.products.minus(other.products).plus(self.few.minus(other.few))


def sum_gradients(summands: Sequence[Gradients]) -> Gradients:
    """Returns the sum of gradients of one parameter, of the same examples."""
    products = [summand for summand in summands if isinstance(summand, OuterProducts)]
    others = [summand for summand in summands if not isinstance(summand, OuterProducts)]
    if len(products) > 1:  # a layer that is called at each step has many: they are joined at once
        left = torch.cat([product.left for product in products], 2)
        products = [OuterProducts(left, torch.cat([product.right for product in products], 2))]
    return reduce(Gradients.plus, [*products, *others])
