"""The one place that imports torchvision.

The package index's torchvision is built for CUDA. Beside a CPU build of torch its C++ library cannot load, and its import
then fails because it gives shape rules to two operators that this library would have declared. We need only its data sets,
so declaring the two operators is enough.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import warnings
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
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
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise DataError("torchvision is not installed: pip install torchvision")
    _declare_missing_operators(Path(spec.origin).parent)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its image library cannot load either; we read no image files with it
            return importlib.import_module(f"torchvision.{submodule}")
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        raise DataError(f"torchvision.{submodule} cannot be imported ({error}): {_versions_and_fix()}") from error


def _declare_missing_operators(folder: Path) -> None:
    """Load torchvision's C++ library if that works; declare the operators that are still unknown."""
    for suffix in EXTENSION_SUFFIXES:
        library = folder / f"_C{suffix}"
        if library.is_file():
            try:
                torch.ops.load_library(str(library))
                break
            except OSError:
                continue
    for name in _OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", _SCHEMA)


def _versions_and_fix() -> str:
    found = importlib.metadata.version("torchvision")
    index = "cpu" if torch.version.cuda is None else "cu" + torch.version.cuda.replace(".", "")
    command = f"pip install torch torchvision --upgrade --index-url https://download.pytorch.org/whl/{index}"
    return f"found torch {torch.__version__} and torchvision {found}; install a matching pair: {command}"
