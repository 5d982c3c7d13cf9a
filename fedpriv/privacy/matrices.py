"""Matrices for noise that is correlated between rounds: the banded square root, an optimised band, and buffers.

Steps with a constant rate add answers up, so what matters is the noise of their sums. With A the matrix of these sums
(lower-triangular Toeplitz, with momentum and weight decay where the steps have them), the noise of the iterates is
``s A C^-1 Z``. A good C makes it small beside its own sensitivity, which sets s. The optimised band takes A from the
run's own strategy.
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
from fedpriv.settings.checks import Bound, Count, Fraction, Probability, checked

Array = NDArray[np.float64]
Iterate = Literal["average", "last"]
_DIGITS = 8  # of coefficients: the last bits of an optimiser may differ between machines
_STEPS = 300


Follow = Callable[[], Array | None]
"""What the model after each round has of the noise of each round, `[rounds, rounds]`; None where nobody can say."""


def unknown() -> None:
    """Nobody can say."""


class Matrix(Protocol):
    """A family of matrices, from which a run's own follows."""

    def factor(self, rounds: int, separation: int, follow: Follow = unknown) -> Factor:
        """The matrix for so many rounds, in which a unit takes part at most every `separation`-th round.

        Args:
            rounds: Number of rounds.
            separation: As above.
            follow: What the strategy's models have of the noise of each round, for a matrix that suits it.
        """
        ...


@checked("privacy.noise.time.bsr")
@dataclass(frozen=True)
class BSR:
    """The banded square root: the first `band` coefficients of A's square root (Kalinin and Lampert 2024).

    Args:
        band: Rounds over which noise cancels, the round itself included; 1 is independent noise. The noise of the last
            `band - 1` rounds is kept.
        momentum: That of the steps.
        decay: Factor on the model between two steps, 1 minus learning rate times weight decay.
    """

    band: Count
    momentum: Fraction = 0.0
    decay: Probability = 1.0

    def factor(self, rounds: int, separation: int, follow: Follow = unknown) -> Factor:
        """See `Matrix`."""
        return Factor(_rounded(_root(min(self.band, rounds), self.momentum, self.decay)[1:]))


@checked("privacy.noise.time.banded")
@dataclass(frozen=True)
class Banded:
    """`band` coefficients with the least error of the iterates, found by L-BFGS from the banded square root on.

    The iterates are those that the run's strategy reports: its steps and their schedule, momentum, mixing and averages
    are followed. Toeplitz: one column for all rounds (Choquette-Choo et al. 2023 optimise a column for each).

    Args:
        band: As for `BSR`.
        iterate: Which error is made small: the mean squared one of all iterates (`"average"`) or that of the `"last"`.
            In YAML it is `for`.
        momentum: That of the steps, for the square root to begin with; and for a strategy that cannot be followed: it
            is not linear in the answers, or has more than 2000 rounds. Its step size then counts as constant.
        decay: As for `BSR`, with the same use.
    """

    band: Count
    iterate: Iterate = "average"
    momentum: Fraction = 0.0
    decay: Probability = 1.0

    def factor(self, rounds: int, separation: int, follow: Follow = unknown) -> Factor:
        """See `Matrix`."""
        if min(self.band, rounds) > 1:
            response = follow()
        else:
            response = None
        return _banded(self, rounds, separation, None if response is None else _form(response, self.iterate))


