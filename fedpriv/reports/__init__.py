"""Shows runs: pictures, tables, statements, and sinks that receive the report of each round."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["comparison", "report", "sinks"])
