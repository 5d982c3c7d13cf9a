"""Matrices for noise that is correlated between rounds: the banded square root, an optimised band, and buffered
matrices.

With steps of constant size, the model is a sum of releases, so the noise of the sums matters. Let A be the matrix of
these sums (lower-triangular Toeplitz, including momentum and weight decay of the steps). Then the noise of the iterates
is ``s A C^-1 Z``. A good C makes A C^-1 Z small without a large sensitivity, to which s is proportional. The optimised
band takes A from the strategy of the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.privacy.correlated import Factor
from fedpriv.settings.checks import Bound, Count, Fraction, Probability, validate_arguments

Array = NDArray[np.float64]
Iterate = Literal["average", "last"]
_DIGITS = 8  # of coefficients: the last bits of an optimiser may differ between machines
_STEPS = 300


Follow = Callable[[], Array | None]
"""Returns the weight of the noise of each round in the model after each round, `[rounds, rounds]`; None if unknown."""


def unknown() -> None:
    """The `Follow` for a strategy with an unknown response to noise."""


class Matrix(Protocol):
    """Base class of matrix families; each run uses one member."""

    def factor(self, rounds: int, separation: int, follow: Follow = unknown) -> Factor:
        """Returns the matrix for `rounds` rounds, in which a unit takes part at most every `separation`-th round.

        Args:
            rounds: Number of rounds.
            separation: Smallest distance between two rounds in which a unit takes part.
            follow: Returns the response of the strategy's models to the noise of each round, to optimise the matrix
                for it.
        """
        ...


@validate_arguments("privacy.noise.correlated.bsr")
@dataclass(frozen=True)
class BSR:
    """Correlated noise by the banded square root: the first `band` coefficients of A's square root (see the module).

    Args:
        band: Number of rounds over which noise cancels, including the current round; with 1 the noise is independent.
            The noise of the last `band - 1` rounds is kept in memory.
        momentum: Momentum of the steps, in [0, 1); 0 by default.
        decay: Factor by which weight decay multiplies the model at each step, which is 1 minus learning rate times
            weight decay; 1 by default.

    Source: Kalinin and Lampert 2024.

    Examples:
        >>> import fedpriv
        >>> privacy = fedpriv.Privacy(noise_multiplier=2.0, noise=fedpriv.BSR(band=4))
        >>> fedpriv.plan([100] * 3, fedpriv.fedavg(0.1), privacy, rounds=8).releases
        8
    """

    band: Count
    momentum: Fraction = 0.0
    decay: Probability = 1.0

    def factor(self, rounds: int, separation: int, follow: Follow = unknown) -> Factor:
        """See `Matrix`."""
        return Factor(_rounded(_root(min(self.band, rounds), self.momentum, self.decay)[1:]))


@validate_arguments("privacy.noise.correlated.banded")
@dataclass(frozen=True)
class Banded:
    """Correlated noise by an optimised band: `band` coefficients that make the error of the iterates small.

    The coefficients are optimised by L-BFGS, starting from the banded square root. The iterates are the models that the
    run's strategy reports, so the optimisation includes the strategy's steps and their schedule, momentum, mixing and
    averages. The matrix is Toeplitz: one column determines all rounds (Choquette-Choo et al. 2023 optimise a column for
    each round).

    Args:
        band: As for `BSR`.
        iterate: Error that is minimised: the mean squared error of all iterates (`"average"`, default), or the error of
            the `"last"` iterate.
        momentum: Momentum of the steps, from which the initial square root is computed. If the strategy's response to
            noise cannot be computed, because its messages are not linear in the query results or the run has more than
            2000 rounds, steps of constant size with this momentum are assumed instead.
        decay: As for `BSR`; it is used in the same two ways as `momentum`.

    Examples:
        >>> import fedpriv
        >>> privacy = fedpriv.Privacy(noise_multiplier=2.0, noise=fedpriv.Banded(band=4, iterate="last"))
        >>> fedpriv.plan([100] * 3, fedpriv.fedavg(0.1), privacy, rounds=8).releases
        8
    """

    band: Count
    iterate: Iterate = "average"
    momentum: Fraction = 0.0
    decay: Probability = 1.0

    def factor(self, rounds: int, separation: int, follow: Follow = unknown) -> Factor:
        """See `Matrix`."""
        # a band of 1 is independent noise: there is nothing to optimise
        if min(self.band, rounds) <= 1:
            return _banded(self, rounds, separation, None)
        response = follow()
        if response is None:
            return _banded(self, rounds, separation, None)
        return _banded(self, rounds, separation, _form(response, self.iterate))


@validate_arguments("privacy.noise.correlated.blt")
@dataclass(frozen=True)
class BLT:
    """A buffered linear Toeplitz matrix; its noise needs `buffers` rows of memory (McMahan et al. 2024).

    Args:
        buffers: Number of buffers, from 1 to 16; 4 are about as good as a full matrix for thousands of rounds.
        iterate: As for `Banded`.
        momentum: Momentum of the steps.
        decay: As for `BSR`.

    Examples:
        >>> import fedpriv
        >>> privacy = fedpriv.Privacy(noise_multiplier=2.0, noise=fedpriv.BLT(buffers=2))
        >>> fedpriv.plan([100] * 3, fedpriv.fedavg(0.1), privacy, rounds=8).releases
        8
    """

    buffers: Annotated[int, Bound("must be a whole number from 1 to 16", 1, 16, "[]")]
    iterate: Iterate = "average"
    momentum: Fraction = 0.0
    decay: Probability = 1.0

    def factor(self, rounds: int, separation: int, follow: Follow = unknown) -> Factor:
        """See `Matrix`."""
        return _buffered(self, rounds, separation)


@dataclass(frozen=True)
class _Form:
    """A quadratic form. Comparison and hash use a digest of its numbers, so that it can be the key of a cache."""

    digest: bytes
    numbers: Tensor = field(compare=False, repr=False)

    def __call__(self, inverse: Tensor) -> Tensor:
        return inverse @ self.numbers @ inverse


def _form(response: Array, iterate: Iterate) -> _Form:
    """Returns the squared error of the iterates as a quadratic form of the first column d of C^-1.

    With A the response of iterates to the noise of each round, column p of A C^-1 is `sum_u d_u A[:, p + u]`. So the
    sum of all squares is a quadratic form with entries `sum_p (A'A)[p + u, p + v]` at (u, v), which are sums along
    diagonals, starting at their ends.
    """
    rows = torch.from_numpy(response if iterate == "average" else response[-1:])
    numbers = rows.T @ rows
    for index in range(len(numbers) - 2, -1, -1):
        numbers[index, :-1] += numbers[index + 1, 1:]
    return _Form(hashlib.sha256(numbers.numpy().tobytes()).digest(), numbers)


@lru_cache(maxsize=4)  # each may hold a form of 32 MB
def _banded(settings: Banded, rounds: int, separation: int, form: _Form | None) -> Factor:
    """Returns the optimised band; without a form, for steps of constant size."""
    band = min(settings.band, rounds)
    if band == 1:
        return Factor()
    start = _root(band, settings.momentum, settings.decay)[1:]

    def column(numbers: Tensor) -> Tensor:
        zeros = numbers.new_zeros(rounds - band)
        return torch.cat([numbers.new_ones(1), numbers, zeros])

    iterate_error = form or _constant(settings, rounds)
    coefficients = _minimise(lambda x: _error(column(x), iterate_error, band, separation), start)
    return Factor(_rounded(coefficients))


@lru_cache(maxsize=64)
def _buffered(settings: BLT, rounds: int, separation: int) -> Factor:
    """Returns the optimised buffers, for steps of constant size."""
    if rounds == 1:
        return Factor()
    powers = torch.arange(rounds - 1).double()

    def to_buffers(numbers: Tensor) -> tuple[Tensor, Tensor]:
        scales, rates = numbers.chunk(2)
        # logarithms keep scales positive; a buffer decays by exp(-rate) a round
        return scales.exp(), torch.exp(-rates.exp())

    def column(numbers: Tensor) -> Tensor:
        scales, decays = to_buffers(numbers)
        return torch.cat([numbers.new_ones(1), (scales.unsqueeze(1) * decays.unsqueeze(1) ** powers).sum(0)])

    # start with rates from about 1 / (a round) to about 1 / (the run), in equal ratios: c_j falls as 1 / sqrt(pi j)
    rates = np.geomspace(1.0, 0.5 / rounds, settings.buffers)
    scales = np.sqrt(rates) * 0.5 / np.sqrt(rates).sum()
    start = np.log(np.concatenate([scales, rates]))
    iterate_error = _constant(settings, rounds)
    solution = _minimise(lambda x: _error(column(x), iterate_error, rounds, separation), start)
    best_scales, best_decays = (array.numpy() for array in to_buffers(torch.from_numpy(solution)))
    return Factor((), _rounded(best_scales), tuple(min(d, 1 - 10.0**-_DIGITS) for d in _rounded(best_decays)))


def _constant(settings: Banded | BLT, rounds: int) -> Callable[[Tensor], Tensor]:
    """Returns the squared error of the iterates by the first column of C^-1, for steps of constant size."""
    workload = _workload(rounds, settings.momentum, settings.decay)
    if settings.iterate == "average":
        weights = torch.arange(rounds, 0, -1).double() / rounds
    else:
        weights = 1.0
    return lambda inverse: (_product(workload, inverse).square() * weights).sum()


def _error(column: Tensor, iterate_error: Callable[[Tensor], Tensor], reach: int, separation: int) -> Tensor:
    """Returns the logarithm of the squared error of the iterates times the squared sensitivity.

    The sensitivity is computed as in `correlated.compute_shares`, with differentiable operations.
    """
    rounds = len(column)
    coefficients = column.abs()
    if reach > separation:
        coefficients = coefficients.flip(0).cummax(0).values.flip(0)
    coefficients = torch.nn.functional.pad(coefficients, (0, -rounds % separation))
    squared_sensitivity = coefficients.view(-1, separation).cumsum(0).flatten()[:rounds].square().sum()
    return iterate_error(_inverse(column)).log() + squared_sensitivity.log()


def _minimise(error: Callable[[Tensor], Tensor], start: Array) -> Array:
    """Returns numbers with a small error, found by L-BFGS; `start` if the search finds nothing better."""
    from scipy.optimize import minimize

    def value(numbers: Array) -> tuple[float, Array]:
        point = torch.from_numpy(numbers.copy()).requires_grad_()
        loss = error(point)
        (slope,) = torch.autograd.grad(loss, point)
        # outside the range of numbers: a large error without a slope turns the line search back
        if not (torch.isfinite(loss) and torch.isfinite(slope).all()):
            return 1e6, np.zeros_like(numbers)
        return float(loss.detach()), slope.numpy()

    result = minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    if result.fun < value(start)[0]:
        best = result.x
    else:
        best = start
    return np.asarray(best, dtype=np.float64)


def _root(length: int, momentum: float, decay: float) -> Array:
    """Returns the first coefficients of ``((1 - decay x) (1 - momentum x))^(-1/2)``."""
    ratios = np.concatenate([[1.0], (2 * np.arange(1, length) - 1) / (2 * np.arange(1, length))]).cumprod()
    powers = np.arange(length)
    product = np.convolve(ratios * decay**powers, ratios * momentum**powers)
    return product[:length].astype(np.float64)


def _workload(rounds: int, momentum: float, decay: float) -> Tensor:
    """Returns the first column of A: coefficients of ``1 / ((1 - decay x) (1 - momentum x))``."""
    powers = torch.arange(rounds).double()
    return _product(decay**powers, momentum**powers)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Returns the first coefficients of the product of two power series, as many as each has."""
    length = len(a)
    return torch.fft.irfft(torch.fft.rfft(a, 2 * length) * torch.fft.rfft(b, 2 * length), 2 * length)[:length]


def _inverse(column: Tensor) -> Tensor:
    """Returns the first coefficients of the inverse of a power series that begins with 1, by Newton's iteration."""
    series = column[:1]
    while len(series) < len(column):
        length = min(2 * len(series), len(column))
        padded = torch.nn.functional.pad(series, (0, length - len(series)))
        series = 2 * padded - _product(padded, _product(padded, column[:length]))
    return series


def _rounded(numbers: Array) -> tuple[float, ...]:
    return tuple(round(float(number), _DIGITS) for number in numbers)
