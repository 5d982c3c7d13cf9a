"""fedpriv: federated training of PyTorch models with differential privacy.

`__init__.pyi` lists the names that most users need. Modules are imported when one of their names is first used, so
`import fedpriv` and `fedpriv --help` are fast.
"""

import pkgutil

import lazy_loader

__version__ = "0.4.0"
_load, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
# `fedpriv.data` is available, but `from fedpriv import *` imports neither modules with such plain names nor modules
# that import scikit-learn
_of_scikit_learn = {"PrivateLogisticRegression", "PrivateScaler", "PublicEncoder", "check_pipeline"}
_modules = {module.name for module in pkgutil.iter_modules(__path__)}
__all__ = sorted({*_names} - _of_scikit_learn - _modules)  # pyright: ignore


def __getattr__(name: str) -> object:
    """Imports the object of a name; for a name of another library, raises an error with fedpriv's equivalent."""
    try:
        return _load(name)
    except AttributeError:
        if name in _modules or name.startswith("_"):  # Python requests these on imports
            raise
        from fedpriv.settings.translations import (
            format_attribute_error,  # imported here, since only this error needs it
        )

        raise AttributeError(format_attribute_error("fedpriv", name, "fedpriv"), name=name) from None
