"""What is shown of a run: pictures, tables, and sinks that its rounds go to."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["comparison", "report", "sinks"])
