"""Work on many things by as many threads as torch may use, each of which computes alone.

Torch's own threads share every single operation and wait for each other after it; threads that take whole clients do
not.
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


def each(work: Callable[[int, T], R], items: Sequence[T]) -> list[R]:
    """Results for the items, in their order; after an error no thread begins another item.

    Args:
        work: Takes the number of the thread, from 0, and an item. Two threads never have the same number at once.
        items: The items; threads take the next one when they are done with one.
    """
    allowed = torch.get_num_threads()
    count = min(allowed, len(items))
    if count < 2:
        return [work(0, item) for item in items]
    left, lock, over, found = iter(enumerate(items)), threading.Lock(), threading.Event(), dict[int, R]()
    # what torch keeps for each thread by itself
    gradients, mixed = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
    precision = torch.get_autocast_dtype("cpu")

    def take(number: int) -> None:
        with torch.set_grad_enabled(gradients), torch.autocast("cpu", precision, enabled=mixed):
            while not over.is_set():
                with lock:
                    taken = next(left, None)
                if taken is None:
                    return
                found[taken[0]] = work(number, taken[1])

    torch.set_num_threads(1)  # threads that begin now share no operation
    try:
        with ThreadPoolExecutor(count) as pool:
            try:
                for done in as_completed([pool.submit(take, number) for number in range(count)]):
                    done.result()
            finally:
                over.set()
    finally:
        torch.set_num_threads(allowed)
    return [found[place] for place in range(len(items))]


@contextmanager
def one() -> Generator[None]:
    """Torch takes one thread: the last bits of sums do not depend on how many there are."""
    allowed = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(allowed)
