"""Computes private constraint values and Lagrangian gradients before noise, as sums with a bound on each example's
contribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from fedpriv.clients.batch import Batch
from fedpriv.clients.population import Population
from fedpriv.errors import DataError
from fedpriv.models.batching import vmap
from fedpriv.models.nested import map_tree
from fedpriv.models.problem import LossTable
from fedpriv.oracle.backends.functional import Functional
from fedpriv.oracle.clipped_sums import select_rows
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.settings import Privacy


def make_loss_tables(population: Population) -> list[LossTable | None]:
    """Returns each client's objective and constraints on its examples; None if a problem is not a sum of losses.

    Raises:
        DataError: If a client has no example in a group; the message names the client.
    """
    loss_tables: list[LossTable | None] = []
    for row, problem in enumerate(population.problems):
        try:
            loss_tables.append(problem.table(*population.examples_of(row)))
        except DataError as error:
            raise DataError(f"client {population.shard.numbers[row]}: {error}") from error
    return loss_tables


class ConstraintSums:
    """Computes constraint values and the factors of a Lagrangian's gradient from coefficients of each example's loss.

    A constraint value is a sum of losses times coefficients; the gradient of a Lagrangian is a sum of gradients times
    coefficients. Each example's contribution is bounded. Constraint values and gradients are then noised and recorded
    like any other query result.

    Args:
        population: The clients; their problems must be sums of losses.
        privacy: The privacy settings.
        total: Adds up the rows of all processes, see `DataQueryEngine`.
    """

    def __init__(self, population: Population, privacy: Privacy, total: Callable[[Tensor], Tensor]) -> None:
        shard = population.shard
        self._privacy = privacy
        self._sizes = shard.sizes
        self._functional = Functional(population.model, population.loss)
        self._unit = Clip(1.0, privacy.clip.norm)
        like = population.params
        loss_tables = [table for table in make_loss_tables(population) if table is not None]
        assert len(loss_tables) == len(population)  # `runs.compatibility` rejects other problems
        table_sizes = [(t.weights.shape[1], len(t.offset)) for t in loss_tables]
        width, height = (max(sizes) for sizes in zip(shard.widths, *table_sizes, strict=True))
        # converts a division by the number of examples into a division by the public size
        scaled = list(zip(loss_tables, (population.counts / shard.sizes.double()).tolist(), strict=True))
        self._weights = _cat([_pad(t.weights * scale, width) for t, scale in scaled], 0, width).to(like)
        # the server has no objective: the mean over the other clients is the mean of all rows times this factor
        share = shard.n_clients / shard.n_objectives
        self._objective = _cat([t.objective * scale for t, scale in scaled], 0).to(like) * share
        self._owner = torch.repeat_interleave(population.counts).to(like.device)
        # largest norm of an example's coefficients, [n]. It is public, so every process may have it for all clients: it
        # is computed from public numbers alone, since a number computed from a true count would reveal that count in
        # its last bits
        sizes = shard.sizes.tolist()
        largest = [_pad(1 / (t.share * size), width).unsqueeze(0) for t, size in zip(loss_tables, sizes, strict=True)]
        self._reach = self._unit.norms(_cat(largest, 0, width).to(like))
        self._total = _cat([_pad(t.total, width).unsqueeze(0) for t in loss_tables], 0, width).to(like)
        matrices = [_pad(_pad(t.matrix, width).T, height).T.unsqueeze(0) for t in loss_tables]
        self._matrix = _cat(matrices, 0, height, width).to(like)
        self._offset = _cat([_pad(t.offset, height).unsqueeze(0) for t in loss_tables], 0, height).to(like)

        def gather_all(facts: Tensor) -> Tensor:
            """Returns the rows of all processes' clients; rows of other processes are zeros here, then summed."""
            every = torch.zeros(shard.n_clients, facts.shape[1], dtype=torch.float64)
            return total(every.index_copy(0, shard.ids, facts.double().cpu()).view(1, -1)).view_as(every)

        self._all_reach = gather_all(self._reach.unsqueeze(1))[:, 0]
        self._all_norms = gather_all(self._matrix.norm(dim=2))
        self._all_sizes = torch.as_tensor(shard.all_sizes, dtype=torch.float64)

    def gradient_factors(self, multipliers: Tensor) -> Tensor:
        """Returns the factor of each example's gradient, `[n_examples]`, for multipliers `[n, m]`.

        The mean over a client's examples of factor times gradient is the gradient of `f_i + <multipliers_i, c_i>`.
        """
        prices = torch.einsum("nmq,nm->nq", self._matrix, multipliers)
        return self._sizes.to(prices)[self._owner] * (self._objective + (self._weights * prices[self._owner]).sum(1))

    def bounded_losses(self, batches: Iterator[Batch], params: Tensor) -> Tensor:
        """Returns sums of bounded losses, each contribution of norm at most 1: `[n, dim] -> [n, q]` in float64.

        Half the bound is subtracted from each loss, which halves the largest contribution of an example. A loss that is
        not finite counts as zero.
        """
        half = self._privacy.statistics.bound / 2
        total = torch.zeros(len(params), self._total.shape[1], device=params.device, dtype=torch.float64)
        for batch in batches:
            assert batch.examples is not None
            losses = example_losses(self._functional, select_rows(params, batch), batch)
            centred = losses.clamp(0, 2 * half) - half
            reach = half * self._reach[batch.rows]
            contributions = self._weights[batch.examples] * centred.unsqueeze(2) / reach[:, None, None]
            total.index_add_(0, batch.rows, (self._unit.rows(contributions)[0] * batch.mask.unsqueeze(2)).sum(1))
        return total

    def factors(self, sampled: Tensor) -> list[float]:
        """Returns the public factor of every client's row; `sampled [n]` is each client's number of examples divided by
        its expected batch size.
        """
        return (sampled * self._all_reach * self._privacy.statistics.bound / 2).tolist()

    def values(self, released: Tensor) -> Tensor:
        """Returns constraint values `[n, m]` from rows of `bounded_losses` times factors, and adds back the half of the
        bound that was subtracted.
        """
        sums = released + self._privacy.statistics.bound / 2 * self._total
        return torch.einsum("nmq,nq->nm", self._matrix, sums) - self._offset

    def deviation(self, scales: Sequence[float], sampled: Tensor) -> Tensor:
        """Returns an upper bound on the standard deviation of constraint values due to noise and random batches.

        Args:
            scales: Noise scale of every client.
            sampled: Each client's number of examples divided by the expected number in a batch, `[n]`. (If a batch
                contains each example with probability q, the sum over the batch divided by q has a variance of `(1 - q)
                / q` times the sum of squares.)

        Returns:
            `[n_clients, m]`, of the clients of all processes.
        """
        noise = self._all_reach.new_tensor(scales) * self._privacy.mechanism.deviation
        largest = self._all_reach * self._privacy.statistics.bound / 2
        draw = (sampled.to(noise) - 1) * self._all_sizes * largest.square()
        return self._all_norms * (noise.square() + draw).sqrt().unsqueeze(1)


