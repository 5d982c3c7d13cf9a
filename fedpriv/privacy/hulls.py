"""Clips whose vectors differ by less than twice their norm, for less noise under `replace_one`.

Two vectors in a ball of radius C can differ by 2C. If one unit has other values, a sum of such vectors changes by up to
2C, and the noise must hide this. Many public maps of rows stay in a smaller set: two unit vectors differ by sqrt 2. The
clips of this module *compute* each vector from bounded weights and a public matrix, so the vector lies in a set of
known diameter D whatever the row contains. No caller declares D.

Let t_1, ..., t_k be public vertices, and let a row be k weights. A negative weight counts as 0, and weights with a sum
above 1 are divided by it. The vector `sum_j w_j t_j` then lies in the convex hull of the vertices and 0. The distance
of two points is a convex function of each, and a convex function on a convex hull is largest at a vertex. So

    D = max over pairs of {0, t_1, ..., t_k} of their distance,    C = max_j |t_j| <= D

Blocks of a vector that are clipped separately have `C^2 = sum C_b^2` and `D^2 = sum D_b^2`.

A record's price assumes that the contributions of a unit in two neighbouring data sets differ by at most D. If a unit
takes part in secret, its contribution may also be 0, and the price assumes a norm of at most D / 2, which a hull does
not have (Jung 1901). Therefore `Privacy` refuses these clips with any sampling.

Rounding: distances are computed from differences and rounded up, and the sum of weights exceeds 1 by a relative error
of at most `(k + 3) 2**-53`. Weights of many rows are added in float64 before they are multiplied by the matrix, which
adds an error of at most `k n 2**-53 C`, below `2**-14 C` wherever sums are exact enough (`check_depth`). `ROUNDING`
includes both, because C is at most D.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.privacy.clipping import Clip

_MOST = 2**11  # vertices


@dataclass(frozen=True, init=False, eq=False)
class RowClip(Clip):
    """A clip that needs whole rows. Norms alone do not determine its result, so methods that use only them raise."""

    def _set_bound(self, bound: float) -> None:
        object.__setattr__(self, "bound", bound)
        object.__setattr__(self, "norm", "l2")

    @abstractmethod
    def bounded(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds each row, `[..., dim]`, and marks the rows that were not finite, `[...]`."""

    @abstractmethod
    def image(self, bounded: Tensor) -> Tensor:
        """Maps bounded rows to clipped rows, and a sum of bounded rows to the sum of clipped rows: it is linear."""

    def rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See `Clip`."""
        bounded, broken = self.bounded(rows)
        return self.image(bounded), broken

    def sums(self, rows: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Returns sums of clipped rows, `[k, dim]`, and the number of rows that were not finite, `[k]`.

        Args:
            rows: `[k, b, dim]`.
            mask: The rows to add, `[k, b]`.
        """
        bounded, broken = self.bounded(rows)
        return self.image((bounded * mask.unsqueeze(-1)).sum(1)), (broken & mask).sum(1)

    def norms(self, rows: Tensor) -> NoReturn:
        """Raises an error."""
        raise PrivacyError(
            f"{type(self).__name__} clips whole rows, so this computation, which uses only their norms, "
            "cannot be private: use fedpriv.Clip"
        )

    def unchecked_norms(self, rows: Tensor) -> NoReturn:
        """Raises an error."""
        self.norms(rows)

    def with_one(self, norms: Tensor) -> NoReturn:
        """Raises an error."""
        self.norms(norms)

    def factors(self, norms: Tensor) -> NoReturn:
        """Raises an error."""
        self.norms(norms)


