"""The one place that imports torchvision.

The package index's torchvision is built for CUDA. Beside a CPU build of torch its C++ library cannot load, and its
import then fails because it gives shape rules to two operators that this library would have declared. We need only its
data sets, so declaring the two operators is enough.
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


def import_torchvision(submodule: str) -> ModuleType:
    """`torchvision.<submodule>`.

    Raises:
        DataError: torchvision is absent, or does not work with this torch (names both versions and the fix).
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
        raise DataError(f"torchvision.{submodule} cannot be imported ({error}): {_versions_and_fix()}") from error


def _import(submodule: str) -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its image library cannot load either; we read no image files with it
        return importlib.import_module(f"torchvision.{submodule}")


def _declare_missing_operators() -> None:
    for name in _OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", _SCHEMA)
    # what the failed import left behind would be taken for the whole
    for module in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[module]


def _versions_and_fix() -> str:
    try:
        found = importlib.metadata.version("torchvision")
    except importlib.metadata.PackageNotFoundError:
        return "it is not installed; pip install torchvision"
    index = "cpu" if torch.version.cuda is None else "cu" + torch.version.cuda.replace(".", "")
    command = f"pip install --upgrade torch torchvision --index-url https://download.pytorch.org/whl/{index}"
    return f"found torch {torch.__version__} and torchvision {found}; install a matching pair: {command}"
