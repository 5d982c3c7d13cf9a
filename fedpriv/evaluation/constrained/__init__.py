"""Measures how far a solution is from the optimum of a problem with constraints. Only runs with constraints load this
package.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
