"""Compatible settings, and the plan: every release of a run, before it begins."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