@checked("privacy.noise.time.blt")
@dataclass(frozen=True)
class BLT:
    """A buffered linear Toeplitz matrix, whose noise needs `buffers` rows of memory (McMahan et al. 2024).

    Args:
        buffers: Number of buffers; 4 are about as good as a full matrix for thousands of rounds.
        iterate: As for `Banded`.
        momentum: That of the steps.
        decay: As for `BSR`.
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
    """A quadratic form; equal if its numbers are."""

    digest: bytes
    numbers: Tensor = field(compare=False, repr=False)

    def __call__(self, inverse: Tensor) -> Tensor:
        return inverse @ self.numbers @ inverse


def _form(response: Array, iterate: Iterate) -> _Form:
    """The squared error of the iterates as a form of the first column d of C^-1.

    With A what iterates have of the noise of each round, column p of A C^-1 is `sum_u d_u A[:, p + u]`. So the sum of
    all squares is a form whose entry u, v is `sum_p (A'A)[p + u, p + v]`: sums along diagonals, from their ends.
    """
    rows = torch.from_numpy(response if iterate == "average" else response[-1:])
    numbers = rows.T @ rows
    for place in range(len(numbers) - 2, -1, -1):
        numbers[place, :-1] += numbers[place + 1, 1:]
    return _Form(hashlib.sha256(numbers.numpy().tobytes()).digest(), numbers)


@lru_cache(maxsize=4)  # each may hold a form of 32 MB
def _banded(wanted: Banded, rounds: int, separation: int, form: _Form | None) -> Factor:
    band = min(wanted.band, rounds)
    if band == 1:
        return Factor()
    start = _root(band, wanted.momentum, wanted.decay)[1:]

    def column(numbers: Tensor) -> Tensor:
        rest = numbers.new_zeros(rounds - band)
        return torch.cat([numbers.new_ones(1), numbers, rest])

    left = form or _constant(wanted, rounds)
    found = _least(lambda x: _error(column(x), left, band, separation), start)
    return Factor(_rounded(found))


@lru_cache(maxsize=64)
def _buffered(wanted: BLT, rounds: int, separation: int) -> Factor:
    if rounds == 1:
        return Factor()
    powers = torch.arange(rounds - 1).double()

    def parts(numbers: Tensor) -> tuple[Tensor, Tensor]:
        scales, rates = numbers.chunk(2)
        return scales.exp(), torch.exp(-rates.exp())  # decay exp(-rate) a round

    def column(numbers: Tensor) -> Tensor:
        scales, decays = parts(numbers)
        return torch.cat([numbers.new_ones(1), (scales.unsqueeze(1) * decays.unsqueeze(1) ** powers).sum(0)])

    # nearly 1 / (a round) to nearly 1 / (the run), in equal ratios: c_j falls as 1 / sqrt(pi j)
    rates = np.geomspace(1.0, 0.5 / rounds, wanted.buffers)
    scales = np.sqrt(rates) * 0.5 / np.sqrt(rates).sum()
    start = np.log(np.concatenate([scales, rates]))
    left = _constant(wanted, rounds)
    found = _least(lambda x: _error(column(x), left, rounds, separation), start)
    scales_found, decays_found = (part.numpy() for part in parts(torch.from_numpy(found)))
    return Factor((), _rounded(scales_found), tuple(min(d, 1 - 10.0**-_DIGITS) for d in _rounded(decays_found)))


def _constant(wanted: Banded | BLT, rounds: int) -> Callable[[Tensor], Tensor]:
    """The squared error of the iterates by the first column of C^-1, for steps of constant size."""
    workload = _workload(rounds, wanted.momentum, wanted.decay)
    if wanted.iterate == "average":
        left = torch.arange(rounds, 0, -1).double() / rounds
    else:
        left = 1.0
    return lambda inverse: (_product(workload, inverse).square() * left).sum()


def _error(column: Tensor, left: Callable[[Tensor], Tensor], reach: int, separation: int) -> Tensor:
    """Logarithm of the squared error of the iterates, times the squared sensitivity; see `correlated.shares`."""
    rounds = len(column)
    costly = column.abs()
    if reach > separation:
        costly = costly.flip(0).cummax(0).values.flip(0)
    costly = torch.nn.functional.pad(costly, (0, -rounds % separation))
    paid = costly.view(-1, separation).cumsum(0).flatten()[:rounds].square().sum()
    return left(_inverse(column)).log() + paid.log()


def _least(error: Callable[[Tensor], Tensor], start: Array) -> Array:
    """Numbers with the least error, as far as L-BFGS comes."""
    from scipy.optimize import minimize

    def value(numbers: Array) -> tuple[float, Array]:
        at = torch.from_numpy(numbers.copy()).requires_grad_()
        found = error(at)
        (slope,) = torch.autograd.grad(found, at)
        if not (torch.isfinite(found) and torch.isfinite(slope).all()):
            return 1e6, np.zeros_like(numbers)
        return float(found.detach()), slope.numpy()

    found = minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
    return np.asarray(found.x if found.fun < value(start)[0] else start, dtype=np.float64)


def _root(length: int, momentum: float, decay: float) -> Array:
    """First coefficients of ``((1 - decay x) (1 - momentum x))^(-1/2)``."""
    ratios = np.concatenate([[1.0], (2 * np.arange(1, length) - 1) / (2 * np.arange(1, length))]).cumprod()
    powers = np.arange(length)
    product = np.convolve(ratios * decay**powers, ratios * momentum**powers)
    return product[:length].astype(np.float64)


def _workload(rounds: int, momentum: float, decay: float) -> Tensor:
    """First column of A: coefficients of ``1 / ((1 - decay x) (1 - momentum x))``."""
    powers = torch.arange(rounds).double()
    return _product(decay**powers, momentum**powers)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """First coefficients of the product of two power series, as many as each has."""
    length = len(a)
    return torch.fft.irfft(torch.fft.rfft(a, 2 * length) * torch.fft.rfft(b, 2 * length), 2 * length)[:length]


def _inverse(column: Tensor) -> Tensor:
    """First coefficients of the inverse of a power series that begins with 1, by Newton's iteration."""
    found = column[:1]
    while len(found) < len(column):
        length = min(2 * len(found), len(column))
        known = torch.nn.functional.pad(found, (0, length - len(found)))
        found = 2 * known - _product(known, _product(known, column[:length]))
    return found


def _rounded(numbers: Array) -> tuple[float, ...]:
    return tuple(round(float(number), _DIGITS) for number in numbers)
