"""The clients' parameters as one tensor, and their data as batches.

`params [n_clients, dim]` holds the trainable parameters of all clients' models. The parameters of each module are views
of its row, so an algorithm works on one tensor while users keep their torch modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedpriv.clients.augmentation import Augmentation
from fedpriv.clients.batch import Batch
from fedpriv.clients.client import Client, Loss
from fedpriv.clients.client_set import as_client_set
from fedpriv.clients.examples import Examples, NoExamples, describe_kind
from fedpriv.clients.index_batches import IndexBatches
from fedpriv.clients.layout import Layout, copy_trainable
from fedpriv.clients.reading import Pair
from fedpriv.clients.released_models import EARLIER_RESULT, GO_ON
from fedpriv.clients.shard import ClientShard
from fedpriv.clients.views import Numbers, Views
from fedpriv.distributed.devices import move_to_device
from fedpriv.errors import ConfigError
from fedpriv.models.nested import map_tree
from fedpriv.models.problem import Problem


class Population:
    """The clients of a run that are in this process: all of them, unless `shard` selects some.

    Rows are numbered from 0 in each process; `shard.ids` holds the clients' numbers in the run.

    Args:
        clients: At least one client. If `shard` has no clients, the model of this client is used as the template. All
            models must have the same trainable parameters by name and shape, and the same frozen parameters and buffers
            by value.
        device: The device of parameters and data.
        dtype: Floating point type of parameters and inputs.
        chunk: Largest number of examples (padding included) in one batch; bounds the memory of a step.
        shard: The numbers of these clients in the run, and the public facts of all clients; None if the run has no
            other clients.
        pad_batches: True if secret batches are padded to a public number of examples.

    Attributes:
        shard: See above.
        model: A copy of the first client's model, with which gradients are computed. It shares frozen parameters and
            buffers with all models.
        params: Trainable parameters of all clients' models, `[n_clients, dim]`; `lazy_clients` have one expanded row.
        layout: Positions of the parameters in a row.
        examples: All examples of these clients.
        views: Random views of the examples for gradients; None without augmentation or random reading.

    Raises:
        ConfigError: If there is no client, or the clients' models differ.
        DataError: If the data of a client cannot be used; the message names the client.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
        chunk: int = 8192,
        shard: ClientShard | None = None,
        *,
        pad_batches: bool = False,
    ) -> None:
        if not clients:
            raise ConfigError("clients", [], "must contain at least one client")
        self.clients = clients
        self.shard = shard or ClientShard.whole(clients)
        self._roster = as_client_set(clients, self.shard.numbers or range(1))
        if len(self.shard.numbers) not in (len(clients), 0):
            raise ConfigError(
                "part.numbers", self.shard.numbers, f"must have one number for each of the {len(clients)} clients"
            )
        self._check_fresh()
        self.chunk = chunk
        self.pad_batches = pad_batches
        self.device = torch.device(device)
        self.loss: Loss = clients[0].loss
        self.layout = Layout.of(clients[0].model)
        self.params = self._roster.rows(self.layout, self.device, dtype)
        # a forward pass may change its module: the clients' modules, which users get back, are not used for computation
        self.model: nn.Module = copy_trainable(clients[0].model)
        if len(self):
            self.examples: Examples = self._roster.examples(self.device, dtype)
            self.views = self._views()
        else:
            self.examples = NoExamples()
            self.views = None

    @property
    def counts(self) -> Tensor:
        """True number of examples of each client, `[n_clients]`; private if it differs from `shard.sizes`."""
        return self.examples.counts

    @cached_property
    def starts(self) -> Tensor:
        """Position of each client's first example among all examples, `[n_clients]`."""
        return torch.cat([torch.zeros(1, dtype=torch.long), self.counts.cumsum(0)])[:-1]

    @cached_property
    def _starts_in_numpy(self) -> NDArray[np.int64]:
        return self.starts.numpy()

    def __len__(self) -> int:
        """Number of clients in this process."""
        return len(self.shard.numbers)

    @property
    def dim(self) -> int:
        """Number of trainable parameters of one model."""
        return self.params.shape[1]

    @cached_property
    def problems(self) -> Sequence[Problem]:
        """Objective and constraints of each client."""
        if len(self):
            return self._roster.problems
        return ()

    @property
    def validated_clients(self) -> Sequence[int]:
        """Indices of the clients with data that are validated before training.

        For lazy clients, these are a few clients; the others are validated when they are first drawn.
        """
        return self._roster.validated_clients

    @property
    def is_in_memory(self) -> bool:
        """True if all examples stay in memory."""
        return len(self.validated_clients) == len(self)

    def reset_models(self, start: Tensor | None = None) -> Tensor:
        """Sets all models to the parameters `start [dim]`, by default the first client's, and returns them."""
        if start is None:
            start = self.params[0].clone()
        else:
            start = start.to(self.params)
        if self.params.stride(0):
            self.params.copy_(start)
        return start

    def adopt(self, models: Tensor, cost: str) -> None:
        """Writes reported models `[n, dim]` or `[1, dim]`, and the epsilon spent, into the clients' modules."""
        self._roster.adopt(self.params, models, cost)

    @cached_property
    def equality(self) -> Tensor:
        """Flags of the constraint values that must be zero, `[n_clients, largest number of values]` boolean."""
        # the first row only makes all rows as wide as the run's widest
        widest = torch.zeros(self.shard.widths[1], dtype=torch.bool)
        flags = [torch.tensor(problem.equality, dtype=torch.bool) for problem in self.problems]
        return nn.utils.rnn.pad_sequence([widest, *flags], batch_first=True)[1:].to(self.device)

    @property
    def multiplicity(self) -> int:
        """Number of views of an example."""
        if self.views is None:
            return 1
        return self.views.augmentation.multiplicity

    def _views(self) -> Views | None:
        """Returns the random views of the examples, or None if all gradients use the examples as they are."""
        augmentation = self._roster.augmentation
        problems = {id(problem): problem for problem in self.problems}
        plain = all(problem.is_mean_loss for problem in problems.values())
        if augmentation == Augmentation():
            if plain and self.examples.random:
                return Views(self.examples, augmentation)
            return None
        if not plain:
            fix = (
                "cannot be used with constraints, which need fixed examples: leave out the augmentation or the "
                "constraints"
            )
            raise ConfigError("augmentation", augmentation, fix)
        augmentation.try_out(self.first_examples(1)[0])
        return Views(self.examples, augmentation)

    def _check_fresh(self) -> None:
        """Raises an error if the model of a client holds the result of an earlier run."""
        for index, cost in enumerate(self._roster.released_costs()):
            if cost is not None:
                raise ConfigError(
                    f"clients[{self.shard.numbers[index]}]",
                    cost,
                    f"{EARLIER_RESULT}; create new clients with a new model. {GO_ON}",
                )

    def examples_of(self, client: int) -> Pair:
        """Returns all inputs and targets of a client, `[m, ...]` each."""
        pair = self.examples.take(torch.tensor([client]), torch.arange(int(self.counts[client])).unsqueeze(0))
        return map_tree(lambda rows: rows[0], pair)

    def first_examples(self, count: int) -> Pair:
        """Returns inputs and targets of the population's first `count` examples, `[count, ...]`, repeated if fewer."""
        positions = torch.arange(count) % int(self.counts.sum())
        owners = torch.searchsorted(self.starts, positions, right=True) - 1
        pair = self.examples.take(owners, (positions - self.starts[owners]).unsqueeze(1))
        return map_tree(lambda rows: rows.squeeze(1), pair)

    @property
    def kind(self) -> str | None:
        """The nesting and shape of an example; None without examples."""
        if len(self):
            return describe_kind(self.first_examples(1))
        return None

    def full_batches(self, cohort: Tensor) -> Iterator[Batch]:
        """Yields all examples of the clients in `cohort [k]`, in batches of at most `chunk` examples.

        The batches of the whole population are cached, because a full-batch run reads them in every round.
        """
        if len(cohort) == len(self) and self.is_in_memory:
            yield from self._all_batches
        else:
            yield from self.drawn_batches(cohort, IndexBatches.everything(self.counts[cohort].numpy()))

    @cached_property
    def _all_batches(self) -> list[Batch]:
        return list(self.drawn_batches(torch.arange(len(self)), IndexBatches.everything(self.counts.numpy())))

    def drawn_batches(self, cohort: Tensor, chosen: IndexBatches, numbers: Numbers | None = None) -> Iterator[Batch]:
        """Yields the chosen examples of the clients in `cohort [k]`, in batches of at most `chunk` examples.

        Args:
            cohort: Rows of the clients, `[k]`.
            chosen: The chosen examples of each client.
            numbers: Computes random numbers for views of the examples; None yields the examples as they are.
        """
        if numbers is None:
            n_views = 1
        else:
            n_views = self.multiplicity
        # on accelerators fewer batches are worth more padding
        min_fill = 0.75 if self.device.type == "cpu" else 0.5
        blocks = list(chosen.blocks(max(self.chunk // n_views, 1), min_fill))
        # positions among all clients' examples; all blocks' tensors are copied to the device together. Of so few
        # numbers numpy is several times as fast as torch
        client_rows = cohort.numpy()
        starts = self._starts_in_numpy[client_rows]
        arrays = [(block.rows, block.positions + starts[block.rows, None], block.mask) for block in blocks]
        device_tensors = move_to_device(self.device, *map(torch.from_numpy, chain.from_iterable(arrays)))
        for number, block in enumerate(blocks):
            rows, global_positions, mask = device_tensors[3 * number : 3 * number + 3]
            clients, positions = torch.from_numpy(client_rows[block.rows]), torch.from_numpy(block.positions)
            if numbers is None or self.views is None:
                inputs, targets = self.examples.take(clients, positions, global_positions)
            else:
                cpu_mask = torch.from_numpy(block.mask)
                inputs, targets = self.views.take(clients, positions, cpu_mask, global_positions, numbers)
            yield Batch(rows, inputs, targets, mask, global_positions, views=n_views)
