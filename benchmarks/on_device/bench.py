"""Shared setup and measurements of the checks in `device_check.py`: milliseconds, kernels, waits and bytes."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from fedpriv.clients.batch import Batch
from fedpriv.models.nested import map_tree

ROOT = Path(__file__).parents[2]
HELPERS = ("tests/helpers", "tests/oracle", "tests/privacy", "tests/theory", "benchmarks/speed")
sys.path += [str(ROOT / folder) for folder in HELPERS if str(ROOT / folder) not in sys.path]

Facts = dict[str, Any]
"""The result of a check as JSON values. `passed` is present if the check can fail."""


@dataclass(frozen=True)
class Bench:
    """The device, size and folders of a check.

    Attributes:
        device: The device.
        small: True if sizes are the smallest; the numbers are then meaningless.
        folder: An empty folder for files.
        data: A folder with `mnist/` and `femnist/`; None if there is none.
    """

    device: torch.device
    small: bool
    folder: Path
    data: Path | None = None

    @property
    def on_gpu(self) -> bool:
        """True if the device is a GPU."""
        return self.device.type == "cuda"

    def of(self, size: int, small: int) -> int:
        """Returns a size, or the one of small runs."""
        return small if self.small else size

    def wait(self) -> None:
        """Returns when the device has completed all its work."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def there(self, batch: Batch) -> Batch:
        """Returns a batch on the device."""
        x, y = map_tree(lambda values: values.to(self.device), (batch.inputs, batch.targets))
        return replace(batch, rows=batch.rows.to(self.device), inputs=x, targets=y, mask=batch.mask.to(self.device))


@dataclass(frozen=True)
class Check:
    """One check of a stage.

    Attributes:
        name: Its name in results.
        run: Computes the result.
        seconds: Approximate time on an H100; the check is stopped after four times as long, and at least 20 seconds.
    """

    name: str
    run: Callable[[Bench], Facts] = field(repr=False)
    seconds: float = 2.0


def in_turns(steps: Mapping[str, Callable[[], object]], seconds: float, bench: Bench) -> dict[str, float]:
    """Returns the median milliseconds of each step; the steps take turns, each of at least 20 ms."""
    counts: dict[str, int] = {}
    for name, step in steps.items():
        step()  # warm-up: libraries are loaded and kernels selected
        spent = _seconds(step, 1 if bench.small else 3, bench)
        counts[name] = 1 if bench.small else max(int(0.02 / max(spent, 1e-6)), 1)
    found: dict[str, list[float]] = {name: [] for name in steps}
    end = monotonic() + seconds
    while not found[next(iter(steps))] or (monotonic() < end and not bench.small):
        for name, step in steps.items():
            found[name].append(1e3 * _seconds(step, counts[name], bench))
    return {name: round(median(values), 4) for name, values in found.items()}


def _seconds(step: Callable[[], object], times: int, bench: Bench) -> float:
    """Returns the seconds of one call, until the device has completed it."""
    bench.wait()
    start = monotonic()
    for _ in range(times):
        step()
    bench.wait()
    return (monotonic() - start) / times


def peak_megabytes(step: Callable[[], object], bench: Bench) -> float | None:
    """Returns the peak GPU megabytes of a step, above the memory in use before it; None without a GPU."""
    if not bench.on_gpu:
        step()
        return None
    bench.wait()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(bench.device)
    before = torch.cuda.memory_allocated(bench.device)
    step()
    bench.wait()
    return round((torch.cuda.max_memory_allocated(bench.device) - before) / 2**20, 1)


@contextmanager
def waits(bench: Bench) -> Iterator[Counter[str]]:
    """Counts the places at which the CPU waits for the GPU, by file and line; complete only after the block.

    Torch warns about copies that wait and about reading numbers and shapes, but not about `torch.cuda.synchronize`.
    """
    found: Counter[str] = Counter()
    if not bench.on_gpu:
        yield found
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for warning in caught:
        if "called a synchronizing" in str(warning.message):
            path = Path(warning.filename)
            found[f"{path.parent.name}/{path.name}:{warning.lineno}"] += 1


@dataclass(frozen=True)
class Work:
    """An operation on the GPU: its start and end in microseconds, and its name."""

    start: float
    end: float
    name: str


def gpu_work(step: Callable[[], object], bench: Bench) -> list[Work]:
    """Returns all GPU operations of a step, in the order of their start."""
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        bench.wait()
    events = seen.events() or ()
    work = [
        Work(event.time_range.start, event.time_range.end, event.name)
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    return sorted(work, key=lambda piece: piece.start)


def observed(step: Callable[[], object], bench: Bench) -> Facts:
    """Returns kernels, transfers, waits and gaps of two steps: one is watched by torch's warnings, one profiled."""
    if not bench.on_gpu:
        step()
        return {}
    with waits(bench) as waited:
        step()
        bench.wait()
    facts: Facts = {"waits": sum(waited.values()), "waits_at": dict(waited.most_common(8))}
    work = gpu_work(step, bench)
    copies = [piece for piece in work if piece.name.startswith("Memcpy")]
    kernels = [piece for piece in work if not piece.name.startswith(("Memcpy", "Memset"))]
    facts |= {
        "kernels": len(kernels),
        "uploads": sum("HtoD" in piece.name for piece in copies),
        "downloads": sum("DtoH" in piece.name for piece in copies),
    }
    if not work:
        return facts | {"note": "the profiler saw nothing of the GPU"}
    names: Counter[str] = Counter()
    for piece in work:
        names[short(piece.name)] += round(piece.end - piece.start)
    return facts | idle(work) | {"kernels_us": dict(names.most_common(8))}


def idle(work: list[Work]) -> Facts:
    """Returns the share of time in which the GPU computed, and the operations around its longest waits."""
    gaps: Counter[str] = Counter()
    busy, end, last = 0.0, work[0].start, work[0]
    for piece in work:
        if piece.start > end:
            gaps[f"{short(last.name)} -> {short(piece.name)}"] += round(piece.start - end)
        busy += max(piece.end - max(piece.start, end), 0.0)
        if piece.end >= end:
            end, last = piece.end, piece
    whole = max(end - work[0].start, 1e-9)
    return {"gpu_ms": round(busy / 1e3, 3), "busy": round(busy / whole, 3), "idle_us": dict(gaps.most_common(6))}


def short(name: str) -> str:
    """Returns the distinctive part of a kernel's name."""
    for prefix in ("void ", "at::native::", "(anonymous namespace)::"):
        name = name.replace(prefix, "")
    return name[:70]


def distance(found: Tensor, wanted: Tensor) -> float:
    """Returns the largest difference over the largest number, for tensors on any device."""
    found, wanted = found.detach().double().cpu(), wanted.detach().double().cpu()
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-300))
