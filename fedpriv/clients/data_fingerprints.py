"""Keyed digests of clients' examples, from which a resumed run detects changed data.

If the position of an example, or the number of a client, determines the rounds in which it takes part (`Cyclic`
batches, random allocation, cohorts that take turns), changed data raise an error, because an example that has moved
could take part in more rounds than its privacy cost assumes. In other runs data may change between two process starts,
because each process has independent noise.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedpriv.clients.population import Population
from fedpriv.clients.reading import Pair, Unbatched, read_all
from fedpriv.errors import DataError
from fedpriv.models.nested import list_leaves
from fedpriv.randomness.global_rng import global_generators

_DIGEST_BYTES = 16
READ_SEED = 0  # for examples that differ each time they are read: any seed does, if it is always the same


class DataFingerprints:
    """Stores a digest of each client's examples, and compares it whenever they are read again.

    The digests are keyed, so they reveal nothing about the examples without the key. The checkpoint contains both the
    digests and the key.

    Args:
        stored: The value of `stored()` when the run was saved; None for a new run.
        key: A new secret key, which a new run uses.
        is_fixed: True if changed examples raise an error; otherwise they cause a warning.
    """

    def __init__(self, stored: Mapping[str, Tensor] | None, key: bytes, *, is_fixed: bool) -> None:
        self._is_fixed = is_fixed
        self._lock = threading.Lock()
        self._digests: dict[int, bytes] = {}
        self._key = key
        if stored:
            self._key = stored["key"].cpu().numpy().tobytes()
            self.merge([stored])

    def watch(self, population: Population) -> None:
        """Checks the examples of a population: examples in memory now, and other examples whenever they are read.

        Raises:
            DataError: If a client's examples have changed.
        """
        if not population.is_in_memory:
            population.examples.on_read = self.check
            return
        for row, client in enumerate(population.shard.ids.tolist()):
            self.check(client, read_fixed_examples(population, row))

    def check(self, client: int, examples: Pair) -> None:
        """Compares a client's examples with their stored digest, or stores it if there is none.

        Args:
            client: Number of the client in the run.
            examples: All its inputs `[m, ...]` and targets `[m, ...]`.

        Raises:
            DataError: If the examples have changed.
        """
        digest = digest_examples(examples, self._key)
        with self._lock:
            first_digest = self._digests.setdefault(client, digest)
            self._digests[client] = digest
        if first_digest == digest:
            return
        changed = f"client {client}: its examples changed since the run began"
        if not self._is_fixed:
            warnings.warn(f"{changed}; from now on, the run trains on the changed examples", stacklevel=2)
            return
        raise DataError(
            f"{changed}. The order of examples and clients decides who takes part in each round, so a moved "
            "example could take part more often than its privacy cost covers. Restore the data, or start a new "
            "run in another folder. If the data set draws random numbers, it must draw them from the global generators "
            "of torch, NumPy or random, so that this comparison can repeat the draws"
        )

    def merge(self, others: Sequence[Mapping[str, Tensor]]) -> None:
        """Adds the digests of other processes or of an earlier process, which are values of `stored()`."""
        for stored in others:
            clients = stored["clients"].tolist()
            digests = stored["digests"].cpu().numpy()
            self._digests |= {client: row.tobytes() for client, row in zip(clients, digests, strict=True)}

    def stored(self) -> dict[str, Tensor]:
        """Returns key and digests for a checkpoint: `key [32]`, `clients [m]` and `digests [m, 16]`."""
        with self._lock:
            by_client = dict(sorted(self._digests.items()))
        clients = torch.tensor(list(by_client), dtype=torch.int64)
        digests = np.frombuffer(b"".join(by_client.values()), dtype=np.uint8).reshape(-1, _DIGEST_BYTES)
        key = torch.frombuffer(bytearray(self._key), dtype=torch.uint8)
        return {"key": key, "clients": clients, "digests": torch.from_numpy(digests.copy())}


def read_fixed_examples(population: Population, row: int) -> Pair:
    """Returns all examples of a client in memory, the same in every call.

    If random transforms change examples at each reading, they are read once more with seeded global generators.

    Args:
        population: The clients.
        row: Row of the client in this process.
    """
    source = population.examples.source(row)
    if source is None:
        return population.examples_of(row)
    with global_generators() as seed:
        seed(READ_SEED)
        return read_all(Unbatched(source.dataset, source.collate_fn), int(population.counts[row])).pair


def digest_examples(examples: Pair, key: bytes) -> bytes:
    """Returns a keyed digest of examples: their numbers, shapes, types and order."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, key=key)
    for tensor in list_leaves(examples):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{values.dtype}{tuple(values.shape)}".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()
