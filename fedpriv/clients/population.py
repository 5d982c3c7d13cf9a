"""The clients' parameters as one tensor, and their data as batches.

`params [n_clients, dim]` holds the trainable parameters of all clients' models. The parameters of each module are views
of its row, so an algorithm works on one tensor while users keep their torch modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor, nn

from fedpriv.clients.batch import Batch
from fedpriv.clients.client import Client, Loss
from fedpriv.clients.client_set import as_client_set
from fedpriv.clients.examples import Examples, NoExamples, kind_of
from fedpriv.clients.index_batches import IndexBatches
from fedpriv.clients.layout import Layout, copy_trainable
from fedpriv.clients.reading import Pair
from fedpriv.clients.shard import ClientShard
from fedpriv.clients.views import Numbers, Views
from fedpriv.data.augmentation import Augmentation
from fedpriv.data.nested import each
from fedpriv.distributed.devices import moved
from fedpriv.errors import ConfigError
from fedpriv.models.problem import Problem


class Population:
    """The clients of a run that are in this process: all of them, unless `part` says otherwise.

    Rows are numbered from 0 here; `part.ids` has the clients' numbers in the run.

    Args:
        clients: At least one client, also where `part` has none: its model then stands for all. All models must have
            the same trainable parameters by name and shape, and the same frozen parameters and buffers by value.
        device: Where parameters and data live.
        dtype: Floating point type of parameters and inputs.
        chunk: Largest number of examples (padding included) in one batch; bounds the memory of a step.
        part: Which clients of the run these are, and the public facts of all; None: they are all.

    Attributes:
        part: See above.
        model: A copy of the first client's, to compute with; frozen parameters and buffers are those of all clients.
        params: All clients' models, `[n_clients, dim]`; of `lazy_clients`, one row for all.
        layout: Of the rows.
        examples: All examples of these clients.
        views: Random views of them for gradients; None if there are none.

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
        part: ClientShard | None = None,
    ) -> None:
        if not clients:
            raise ConfigError("clients", [], "a population needs at least one client")
        self.clients, self.part = clients, part or ClientShard.whole(clients)
        self._roster = as_client_set(clients, self.part.numbers or range(1))
        if len(self.part.numbers) not in (len(clients), 0):
            raise ConfigError("part.numbers", self.part.numbers, f"give one for each of the {len(clients)} clients")
        self._check_fresh()
        self.chunk = chunk
        self.device = torch.device(device)
        self.loss: Loss = clients[0].loss
        self.layout = Layout.of(clients[0].model)
        self.params = self._roster.rows(self.layout, self.device, dtype)
        # what a forward pass leaves in its module stays out of the clients' own, which are handed out
        self.model: nn.Module = copy_trainable(clients[0].model)
        if len(self):
            here: Examples = self._roster.examples(self.device, dtype)
        else:
            here = NoExamples()
        self.examples, self.views = here, None
        if len(self):
            self.views = self._views()

    @property
    def counts(self) -> Tensor:
        """Number of examples that each client holds, `[n_clients]`; private where it differs from `part.sizes`."""
        return self.examples.counts

    @cached_property
    def starts(self) -> Tensor:
        """Position of each client's first example among all, `[n_clients]`."""
        return torch.cat([torch.zeros(1, dtype=torch.long), self.counts.cumsum(0)])[:-1]

    def __len__(self) -> int:
        """Number of clients that are here."""
        return len(self.part.numbers)

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
    def looked_at(self) -> Sequence[int]:
        """Clients whose data are checked before a run: all, or some of those that are read when they are drawn."""
        return self._roster.looked_at

    @property
    def is_held(self) -> bool:
        """Whether all examples stay in memory."""
        return len(self.looked_at) == len(self)

    def start_alike(self, start: Tensor | None = None) -> Tensor:
        """Give all models these parameters `[dim]`, or the first client's, which are returned."""
        if start is None:
            start = self.params[0].clone()
        else:
            start = start.to(self.params)
        if self.params.stride(0):
            self.params.copy_(start)
        return start

    def adopt(self, models: Tensor, price: str) -> None:
        """Write reported models `[n, dim]` or `[1, dim]`, and what they cost, into the clients' modules."""
        self._roster.adopt(self.params, models, price)

    @cached_property
    def equality(self) -> Tensor:
        """Which of a client's constraint values must be zero, `[n_clients, most values of a client]` boolean."""
        most = torch.zeros(self.part.widths[1], dtype=torch.bool)
        flags = [torch.tensor(problem.equality, dtype=torch.bool) for problem in self.problems]
        return nn.utils.rnn.pad_sequence([most, *flags], batch_first=True)[1:].to(self.device)

    @property
    def multiplicity(self) -> int:
        """How many views of an example there are."""
        if self.views is None:
            return 1
        return self.views.augmentation.multiplicity

    def _views(self) -> Views | None:
        augmentation, problems = self._roster.augmentation, {id(problem): problem for problem in self.problems}
        plain = all(problem.is_mean_loss for problem in problems.values())
        if augmentation == Augmentation():
            if plain and self.examples.random:
                return Views(self.examples, augmentation)
            return None
        if not plain:
            fix = "constraints are about examples as they are: leave out one or the other"
            raise ConfigError("augmentation", augmentation, fix)
        augmentation.try_out(self.first_examples(1)[0])
        return Views(self.examples, augmentation)

    def _check_fresh(self) -> None:
        for index, price in enumerate(self._roster.outcomes()):
            if price is not None:
                raise ConfigError(
                    f"clients[{self.part.numbers[index]}]",
                    price,
                    "holds the result of an earlier run, whose epsilon this run would not count; make fresh clients. "
                    "To go on from a released model on purpose, copy its parameters and add up the prices",
                )

    def examples_of(self, client: int) -> Pair:
        """All inputs and targets of a client, `[m, ...]` each."""
        found = self.examples.take(torch.tensor([client]), torch.arange(int(self.counts[client])).unsqueeze(0))
        return each(lambda rows: rows[0], found)

    def first_examples(self, count: int) -> Pair:
        """Inputs and targets of the first examples of all, `[count, ...]`; the same again where there are fewer."""
        at = torch.arange(count) % int(self.counts.sum())
        owners = torch.searchsorted(self.starts, at, right=True) - 1
        found = self.examples.take(owners, (at - self.starts[owners]).unsqueeze(1))
        return each(lambda rows: rows.squeeze(1), found)

    @property
    def kind(self) -> str | None:
        """How an example is nested and shaped; None where there is none."""
        if len(self):
            return kind_of(self.first_examples(1))
        return None

    def full_batches(self, cohort: Tensor) -> Iterator[Batch]:
        """All examples of the clients in `cohort [k]`, in batches of at most `chunk` examples.

        The batches of the whole population are kept: a full-batch run reads them every round.
        """
        if len(cohort) == len(self) and self.is_held:
            yield from self._all_batches
        else:
            yield from self.drawn_batches(cohort, IndexBatches.everything(self.counts[cohort].numpy()))

    @cached_property
    def _all_batches(self) -> list[Batch]:
        return list(self.drawn_batches(torch.arange(len(self)), IndexBatches.everything(self.counts.numpy())))

    def drawn_batches(self, cohort: Tensor, chosen: IndexBatches, numbers: Numbers | None = None) -> Iterator[Batch]:
        """The chosen examples of the clients in `cohort [k]`.

        Args:
            cohort: The clients.
            chosen: Which examples.
            numbers: Random numbers for `views` of them; None gives the examples as they are.
        """
        many = 1 if numbers is None else self.multiplicity
        # on other devices than a processor fewer pieces are worth more padding
        alike = 0.75 if self.device.type == "cpu" else 0.5
        blocks = chosen.blocks(max(self.chunk // many, 1), alike)
        here = [[torch.from_numpy(part) for part in block] for block in blocks]
        lists = [(rows, places + self.starts[cohort[rows]].unsqueeze(1), mask) for rows, places, mask in here]
        there = moved(self.device, *chain.from_iterable(lists))
        for number, (clients, places, kept) in enumerate(here):
            rows, at, mask = there[3 * number : 3 * number + 3]
            if numbers is None or self.views is None:
                inputs, targets = self.examples.take(cohort[clients], places, at)
            else:
                inputs, targets = self.views.take(cohort[clients], places, kept, at, numbers)
            yield Batch(rows, inputs, targets, mask, at, views=many)