@dataclass(frozen=True, init=False, eq=False)
class ConvexHull(RowClip):
    """Turns a row of k weights into a point of the convex hull of k public vertices and 0; see the module.

    Guarantee: any two clipped rows differ by at most `diameter`, and have a norm of at most `bound`, but for rounding.

    Args:
        vertices: The vertices, from public knowledge, `[k, k]`; a vertex of fewer entries is filled up with zeros.

    Attributes:
        vertices: A copy of them.

    Raises:
        ConfigError: If the vertices are not a finite square matrix, all are zero, or there are too many.

    Examples:
        >>> import torch
        >>> from fedpriv.privacy import ConvexHull
        >>> hull = ConvexHull(torch.eye(3))
        >>> round(hull.bound, 3), round(hull.diameter, 3)
        (1.0, 1.414)
        >>> hull.rows(torch.tensor([[0.0, 1.0, 0.0], [3.0, 1.0, -5.0]]))[0].tolist()
        [[0.0, 1.0, 0.0], [0.75, 0.25, 0.0]]
    """

    vertices: Tensor

    def __init__(self, vertices: Tensor) -> None:
        shape = tuple(vertices.shape)
        if len(shape) != 2 or shape[0] != shape[1] or not 0 < shape[0] <= _MOST:
            fix = f"must be a square matrix of up to {_MOST} vertices, filled up with zeros"
            raise ConfigError("privacy.clip.vertices", shape, fix)
        own = vertices.detach().to("cpu", torch.float64).clone()
        up = 1 + (shape[0] + 8) * 2.0**-52  # the relative error of a norm computed from squares, and more
        bound = float(torch.linalg.vector_norm(own, dim=1).max()) * up
        diameter = max(bound, float(torch.pdist(own).max()) * up if shape[0] > 1 else 0.0)
        if not 2.0**-500 < bound <= diameter < 2.0**500:  # else squares under- or overflow
            raise ConfigError("privacy.clip.vertices", bound, "must be finite numbers, and not all of them zero")
        self._set_bound(bound)
        object.__setattr__(self, "vertices", own)
        object.__setattr__(self, "_diameter", diameter)

    @property
    def diameter(self) -> float:
        """See `Clip`."""
        return self._diameter  # pyright: ignore[reportAttributeAccessIssue] - set with the vertices

    def bounded(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See `RowClip`: weights that are at least 0 and add up to at most 1."""
        _check_width(rows, len(self.vertices))
        broken = ~torch.isfinite(rows).all(-1)
        weights = rows.double().where(~broken.unsqueeze(-1), 0.0).clamp_min(0.0)
        return weights / weights.sum(-1, keepdim=True).clamp_min(1.0), broken

    def image(self, bounded: Tensor) -> Tensor:
        """See `RowClip`."""
        return bounded @ self.vertices.to(bounded.device)

    def __repr__(self) -> str:
        return f"ConvexHull({len(self.vertices)} vertices, diameter={self.diameter:.6g})"

    def __eq__(self, other: object) -> bool:
        return type(other) is ConvexHull and torch.equal(self.vertices, other.vertices)

    def __hash__(self) -> int:
        return hash((len(self.vertices), self.bound, self.diameter))


@dataclass(frozen=True, init=False, eq=False)
class BlockClip(RowClip):
    """Clips consecutive blocks of each row, each with a clip of its own; see the module.

    Args:
        blocks: The number of entries and the clip of each block: `Clip` for a ball, or `ConvexHull`.

    Raises:
        ConfigError: If there is no block, or one has another clip.

    Examples:
        >>> import torch
        >>> from fedpriv.privacy import BlockClip, Clip, ConvexHull
        >>> clip = BlockClip([(1, Clip(0.5)), (2, ConvexHull(torch.eye(2)))])
        >>> round(clip.bound, 3), round(clip.diameter, 3)
        (1.118, 1.732)
        >>> clip.rows(torch.tensor([[2.0, 1.0, 0.0]]))[0].tolist()
        [[0.5, 1.0, 0.0]]
    """

    blocks: tuple[tuple[int, Clip], ...]

    def __init__(self, blocks: Sequence[tuple[int, Clip]]) -> None:
        if not blocks:
            raise ConfigError("privacy.clip.blocks", blocks, "must have at least one block")
        for width, clip in blocks:
            if type(clip) not in (Clip, ConvexHull) or clip.norm != "l2" or width < 1:
                raise ConfigError(
                    "privacy.clip.blocks", (width, clip), "must be a width with an l2 Clip or a ConvexHull"
                )
            if isinstance(clip, ConvexHull) and width != len(clip.vertices):
                fix = f"must have the width {len(clip.vertices)}, one for each vertex"
                raise ConfigError("privacy.clip.blocks", width, fix)
        up = 1 + (len(blocks) + 8) * 2.0**-52
        bounds = torch.tensor([clip.bound for _, clip in blocks], dtype=torch.float64)
        diameters = torch.tensor([clip.diameter for _, clip in blocks], dtype=torch.float64)
        self._set_bound(float(torch.linalg.vector_norm(bounds)) * up)
        object.__setattr__(self, "blocks", tuple((int(width), clip) for width, clip in blocks))
        object.__setattr__(self, "_diameter", float(torch.linalg.vector_norm(diameters)) * up)

    @property
    def diameter(self) -> float:
        """See `Clip`."""
        return self._diameter  # pyright: ignore[reportAttributeAccessIssue] - set with the blocks

    @property
    def _widths(self) -> list[int]:
        return [width for width, _ in self.blocks]

    def bounded(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """See `RowClip`."""
        _check_width(rows, sum(self._widths))
        parts, broken = list[Tensor](), torch.zeros(rows.shape[:-1], dtype=torch.bool, device=rows.device)
        for (_, clip), part in zip(self.blocks, rows.split(self._widths, -1), strict=True):
            if isinstance(clip, ConvexHull):
                bounded, is_broken = clip.bounded(part)
            else:
                bounded, is_broken = clip.rows(part)
            parts.append(bounded)
            broken |= is_broken
        return torch.cat(parts, -1), broken

    def image(self, bounded: Tensor) -> Tensor:
        """See `RowClip`."""
        parts = list[Tensor]()
        for (_, clip), part in zip(self.blocks, bounded.split(self._widths, -1), strict=True):
            parts.append(clip.image(part) if isinstance(clip, ConvexHull) else part)
        return torch.cat(parts, -1)

    def __eq__(self, other: object) -> bool:
        return type(other) is BlockClip and self.blocks == other.blocks

    def __hash__(self) -> int:
        return hash(self.blocks)


def _check_width(rows: Tensor, width: int) -> None:
    """Raises for rows of another width.

    Raises:
        ConfigError: If the model has another number of parameters than the clip has entries.
    """
    if rows.shape[-1] != width:
        raise ConfigError("privacy.clip", width, f"must have an entry for each of the {rows.shape[-1]} parameters")
