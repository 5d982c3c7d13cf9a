"""Clients that are computed by several threads at once, on a processor."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor

from fedpriv.clients.batch import Batch
from fedpriv.distributed import threads
from fedpriv.oracle.backends.base import Backend
from fedpriv.oracle.backends.functional import at_hand
from fedpriv.oracle.backends.per_example import PerExample
from fedpriv.privacy.clipping import Clip

Found = tuple[Tensor, ...]


def in_threads(backend: Backend) -> Backend:
    """The backend, in threads where that pays: the others keep something of whole batches, or are slow on purpose."""
    if isinstance(backend, PerExample):
        return InThreads(backend)
    return backend


class InThreads:
    """A backend's sums, each thread's for some of the clients, by as many threads as torch may use.

    Threads take the blocks that the backend cuts its work into anyway, so their number changes no bit of the sums.

    Guarantee: as the backend's, which computes each client's row as before.

    Args:
        backend: Computes the sums. Threads have copies of it, for torch changes a model while it calls it.
    """

    def __init__(self, backend: PerExample) -> None:
        self._backend, self._alone = backend, False

    def clipped_sum(
        self, params: Tensor, batch: Batch, clip: Clip | None, anchor: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `Backend.clipped_sum`."""

        def of(backend: PerExample, rows: slice) -> Found:
            at = None if anchor is None else anchor[rows]
            return backend.clipped_sum(params[rows], batch.of(rows), clip, at)

        sums, broken = self._joined(of, params, batch, clip)
        return sums, broken

    def largest_norm(self, params: Tensor, batch: Batch, norm: Clip) -> Tensor:
        """See `Backend.largest_norm`."""

        def of(backend: PerExample, rows: slice) -> Found:
            return (backend.largest_norm(params[rows], batch.of(rows), norm),)

        return self._joined(of, params, batch, norm)[0]

    def _joined(
        self, of: Callable[[PerExample, slice], Found], params: Tensor, batch: Batch, clip: Clip | None
    ) -> Found:
        clients, height = len(params), self._backend.together(params, batch, clip)
        blocks = [slice(top, top + height) for top in range(0, clients, height)]
        count = min(torch.get_num_threads(), len(blocks))
        if count < 2 or self._alone or not at_hand(params):
            return of(self._backend, slice(0, clients))
        copies = [_copied(self._backend) for _ in range(count)]
        before = torch.default_generator.get_state()
        found = threads.each(lambda number, rows: of(copies[number], rows), blocks)
        if not torch.equal(before, torch.default_generator.get_state()):
            # the model draws random numbers, whose order would be that of the threads
            self._alone = True
            torch.default_generator.set_state(before)
            return of(self._backend, slice(0, clients))
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))


def _copied(backend: PerExample) -> PerExample:
    """A copy as the model is now, which shares its tensors: no call changes them."""
    model = backend.model
    return copy.deepcopy(backend, {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())})
