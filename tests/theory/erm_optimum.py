"""Regularised logistic regression of one owner, its optimum by another solver, and the gap to it."""

from __future__ import annotations

import numpy as np
from erm_worlds import l2_optimum, logistic_data, logistic_objective

LAM = 0.05
X, Y = logistic_data()
ONE = [(X, Y)]
OPTIMUM = l2_optimum(X, Y, LAM)


def gap(w: np.ndarray, lam: float = LAM) -> float:
    def value(v):
        return logistic_objective(v, X, Y)[0] + lam / 2 * v @ v

    return value(w) - value(OPTIMUM)
