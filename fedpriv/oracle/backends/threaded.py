"""Computes several clients at once in threads on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor

from fedpriv.clients.batch import Batch
from fedpriv.distributed import threads
from fedpriv.models.copies import copy_with_modules
from fedpriv.models.nested import list_leaves
from fedpriv.oracle.backends.base import Backend
from fedpriv.oracle.backends.functional import is_on_cpu
from fedpriv.oracle.backends.linear import LinearBackend
from fedpriv.oracle.backends.per_example import PerExample
from fedpriv.privacy.clipping import Clip

Tensors = tuple[Tensor, ...]
# Smallest product of examples and parameters for which torch's threads share work that makes too few blocks for our
# threads: more than the largest block of a small CNN (512 times 29 034). For a convolution this product is a fraction
# of the work. If other programs are running, torch's threads wait for each other after every operation: see
# docs/performance.md, Several cores.
_WORTH_SHARING = 2 * 10**7


def wrap_in_threads(backend: Backend, *, insist: bool = False) -> Backend:
    """Wraps the backend in threads if that is faster. Other backends are returned unchanged, because they cache norms
    of whole batches or are slow on purpose.

    Args:
        backend: Computes the sums.
        insist: True if the user has set the number of threads. Otherwise small computations use one thread.
    """
    if isinstance(backend, PerExample):
        return ThreadedBackend(backend, insist=insist)
    if isinstance(backend, LinearBackend) and not insist:
        return SizeDependentBackend(backend)
    return backend


class SizeDependentBackend:
    """Computes a linear model's sums with one torch thread if the computation is too small for several threads.

    For linear models the number of multiplications is known: one for each example and parameter.

    Guarantee: the guarantee of the wrapped backend.

    Args:
        backend: Computes the sums.
    """

    def __init__(self, backend: LinearBackend) -> None:
        self._backend = backend

    def clipped_sum(
        self, params: Tensor, batch: Batch, clip: Clip | None, anchor: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `Backend.clipped_sum`."""
        if not threads.are_too_many(batch.mask.numel() * params.shape[1]):
            return self._backend.clipped_sum(params, batch, clip, anchor)
        with threads.single_thread():
            return self._backend.clipped_sum(params, batch, clip, anchor)

    def largest_norm(self, params: Tensor, batch: Batch, norm: Clip) -> Tensor:
        """See `Backend.largest_norm`."""
        if not threads.are_too_many(batch.mask.numel() * params.shape[1]):
            return self._backend.largest_norm(params, batch, norm)
        with threads.single_thread():
            return self._backend.largest_norm(params, batch, norm)


class ThreadedBackend:
    """Computes a backend's sums with as many threads as torch may use; each thread computes some of the clients.

    Threads process the blocks into which the backend splits its work, so the number of threads changes no bit of a sum.

    Guarantee: the guarantee of the wrapped backend, which still computes each client's row.

    Args:
        backend: Computes the sums. Each thread has a copy of it, since torch changes a model while calling it.
        insist: True if the user has set the number of threads. In this case, work with too few blocks is divided among
            torch's own threads, even if it is small.
    """

    def __init__(self, backend: PerExample, *, insist: bool = False) -> None:
        self._backend = backend
        self._insist = insist
        self._single_thread = False

    def clipped_sum(
        self, params: Tensor, batch: Batch, clip: Clip | None, anchor: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `Backend.clipped_sum`."""

        def compute(backend: PerExample, rows: slice) -> Tensors:
            if anchor is None:
                anchor_rows = None
            else:
                anchor_rows = anchor[rows]
            return backend.clipped_sum(params[rows], batch.select(rows), clip, anchor_rows)

        sums, broken = self._run_in_threads(compute, params, batch, clip)
        return sums, broken

    def largest_norm(self, params: Tensor, batch: Batch, norm: Clip) -> Tensor:
        """See `Backend.largest_norm`."""

        def compute(backend: PerExample, rows: slice) -> Tensors:
            return (backend.largest_norm(params[rows], batch.select(rows), norm),)

        return self._run_in_threads(compute, params, batch, norm)[0]

    def _run_in_threads(
        self, compute: Callable[[PerExample, slice], Tensors], params: Tensor, batch: Batch, clip: Clip | None
    ) -> Tensors:
        """Computes the blocks of clients in threads, and concatenates their results."""
        clients = len(params)
        height = self._backend.clients_per_block(params, batch, clip)
        blocks = [slice(top, top + height) for top in range(0, clients, height)]
        count = min(torch.get_num_threads(), len(blocks))
        if count < 2 or self._single_thread or not is_on_cpu(params):
            if self._insist or not threads.are_too_many(_size(params, batch), _WORTH_SHARING):
                return compute(self._backend, slice(0, clients))
            with threads.single_thread():
                return compute(self._backend, slice(0, clients))
        copies = [copy_backend(self._backend) for _ in range(count)]
        before = torch.default_generator.get_state()
        results = threads.map_in_threads(lambda number, rows: compute(copies[number], rows), blocks)
        if not torch.equal(before, torch.default_generator.get_state()):
            # the model draws random numbers, so their order would depend on the threads
            self._single_thread = True
            torch.default_generator.set_state(before)
            return compute(self._backend, slice(0, clients))
        return tuple(torch.cat(pieces) for pieces in zip(*results, strict=True))


def _size(params: Tensor, batch: Batch) -> int:
    """Returns the number of examples times the number of parameters or, if larger, times an example's inputs."""
    inputs = sum(values[:1, :1].numel() for values in list_leaves(batch.inputs))
    return batch.mask.numel() * max(params.shape[1], inputs)


def copy_backend(backend: PerExample) -> PerExample:
    """Copies a backend with its model; the copy shares the model's tensors, which calls do not change."""
    model = backend.model
    return copy_with_modules(
        backend, [model], {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    )
