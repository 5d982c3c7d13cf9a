"""The orders at which Rényi divergences are known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ORDERS: NDArray[np.float64] = np.array(
    [1.02, 1.03, 1.05, 1.07]
    + [1 + k / 10 for k in range(1, 20)]
    + [3 + k / 4 for k in range(32)]
    + [
        *range(11, 24),
        *range(24, 64, 2),
        64,
        72,
        80,
        96,
        112,
        128,
        160,
        192,
        256,
        384,
        512,
        1024,
        2048,
        4096,
        16384,
        65536,
    ]
)
