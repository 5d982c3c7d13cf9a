"""Computes epsilon from a ledger, with privacy loss distributions, Rényi divergences, and closed formulas."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
