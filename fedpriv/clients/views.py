"""Random views of the examples that are drawn, each from random numbers of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.clients.examples import Examples
from fedpriv.clients.reading import Pair, read_one
from fedpriv.data.augmentation import Augmentation
from fedpriv.data.nested import each, first, joined
from fedpriv.randomness.borrowed import global_generators

Numbers = Callable[[Sequence[int], Sequence[int], int], Tensor]
"""Uniform numbers `[n, size]` in float64 of n examples, from their clients (rows here), their places in the data of
these, and the size. Those of an example follow from its own client and place alone."""


@dataclass(frozen=True)
class Views:
    """Views of a population's examples.

    Where reading a client's examples draws random numbers, each view is read anew, before it is augmented.

    Args:
        examples: The examples.
        augmentation: What is made of them.
    """

    examples: Examples
    augmentation: Augmentation

    def take(self, clients: Tensor, places: Tensor, mask: Tensor, at: Tensor, numbers: Numbers) -> Pair:
        """Views of some examples of some clients.

        Args:
            clients: Rows of the clients, `[k]`.
            places: Positions in the data of each, `[k, b]`, on the processor.
            mask: False where padded, `[k, b]`, on the processor.
            at: See `Examples.take`.
            numbers: The random numbers.

        Returns:
            Inputs and targets, `[k, b, ...]`, or `[k, b, views, ...]` where there are several of each.
        """
        count, (owner, cell) = self.augmentation.multiplicity, mask.nonzero().unbind(1)
        whose, where = clients[owner].tolist(), places[owner, cell].tolist()
        uniform = torch.zeros(*mask.shape, count, 1 + self.augmentation.draws, dtype=torch.float64)
        uniform[mask] = numbers(whose, where, uniform[0, 0].numel()).unflatten(1, uniform.shape[2:])
        found = self.examples.take(clients, places, at)
        both = each(lambda rows: rows.unsqueeze(2).repeat_interleave(count, 2).flatten(0, 2), found)
        self._read_anew(both, whose, where, mask, (uniform[mask][:, :, 0] * 2**53).long().tolist())
        inputs = self.augmentation.views(both[0], uniform[..., 1:].flatten(0, 2).to(first(both).device))
        if count > 1:
            shape = (*mask.shape, count)
        else:
            shape = tuple(mask.shape)
        return each(lambda rows: rows.unflatten(0, shape), (inputs, both[1]))

    def _read_anew(
        self, both: Pair, clients: Sequence[int], places: Sequence[int], mask: Tensor, seeds: Sequence[Sequence[int]]
    ) -> None:
        """Overwrite the views of clients whose examples are other ones whenever they are read."""
        sources = {client: self.examples.source(client) for client in dict.fromkeys(clients)}
        cells = mask.flatten().nonzero()[:, 0].tolist()
        rows, read, count = list[int](), list[Pair](), self.augmentation.multiplicity
        with global_generators() as seed:
            for cell, client, place, own in zip(cells, clients, places, seeds, strict=True):
                if (source := sources[client]) is None:
                    continue
                for view, number in enumerate(own):
                    seed(number)
                    read.append(read_one(source, place, like=both))
                    rows.append(cell * count + view)
        if rows:
            at = torch.tensor(rows, device=first(both).device)
            each(lambda every, new: every.index_copy_(0, at, new.to(every)), both, joined(read))
