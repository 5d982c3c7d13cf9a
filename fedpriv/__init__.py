"""fedpriv: federated training of PyTorch models with differential privacy.

`__init__.pyi` lists the names that most users need. Modules are imported when one of their names is first used, so that
`import fedpriv` and `fedpriv --help` are fast.
"""

import pkgutil

import lazy_loader

__version__ = "0.4.0"
_load, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
# `fedpriv.data` is found, but `from fedpriv import *` takes no module of such a plain name, and nothing that imports
# scikit-learn
_of_scikit_learn = {"PrivateLogisticRegression", "PublicEncoder", "check_pipeline"}
_modules = {module.name for module in pkgutil.iter_modules(__path__)}
__all__ = sorted({*_names} - _of_scikit_learn - _modules)  # pyright: ignore


def __getattr__(name: str) -> object:
    """Imports what a name stands for; for a name of another library the error says what to write."""
    try:
        return _load(name)
    except AttributeError:
        if name in _modules or name.startswith("_"):  # Python asks for these on imports
            raise
        from fedpriv.settings.translations import attribute_error  # imported here, since only this error needs it

        raise AttributeError(attribute_error("fedpriv", name, "fedpriv"), name=name) from None
