"""The only module that imports torchvision.

With a CPU build of torch, the C++ library of PyPI's torchvision (built for CUDA) cannot be loaded, and importing
torchvision fails because two of that library's operators are missing. For its data sets, the only part needed here, it
is enough to declare the two operators.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import warnings
from types import ModuleType

import torch

from fedpriv.errors import DataError

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = ("nms", "qnms")
_declared = list[str]()  # operators that were missing in this process


def import_torchvision(submodule: str) -> ModuleType:
    """Imports `torchvision.<submodule>`.

    Raises:
        DataError: If torchvision is missing or does not work with this torch; the message has both versions and the
            fix.
    """
    try:
        try:
            return _import(submodule)
        except RuntimeError as error:
            if "operator torchvision::" not in str(error):
                raise
            _declare_missing_operators()
            return _import(submodule)
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        raise DataError(f"torchvision.{submodule} cannot be imported ({error}): {versions_and_fix()}") from error


def _import(submodule: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its image library cannot be loaded either; no image files are read with it
        return importlib.import_module(f"torchvision.{submodule}")


def _declare_missing_operators() -> None:
    for name in _OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", _SCHEMA)
            _declared.append(name)
    # modules that the failed import left behind would be mistaken for complete ones
    for module in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[module]


def is_mended() -> bool:
    """True if torchvision could be imported only with declared operators, so that `import torchvision` alone fails."""
    return bool(_declared)


def versions_and_fix() -> str:
    """Returns the installed versions, and the command that installs a matching pair."""
    try:
        version = importlib.metadata.version("torchvision")
    except importlib.metadata.PackageNotFoundError:
        return "torchvision is not installed; install it with pip install 'fedpriv[torchvision]'"
    if torch.version.cuda is None:
        index = "cpu"
    else:
        index = "cu" + torch.version.cuda.replace(".", "")
    command = f"pip install --upgrade torch torchvision --index-url https://download.pytorch.org/whl/{index}"
    return f"found torch {torch.__version__} and torchvision {version}; install a matching pair: {command}"
