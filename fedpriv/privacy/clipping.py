"""Clips contributions: scales them down to bound their norm, and thereby the sensitivity of their sum.

A row that contains NaN or infinity becomes zero, so one example or client with such a row can neither destroy the model
nor exceed the bound. Norms, clipped rows and sums are float64. Rounding can still add at most `ROUNDING` times the
bound, and the sensitivity includes this amount (docs/threat_model.md contains the argument).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedpriv.settings.checks import Positive, validate_arguments

NormName = Literal["l1", "l2"]
ROUNDING = 2.0**-10
"""Largest effect of rounding on a clipped sum's sensitivity, relative to the clip bound; every cost includes it."""
_PIECE = 2**12  # numbers in a norm in float32: its relative error is at most 2**12 * 2**-24
_FEW = 2**14  # numbers for which one operation in float64 takes less than three, mostly in float32
_LEAST = 2.0**-1050  # a smaller factor is a number of so few bits that the product might pass the bound


@validate_arguments("privacy.clip")
@dataclass(frozen=True)
class Clip:
    """Scales vectors down so that their `norm` is at most `bound`.

    Args:
        bound: Largest norm of the contribution of one privacy unit, in the units of the clipped quantity; positive and
            finite.
        norm: `"l2"` (for Gaussian noise) or `"l1"` (for Laplace noise).

    Raises:
        ConfigError: If the bound is not a positive finite number, or the norm is unknown.

    Examples:
        >>> import fedpriv, torch
        >>> clipped, broken = fedpriv.Clip(bound=1.0).rows(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
        >>> [[round(value, 3) for value in row] for row in clipped.tolist()], broken.tolist()
        ([[0.6, 0.8], [0.3, 0.4]], [False, False])
    """

    bound: Positive
    norm: NormName = "l2"

    @property
    def diameter(self) -> float:
        """Bound on the distance between two clipped vectors, in the clip's norm."""
        return 2 * self.bound

    def norms(self, rows: Tensor) -> Tensor:
        """Returns the norm of each row in float64, `[..., dim] -> [...]`. It is too small by a relative error of at
        most 2**-12.

        Long float32 rows are cut into pieces, and the norm of the pieces' norms is computed in float64. This is as fast
        as float32, but has no error that grows with `dim`. The possible underflow of squares in float32 is added to the
        norm; rows with overflowing squares are computed again in float64. On devices other than the CPU, where the
        search for such rows takes longer than a pass over all rows, all norms are computed in float64.
        """
        norms = self.unchecked_norms(rows)
        if rows.device.type != "cpu" or math.isfinite(norms.sum().item()):
            return norms
        overflowed = ~torch.isfinite(norms)
        if overflowed.any():
            wide_rows = rows[overflowed].double()
            largest = wide_rows.abs().amax(-1)
            norms[overflowed] = self._norm(wide_rows / largest.unsqueeze(-1)) * largest
        return norms

    def unchecked_norms(self, rows: Tensor) -> Tensor:
        """Returns `norms`, but infinity for rows with overflowing squares; the caller must check for it."""
        if rows.device.type != "cpu":
            return self._wide_norms(rows)
        if rows.dtype == torch.float32 and rows.numel() <= _FEW:
            return self._norm(rows, torch.float64)
        if rows.dtype == torch.float64:
            width = rows.shape[-1]
        else:
            width = _PIECE
        if rows.shape[-1] <= width:
            norms = self._norm(rows).double()
        else:
            norms = self._norm(self._piece_norms(rows))
        return norms.add_(rows.shape[-1] * torch.finfo(rows.dtype).tiny ** 0.5)

    def _piece_norms(self, rows: Tensor) -> Tensor:
        """Returns the norms of pieces of each row in float64, `[..., dim] -> [..., pieces]`."""
        whole = rows.shape[-1] // _PIECE * _PIECE
        norms = self._norm(rows[..., :whole].unflatten(-1, (-1, _PIECE))).double()
        if whole == rows.shape[-1]:
            return norms
        rest = self._norm(rows[..., whole:]).double().unsqueeze(-1)
        return torch.cat([norms, rest], -1)

    def _wide_norms(self, rows: Tensor) -> Tensor:
        """Returns norms computed in float64, where squares of float32 numbers cannot overflow.

        float64 rows are divided by their largest number first.
        """
        if rows.dtype != torch.float64:
            return self._norm(rows.double())
        if rows.shape[-1]:
            largest = rows.abs().amax(-1, keepdim=True)
        else:
            largest = rows.new_zeros(*rows.shape[:-1], 1)
        divisor = largest.clamp_min(torch.finfo(torch.float64).tiny)
        return self._norm(rows / divisor) * largest.squeeze(-1)

    def _norm(self, rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        if dtype is None and rows.dtype == torch.float64:
            dtype = torch.float64
        elif dtype is None:
            dtype = torch.float32  # also for numbers of 16 bits
        # torch's l1 norm takes several times as long
        if self.norm == "l1":
            return rows.abs().sum(-1, dtype=dtype)
        return torch.linalg.vector_norm(rows, dim=-1, dtype=dtype)

    def with_one(self, norms: Tensor) -> Tensor:
        """Returns the norm of each row with a 1 appended, from its norm in float64: `[...] -> [...]`."""
        if self.norm == "l1":
            return norms + 1
        return norms.hypot(norms.new_ones(()))  # without overflow; a GPU takes no number from the CPU here

    def factors(self, norms: Tensor) -> Tensor:
        """Returns the factor in [0, 1] for a row of each norm, `[...] -> [...]`; 0 for a norm that is not finite."""
        # torch's `bound / norms` without its detour through Python; for a norm of at most the bound 1, but for rounding
        factors = norms.clamp_min(self.bound).reciprocal() * self.bound
        return factors.where(factors >= _LEAST, 0.0)  # infinity gave 0, and no NaN is at least anything

    def rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Clips each row.

        Returns:
            The clipped rows `[..., dim]` in float64 and a boolean `[...]` that marks the rows that were not finite.
        """
        norms = self.norms(rows)
        broken = ~torch.isfinite(norms)
        # 0 * inf is nan, so the broken rows are zeroed before the product
        safe = torch.where(broken.unsqueeze(-1), torch.zeros_like(rows), rows)
        return safe.double() * self.factors(norms).unsqueeze(-1), broken
