"""Bounds of parameters, names of plug-ins, and the names of settings in other libraries."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
