"""The parts of an algorithm, FedAvg and its family, and gradient descent."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
