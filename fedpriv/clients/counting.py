"""Counting, once, how many examples each of many clients has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich.console import Console
from rich.progress import Progress
from torch.utils.data import Dataset

from fedpriv.clients.reading import length_of
from fedpriv.errors import DataError, in_short
from fedpriv.settings.checks import Count, checked

_AT_ONCE = 64  # clients that a worker counts in a row


@checked("count_examples")
def count_examples(load: Callable[[int], Dataset[Any]], n_clients: Count, *, workers: Count = 2) -> list[int]:
    """Count the examples of each client, for `lazy_clients`; keep the list, for each count opens every data set.

    Guarantee: none. The numbers count as public: epsilon does not cover them, and models, records and reports follow
    from them. Where how much somebody has is itself a secret, cut each client to one size in `load`.

    Args:
        load: `load(i)` gives client i's map-style data set. It is called from several threads at once; only `len` of
            what it gives is asked for.
        n_clients: How many clients there are; client i is 0 <= i < `n_clients`.
        workers: Number of threads.

    Returns:
        Number of examples of each client, `[n_clients]`. A terminal shows how far it is.

    Raises:
        DataError: a client cannot be loaded, streams, or has no examples; it is named.
    """

    def sizes_of(clients: Iterable[int]) -> list[int]:
        return [_size_of(load, client) for client in clients]

    console = Console(stderr=True)
    parts = [range(first, min(first + _AT_ONCE, n_clients)) for first in range(0, n_clients, _AT_ONCE)]
    pool, found = ThreadPoolExecutor(workers, "fedpriv-counter"), list[int]()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as shown:
        bar = shown.add_task("examples of each client, which count as public", total=n_clients)
        try:
            for sizes in pool.map(sizes_of, parts):
                found += sizes
                shown.update(bar, completed=len(found))
        finally:
            pool.shutdown(cancel_futures=True)  # after an error nobody else is read
    return found


def _size_of(load: Callable[[int], Dataset[Any]], client: int) -> int:
    try:
        found = load(client)
    except Exception as error:  # whatever a user's function raises
        raise DataError(f"client {client}: load({client}) fails ({in_short(error)})") from error
    try:
        size = length_of(found)
    except DataError as error:
        raise DataError(f"client {client}: {error}") from error
    if size < 1:
        raise DataError(f"client {client}: load({client}) gives no examples; leave this client out")
    return size
