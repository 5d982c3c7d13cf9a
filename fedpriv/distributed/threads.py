"""Processes many items in as many threads as torch may use. Each thread computes its items alone.

Torch's own threads divide every single operation and wait for each other after it. Threads that each process whole
clients need not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")
_WORTH_SHARING = 10**7  # multiplications: about a hundredth of a second of one core


def map_in_threads(work: Callable[[int, T], R], items: Sequence[T]) -> list[R]:
    """Returns the results for the items, in their order; after an error no thread begins another item.

    Args:
        work: Function of the number of the thread, from 0, and an item. Two threads never have the same number at the
            same time.
        items: The items. A thread that has finished an item continues with the next one.
    """
    allowed = torch.get_num_threads()
    count = min(allowed, len(items))
    if count < 2:
        return [work(0, item) for item in items]
    remaining = iter(enumerate(items))
    lock = threading.Lock()
    stopped = threading.Event()
    results = dict[int, R]()
    # settings that torch has for each thread: new threads get the values of this one
    gradients = torch.is_grad_enabled()
    mixed = torch.is_autocast_enabled("cpu")
    precision = torch.get_autocast_dtype("cpu")

    def take(number: int) -> None:
        with torch.set_grad_enabled(gradients), torch.autocast("cpu", precision, enabled=mixed):
            while not stopped.is_set():
                with lock:
                    task = next(remaining, None)
                if task is None:
                    return
                position, item = task
                results[position] = work(number, item)

    torch.set_num_threads(1)  # threads that begin now share no operation
    try:
        with ThreadPoolExecutor(count) as pool:
            try:
                for done in as_completed([pool.submit(take, number) for number in range(count)]):
                    done.result()
            finally:
                stopped.set()
    finally:
        torch.set_num_threads(allowed)
    return [results[position] for position in range(len(items))]


@contextmanager
def single_thread() -> Generator[None]:
    """Makes torch use one thread, so that the last bits of sums do not depend on the number of threads."""
    allowed = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(allowed)


def are_too_many(multiplications: int, worth_sharing: int = _WORTH_SHARING) -> bool:
    """Returns True if torch uses several threads, and starting them would take longer than the work itself.

    Args:
        multiplications: Number of multiplications in the work.
        worth_sharing: Number of multiplications from which several threads are faster.
    """
    return multiplications < worth_sharing and torch.get_num_threads() > 1
