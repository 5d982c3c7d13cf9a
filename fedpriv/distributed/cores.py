"""The number of processor cores that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_V2 = Path("/sys/fs/cgroup/cpu.max")
_V1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def usable_cores() -> int:
    """Returns the number of cores that this process may use: the cores to which it is bound, but at most the CPU limit
    of its container.

    A container's limit (`docker run --cpus 2`, a Kubernetes limit) does not hide cores. Without this function, torch
    would start a thread for each core of the machine, and the threads would wait for each other. A fraction of a core
    counts as one core.
    """
    if hasattr(os, "sched_getaffinity"):
        bound = len(os.sched_getaffinity(0))
    else:
        bound = os.cpu_count() or 1
    return max(1, min(bound, _share(_V2, *_V1)))


def _share(v2: Path, quota_file: Path, period_file: Path) -> int:
    """Returns the cores of CPU time that the container may use, rounded up; a large number without a limit."""
    try:
        if v2.exists():
            quota, period = v2.read_text(encoding="ascii").split()
        else:
            quota = quota_file.read_text(encoding="ascii")
            period = period_file.read_text(encoding="ascii")
        if int(quota) > 0 and int(period) > 0:
            return -(-int(quota) // int(period))
    except (OSError, ValueError):  # no such files, or "max": no limit
        pass
    return 2**31
