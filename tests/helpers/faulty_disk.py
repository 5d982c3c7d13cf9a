"""Disks that fail, and disks that remember what a crash would have left.

A process that is killed leaves its files as they are at that moment. A power cut leaves what was synced, and of the
rest anything: no name and no content, names without content, content without names, or some of each.
"""

from __future__ import annotations

import errno
import json
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from fedpriv.storage.files import Disk

Files = dict[str, bytes]


@dataclass
class Node:
    """A file without its name."""

    data: bytes = b""
    durable: bytes = b""


@dataclass(frozen=True)
class CrashPoint:
    """Between two operations, or in the middle of one.

    Attributes:
        at: The operation.
        killed: The files if the process dies now.
        power_cuts: The files if the power goes now, in several ways.
        visible: Number of releases that an observer of the run may have received so far.
    """

    at: str
    killed: Files
    power_cuts: list[Files]
    visible: int


@dataclass
class RecordingDisk(Disk):
    """A disk that works, and remembers every moment in the life of a folder."""

    folder: Path
    moments: list[CrashPoint] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(0)
        self._nodes = {ino: Node(data, data) for ino, data in self._inodes().items()}  # what is there is on the disk
        self._durable_names = self._names()
        self._of_fd: dict[int, tuple[str, Node]] = {}

    def open(self, path: Path, flags: int) -> int:
        self._before(f"open {_plain(path)}")
        new = not path.exists()
        fd = super().open(path, flags)
        node = Node() if new else self._nodes[os.fstat(fd).st_ino]
        if flags & os.O_TRUNC:
            node.data = b""
        self._nodes[os.fstat(fd).st_ino] = node
        self._of_fd[fd] = _plain(path), node
        return fd

    def write(self, fd: int, data: bytes) -> None:
        name, node = self._of_fd[fd]
        self._before(f"write {name}")
        half = len(data) // 2
        super().write(fd, data[:half])
        node.data += data[:half]
        self._remember(f"half of write {name}")
        super().write(fd, data[half:])
        node.data += data[half:]

    def write_at(self, fd: int, place: int, data: bytes) -> None:
        name, node = self._of_fd[fd]
        self._before(f"write at a place of {name}")
        half = place + len(data) // 2
        for start, part in ((place, data[: half - place]), (half, data[half - place :])):
            os.lseek(fd, start, os.SEEK_SET)
            super().write(fd, part)
            node.data = node.data[:start].ljust(start, b"\0") + part + node.data[start + len(part) :]
            self._remember(f"a part of write at a place of {name}")

    def cut(self, fd: int, size: int) -> None:
        name, node = self._of_fd[fd]
        self._before(f"cut {name}")
        super().cut(fd, size)
        node.data = node.data[:size]

    def sync(self, fd: int) -> None:
        name, node = self._of_fd[fd]
        self._before(f"sync {name}")
        super().sync(fd)
        node.durable = node.data

    def rename(self, old: Path, new: Path) -> None:
        self._before(f"rename {new.name}")
        super().rename(old, new)

    def sync_folder(self, folder: Path) -> None:
        self._before("sync folder")
        super().sync_folder(folder)
        self._durable_names = self._names()

    def end(self) -> None:
        """The last moment."""
        self._remember("end")

    def _before(self, operation: str) -> None:
        self.operations.append(operation)
        self._remember(f"before {operation}")

    def _remember(self, at: str) -> None:
        live = self._names()
        killed = {name: node.data for name, node in live.items()}
        power_cuts = [
            {name: node.durable for name, node in self._durable_names.items()},
            {name: node.durable for name, node in live.items()},
            {name: node.data for name, node in self._durable_names.items()},
            self._some(live),
        ]
        rows = [json.loads(line) for line in killed.get("metrics.jsonl", b"").split(b"\n")[:-1]]
        self.moments.append(CrashPoint(at, killed, power_cuts, max((row["releases"] for row in rows), default=0)))

    def _some(self, live: dict[str, Node]) -> Files:
        found: Files = {}
        for name in sorted({*live, *self._durable_names}):
            node = self._random.choice([names.get(name) for names in (live, self._durable_names)])
            if node is not None:
                grows = node.data.startswith(node.durable)
                end = self._random.randint(len(node.durable), len(node.data)) if grows else 0
                found[name] = node.data[:end] if grows else self._random.choice([node.data, node.durable])
        return found

    def _names(self) -> dict[str, Node]:
        found = {entry.name: self._nodes.get(entry.inode()) for entry in os.scandir(self.folder) if entry.is_file()}
        return {name: node for name, node in found.items() if node is not None}  # but for the lock

    def _inodes(self) -> dict[int, bytes]:
        return {e.inode(): Path(e.path).read_bytes() for e in os.scandir(self.folder) if e.name != ".lock"}


@dataclass
class FullDisk(Disk):
    """A disk whose `last`-th operation, counted from 0, and all later ones that need space fail: half is written."""

    last: int
    count: int = 0

    def _full(self) -> bool:
        self.count += 1
        return self.count > self.last

    def open(self, path: Path, flags: int) -> int:
        if self._full() and not path.exists():
            raise _no_space(path)
        return super().open(path, flags)

    def write(self, fd: int, data: bytes) -> None:
        if self._full():
            super().write(fd, data[: len(data) // 2])
            raise _no_space()
        super().write(fd, data)

    def sync(self, fd: int) -> None:
        if self._full():
            raise _no_space()
        super().sync(fd)

    def rename(self, old: Path, new: Path) -> None:
        if self._full():
            raise _no_space(old)
        super().rename(old, new)

    def sync_folder(self, folder: Path) -> None:
        if self._full():
            raise _no_space(folder)
        super().sync_folder(folder)


def restore(folder: Path, files: Files) -> None:
    """Make a folder of these files."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _no_space(path: Path | None = None) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path and str(path))


def _plain(path: Path) -> str:
    """A name without the process in it."""
    return path.name.replace(f".{os.getpid()}.", ".")
