"""Clipping, noise, releases, the ledger, and the accountants that compute the privacy cost."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
