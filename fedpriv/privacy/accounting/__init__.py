"""Computes epsilon from a ledger, by privacy loss distributions, Rényi divergences, and closed forms."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
