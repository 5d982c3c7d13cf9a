"""Per-example gradients of one parameter, whole or as factors of products: their norms and weighted sums.

A layer's weight has one gradient for each example, which is often much larger than its two factors: the layer's input
and the gradient of its output. Then its norm and the sum over examples are computed from the factors.
Source: Goodfellow, 2015, arXiv:1510.01799, for one position; Li and others, 2022, arXiv:2110.05679, for several words.

Shapes begin with `[k, b]`: b examples of each of k clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.oracle.backends.functional import is_on_cpu
from fedpriv.oracle.backends.summation import add_products
from fedpriv.privacy.clipping import Clip, NormName

LONGEST = 2.0**13
"""A gradient from products over T positions counts as no shorter than `T / LONGEST` times the sum of the positions'
norms. So much cancels in none that float64 does not hold its norm to 2**-16 of itself (up to 8192 inputs and outputs),
and in a sum of n clipped ones, 512 at a time, rounding adds at most `n 2**-31` clip bounds: for a million examples half
of `fedpriv.privacy.clipping.ROUNDING`, of which all else takes three eighths."""
Integers = tuple[int, ...]


class Gradients(ABC):
    """The gradients of one parameter, one for each example."""

    @abstractmethod
    def whole(self) -> Tensor:
        """Returns the gradients, `[k, b, size]`."""

    @abstractmethod
    def norms(self, clip: Clip) -> Tensor:
        """Returns the norm of each gradient in float64, `[k, b]`: too small by at most 2**-12 of itself."""

    @abstractmethod
    def add_to(self, sums: Tensor, weights: Tensor) -> None:
        """Adds `sum_b weights[k, b] * gradient[k, b]` to `sums [k, size]`, all in float64."""

    @abstractmethod
    def masked(self, cells: Tensor) -> Gradients:
        """Returns the gradients where `cells [k, b]` is True, and zeros elsewhere."""

    def times(self, weights: Tensor) -> Gradients:
        """Returns the gradients, each multiplied by its weight, `weights [k, b]`."""
        return Dense(self.whole() * weights.unsqueeze(2))

    @property
    @abstractmethod
    def numbers(self) -> int:
        """How many numbers are stored for each example."""

    def settled(self, norm: NormName) -> Gradients:
        """Returns the same gradients in the form for which this norm takes the least work."""
        return self

    def plus(self, other: Gradients) -> Gradients:
        """Returns the sums with other gradients of the same examples."""
        return Dense(self.whole() + other.whole())

    def minus(self, other: Gradients) -> Gradients:
        """Returns the differences from other gradients of the same examples."""
        return Dense(self.whole() - other.whole())


@dataclass(frozen=True)
class Dense(Gradients):
    """Whole gradients, `[k, b, size]`."""

    values: Tensor

    @property
    def numbers(self) -> int:
        """See `Gradients`."""
        return self.values.shape[2]

    def whole(self) -> Tensor:
        """See `Gradients`."""
        return self.values

    def norms(self, clip: Clip) -> Tensor:
        """See `Gradients`."""
        return clip.norms(self.values)

    def add_to(self, sums: Tensor, weights: Tensor) -> None:
        """See `Gradients`."""
        add_products(sums.unsqueeze(1), weights.unsqueeze(1), self.values)

    def masked(self, cells: Tensor) -> Gradients:
        """See `Gradients`."""
        return Dense(self.values.where(cells.unsqueeze(2), 0))


@dataclass(frozen=True)
class OuterProducts(Gradients):
    """Gradients `sum_t left[t] right[t]^T` over t positions: `left [k, b, t, o], right [k, b, t, i]`."""

    left: Tensor
    right: Tensor

    @property
    def numbers(self) -> int:
        """See `Gradients`."""
        return self.left[0, 0].numel() + self.right[0, 0].numel()

    def whole(self) -> Tensor:
        """See `Gradients`."""
        return (self.left.mT @ self.right).flatten(2)

    def norms(self, clip: Clip) -> Tensor:
        """See `Gradients`; of several positions in l2 only."""
        position_norms = clip.norms(self.left) * clip.norms(self.right)
        if position_norms.shape[2] == 1:
            norms = position_norms.squeeze(2)
        else:
            norms = self._norms(position_norms)
        # a gradient that overflows its type is broken, though its norm, computed from factors, may be finite
        long = norms > torch.finfo(self.left.dtype).max
        if not is_on_cpu(long):
            # to count all of these as broken costs less than to wait for an accelerator's answer
            return norms.where(~long, torch.inf)
        if long.any():
            return clip.norms(self.whole())
        return norms

    def _norms(self, position_norms: Tensor) -> Tensor:
        left = self.left.double()
        right = self.right.double()
        positions = self.left.shape[2]
        squares = ((left @ left.mT) * (right @ right.mT)).sum((2, 3)).clamp_min(0)
        # the error of a sum is relative to its terms: where they cancel, their sum bounds the norm from below
        return squares.sqrt().maximum(position_norms.sum(2) * (positions / LONGEST))

    def add_to(self, sums: Tensor, weights: Tensor) -> None:
        """See `Gradients`."""
        left = self.left.double() * weights[:, :, None, None]
        right = self.right.flatten(1, 2)
        add_products(sums.unflatten(1, (-1, right.shape[2])), left.flatten(1, 2).mT, right)

    def masked(self, cells: Tensor) -> Gradients:
        """See `Gradients`."""
        cells = cells[:, :, None, None]
        return OuterProducts(self.left.where(cells, 0), self.right.where(cells, 0))

    def times(self, weights: Tensor) -> Gradients:
        """See `Gradients`."""
        return OuterProducts(self.left * weights[:, :, None, None], self.right)

    def settled(self, norm: NormName) -> Gradients:
        """See `Gradients`."""
        positions = self.left.shape[2]
        outputs = self.left.shape[3]
        inputs = self.right.shape[3]
        if positions == 1 or _short(positions, outputs, inputs, norm):
            return self
        return Dense(self.whole())

    def plus(self, other: Gradients) -> Gradients:
        """See `Gradients`."""
        if not isinstance(other, OuterProducts):
            return super().plus(other)
        return OuterProducts(torch.cat([self.left, other.left], 2), torch.cat([self.right, other.right], 2))

    def minus(self, other: Gradients) -> Gradients:
        """See `Gradients`; if both are close, so are their factors, and little cancels in the norms."""
        if not isinstance(other, OuterProducts):
            return super().minus(other)
        left = torch.cat([self.left - other.left, other.left], 2)
        return OuterProducts(left, torch.cat([self.right, self.right - other.right], 2))


@dataclass(frozen=True)
class Convolved(Gradients):
    """Gradients of a convolution's weight; each example is n images.

    Attributes:
        left: Gradient of its output, `[k, b, n, o, *s]`.
        right: Its input, `[k, b, n, c, *s]`.
        size: Shape of a kernel, `[*s]`.
        options: Its stride, padding and dilation.
        groups: Its groups of channels.
    """

    left: Tensor
    right: Tensor
    size: Integers
    options: tuple[Integers, Integers, Integers]
    groups: int

    @property
    def numbers(self) -> int:
        """See `Gradients`."""
        return self.left[0, 0].numel() + self.right[0, 0].numel()

    def whole(self) -> Tensor:
        """See `Gradients`."""
        # each image becomes a group of channels of its own, so that one convolution returns all images' gradients
        left = self.left.flatten(0, 2)
        right = self.right.flatten(0, 2)
        images, outputs = left.shape[:2]
        kernels = left.new_empty(1).expand(images * outputs, right.shape[1] // self.groups, *self.size)
        no_padding = (0,) * len(self.size)
        gradients = torch.ops.aten.convolution_backward(
            left.flatten(0, 1).unsqueeze(0),
            right.flatten(0, 1).unsqueeze(0),
            kernels,
            None,
            *self.options,
            False,
            no_padding,
            images * self.groups,
            [False, True, False],
        )[1]
        return gradients.reshape(*self.left.shape[:3], -1).sum(2)

    def norms(self, clip: Clip) -> Tensor:
        """See `Gradients`."""
        return self.settled(clip.norm).norms(clip)

    def add_to(self, sums: Tensor, weights: Tensor) -> None:
        """See `Gradients`."""
        Dense(self.whole()).add_to(sums, weights)

    def masked(self, cells: Tensor) -> Gradients:
        """See `Gradients`."""
        return Dense(self.whole()).masked(cells)

    def settled(self, norm: NormName) -> Gradients:
        """See `Gradients`."""
        left = self.left.flatten(4)
        channels = self.right.shape[3]
        window = channels * torch.Size(self.size).numel()
        positions = left.shape[2] * left.shape[4]
        if self.groups > 1 or len(self.size) > 2 or not _short(positions, left.shape[3], window, norm):
            return Dense(self.whole())
        return OuterProducts(left.mT.flatten(2, 3), self._windows().mT.flatten(2, 3))

    def _windows(self) -> Tensor:
        """Returns the input under the kernel at each position, `[k, b, n, c * size, positions]`."""
        # `unfold` takes images of two dimensions: signals of one get a dimension of length 1 in front
        flat = (1,) * (2 - len(self.size))
        no_padding = (0,) * (2 - len(self.size))
        stride, padding, dilation = self.options
        if flat:
            images = self.right.flatten(0, 2).unflatten(2, (*flat, -1))
        else:
            images = self.right.flatten(0, 2)
        windows = functional.unfold(
            images,
            (*flat, *self.size),
            dilation=(*flat, *dilation),
            padding=(*no_padding, *padding),
            stride=(*flat, *stride),
        )
        return windows.unflatten(0, self.right.shape[:3])


@dataclass(frozen=True)
class FewRows(Gradients):
    """Gradients of a table `[n_rows, d]` that are zero in most rows, such as an embedding's.

    Attributes:
        rows: Indices of the rows that are not zero, `[k, b, t]`; an index may occur several times.
        values: Gradients of these rows, `[k, b, t, d]`; those of the same row add up.
        n_rows: Number of rows of the table.
    """

    rows: Tensor
    values: Tensor
    n_rows: int

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
        return clip.norms(self._added.flatten(2))

    def add_to(self, sums: Tensor, weights: Tensor) -> None:
        """See `Gradients`."""
        clients = len(self.values)
        width = self.values.shape[3]
        table = weights.new_zeros(clients * self.n_rows, width)
        first = torch.arange(clients, device=self.rows.device).view(-1, 1, 1) * self.n_rows
        added = self._added.double() * weights[:, :, None, None]
        sums += table.index_add_(0, (self.rows + first).flatten(), added.flatten(0, 2)).view(clients, -1)

    def masked(self, cells: Tensor) -> Gradients:
        """See `Gradients`."""
        return FewRows(self.rows, self.values.where(cells[:, :, None, None], 0), self.n_rows)

    @cached_property
    def _added(self) -> Tensor:
        """Returns the values, those of the same row added up where it occurs first, and zero where it occurs again."""
        same = self.rows.unsqueeze(3) == self.rows.unsqueeze(2)  # [k, b, t, t]
        first = same.int().argmax(3) == torch.arange(self.rows.shape[2], device=self.rows.device)
        return (same.to(self.values) @ self.values) * first.unsqueeze(3)


def total(summands: Sequence[Gradients]) -> Gradients:
    """Returns the sum of gradients of one parameter, of the same examples."""
    products = [summand for summand in summands if isinstance(summand, OuterProducts)]
    others = [summand for summand in summands if not isinstance(summand, OuterProducts)]
    if len(products) > 1:  # a layer that is called at each step has many: they are joined at once
        left = torch.cat([product.left for product in products], 2)
        products = [OuterProducts(left, torch.cat([product.right for product in products], 2))]
    return reduce(Gradients.plus, [*products, *others])


def _short(positions: int, outputs: int, inputs: int, norm: NormName) -> bool:
    """Returns whether products over pairs of positions take less work than gradients `[outputs, inputs]`."""
    return norm == "l2" and 2 * positions * (outputs + inputs) < outputs * inputs
