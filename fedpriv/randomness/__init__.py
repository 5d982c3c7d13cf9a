"""Random streams. Public streams are computed from a seed, secret streams from a key. Each stream has a name, and no
draw is used twice.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
