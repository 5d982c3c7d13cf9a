"""Regularisers and sets in a configuration: `regularizer: {l2: {lam: 1e-3}}`."""

from __future__ import annotations

from fedpriv.config.base import Choice
from fedpriv.strategies.proximal import L1, L2, Ball, Box, ElasticNet, Proximal, Simplex, Zero


class RegularizerChoice(Choice):
    """One of the functions of `fedpriv.strategies.proximal`, or none."""

    neither = "zero"

    l2: L2 | None = None
    l1: L1 | None = None
    elastic_net: ElasticNet | None = None
    ball: Ball | None = None
    box: Box | None = None
    simplex: Simplex | None = None

    def build(self) -> Proximal:
        """The function."""
        chosen = (self.l2, self.l1, self.elastic_net, self.ball, self.box, self.simplex)
        return next((part for part in chosen if part is not None), Zero())
