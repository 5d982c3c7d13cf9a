"""Mediates all access to the data: queries, their private results, and the computation of gradients."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
