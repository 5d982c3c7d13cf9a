"""The only door to the data: queries, their private answers, and how gradients are computed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
