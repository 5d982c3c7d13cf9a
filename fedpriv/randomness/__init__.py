"""Random streams: public ones from a seed, secret ones from a key; a name each, and no draw twice."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