def example_losses(functional: Functional, params: Tensor, batch: Batch) -> Tensor:
    """Returns the loss of each example of a batch at its client's row: `[k, dim] -> [k, b]`.

    Each example passes through the model as a batch of one, as in the computation of its gradient. So its loss does not
    depend on other examples, even if the model would mix the examples of a batch.
    """
    with torch.no_grad():
        example_outputs = vmap(functional.scores_or_loss, in_dims=(None, 0, 0), randomness="different")
        client_outputs = vmap(example_outputs, randomness="different")
        outputs = client_outputs(functional.unflatten(params), batch.inputs, batch.targets)
        scores, losses = cast("tuple[object, Tensor]", outputs)
        if isinstance(scores, Tensor):
            losses = functional.losses(scores.flatten(0, 1), map_tree(lambda y: y.flatten(0, 1), batch.targets))
    return losses.reshape(batch.mask.shape)


def _cat(tensors: Sequence[Tensor], *shape: int) -> Tensor:
    """Concatenates the tensors; without tensors returns zeros of the given shape."""
    if tensors:
        return torch.cat([*tensors])
    return torch.zeros(*shape)


def _pad(values: Tensor, width: int) -> Tensor:
    """Converts to float64 and appends zeros in the last dimension up to `width`."""
    return nn.functional.pad(values.double(), (0, width - values.shape[-1]))
