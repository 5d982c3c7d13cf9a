"""The clients' parameters as one tensor, and their data as batches.

`params [n_clients, dim]` holds the trainable parameters of all clients' models. The parameters of each module are views
of its row, so an algorithm works on one tensor while users keep their torch modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from fedpriv.clients.batch import Batch
from fedpriv.clients.chosen import Chosen
from fedpriv.clients.client import Client, Loss
from fedpriv.clients.examples import Examples, InMemory
from fedpriv.clients.layout import Layout, constants
from fedpriv.clients.part import Part
from fedpriv.errors import ConfigError


class Population:
    """The clients of a run that are in this process: all of them, unless `part` says otherwise.

    Rows are numbered from 0 here; `part.ids` has the clients' numbers in the run.

    Args:
        clients: At least one client; all models must have the same trainable parameters by name and shape, and the
            same frozen parameters and buffers by value.
        device: Where parameters and data live.
        dtype: Floating point type of parameters and inputs.
        chunk: Largest number of examples (padding included) in one batch; bounds the memory of a step.
        part: Which clients of the run these are, and the public facts of all; None: they are all.

    Attributes:
        part: See above.
        layout: Of the rows.
        examples: All examples of these clients.

    Raises:
        ConfigError: no client, or models that differ.
        DataError: the data of a client cannot be used; the client is named.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        chunk: int = 8192,
        part: Part | None = None,
    ) -> None:
        if not clients:
            raise ConfigError("clients", [], "a population needs at least one client")
        self.clients, self.part = tuple(clients), part or Part.whole(clients)
        if len(self.part.numbers) != len(clients):
            raise ConfigError("part.numbers", self.part.numbers, f"give one for each of the {len(clients)} clients")
        self._check_fresh()
        self.chunk = chunk
        self.device = torch.device(device)
        self.model: nn.Module = clients[0].model.to(self.device, dtype)
        self.loss: Loss = clients[0].loss
        self.layout = Layout.of(self.model)
        self.params = self._adopt_parameters(dtype)
        self.examples: Examples = InMemory(clients, self.device, dtype)

    @property
    def counts(self) -> Tensor:
        """Number of examples that each client holds, `[n_clients]`; private where it differs from `part.sizes`."""
        return self.examples.counts

    @cached_property
    def starts(self) -> Tensor:
        """Position of each client's first example among all, `[n_clients]`."""
        return torch.cat([torch.zeros(1, dtype=torch.long), self.counts.cumsum(0)])[:-1]

    def __len__(self) -> int:
        """Number of clients."""
        return len(self.clients)

    @property
    def dim(self) -> int:
        """Number of trainable parameters of one model."""
        return self.params.shape[1]

    @cached_property
    def equality(self) -> Tensor:
        """Which of a client's constraint values must be zero, `[n_clients, most values of a client]` boolean."""
        flags = [torch.tensor(client.problem.equality, dtype=torch.bool) for client in self.clients]
        return nn.utils.rnn.pad_sequence(flags, batch_first=True).to(self.device)

    def _check_fresh(self) -> None:
        for index, client in enumerate(self.clients):
            if client.outcome_of is not None:
                raise ConfigError(
                    f"clients[{index}]",
                    client.outcome_of,
                    "holds the result of an earlier run, whose epsilon this run would not count; make fresh clients. "
                    "To go on from a released model on purpose, copy its parameters and add up the prices",
                )

    def _adopt_parameters(self, dtype: torch.dtype) -> Tensor:
        params = torch.empty(len(self.clients), self.layout.dim, device=self.device, dtype=dtype)
        shared = constants(self.model)
        for index, client in enumerate(self.clients):
            if Layout.of(client.model) != self.layout:
                fix = "all models must be alike: the same parameters, the same of them frozen"
                raise ConfigError(f"clients[{index}].model", type(client.model).__name__, fix)
            client.model.to(self.device, dtype)
            _check_same(index, constants(client.model), shared)
            self.layout.bind(params[index], client.model)
        return params

    def examples_of(self, client: int) -> tuple[Tensor, Tensor]:
        """All inputs and targets of a client, `[m, ...]` each."""
        inputs, targets = self.examples.take(
            torch.tensor([client]), torch.arange(int(self.counts[client])).unsqueeze(0)
        )
        return inputs[0], targets[0]

    def first_examples(self, count: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of the first examples of all, `[count, ...]`; the same again where there are fewer."""
        at = torch.arange(count) % int(self.counts.sum())
        owners = torch.searchsorted(self.starts, at, right=True) - 1
        inputs, targets = self.examples.take(owners, (at - self.starts[owners]).unsqueeze(1))
        return inputs.squeeze(1), targets.squeeze(1)

    def full_batches(self, cohort: Tensor) -> Iterator[Batch]:
        """All examples of the clients in `cohort [k]`, in batches of at most `chunk` examples.

        The batches of the whole population are kept: a full-batch run reads them every round.
        """
        if len(cohort) == len(self):
            yield from self._all_batches
        else:
            yield from self.drawn_batches(cohort, Chosen.everything(self.counts[cohort].numpy()))

    @cached_property
    def _all_batches(self) -> list[Batch]:
        return list(self.drawn_batches(torch.arange(len(self)), Chosen.everything(self.counts.numpy())))

    def drawn_batches(self, cohort: Tensor, chosen: Chosen) -> Iterator[Batch]:
        """The chosen examples of the clients in `cohort [k]`."""
        for block in chosen.blocks(self.chunk):
            rows, places, mask = (torch.from_numpy(part) for part in block)
            clients = cohort[rows]
            inputs, targets = self.examples.take(clients, places)
            at = (places + self.starts[clients].unsqueeze(1)).to(self.device)
            yield Batch(rows.to(self.device), inputs, targets, mask.to(self.device), at)


def _check_same(client: int, own: dict[str, Tensor], shared: dict[str, Tensor]) -> None:
    """One model serves all clients, so what is frozen must be the same in each."""
    for name in {**shared, **own}:
        if name not in own or name not in shared or not torch.equal(own[name], shared[name]):
            fix = "is frozen (or a buffer) and not the same as client 0's; copy it from one model, or let it be trained"
            raise ConfigError(f"clients[{client}].model", name, fix)
