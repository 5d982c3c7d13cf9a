"""Stage `counts`: GPU operations of a round, counted on a simulated device while other stages use the real one."""

from __future__ import annotations

from functools import partial

from on_device.bench import Bench, Check, Facts

# parts of other benchmarks, found by `on_device.bench`
import device as rounds  # isort: skip
from rows import SMOKE, Effort  # isort: skip


def counted(name: str, bench: Bench) -> Facts:
    """Returns kernels, uploads and waits of the second round."""
    found = rounds.counted(rounds.CASES[name], SMOKE if bench.small else Effort())
    return {"kernels": found.kernels, "uploads": found.uploads, "waits": found.synchronisations}


CHECKS = [Check(f"round, {name}", partial(counted, name), 15) for name in rounds.CASES]
