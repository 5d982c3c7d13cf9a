"""Examples of several clients in one padded block."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Examples of some clients, padded to one length.

    Attributes:
        rows: Position in the cohort of each row, `[k]`.
        inputs: `[k, b, ...]`.
        targets: `[k, b, ...]`.
        mask: `[k, b]`, False where padded.
    """

    rows: Tensor
    inputs: Tensor
    targets: Tensor
    mask: Tensor
