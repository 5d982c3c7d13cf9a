"""Contains the only code that reads the data: it accepts queries, computes gradients, and returns private results."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
