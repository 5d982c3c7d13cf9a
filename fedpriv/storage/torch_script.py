"""What TorchScript computes, as text and constants: code of a user's that has left Python."""

from __future__ import annotations

import io
import re
import zipfile
from typing import Any, TypeGuard, cast

from torch import nn
from torch.jit import ScriptFunction, ScriptModule

from fedpriv.errors import ConfigError

# parts of names and ends of lines that differ from one compilation of the same code to the next
_COUNTED_NAME = re.compile(r"\.?___torch_mangle_\d+")
_PLACE_IN_A_FILE = re.compile(r" # \S+:\d+:\d+$", re.MULTILINE)


def is_torch_script(value: object) -> TypeGuard[ScriptFunction[..., object] | ScriptModule]:
    """Returns whether a value is a function or network that TorchScript has compiled, traced or loaded."""
    return isinstance(value, ScriptFunction | ScriptModule)


def computed_by(value: ScriptFunction[..., object] | ScriptModule) -> list[tuple[str, object]]:
    """Returns what determines the results of TorchScript beside trained parameters, by name.

    These are its operations, its constants, its attributes and, of a network, buffers and frozen parameters. They are
    the same however often the same code is compiled in a process.

    Raises:
        ConfigError: it calls Python functions, which it does not hold.
    """
    try:
        saved: bytes = cast("Any", value).save_to_buffer()  # torch's stubs ask for an argument that has a default
    except RuntimeError as error:
        fix = "calls Python functions that it does not hold (torch.jit.ignore): give the Python function itself"
        raise ConfigError("TorchScript", _name(value), fix) from error
    archive = zipfile.ZipFile(io.BytesIO(saved))
    contents: list[tuple[str, object]] = [("operations", _operations(value))]
    for path in sorted(archive.namelist()):
        name = path.partition("/")[2]
        if name == "data.pkl" or name.startswith("constants"):
            contents.append((name, _COUNTED_NAME.sub("", archive.read(path).decode("latin-1"))))
    if isinstance(value, nn.Module):
        contents += value.named_buffers()
        contents += [(name, parameter) for name, parameter in value.named_parameters() if not parameter.requires_grad]
    return contents


def _operations(value: ScriptFunction[..., object] | ScriptModule) -> str:
    """Returns the operations of a function, or of the forward pass of a network, with those of all that it calls."""
    graph = getattr(value, "inlined_graph", None)
    if graph is None:  # a network without a forward pass
        return ""
    return _COUNTED_NAME.sub("", _PLACE_IN_A_FILE.sub("", graph.str(False)))


def _name(value: object) -> str:
    return str(getattr(value, "name", None) or type(value).__name__)
