"""Work in a process of its own, for peak memory never falls, and for peers that live in other environments."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rows import Effort

HERE = Path(__file__).parent
_CALL = "import importlib, json, sys; f, a = json.loads(sys.argv[1]), json.loads(sys.argv[2]); "
_CALL += "print(json.dumps(getattr(importlib.import_module(f[0]), f[1])(*a)))"


def apart(work: Callable[..., Any], *arguments: object, effort: Effort, python: str | Path = sys.executable) -> Any:
    """What a function of this folder gives in a fresh process; in a smoke run here.

    Args:
        work: A function of a module of this folder, of arguments and with a result that JSON holds.
        arguments: Its arguments.
        effort: Of the run.
        python: The interpreter.
    """
    if effort.smoke:
        return work(*arguments)
    command = [
        str(python),
        "-c",
        _CALL,
        json.dumps([Path(inspect.getfile(work)).stem, work.__name__]),
        json.dumps(arguments),
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=HERE)
    return json.loads(done.stdout.splitlines()[-1])
