"""Norms and weighted sums of the per-example gradients of a parameter, which are stored whole or as factors of
products.

A layer's weight has one gradient for each example, which is often much larger than its two factors, the layer's input
and the gradient of its output. In that case its norm and the sum over examples are computed from the factors. Source:
Goodfellow, 2015, arXiv:1510.01799, for one position in each example; Li and others, 2022, arXiv:2110.05679, for several
positions (words).

Shapes begin with `[k, b]`: b examples of each of k clients.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.oracle.backends.functional import is_on_cpu
from fedpriv.oracle.backends.summation import add_products
from fedpriv.privacy.clipping import Clip, NormName

LONGEST = 2.0**13
"""The norm of a gradient from products over T positions is set to at least `T / LONGEST` times the sum of the
positions' norms. Above this bound, float64 computes the norm with a relative error of at most 2**-16 despite
cancellation (up to 8192 inputs and outputs). In a sum of n clipped gradients, 512 at a time, rounding adds at most `n
2**-31` clip bounds: for a million examples this is half of `fedpriv.privacy.clipping.ROUNDING`, and all other errors
take three eighths of it.
"""
_CONVERTED = 2**20
"""Largest number of entries that are converted to float64 at once (8 MiB)."""
_APART = 8
"""Number of unused entries between the rows of a transposed factor. If the distance between rows is a power of two, the
rows share few sets of a CPU's cache, and their product takes up to 1.5 times as long.
"""
_SHORT = 2**10
"""Largest size of a gradient that is joined with other short gradients. For short gradients most of the time is spent
on starting operations.
"""
Integers = tuple[int, ...]


class Gradients(ABC):
    """The gradients of one parameter, or of several consecutive parameters joined into one row, with one gradient for
    each example.
    """

    @abstractmethod
    def whole(self) -> Tensor:
        """Returns the gradients, `[k, b, size]`."""

    @abstractmethod
    def norms(self, clip: Clip) -> Tensor:
        """Returns the norm of each gradient in float64, `[k, b]`, too small by a relative error of at most 2**-12."""

    def unchecked_norms(self, clip: Clip) -> Tensor:
        """Returns `norms` without checks: all norms may be wrong if one is not finite or exceeds the largest number of
        the type.
        """
        return self.norms(clip)

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
    def size(self) -> int:
        """Number of entries of each gradient."""

    @property
    @abstractmethod
    def numbers(self) -> int:
        """Number of entries that are stored for each example."""

    def settled(self, norm: NormName) -> Gradients:
        """Returns the same gradients in the form in which this norm is computed with the least work."""
        return self

    def plus(self, other: Gradients) -> Gradients:
        """Returns the sums of these gradients and other gradients of the same examples."""
        return Dense(self.whole() + other.whole())

    def minus(self, other: Gradients) -> Gradients:
        """Returns these gradients minus other gradients of the same examples."""
        return Dense(self.whole() - other.whole())


@dataclass(frozen=True)
class Dense(Gradients):
    """Whole gradients, `[k, b, size]`."""

    values: Tensor

    @property
    def size(self) -> int:
        """See `Gradients`."""
        return self.values.shape[2]

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

    def unchecked_norms(self, clip: Clip) -> Tensor:
        """See `Gradients`."""
        return clip.unchecked_norms(self.values)

    def add_to(self, sums: Tensor, weights: Tensor) -> None:
        """See `Gradients`."""
        add_products(sums.unsqueeze(1), weights.unsqueeze(1), self.values)

    def masked(self, cells: Tensor) -> Gradients:
        """See `Gradients`."""
        return Dense(self.values.where(cells.unsqueeze(2), 0))


@dataclass(frozen=True)
class OuterProducts(Gradients):
    """Gradients `sum_t left[t] right[t]^T` over t positions: `left [k, b, t, o], right [k, b, t, i]`.

    Factors with 16 bits per number are kept in this form. In this case `whole` multiplies the factors and rounds each
    example's gradient to 16 bits, as torch's backward pass does, before norms and sums are computed from it.
    """

    left: Tensor
    right: Tensor

    @property
    def size(self) -> int:
        """See `Gradients`."""
        return self.left.shape[3] * self.right.shape[3]

    @property
    def numbers(self) -> int:
        """See `Gradients`."""
        return self.left[0, 0].numel() + self.right[0, 0].numel()

    def whole(self) -> Tensor:
        """See `Gradients`."""
        return (self.left.mT @ self.right).flatten(2)

    def norms(self, clip: Clip) -> Tensor:
        """See `Gradients`; for several positions, only the l2 norm is supported."""
        norms = self._norms(clip.norms(self.left) * clip.norms(self.right))
        return self.or_infinite(norms, lambda: clip.norms(self.whole()))

    def or_infinite(self, norms: Tensor, of_whole: Callable[[], Tensor]) -> Tensor:
        """Returns the norms, and infinity for each gradient that overflows although its norm from factors is finite.

        Args:
            norms: Norms from factors, `[k, b]`.
            of_whole: Computes the norms from whole gradients.
        """
        long = norms > torch.finfo(self.left.dtype).max
        if not is_on_cpu(long):
            # counting all of these as broken costs less than waiting for an accelerator
            return norms.where(~long, torch.inf)
        if long.any():
            return of_whole()
        return norms

    def unchecked_norms(self, clip: Clip) -> Tensor:
        """See `Gradients`."""
        return self._norms(clip.unchecked_norms(self.left) * clip.unchecked_norms(self.right))

    def _norms(self, position_norms: Tensor) -> Tensor:
        if position_norms.shape[2] == 1:
            return position_norms.squeeze(2)
        return bounded_norms(self.squares(), position_norms)

    def squares(self) -> Tensor:
        """Returns the squared norms in float64, from products of pairs of positions, `[k, b]`."""
        squares: list[Tensor] = []
        for _, piece in self.pieces():
            left = piece.left.double()
            right = piece.right.double()
            squares.append(((left @ left.mT) * (right @ right.mT)).sum((2, 3)))
        return torch.cat(squares, 1)

    def add_to(self, sums: Tensor, weights: Tensor) -> None:
        """See `Gradients`."""
        for cells, piece in self.pieces():
            right = piece.right.flatten(1, 2)
            left = piece.weighted_left(weights[:, cells])
            add_products(sums.unflatten(1, (-1, right.shape[2])), left.mT, right)

    def weighted_left(self, weights: Tensor) -> Tensor:
        """Returns left factors times the weight of their example in float64, `[k, b] -> [k, b * t, o]`."""
        *sizes, outputs = self.left.shape
        left = weights.new_empty(*sizes, outputs + _APART)[..., :outputs].copy_(self.left)
        return left.mul_(weights[:, :, None, None]).flatten(1, 2)

    def pieces(self) -> Iterator[tuple[slice, OuterProducts]]:
        """Yields the products of some examples at a time, so that factors in float64 need little memory."""
        clients, examples, positions, outputs = self.left.shape
        count = max(_CONVERTED // max(clients * positions * (outputs + self.right.shape[3]), 1), 1)
        if count >= examples:
            yield slice(0, examples), self
            return
        for start in range(0, examples, count):
            cells = slice(start, start + count)
            yield cells, OuterProducts(self.left[:, cells], self.right[:, cells])

    def masked(self, cells: Tensor) -> OuterProducts:
        """See `Gradients`."""
        cells = cells[:, :, None, None]
        return OuterProducts(self.left.where(cells, 0), self.right.where(cells, 0))

    def times(self, weights: Tensor) -> OuterProducts:
        """See `Gradients`."""
        return OuterProducts(self.left * weights[:, :, None, None], self.right)

    def settled(self, norm: NormName) -> Gradients:
        """See `Gradients`."""
        positions = self.left.shape[2]
        outputs = self.left.shape[3]
        inputs = self.right.shape[3]
        if positions == 1 or is_short(positions, outputs, inputs, norm):
            return self
        return Dense(self.whole())

    def plus(self, other: Gradients) -> Gradients:
        """See `Gradients`."""
        if not isinstance(other, OuterProducts):
            if isinstance(other, Dense | Convolved):
                return super().plus(other)
            return other.plus(self)
        return OuterProducts(torch.cat([self.left, other.left], 2), torch.cat([self.right, other.right], 2))

    def minus(self, other: Gradients) -> Gradients:
        """See `Gradients`. If the two gradients are close, their factors are close too, so the norms of the differences
        have little cancellation.
        """
        if not isinstance(other, OuterProducts):
            return super().minus(other)
        left, right, other_left, other_right = map(widen_to_float32, (self.left, self.right, other.left, other.right))
        left = torch.cat([left - other_left, other_left], 2)
        return OuterProducts(left, torch.cat([right, right - other_right], 2))


@dataclass(frozen=True)
class Convolved(Gradients):
    """Gradients of a convolution's weight; each example is n images.

    Attributes:
        left: Gradient of its output, `[k, b, n, o, *s]`.
        right: Its input, `[k, b, n, c, *s]`.
        kernel: Shape of a kernel, `[*s]`.
        options: Its stride, padding and dilation.
        groups: Its groups of channels.
    """

    left: Tensor
    right: Tensor
    kernel: Integers
    options: tuple[Integers, Integers, Integers]
    groups: int

    @property
    def size(self) -> int:
        """See `Gradients`."""
        return self.left.shape[3] * self.right.shape[3] // self.groups * math.prod(self.kernel)

    @property
    def numbers(self) -> int:
        """See `Gradients`."""
        return self.left[0, 0].numel() + self.right[0, 0].numel()

    def whole(self) -> Tensor:
        """See `Gradients`."""
        # each image becomes a separate group of channels, so that one convolution returns all images' gradients
        left = self.left.flatten(0, 2)
        right = self.right.flatten(0, 2)
        images, outputs = left.shape[:2]
        kernels = left.new_empty(1).expand(images * outputs, right.shape[1] // self.groups, *self.kernel)
        no_padding = (0,) * len(self.kernel)
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
        window = channels * math.prod(self.kernel)
        positions = left.shape[2] * left.shape[4]
        if self.groups > 1 or len(self.kernel) > 2 or not is_short(positions, left.shape[3], window, norm):
            return Dense(self.whole())
        return OuterProducts(left.mT.flatten(2, 3), self._windows().mT.flatten(2, 3))

    def _windows(self) -> Tensor:
        """Returns the input under the kernel at each position, `[k, b, n, c * kernel, positions]`."""
        # `unfold` accepts images with two dimensions: one-dimensional signals get a first dimension of length 1
        flat = (1,) * (2 - len(self.kernel))
        no_padding = (0,) * (2 - len(self.kernel))
        stride, padding, dilation = self.options
        if flat:
            images = self.right.flatten(0, 2).unflatten(2, (*flat, -1))
        else:
            images = self.right.flatten(0, 2)
        windows = functional.unfold(
            images,
            (*flat, *self.kernel),
            dilation=(*flat, *dilation),
            padding=(*no_padding, *padding),
            stride=(*flat, *stride),
        )
        return windows.unflatten(0, self.right.shape[:3])


def compute_joint_norms(gradients: Sequence[Gradients], clip: Clip, *, on_cpu: bool) -> Tensor:
    """Returns the norm of each example's whole gradient, over all parameters, in float64, `[k, b]`.

    The norm of the parameters' norms is the norm of the whole gradient, both in l1 and in l2.
    """
    # also joined if an example is broken, which must not change any bit of the other norms
    gradients = _with_short_joined(gradients)
    if on_cpu:
        # one check of all norms, since a check of each parameter takes as long as computing small norms
        norms = torch.stack([gradient.unchecked_norms(clip) for gradient in gradients], -1)
        if norms.numel() and float(norms.max()) <= torch.finfo(torch.float32).max:
            return clip.unchecked_norms(norms)
    return clip.norms(torch.stack([gradient.norms(clip) for gradient in gradients], -1))


def add_all(sums: Sequence[Tensor], gradients: Sequence[Gradients], weights: Tensor) -> None:
    """Adds each parameter's weighted gradients to its sums; see `Gradients.add_to`."""
    short = [index for index, gradient in enumerate(gradients) if _is_short_row(gradient)]
    if len(short) > 1:
        joined = torch.cat([gradients[index].whole() for index in short], 2)
        totals = weights.new_zeros(len(joined), joined.shape[2])
        Dense(joined).add_to(totals, weights)
        for index, total in zip(short, totals.split([gradients[index].numbers for index in short], 1), strict=True):
            sums[index].add_(total)
    for index, gradient in enumerate(gradients):
        if len(short) < 2 or index not in short:
            gradient.add_to(sums[index], weights)


