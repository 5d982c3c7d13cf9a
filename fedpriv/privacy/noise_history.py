"""Computes unit noise times C^-1, one round at a time, from a state of the earlier rounds."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedpriv.privacy.correlated import Factor

_IN_CACHE = 2**15  # numbers of a row
_MEASURED_EVERY = 8  # rounds: in the others bounds on buffers are computed


class NoiseHistory:
    """Computes the rows ``(C^-1 Z)_t`` of noise that is correlated between rounds. Its state is as secret as the noise.

    C has ones on its diagonal, so ``w = C^-1 Z`` is ``w_t = z_t - c_1 w_(t-1) - c_2 w_(t-2) - ...``. The state of a
    band of b coefficients is the last b - 1 rows. The state of a buffered matrix is its buffers ``s_i <- decay_i s_i +
    w_t``; their sum times the scales is subtracted. No file holds the state: in a process that resumes a stopped run, C
    is restarted at the first requested round, with noise that is independent of all earlier noise. The privacy cost is
    at most the cost of the run without a restart (docs/design/0006-correlated.md).

    Args:
        factor: The matrix C.

    Attributes:
        first: The round at which C begins.
    """

    def __init__(self, factor: Factor) -> None:
        self._factor = factor
        self.first = 0
        self._next = -1  # the next round; -1 while the rows of a round are only partly made, and before the first
        self._state = torch.empty(0)
        self._bounds = np.zeros((2, 0))
        self._largest = np.zeros((0, 0))
        self._current = np.zeros((0, 0))

    @property
    def factor(self) -> Factor:
        """The matrix C."""
        return self._factor

    def begin(self, round_index: int, count: int, dim: int, device: torch.device) -> None:
        """Prepares to filter the noise of a round; call `finish` at its end. C is restarted unless the round follows
        the last filtered round.

        Args:
            round_index: The round of the noise.
            count: Number of rows.
            dim: Length of a row.
            device: Device of the rows.
        """
        shape = (len(self._factor.band) or len(self._factor.scales), count, dim)
        if self._next == round_index and self._state.shape == shape and self._state.device == device:
            return
        self.first = round_index
        self._state = torch.zeros(shape, dtype=torch.float64, device=device)
        self._bounds = np.zeros((2, count))
        self._largest = np.zeros((max(len(self._factor.scales), 1), count))
        self._current = np.zeros((len(self._factor.scales), count))

    def widen(self, rows: slice, error: float, largest: float) -> tuple[float, float]:
        """Returns bounds on unit noise of all rounds so far, including one more, for some of its rows.

        Args:
            rows: The rows.
            error: Bound on the errors of their unit noise in a round.
            largest: Bound on the absolute values of that noise.
        """
        self._bounds[0, rows] = np.maximum(self._bounds[0, rows], error)
        self._bounds[1, rows] = np.maximum(self._bounds[1, rows], largest)
        return float(self._bounds[0, rows].max()), float(self._bounds[1, rows].max())

    def largest_filtered(self, rows: slice, filtered: Tensor) -> float:
        """Returns the largest absolute value of filtered noise in some rows and all rounds so far.

        Call it, or `largest_in_buffers`, after every round.
        """
        largest = self._largest[0, rows]
        np.maximum(largest, _largest_of(filtered), out=largest)
        return float(largest.max())

    def largest_in_buffers(self, rows: slice, filtered: Tensor, round_index: int) -> list[float]:
        """Returns bounds on the absolute value that each buffer has had in some rows; call it after every round.

        The buffers are read in one of eight rounds. In the other rounds, the bound of each buffer is its decay times
        the earlier bound plus the largest filtered noise. This is faster, because the filtered noise is one array, but
        there are many buffers.
        """
        current = self._current[:, rows]
        if round_index % _MEASURED_EVERY == 0:
            for index, buffer in enumerate(self._state[:, rows]):
                current[index] = _largest_of(buffer)
        else:
            current *= np.array(self._factor.decays)[:, None]
            current += _largest_of(filtered)
            current *= 1 + 2.0**-50  # the roundings of the buffers, and of these bounds
        largest = self._largest[:, rows]
        np.maximum(largest, current, out=largest)
        return largest.max(1).tolist()

    def filtered(self, unit: Tensor, rows: slice, round_index: int) -> Tensor:
        """Returns some of the round's rows, from their unit noise `[k, dim]` in float64, which is overwritten.

        Products are rounded before they are subtracted, so that a row does not depend on which rows are filtered with
        it.
        """
        self._next = -1
        if self._factor.band:
            return self._filtered_by_band(unit, rows, round_index)
        buffers = self._state[:, rows]
        for scale, buffer in zip(self._factor.scales, buffers, strict=True):
            unit.sub_(buffer * scale)
        for decay, buffer in zip(self._factor.decays, buffers, strict=True):
            buffer.mul_(decay).add_(unit)
        return unit

    def _filtered_by_band(self, unit: Tensor, rows: slice, round_index: int) -> Tensor:
        band = self._factor.band
        for back, coefficient in enumerate(band[: round_index - self.first], start=1):
            unit.sub_(self._state[(round_index - back) % len(band), rows] * coefficient)
        self._state[round_index % len(band), rows] = unit
        return unit

    def finish(self, round_index: int) -> None:
        """Marks a round as done, once all its rows are filtered."""
        self._next = round_index + 1


def _largest_of(numbers: Tensor) -> float:
    """Returns the largest absolute value. It is computed by numpy in pieces that fit into the cache, which is faster
    than torch.
    """
    array = numbers.numpy()
    pieces = [array[:, start : start + _IN_CACHE] for start in range(0, array.shape[1], _IN_CACHE)]
    return float(np.max([[-piece.min(), piece.max()] for piece in pieces]))  # NaN stays NaN
