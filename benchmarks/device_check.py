"""Checks correctness and measures speed on a GPU in its first run, with one command that takes less than ten minutes.

    python benchmarks/device_check.py --out FOLDER [--data FOLDER] [--only STAGE ...] [--checks WORD ...]

Stages: `truth` (sensitivity, noise, backends, resume), `speed` (gradients and rounds), `memory` (noise, peak memory, a
million parameters) and `runs` (MNIST and FEMNIST end to end). Each stage runs in a separate process with a time limit,
and each check also has a limit. Meanwhile another process counts the rounds of `speed` on a simulated device.

The result of a check is a line of JSON, which is written to FOLDER/device_check.jsonl as soon as the check ends, so a
run that is cut off keeps its results. A check that raises an error is recorded, as is one that ends its process; the
stage then continues with the next check. FOLDER/device_check.md has a table of all results after each stage.

`--data` names a folder like $FEDPRIV_DATA. If MNIST or FEMNIST is missing in it, the script generates images of the
same shape and approximate number. Without a GPU all stages run at their smallest sizes on the CPU, and their numbers
are meaningless.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

HERE = Path(__file__).resolve().parent
STAGES = {"truth": 170, "speed": 180, "memory": 60, "runs": 130}
"""Seconds that each stage may take on a GPU: together with their starts less than ten minutes."""
GRACE = 3.0  # seconds in which a stage may record its last check after its time limit
POISONED = 3  # exit code of a child if the GPU accepts no more work from this process


def main() -> int:
    """Runs the stages; returns 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/device"), help="folder of the results")
    parser.add_argument("--data", type=Path, help="folder with mnist/ and femnist/")
    parser.add_argument("--only", nargs="+", default=[*STAGES], metavar="STAGE", help="stages, or modules with CHECKS")
    parser.add_argument(
        "--checks", nargs="+", default=[""], metavar="WORD", help="checks whose name has one of the words"
    )
    parser.add_argument("--device", default="auto", help="cuda, cpu, or pretend for a device that only counts")
    parser.add_argument("--limit", type=float, default=570.0, help="seconds of the whole run")
    parser.add_argument("--stage-limit", type=float, help="seconds of each stage")
    parser.add_argument("--child", action="store_true", help="run the only stage in this process")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.child:
        return child(options)
    results = Results(options.out / "device_check.jsonl")
    results.path.unlink(missing_ok=True)
    end = monotonic() + options.limit
    counting = start("counts", end, "--device", "pretend") if "speed" in options.only else None
    for stage in options.only:
        limit = options.stage_limit or STAGES.get(stage, 60.0)
        supervise(stage, min(monotonic() + limit, end), results)
        (options.out / "device_check.md").write_text(table(results.read()), encoding="utf-8")
    if counting is not None:
        finish(counting, "counts", end, results)
    lines = results.read()
    (options.out / "device_check.md").write_text(table(lines), encoding="utf-8")
    print(table(lines))
    bad = [line for line in lines if line["state"] in ("failed", "error", "crashed", "late")]
    print(f"{sum(line['state'] == 'passed' for line in lines)} passed, {len(bad)} failed", flush=True)
    return 1 if bad else 0


# --- results


class Results:
    """Lines of JSON, each on the disk before the next check begins.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, **facts: Any) -> None:
        """Appends a line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts, default=str) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[dict[str, Any]]:
        """Returns all whole lines."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def states(self, stage: str) -> dict[str, str]:
        """Returns the newest state of each check of a stage."""
        return {line["check"]: line["state"] for line in self.read() if line["stage"] == stage}


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Returns the results as Markdown, with complete failures."""
    shown = ["| stage | check | state | s | found |", "| --- | --- | --- | --- | --- |"]
    for line in lines:
        if line["state"] == "started":
            continue
        own = {"stage", "check", "state", "seconds", "passed"}
        found = json.dumps({key: value for key, value in line.items() if key not in own}).replace("|", "\\|")
        width = 700 if line["state"] in ("failed", "error", "crashed") else 260
        cells = (line["stage"], line["check"], line["state"], str(line.get("seconds", "")), found[:width])
        shown.append(f"| {' | '.join(cells)} |")
    return "\n".join(shown) + "\n"


# --- the waiting process


def supervise(stage: str, end: float, results: Results) -> None:
    """Runs a stage in separate processes: a check that ends its process, or hangs, is skipped by the next one."""
    print(f"== {stage}: {max(end - monotonic(), 0):.0f} s", flush=True)
    while monotonic() < end:
        before = results.states(stage)
        code = finish(start(stage, end), stage, end, results)
        if code == 0:
            return
        if results.states(stage) == before:  # the process does not even start
            results.add(stage=stage, check="start", state="crashed", code=code)
            return


