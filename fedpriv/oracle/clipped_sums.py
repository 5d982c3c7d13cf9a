"""Computes query results before noise: sums over the drawn examples of each client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedpriv.clients.batch import Batch
from fedpriv.distributed.devices import move_to_device
from fedpriv.distributed.mesh import Communicator, SingleProcess
from fedpriv.errors import ConfigError
from fedpriv.oracle.backends.base import Backend
from fedpriv.privacy.clipping import ROUNDING, Clip

_MAX_UNCOUNTED = 100  # number of cohorts for which indices are copied to the device together


class ClippedSums:
    """Computes sums of gradients at given parameters `[k, dim]`, without noise; the sums must not leave the oracle.

    Args:
        backend: Computes sums of clipped gradients.
        n_clients: Number of clients of the run.
        device: The clients' device.
        processes: The processes that share the examples of a batch; by default there is one.
    """

    def __init__(
        self,
        backend: Backend,
        n_clients: int,
        device: torch.device,
        processes: Communicator | None = None,
    ) -> None:
        self._backend = backend
        self._processes = processes or SingleProcess()
        self._broken = torch.zeros(n_clients, dtype=torch.long, device=device)
        self._uncounted: list[tuple[Tensor, Tensor]] = []
        """Cohorts and their numbers of broken examples that are not yet added to `_broken`."""

    @property
    def broken_examples(self) -> Tensor:
        """Number of non-finite gradients that were counted as zero, of each client, `[n_clients]`.

        The number is for diagnosis only; it is never written or sent. For exact sums on an accelerator, at most one
        non-finite gradient is counted for each client and query.
        """
        if self._uncounted:
            cohorts = torch.cat([cohort for cohort, _ in self._uncounted])
            broken = torch.cat([count for _, count in self._uncounted])
            self._broken.index_add_(0, cohorts.to(self._broken.device), broken)
            self._uncounted = []
        return self._broken

    def gradients(
        self,
        batches: Iterator[Batch],
        cohort: Tensor,
        params: Tensor,
        anchor: Tensor | None = None,
        clip: Clip | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Returns sums of gradients, or of differences of gradients, `[k, dim]`; in float64 if they are clipped.

        Args:
            batches: The examples.
            cohort: Index of each row's client, `[k]`.
            params: Points at which gradients are computed, `[k, dim]`.
            anchor: Points of the gradients to subtract, `[k, dim]`; None subtracts nothing.
            clip: Bound on each example's gradient or difference; None does not clip.
            weights: Public factors of each example's loss, `[examples]`.
        """
        total: Tensor | None = None
        broken: Tensor | None = None
        for batch in batches:
            # this process's share of the batch; the sums of all shares are added up at the end
            batch = batch.every(self._processes.rank, self._processes.world_size)
            if anchor is None:
                anchor_rows = None
            else:
                anchor_rows = select_rows(anchor, batch)
            if weights is None:
                weighted = batch
            else:
                weighted = batch.weighted(weights)
            sums, batch_broken = self._backend.clipped_sum(select_rows(params, batch), weighted, clip, anchor_rows)
            if total is None and batch.rows.shape[0] == params.shape[0]:
                total, broken = sums, batch_broken  # for all clients, in their order
                continue
            if total is None or broken is None:
                total, broken = self._zeros(params, clip)
            total.index_add_(0, batch.rows, sums)
            broken.index_add_(0, batch.rows, batch_broken)
        if total is None or broken is None:
            total, broken = self._zeros(params, clip)
        self._count(cohort, self._processes.all_reduce(broken))
        return self._processes.all_reduce(total)

    def _zeros(self, params: Tensor, clip: Clip | None) -> tuple[Tensor, Tensor]:
        """Returns zeros as sums, `[k, dim]`, and as numbers of non-finite gradients, `[k]`."""
        broken = torch.zeros(params.shape[0], dtype=torch.long, device=params.device)
        if clip is None:
            return torch.zeros_like(params, memory_format=torch.contiguous_format), broken
        return torch.zeros(params.shape, device=params.device, dtype=torch.float64), broken

    def _count(self, cohort: Tensor, broken: Tensor) -> None:
        """Adds up the numbers of non-finite gradients. Numbers for parts of the clients are collected first, because
        copying indices takes time.
        """
        if cohort.shape[0] == self._broken.shape[0]:
            self._broken += broken
            return
        self._uncounted.append((cohort, broken))
        if len(self._uncounted) == _MAX_UNCOUNTED:
            _ = self.broken_examples

    def largest_norms(self, batches: Iterator[Batch], params: Tensor, clip: Clip) -> list[float]:
        """Returns the largest per-example gradient norm of each row."""
        norms = torch.zeros(len(params), device=params.device, dtype=torch.float64)
        for batch in batches:
            largest = self._backend.largest_norm(select_rows(params, batch), batch, clip)
            norms[batch.rows] = norms[batch.rows].maximum(largest)
        return norms.tolist()


def select_rows(params: Tensor, batch: Batch) -> Tensor:
    """Returns the rows of a batch's clients, without a copy if all rows are equal or all are selected."""
    if params.stride(0) == 0:
        return params[:1].expand(batch.rows.shape[0], -1)
    if batch.rows.shape[0] == params.shape[0]:
        return params
    return params[batch.rows]


def row_slices(points: Tensor, drawn: Tensor | None, count: int, which: slice) -> Tensor:
    """Returns the points of the drawn participants that `which` selects, one row each; without a copy if all have the
    same point.

    Args:
        points: Points of all participants, `[k, dim]`, or one for all, `[1, dim]`.
        drawn: Positions of the drawn clients among the participants, `[j]`; None if all compute.
        count: Number of drawn clients.
        which: Slice of the drawn clients.
    """
    if len(points) == 1 or points.stride(0) == 0:
        return points[:1].expand(len(range(count)[which]), -1)
    if drawn is not None:
        points = points[drawn.to(points.device)]
    return points[which]


def scale_rows(rows: Tensor, factors: Sequence[float]) -> Tensor:
    """Multiplies each row by its factor, in place, and returns the rows, `[k, dim]`."""
    if len(set(factors)) == 1:  # no copy to the device
        return rows.mul_(factors[0])
    (column,) = move_to_device(rows.device, torch.tensor(factors, dtype=rows.dtype).unsqueeze(1))
    return rows.mul_(column)


def check_depth(sizes: Sequence[int], chunk: int) -> None:
    """Raises an error if the rounding error of a sum could exceed the allowance for it in the sensitivity (`ROUNDING`).

    A float64 sum of n rows of norm C, in which each row passes through at most d additions, has an error of at most `d
    n 2**-53 C` (Higham, 2002, Accuracy and Stability of Numerical Algorithms, section 4.2).

    Args:
        sizes: Numbers of examples in one sum. A sum contains the examples of one client, or of all clients if only the
            sum over clients is released.
        chunk: Largest number of examples that are summed at once.

    Raises:
        ConfigError: If the chunk is too large.
    """
    largest = max(sizes)
    total = sum(sizes)
    depth = min(chunk, largest) + largest // chunk + len(sizes) + 2
    if depth * total * 2.0**-53 > ROUNDING / 8:
        fix = (
            f"sums over {total} examples are exact enough only if they are computed in smaller batches: lower this "
            "setting, e.g. to 16384"
        )
        raise ConfigError("compute.max_physical_batch_size", chunk, fix)
