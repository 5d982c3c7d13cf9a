"""The modules of dp-accounting that are used here, imported without scipy.stats, scipy.signal and scipy.optimize.

These three modules take half a second to import, which would be most of the time of a small run's first round, and few
of dp-accounting's functions call them. While dp-accounting is imported, placeholders replace them; a placeholder
imports the real module when it is used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

# modules that dp-accounting always needs: imported before the stand-ins
import scipy.fft  # pyright: ignore[reportUnusedImport]
import scipy.special  # noqa: F401  # pyright: ignore[reportUnusedImport]

if TYPE_CHECKING:
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as dpa

__all__ = ["dpa", "pld_pmf"]
_SLOW = ("scipy.optimize", "scipy.signal", "scipy.stats")


class _DeferredAttribute:
    """Placeholder of an attribute of a module that is not imported yet; it can be called, and has attributes."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    def _resolved(self) -> Any:  # noqa: ANN401 - whatever the module has by that name
        return getattr(importlib.import_module(self._module), self._name)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._resolved(), name)

    def __call__(self, *args: Any, **named: Any) -> Any:  # noqa: ANN401
        return self._resolved()(*args, **named)


class _DeferredModule(ModuleType):
    """Placeholder of a module that is not imported yet."""

    def __getattr__(self, name: str) -> _DeferredAttribute:
        if name.startswith("__"):
            raise AttributeError(name)
        return _DeferredAttribute(self.__name__, name)


@contextmanager
def _deferred(names: tuple[str, ...]) -> Generator[None]:
    """A context in which modules that are not imported yet are replaced by placeholders. After the context, the modules
    can be imported.
    """
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        sys.modules[name] = _DeferredModule(name)
    try:
        yield
    finally:
        for name in missing:
            if isinstance(sys.modules.get(name), _DeferredModule):
                del sys.modules[name]


with _deferred(_SLOW):
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as dpa