def _with_short_joined(gradients: Sequence[Gradients]) -> list[Gradients]:
    """Returns the gradients, with short ones joined into one."""
    short = [gradient for gradient in gradients if _is_short_row(gradient)]
    if len(short) < 2:
        return [*gradients]
    others = [gradient for gradient in gradients if not _is_short_row(gradient)]
    return [*others, Dense(torch.cat([gradient.whole() for gradient in short], 2))]


def _is_short_row(gradient: Gradients) -> bool:
    return isinstance(gradient, Dense) and gradient.numbers <= _SHORT


def widen_to_float32(values: Tensor) -> Tensor:
    """Converts numbers with 16 bits to float32, which represents them exactly; returns tensors of other types
    unchanged.
    """
    if values.dtype in (torch.bfloat16, torch.float16):
        return values.float()
    return values


def bounded_norms(squares: Tensor, position_norms: Tensor) -> Tensor:
    """Returns norms from their squares and the norms of all positions, `[k, b], [k, b, t] -> [k, b]`.

    The error of a sum is relative to the size of its terms. Where terms cancel, the norm is bounded from below (see
    `LONGEST`).
    """
    positions = position_norms.shape[2]
    return squares.clamp_min(0).sqrt().maximum(position_norms.sum(2) * (positions / LONGEST))


def is_short(positions: int, outputs: int, inputs: int, norm: NormName) -> bool:
    """Returns True if products over pairs of positions need less work than gradients `[outputs, inputs]`."""
    return norm == "l2" and 2 * positions * (outputs + inputs) < outputs * inputs
