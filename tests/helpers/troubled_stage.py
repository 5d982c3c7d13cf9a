"""A stage for `benchmarks/device_check.py` in which much goes wrong."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from on_device.bench import Bench, Check, Facts


def good(bench: Bench) -> Facts:
    return {"passed": True, "found": 3}


def bad(bench: Bench) -> Facts:
    return {"passed": False}


def raises(bench: Bench) -> Facts:
    raise ValueError("for a reason")


def exits_process(bench: Bench) -> Facts:
    os._exit(7)


def hangs(bench: Bench) -> Facts:
    time.sleep(600)
    return {}


CHECKS = [Check(check.__name__, check) for check in (good, bad, raises, exits_process)]
CHECKS += [Check("good again", good), Check("hangs", hangs)]
