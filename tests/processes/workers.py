"""Three processes in one group of torch.distributed, started once, which execute calls."""

from __future__ import annotations

import gc
import importlib
import multiprocessing as mp
import traceback
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

SIZE = 3
TIMEOUT = 60.0


def serve(rank: int, meeting: str, calls: Connection) -> None:
    """What a process does: join the group, and make the calls that come."""
    import torch
    import torch.distributed as dist

    from fedpriv.distributed.process_group import ProcessGroup
    from fedpriv.network import engines
    from fedpriv.network.sharding import split_clients, split_examples

    torch.set_num_threads(1)
    wait = timedelta(seconds=TIMEOUT)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=SIZE, timeout=wait)
    handles = {size: dist.new_group(list(range(size)), timeout=wait) for size in range(1, SIZE + 1)}
    while True:
        try:
            size, module, name, arguments = calls.recv()
        except EOFError:
            return
        # a run of this many processes
        group = ProcessGroup(handles[size], TIMEOUT)
        engines.MESHES["clients"] = lambda timeout, group=group: split_clients(timeout, group)
        engines.MESHES["examples"] = lambda timeout, group=group: split_examples(timeout, group)
        try:
            answer = (None, getattr(importlib.import_module(module), name)(*arguments))
        except BaseException as error:
            answer = (f"{type(error).__name__}: {error}\n{traceback.format_exc()}", None)
        gc.collect()  # a folder belongs to a run until it is gone: before somebody else is told to go on with it
        calls.send(answer)


class Failed(Exception):
    """What a process raised, with its traceback as text."""


class Workers:
    """The processes.

    Args:
        folder: For the file by which they find each other.
    """

    def __init__(self, folder: Path) -> None:
        context = mp.get_context("spawn")
        pipes = [context.Pipe() for _ in range(SIZE)]
        self._calls = [ours for ours, _ in pipes]
        where = str(folder / "meeting")
        self._processes = [
            context.Process(target=serve, args=(rank, where, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()
        for _, theirs in pipes:
            theirs.close()

    def of(self, size: int, function: Any, *arguments: Any) -> list[Any]:
        """What a function, at the top of its module, gives in the first `size` processes at once."""
        for calls in self._calls[:size]:
            calls.send((size, function.__module__, function.__name__, arguments))
        found: Sequence[tuple[str | None, Any]] = [calls.recv() for calls in self._calls[:size]]
        if failures := [failure for failure, _ in found if failure is not None]:
            raise Failed("\n".join(failures))
        return [value for _, value in found]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for calls in self._calls:
            calls.close()
        for process in self._processes:
            process.join(10)
            process.kill()
