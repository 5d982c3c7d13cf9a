"""fedpriv: federated training with differential privacy that is true.

What most users need is in `__init__.pyi`, by name and module; everything else is in the modules they come from. A
module is imported when one of its names is asked for, so that `import fedpriv` and `fedpriv --help` wait for nothing
that is not used.
"""

import pkgutil

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
# `fedpriv.data` is found, but `from fedpriv import *` takes no module of such a plain name
__all__ = sorted({*_names} - {module.name for module in pkgutil.iter_modules(__path__)})  # pyright: ignore
