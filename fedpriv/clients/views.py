"""Computes random views of drawn examples; each view has separate random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.clients.augmentation import Augmentation
from fedpriv.clients.examples import Examples
from fedpriv.clients.reading import Pair, read_one
from fedpriv.models.nested import concatenate_trees, first_leaf, map_tree
from fedpriv.randomness.global_rng import global_generators

Numbers = Callable[[Sequence[int], Sequence[int], int], Tensor]
"""Returns uniform numbers `[n, size]` in float64 for n examples, given their clients (rows of this process), their
positions in their clients' data, and the size. An example's numbers depend on its client and position alone."""


@dataclass(frozen=True)
class Views:
    """Random views of a population's examples.

    If reading a client's examples draws random numbers, the example is read again for each view before it is augmented.

    Args:
        examples: The examples.
        augmentation: The random transformation.
    """

    examples: Examples
    augmentation: Augmentation

    def take(
        self, clients: Tensor, positions: Tensor, mask: Tensor, device_positions: Tensor, numbers: Numbers
    ) -> Pair:
        """Returns views of some examples of some clients.

        Args:
            clients: Rows of the clients, `[k]`.
            positions: Positions in each client's data, `[k, b]`, on the CPU.
            mask: False where padded, `[k, b]`, on the CPU.
            device_positions: See `Examples.take`.
            numbers: Computes the random numbers.

        Returns:
            Inputs and targets, `[k, b, ...]`, or `[k, b, views, ...]` with several views of each example.
        """
        count = self.augmentation.multiplicity
        # of the cells that hold an example, in order
        owner, cell = mask.nonzero().unbind(1)
        clients_of_cells = clients[owner].tolist()
        positions_of_cells = positions[owner, cell].tolist()
        # the first number of each view is a seed for reading it, the others are for the augmentation
        uniform = torch.zeros(*mask.shape, count, 1 + self.augmentation.draws, dtype=torch.float64)
        uniform[mask] = numbers(clients_of_cells, positions_of_cells, uniform[0, 0].numel()).unflatten(
            1, uniform.shape[2:]
        )
        pair = self.examples.take(clients, positions, device_positions)
        repeated = map_tree(lambda rows: rows.unsqueeze(2).repeat_interleave(count, 2).flatten(0, 2), pair)
        seeds = (uniform[mask][:, :, 0] * 2**53).long().tolist()
        self._read_anew(repeated, clients_of_cells, positions_of_cells, mask, seeds)
        inputs = self.augmentation.views(repeated[0], uniform[..., 1:].flatten(0, 2).to(first_leaf(repeated).device))
        if count > 1:
            shape = (*mask.shape, count)
        else:
            shape = tuple(mask.shape)
        return map_tree(lambda rows: rows.unflatten(0, shape), (inputs, repeated[1]))

    def _read_anew(
        self,
        repeated: Pair,
        clients: Sequence[int],
        positions: Sequence[int],
        mask: Tensor,
        seeds: Sequence[Sequence[int]],
    ) -> None:
        """Overwrites the views of clients with examples that differ each time they are read."""
        sources = {client: self.examples.source(client) for client in dict.fromkeys(clients)}
        cells = mask.flatten().nonzero()[:, 0].tolist()
        count = self.augmentation.multiplicity
        rows: list[int] = []
        read: list[Pair] = []
        with global_generators() as seed:
            for cell, client, position, view_seeds in zip(cells, clients, positions, seeds, strict=True):
                source = sources[client]
                if source is None:
                    continue
                for view, view_seed in enumerate(view_seeds):
                    seed(view_seed)
                    read.append(read_one(source, position, like=repeated))
                    rows.append(cell * count + view)
        if rows:
            index = torch.tensor(rows, device=first_leaf(repeated).device)
            map_tree(
                lambda tensor, new: tensor.index_copy_(0, index, new.to(tensor)), repeated, concatenate_trees(read)
            )
