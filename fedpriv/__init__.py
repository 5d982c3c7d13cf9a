"""fedpriv: federated training of PyTorch models with differential privacy.

`__init__.pyi` lists the names that most users need. Modules are imported when one of their names is first used, so that
`import fedpriv` and `fedpriv --help` are fast.
"""

import pkgutil

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
# `fedpriv.data` is found, but `from fedpriv import *` takes no module of such a plain name
__all__ = sorted({*_names} - {module.name for module in pkgutil.iter_modules(__path__)})  # pyright: ignore
