"""Unit noise times C^-1, a round at a time, from what is kept of the rounds before."""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv.privacy.correlated import Factor


class NoiseHistory:
    """The rows ``(C^-1 Z)_t`` of noise that is correlated between rounds; as secret as the noise.

    C has ones on its diagonal, so ``w = C^-1 Z`` is ``w_t = z_t - c_1 w_(t-1) - c_2 w_(t-2) - ...``: of a band of b the
    last b - 1 rows are kept; of buffers ``s_i <- decay_i s_i + w_t``, whose sum times the scales is subtracted. A
    checkpoint holds neither: after a stop they are drawn again from the run's secret, all rounds from the first on, bit
    for bit.

    Args:
        factor: The matrix C.
    """

    def __init__(self, factor: Factor) -> None:
        self._factor, self._round, self._kept = factor, 0, torch.empty(0)

    def missing(self, round_index: int, count: int, dim: int, device: torch.device) -> range:
        """Earlier rounds whose unit noise must be given first, each followed by `finish`.

        Args:
            round_index: The round whose noise is to be made.
            count: Number of rows.
            dim: Their length.
            device: Where they are.
        """
        shape = (len(self._factor.band) or len(self._factor.scales), count, dim)
        if self._round > round_index or self._round < 0 or self._kept.shape != shape or self._kept.device != device:
            self._round = 0
        if self._round == 0:
            self._kept = torch.zeros(shape, dtype=torch.float64, device=device)
        if shape[0]:
            return range(self._round, round_index)
        return range(0)

    def filtered(self, unit: Tensor, rows: slice, round_index: int) -> Tensor:
        """Some of the round's rows, from their unit noise `[k, dim]` in float64, which is overwritten.

        Products are rounded before they are subtracted, so that the numbers do not depend on which rows go together.
        """
        self._round = -1  # until the round is finished
        if self._factor.band:
            return self._by_band(unit, rows, round_index)
        buffers = self._kept[:, rows]
        for scale, buffer in zip(self._factor.scales, buffers, strict=True):
            unit.sub_(buffer * scale)
        for decay, buffer in zip(self._factor.decays, buffers, strict=True):
            buffer.mul_(decay).add_(unit)
        return unit

    def _by_band(self, unit: Tensor, rows: slice, round_index: int) -> Tensor:
        band = self._factor.band
        for back, coefficient in enumerate(band[:round_index], start=1):
            unit.sub_(self._kept[(round_index - back) % len(band), rows] * coefficient)
        self._kept[round_index % len(band), rows] = unit
        return unit

    def finish(self, round_index: int) -> None:
        """All rows of the round are made."""
        self._round = round_index + 1
