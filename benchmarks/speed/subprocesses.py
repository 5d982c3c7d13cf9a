"""Runs work in separate processes, since peak memory never falls, and for peers in other environments."""

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
    """Returns the result of a function of this folder from a fresh process; a smoke run calls it here.

    Args:
        work: A function in a module of this folder, with arguments and a result that can be stored as JSON.
        arguments: Its arguments.
        effort: Settings of the run.
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
