"""Draws the clients and examples that an answer is computed on, in secret, and anew wherever noise is new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fedpriv.clients.batch import Batch
from fedpriv.clients.index_batches import IndexBatches
from fedpriv.clients.population import Population
from fedpriv.privacy.settings import Cyclic, FixedSize, FullBatch, Poisson, Sampling
from fedpriv.randomness.keystream import below, order_of
from fedpriv.randomness.streams import Randomness


class BatchSampler:
    """Draws the clients and batches of one run, a round at a time.

    Args:
        population: The clients.
        randomness: The run's random streams.
        cohort_rate: Probability with which each client of a round is drawn; 1 draws all.

    Attributes:
        rows: Rows of the population that answers are about, `[j]`.
    """

    def __init__(self, population: Population, randomness: Randomness, cohort_rate: float) -> None:
        self._population = population
        self._randomness = randomness
        self._cohort_rate = cohort_rate
        self._secret_draws: dict[int, Tensor] = {}
        """Flags of the clients that are drawn in secret, `[n_clients]`, for this round and the next."""

    def begin_round(self, round_index: int, cohort: Tensor) -> Tensor | None:
        """Draws among the clients `cohort [k]` of a round; later answers are about the drawn ones of this process.

        Returns:
            Positions of the drawn clients among the cohort's clients in this process, `[j]`; None if all are drawn.
        """
        self._round = round_index
        self.rows = self._population.shard.rows(cohort)
        if self._cohort_rate == 1:
            self._population.examples.expect(self.rows)
            return None
        drawn = self._drawn_in_secret(round_index).nonzero()[:, 0]
        # while a round is computed, the examples of the next may be read
        drawn_next = self._drawn_in_secret(round_index + 1)
        self._population.examples.expect(self.rows[drawn], self.rows[drawn_next])
        self._secret_draws = {round_index + 1: self._secret_draws[round_index + 1]}
        self.rows = self.rows[drawn]
        return drawn

    def _drawn_in_secret(self, round_index: int) -> Tensor:
        """Returns flags of the round's rows whose clients are drawn, `[k]`."""
        shard = self._population.shard
        if round_index not in self._secret_draws:
            stream = self._randomness.stream("secret_cohort", round_index)
            self._secret_draws[round_index] = torch.from_numpy(stream.below(self._cohort_rate, shard.n_clients))
        drawn = self._secret_draws[round_index]
        if len(self.rows) == len(drawn):
            return drawn
        return drawn[shard.ids[self.rows]]

    def batches(self, sampling: Sampling, index: int, which: slice = slice(None)) -> Iterator[Batch]:
        """Yields the examples of answer number `index` of the round, for the rows `which` of the drawn clients."""
        rows = self.rows[which]
        if isinstance(sampling, FullBatch):
            return self._population.full_batches(rows)
        return self._population.drawn_batches(rows, self._draw_batches(sampling, index, rows))

    def views(self, sampling: Sampling, index: int, which: slice = slice(None)) -> Iterator[Batch]:
        """Yields the batches of a gradient: like `batches`, with random views of the examples if data are augmented."""
        if self._population.views is None:
            return self.batches(sampling, index, which)
        rows = self.rows[which]
        round_index = self._round

        def numbers(clients: Sequence[int], positions: Sequence[int], size: int) -> Tensor:
            examples = zip(self._population.shard.ids[list(clients)].tolist(), positions, strict=True)
            return torch.from_numpy(self._randomness.of_examples("views", round_index, index, examples, size))

        return self._population.drawn_batches(rows, self._examples(sampling, index, rows), numbers)

    def _examples(self, sampling: Sampling, index: int, rows: Tensor) -> IndexBatches:
        if isinstance(sampling, FullBatch):
            return IndexBatches.everything(self._population.counts[rows].numpy())
        return self._draw_batches(sampling, index, rows)

    def slot(self, sampling: Cyclic) -> int:
        """Returns the index of the slot of every client's examples that this round's batch is drawn from."""
        return self._round % sampling.blocks

    def _draw_batches(self, sampling: Poisson | FixedSize | Cyclic, index: int, rows: Tensor) -> IndexBatches:
        """Draws the batches of some rows, each client's with a random stream of its own."""
        sizes = self._population.counts[rows].numpy()
        clients = self._population.shard.ids[rows]
        if isinstance(sampling, Cyclic) and sampling.rate == 1:
            return IndexBatches.listed(
                [np.arange(self.slot(sampling), size, sampling.blocks) for size in sizes.tolist()]
            )
        words = self._randomness.first_words("batch", self._round, index, clients.tolist(), sizes.tolist())
        if isinstance(sampling, Poisson):
            return IndexBatches.marked(sizes, below(words, sampling.rate))
        if isinstance(sampling, Cyclic):
            positions = IndexBatches.everything(sizes).positions
            in_slot = positions % sampling.blocks == self.slot(sampling)
            return IndexBatches.marked(sizes, in_slot & below(words, sampling.rate))
        # a fixed number of examples: the first ones of a random order
        ends = sizes.cumsum().tolist()
        return IndexBatches.listed([order_of(words[a:b])[: sampling.size] for a, b in pairwise([0, *ends])])
