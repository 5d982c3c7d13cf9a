"""Epsilon by Rényi divergences alone, at the delta of these tests."""

from __future__ import annotations

from fedpriv.privacy.accounting import rdp
from fedpriv.privacy.accounting.events import Event

DELTA = 1e-5


def rdp_epsilon(history: dict[Event, int]) -> float:
    return float(rdp.compute_epsilons(rdp.compute_total(history), DELTA))
