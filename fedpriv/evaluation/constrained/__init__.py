"""The distance of a solution with constraints from the best one; loaded by runs that have constraints."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
