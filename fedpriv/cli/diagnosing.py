"""Inspects the installation and the machine: the environment of runs, with a fix for each problem."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from filelock import FileLock
from rich.markup import escape

from fedpriv import __version__
from fedpriv.cli.printing import out, print_json
from fedpriv.data.torchvision_compat import import_torchvision, is_mended, versions_and_fix
from fedpriv.distributed import usable_cores
from fedpriv.errors import FedprivError

State = Literal["ok", "note", "problem"]
EXTRAS = {
    "torchvision": ("torchvision",),
    "hf": ("transformers", "peft", "datasets"),
    "tune": ("optuna",),
    "zenoh": ("zenoh",),
    "flower": ("flwr",),
    "metrics": ("prometheus_client",),
    "mlflow": ("mlflow",),
    "onnx": ("onnxruntime",),
    "parquet": ("pyarrow",),
    "secrets": ("keyring", "pyrage"),
    "sql": ("sqlalchemy",),
    "wandb": ("wandb",),
}
DATA_FOLDERS = ("adult", "breast-cancer-wisconsin", "covertype", "femnist", "heart", "libsvm", "mnist", "monks")
_COLOURS = {"ok": "green", "note": "yellow", "problem": "bold red"}
_NEEDED = 1 << 30  # bytes: checkpoints and ledgers of a usual run, twice
_SUPPORTED = ((3, 11), (3, 13))


@dataclass(frozen=True)
class Finding:
    """One fact about the installation.

    Attributes:
        name: Name of the inspected item.
        state: `"ok"`; `"note"` if something is slower, or missing and optional; `"problem"` otherwise.
        text: Description.
        fix: Suggested fix; empty if none is needed.
    """

    name: str
    state: State
    text: str
    fix: str = ""


def collect_findings(folder: Path) -> list[Finding]:
    """Returns all findings; `folder` is the folder in which runs would be written."""
    findings = [_versions(), _python(), _torch(), _devices(), _torchvision(), _threads()]
    findings += [_extras(), _data(), _disk(folder), *_file_system(folder)]
    return findings


def print_findings(folder: Path, *, as_json: bool) -> bool:
    """Prints all findings, and returns True if there is a problem."""
    findings = collect_findings(folder)
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            colour = _COLOURS[finding.state]
            out.print(f"[{colour}]{finding.state:<7}[/]  [bold]{finding.name:<{width}}[/]  {escape(finding.text)}")
            if finding.fix:
                out.print(f"{'':<{width + 11}}{escape(finding.fix)}")
    return any(finding.state == "problem" for finding in findings)


def _versions() -> Finding:
    names = ("torch", "torchvision", "numpy", "scipy", "dp-accounting", "pydantic")
    return Finding("fedpriv", "ok", f"{__version__}, with " + ", ".join(f"{name} {_version(name)}" for name in names))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _python() -> Finding:
    text = f"{platform.python_version()} at {sys.executable}"
    if _SUPPORTED[0] <= sys.version_info[:2] <= _SUPPORTED[1]:
        return Finding("python", "ok", text)
    return Finding("python", "problem", text, "fedpriv is tested with Python 3.11 to 3.13")


def _torch() -> Finding:
    """Returns the device for which torch was built, and a hint if a smaller wheel is sufficient."""
    build = "built for CPU"
    if torch.version.cuda is not None:
        build = f"built for CUDA {torch.version.cuda}"
    elif getattr(torch.version, "hip", None):
        build = f"built for ROCm {torch.version.hip}"
    text = f"{torch.__version__}, {build}"
    if torch.version.cuda is not None and not torch.cuda.is_available() and shutil.which("nvidia-smi") is None:
        fix = (
            "there is no NVIDIA driver, so a CPU wheel of torch would be enough and saves gigabytes "
            "(pytorch.org/get-started/locally)"
        )
        return Finding("torch", "note", text, fix)
    return Finding("torch", "ok", text)


def _devices() -> Finding:
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        return Finding("device", "ok", f"cuda: {names}; used unless compute.device is cpu")
    if torch.backends.mps.is_available():
        return Finding("device", "ok", "mps; used unless compute.device is cpu")
    if shutil.which("nvidia-smi") is None:
        return Finding("device", "ok", "cpu")
    if torch.version.cuda is None:
        fix = "install torch for CUDA: pytorch.org/get-started/locally"
    else:
        fix = f"the driver does not support CUDA {torch.version.cuda}: update it, or install torch for an older CUDA"
    return Finding("device", "problem", "cpu; torch cannot use the installed NVIDIA driver", fix)


def _torchvision() -> Finding:
    if importlib.util.find_spec("torchvision") is None:
        return Finding(
            "torchvision", "ok", "not installed; needed only for data sets in its layout and the MNIST download"
        )
    try:
        import_torchvision("datasets")
    except FedprivError as error:
        return Finding("torchvision", "problem", "cannot be imported with this torch", str(error))
    if is_mended():
        text = f"{_version('torchvision')}: fedpriv can read its data sets, but `import torchvision` fails in your code"
        return Finding("torchvision", "note", text, versions_and_fix())
    return Finding("torchvision", "ok", f"{_version('torchvision')} works with this torch")


def _threads() -> Finding:
    cores = usable_cores()
    threads = torch.get_num_threads()
    text = f"torch uses {threads} of {cores} cores"
    if threads < cores:
        fix = f"compute.threads={cores} uses all; OMP_NUM_THREADS is {os.environ.get('OMP_NUM_THREADS', 'not set')}"
        return Finding("threads", "note", text, fix)
    return Finding("threads", "ok", text)


def _extras() -> Finding:
    installed: list[str] = []
    missing: list[str] = []
    for extra, modules in EXTRAS.items():
        if all(importlib.util.find_spec(module) is not None for module in modules):
            installed.append(extra)
        else:
            missing.append(extra)
    text = f"installed: {', '.join(installed) or 'none'}; not: {', '.join(missing) or 'none'}"
    return Finding("extras", "ok", text)


def _data() -> Finding:
    shared = os.environ.get("FEDPRIV_DATA")
    if shared is None:
        fix = "set it to a folder with, e.g., mnist/ or adult/; digits, sensors and your own files do not need it"
        return Finding("data", "note", "FEDPRIV_DATA is not set", fix)
    folder = Path(shared)
    if not folder.is_dir():
        return Finding("data", "problem", f"FEDPRIV_DATA={shared} is not a folder", "set it to a folder, or unset it")
    present = [name for name in DATA_FOLDERS if (folder / name).is_dir()]
    if not present:
        fix = f"name a folder that contains one of {', '.join(DATA_FOLDERS)}"
        return Finding("data", "note", f"FEDPRIV_DATA={shared} contains none of fedpriv's data sets", fix)
    absent = [name for name in DATA_FOLDERS if name not in present]
    return Finding("data", "ok", f"FEDPRIV_DATA={shared}: {', '.join(present)}; not: {', '.join(absent) or 'none'}")


def _disk(folder: Path) -> Finding:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(
            "disk", "problem", f"{folder} cannot be read ({error.strerror})", "name another folder (--folder)"
        )
    text = f"{free / 2**30:.1f} GiB free at {folder.resolve()}"
    if free < _NEEDED:
        return Finding("disk", "problem", text, "free some space: a run stops if it cannot write its ledger")
    return Finding("disk", "ok", text)


def _file_system(folder: Path) -> Iterator[Finding]:
    """Tests the requirements of runs: locks, private files, atomic file writes, and writes that reach the disk.

    Yields:
        A finding for locks, and one for files.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".fedpriv-doctor-", dir=folder) as name:
            scratch = Path(name)
            yield _locks(scratch)
            yield _files(scratch)
    except OSError as error:
        text = f"{folder} cannot be written ({error.strerror})"
        yield Finding("files", "problem", text, "name a folder that you can write to (--folder)")


def _locks(scratch: Path) -> Finding:
    first, second = (FileLock(scratch / "lock", thread_local=False, fallback_to_soft=False) for _ in range(2))
    try:
        with first:
            try:
                second.acquire(blocking=False)
            except TimeoutError:
                return Finding("locks", "ok", "one writer per folder: a second writer is locked out")
            second.release(force=True)
    except OSError as error:
        fix = "two runs could write one ledger: put runs and budgets on a local disk"
        return Finding("locks", "problem", f"this file system has no locks ({error.strerror})", fix)
    return Finding("locks", "problem", "a second writer is not locked out", "put runs and budgets on a local disk")


def _files(scratch: Path) -> Finding:
    path = scratch / "private"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
    os.replace(path, scratch / "renamed")
    mode = stat.S_IMODE((scratch / "renamed").stat().st_mode)
    if os.name == "posix" and mode != 0o600:
        fix = "others can read checkpoints, which are as secret as the data: use another folder"
        return Finding("files", "problem", f"have mode {mode:o} instead of 600", fix)
    return Finding("files", "ok", "mode 600, renamed atomically, synced to the disk")
