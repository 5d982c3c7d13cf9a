"""Private statistics of tables: means, quantiles, histograms and counts, in the ledger and budget of training."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
