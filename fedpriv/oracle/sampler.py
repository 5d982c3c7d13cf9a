"""Which clients and examples an answer is computed on: secret draws, and new ones wherever noise is new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.clients.batch import Batch
from fedpriv.clients.index_batches import IndexBatches
from fedpriv.clients.population import Population
from fedpriv.privacy.settings import Allocation, Cyclic, FixedSize, FullBatch, Poisson, Sampling
from fedpriv.randomness.keystream import below, order_of, uniform_below
from fedpriv.randomness.streams import Randomness


class BatchSampler:
    """The draws of one run, a round at a time.

    Args:
        population: The clients.
        randomness: The run's random streams.
        cohort_rate: Probability with which each client of a round is drawn; 1 draws all.
        cohort_rounds: Rounds in exactly one of which each client is drawn; None if each round draws by itself.

    Attributes:
        rows: Rows of the population that answers are about, `[j]`.
    """

    def __init__(
        self, population: Population, randomness: Randomness, cohort_rate: float, cohort_rounds: int | None = None
    ) -> None:
        self._population, self._randomness = population, randomness
        self._cohort_rate, self._cohort_rounds = cohort_rate, cohort_rounds
        self._known = dict[int, Tensor]()  # who is drawn in secret, this round and the next

    def begin_round(self, round_index: int, cohort: Tensor) -> Tensor | None:
        """Draw among the clients `cohort [k]` of a round; what follows is of those of them that are here and drawn.

        Returns:
            Their places among those here, `[j]`; None if nobody is left out.
        """
        self._round, self.rows = round_index, self._population.part.rows(cohort)
        if self._cohort_rate == 1:
            self._population.examples.expect(self.rows)
            return None
        drawn = self._in_secret(round_index).nonzero()[:, 0]
        # while a round is computed, the examples of the next may be read
        ahead = self._in_secret(round_index + 1)
        self._population.examples.expect(self.rows[drawn], self.rows[ahead])
        self._known, self.rows = {round_index + 1: self._known[round_index + 1]}, self.rows[drawn]
        return drawn

    def _in_secret(self, round_index: int) -> Tensor:
        """Which of the round's rows are those of clients that are drawn, `[k]`."""
        part = self._population.part
        if round_index not in self._known:
            self._known[round_index] = torch.from_numpy(self._secret_cohort(round_index, part.n_clients))
        drawn = self._known[round_index]
        if len(self.rows) == len(drawn):
            return drawn
        return drawn[part.ids[self.rows]]

    def _secret_cohort(self, round_index: int, n_clients: int) -> NDArray[np.bool_]:
        """Which of all clients are drawn in a round, `[n_clients]`."""
        if self._cohort_rounds is None:
            return self._randomness.stream("secret_cohort", round_index).below(self._cohort_rate, n_clients)
        # all rounds of an epoch draw the same numbers: each client's round
        epoch, turn = divmod(round_index, self._cohort_rounds)
        words = self._randomness.stream("secret_cohort", epoch).words(n_clients)
        return uniform_below(words, self._cohort_rounds) == turn

    def batches(self, sampling: Sampling, index: int, some: slice = slice(None)) -> Iterator[Batch]:
        """The examples of `some` of the clients behind answer number `index` of the round."""
        rows = self.rows[some]
        if isinstance(sampling, FullBatch):
            return self._population.full_batches(rows)
        return self._population.drawn_batches(rows, self._chosen(sampling, index, rows))

    def views(self, sampling: Sampling, index: int, some: slice = slice(None)) -> Iterator[Batch]:
        """The same examples, random views of them where the population has any: for gradients."""
        if self._population.views is None:
            return self.batches(sampling, index, some)
        rows, round_index = self.rows[some], self._round

        def numbers(clients: Sequence[int], places: Sequence[int], size: int) -> Tensor:
            examples = zip(self._population.part.ids[list(clients)].tolist(), places, strict=True)
            return torch.from_numpy(self._randomness.of_examples("views", round_index, index, examples, size))

        return self._population.drawn_batches(rows, self._examples(sampling, index, rows), numbers)

    def positions(self, sampling: Sampling, index: int) -> IndexBatches:
        """Positions, in the data of each client of the round, of the examples behind answer number `index`."""
        return self._examples(sampling, index, self.rows)

    def _examples(self, sampling: Sampling, index: int, rows: Tensor) -> IndexBatches:
        if isinstance(sampling, FullBatch):
            return IndexBatches.everything(self._population.counts[rows].numpy())
        return self._chosen(sampling, index, rows)

    def slot(self, sampling: Cyclic) -> int:
        """Which slot of every client's examples is this round's batch."""
        return self._round % sampling.blocks

    def _chosen(self, sampling: Poisson | FixedSize | Cyclic | Allocation, index: int, rows: Tensor) -> IndexBatches:
        """Each client's draws have a random stream of their own."""
        sizes, clients = self._population.counts[rows].numpy(), self._population.part.ids[rows]
        if isinstance(sampling, Cyclic) and sampling.rate == 1:
            return IndexBatches.listed(
                [np.arange(self.slot(sampling), size, sampling.blocks) for size in sizes.tolist()]
            )
        if isinstance(sampling, Allocation):
            return self._allocated(sampling.batches, index, clients.tolist(), sizes)
        words = self._randomness.first_words("batch", self._round, index, clients.tolist(), sizes.tolist())
        if isinstance(sampling, Poisson):
            return IndexBatches.marked(sizes, below(words, sampling.rate))
        if isinstance(sampling, Cyclic):
            places = IndexBatches.everything(sizes).places
            in_slot = places % sampling.blocks == self.slot(sampling)
            return IndexBatches.marked(sizes, in_slot & below(words, sampling.rate))
        ends = sizes.cumsum().tolist()
        return IndexBatches.listed([order_of(words[a:b])[: sampling.size] for a, b in pairwise([0, *ends])])

    def _allocated(self, batches: int, index: int, clients: Sequence[int], sizes: NDArray[np.int64]) -> IndexBatches:
        """The examples whose batch of the epoch is that of the round.

        The stream has the name of the epoch, not of the round: each round of the epoch draws the same assignment again,
        also after a resume. Every answer of a round, and every epoch, has an assignment of its own.
        """
        epoch, batch = divmod(self._round, batches)
        words = self._randomness.first_words("allocation", epoch, index, clients, sizes.tolist())
        return IndexBatches.marked(sizes, uniform_below(words, batches) == batch)
