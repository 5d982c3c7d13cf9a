"""Counts the examples of many clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rich.console import Console
from rich.progress import Progress
from torch.utils.data import Dataset

from fedpriv.clients.reading import count_examples_of
from fedpriv.errors import DataError, summarize_error
from fedpriv.settings.checks import Count, validate_arguments

_CLIENTS_PER_TASK = 64  # clients that a worker counts in a row


@validate_arguments("count_examples")
def count_examples(load: Callable[[int], Dataset[Any]], n_clients: Count, *, num_workers: Count = 2) -> list[int]:
    """Counts the examples of each client, for `lazy_clients`.

    Each call opens every data set, so store the returned list.

    Guarantee: none. The numbers are treated as public. Epsilon does not cover them, and models, records and reports
    depend on them. If the amount of data is itself secret, cut each client's data to one common size in `load`.

    Args:
        load: `load(i)` returns client i's map-style data set. It is called from several threads at once; only `len` of
            the data set is used.
        n_clients: Number of clients; client i is 0 <= i < `n_clients`.
        num_workers: Number of threads; 2 by default.

    Returns:
        Public number of examples of each client, `[n_clients]`. In a terminal a progress bar is shown.

    Raises:
        DataError: If a client's data set cannot be loaded, streams, or is empty; the message names the client.

    Examples:
        >>> import fedpriv
        >>> fedpriv.count_examples(lambda i: range(10 + i), n_clients=3)
        [10, 11, 12]
    """

    def count_chunk(clients: Iterable[int]) -> list[int]:
        return [_count(load, client) for client in clients]

    console = Console(stderr=True)
    chunks = [
        range(first, min(first + _CLIENTS_PER_TASK, n_clients)) for first in range(0, n_clients, _CLIENTS_PER_TASK)
    ]
    pool = ThreadPoolExecutor(num_workers, "fedpriv-counter")
    counts: list[int] = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("the number of examples of each client, which counts as public", total=n_clients)
        try:
            for sizes in pool.map(count_chunk, chunks):
                counts += sizes
                progress.update(bar, completed=len(counts))
        finally:
            pool.shutdown(cancel_futures=True)  # after an error no further client is read
    return counts


def _count(load: Callable[[int], Dataset[Any]], client: int) -> int:
    try:
        dataset = load(client)
    except Exception as error:  # a user's function can raise anything
        raise DataError(f"client {client}: load({client}) raises {summarize_error(error)}") from error
    try:
        size = count_examples_of(dataset)
    except DataError as error:
        raise DataError(f"client {client}: {error}") from error
    if size < 1:
        raise DataError(f"client {client}: load({client}) returns no examples: leave this client out")
    return size
