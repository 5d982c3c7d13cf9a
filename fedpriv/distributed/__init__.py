"""The processes of a run and their messages, with the terms of torch.distributed."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
