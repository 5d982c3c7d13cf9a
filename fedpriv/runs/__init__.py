"""The steps from settings to a result: stages, rounds, checkpoints, files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