def start(stage: str, end: float, *changes: str) -> subprocess.Popen[bytes]:
    """Starts the process of a stage, with the arguments of this one and some others."""
    arguments = [*sys.argv[1:], *changes, "--child", "--only", stage, "--stage-limit", str(end - monotonic())]
    return subprocess.Popen([sys.executable, str(HERE / "device_check.py"), *arguments])


def finish(process: subprocess.Popen[bytes], stage: str, end: float, results: Results) -> int:
    """Waits for a stage, ends it at its time limit, and records the check that was running."""
    try:
        code = process.wait(max(end - monotonic(), 0.0) + GRACE)
        why = "crashed"
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
        why = "late"
    for check, state in results.states(stage).items():
        if state == "started":
            results.add(stage=stage, check=check, state=why, code=code)
            print(f"{stage}: {check}: {why} ({code})", flush=True)
    return code


# --- the checking process


def child(options: argparse.Namespace) -> int:
    """Runs the unfinished checks of one stage."""
    end = monotonic() + options.stage_limit
    (stage,) = options.only
    results = Results(options.out / "device_check.jsonl")
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    warnings.simplefilter("ignore")
    import torch

    with computing_on(options.device) as device, TemporaryDirectory() as folder:
        from on_device.bench import Bench

        small = device.type == "cpu" or not torch.cuda.is_available()
        bench = Bench(device, small, Path(folder), options.data)
        if not results.states("begin") and stage != "counts":
            results.add(stage="begin", check="machine", state="measured", **machine(device))
        name = f"on_device.{stage}" if stage in (*STAGES, "counts") else stage
        for check in importlib.import_module(name).CHECKS:
            is_chosen = any(word in check.name for word in options.checks)
            if not is_chosen or check.name in results.states(stage):
                continue
            left = end - monotonic()
            if bench.on_gpu and left < check.seconds:
                results.add(stage=stage, check=check.name, state="no time", left=round(left))
                continue
            facts = one(check, bench, left, stage, results)
            if bench.on_gpu and facts["state"] == "error" and "CUDA error" in facts["error"]:
                return POISONED
            gc.collect()
            if bench.on_gpu:
                torch.cuda.empty_cache()
    return 0


def one(check: Any, bench: Any, left: float, stage: str, results: Results) -> dict[str, Any]:
    """Runs a check and records its result."""
    results.add(stage=stage, check=check.name, state="started")
    start = monotonic()
    facts: dict[str, Any]
    try:
        with alarm(min(max(4 * check.seconds, 20.0), left) if bench.on_gpu else left):
            facts = check.run(bench)
            bench.wait()
        state = {True: "passed", False: "failed", None: "measured"}[facts.get("passed")]
    except TimeoutError as error:
        state, facts = "late", {"error": str(error)}
    except Exception as error:
        last = traceback.format_exc().splitlines()[-12:]
        state, facts = "error", {"error": f"{type(error).__name__}: {str(error)[:600]}", "traceback": last}
    line = {"stage": stage, "check": check.name, "state": state, "seconds": round(monotonic() - start, 2), **facts}
    results.add(**line)
    print(f"{stage}: {check.name}: {state} in {line['seconds']} s", flush=True)
    print(f"    {json.dumps(facts, default=str)[:1500]}", flush=True)
    return line


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raises `TimeoutError` after some seconds, at the next Python instruction."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1.0))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def computing_on(name: str) -> Iterator[Any]:
    """Yields the device with this name."""
    import torch

    if name == "pretend":
        sys.path.append(str(HERE.parent / "tests/helpers"))
        from counting_device import DEVICE, CountingDevice

        with CountingDevice():
            yield DEVICE
        return
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.init()
        device = torch.device("cuda", torch.cuda.current_device())
    else:
        torch.set_num_threads(1)
    yield device


def machine(device: Any) -> dict[str, Any]:
    """Returns a description of the machine that the results belong to."""
    import torch

    facts: dict[str, Any] = {
        "device": str(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
    }
    for package in ("numpy", "opacus", "transformers", "dp_accounting"):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": properties.name,
            "capability": f"{properties.major}.{properties.minor}",
            "gpu_mebibytes": properties.total_memory >> 20,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "driver": driver(),
        }
    return facts


def driver() -> str:
    """Returns the version of the GPU's driver."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({error})"


if __name__ == "__main__":
    sys.exit(main())
