"""From a ledger to epsilon: privacy loss distributions, Renyi orders, and closed forms."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
