"""Draws the clients and examples of queries in secret. The draws follow from the same secret as the noise, so they
change whenever the noise does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.clients.batch import Batch
from fedpriv.clients.index_batches import IndexBatches, Padding
from fedpriv.clients.population import Population
from fedpriv.errors import ConfigError
from fedpriv.privacy.settings import Allocation, Cyclic, FixedSize, FullBatch, Poisson, Sampling
from fedpriv.randomness.keystream import is_below, make_order, uniform_below
from fedpriv.randomness.streams import Randomness

EXCEEDED = 1e-12
"""Probability that a secret batch is larger than its padded size, so that more examples are computed than in other
rounds.
"""


class BatchSampler:
    """Draws the clients and batches of one run, a round at a time.

    Args:
        population: The clients.
        randomness: The run's random streams.
        cohort_rate: Probability with which each client of a round is drawn; 1 draws all.
        cohort_rounds: Length of an epoch in rounds; each client is drawn for exactly one. None draws each round
            separately.

    Attributes:
        rows: Rows of the population for which queries are computed, `[j]`.

    Raises:
        ConfigError: If batches are padded, but another setting reveals the amount of computation.
    """

    def __init__(
        self, population: Population, randomness: Randomness, cohort_rate: float, cohort_rounds: int | None = None
    ) -> None:
        if population.pad_batches and cohort_rate < 1:
            fix = (
                "padding covers only the examples of each client, not the clients of a secret cohort: leave "
                "pad_batches or the cohort out"
            )
            raise ConfigError("compute.pad_batches", True, fix)
        if population.pad_batches and population.views is not None:
            fix = (
                "random views are computed only for the drawn examples, so padding would not hide their number: "
                "leave pad_batches or the views out"
            )
            raise ConfigError("compute.pad_batches", True, fix)
        self._population = population
        self._randomness = randomness
        self._cohort_rate = cohort_rate
        self._cohort_rounds = cohort_rounds
        self._secret_draws: dict[int, Tensor] = {}
        """Flags of the clients that are drawn in secret, `[n_clients]`, for this round and the next."""

    def begin_round(self, round_index: int, cohort: Tensor) -> Tensor | None:
        """Draws among the clients `cohort [k]` of a round; later queries use the drawn clients of this process.

        Returns:
            Positions of the drawn clients among the cohort's clients in this process, `[j]`; None if all are drawn.
        """
        self._round = round_index
        self.rows = self._population.shard.rows(cohort)
        if self._cohort_rate == 1:
            self._population.examples.expect(self.rows)
            return None
        drawn = self._drawn_in_secret(round_index).nonzero()[:, 0]
        # the examples of the next round may be read while this round is computed
        drawn_next = self._drawn_in_secret(round_index + 1)
        self._population.examples.expect(self.rows[drawn], self.rows[drawn_next])
        self._secret_draws = {round_index + 1: self._secret_draws[round_index + 1]}
        self.rows = self.rows[drawn]
        return drawn

    def _drawn_in_secret(self, round_index: int) -> Tensor:
        """Returns True for the rows of the round that belong to drawn clients, `[k]`."""
        shard = self._population.shard
        if round_index not in self._secret_draws:
            self._secret_draws[round_index] = torch.from_numpy(self._secret_cohort(round_index, shard.n_clients))
        drawn = self._secret_draws[round_index]
        if len(self.rows) == len(drawn):
            return drawn
        return drawn[shard.ids[self.rows]]

    def _secret_cohort(self, round_index: int, n_clients: int) -> NDArray[np.bool_]:
        """Draws flags of the clients that take part in a round, `[n_clients]`."""
        if self._cohort_rounds is None:
            return self._randomness.stream("secret_cohort", round_index).below(self._cohort_rate, n_clients)
        # the stream of the epoch: all of its rounds draw the same numbers, which are the clients' round indices
        epoch, turn = divmod(round_index, self._cohort_rounds)
        words = self._randomness.stream("cohort_epoch", epoch).words(n_clients)
        return uniform_below(words, self._cohort_rounds) == turn

    def batches(self, sampling: Sampling, index: int, which: slice = slice(None)) -> Iterator[Batch]:
        """Yields the examples of query number `index` of the round, for the rows `which` of the drawn clients."""
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

    def positions(self, sampling: Sampling, index: int) -> IndexBatches:
        """Returns the positions, in the data of each client, of the examples of query number `index` of the round."""
        return self._examples(sampling, index, self.rows)

    def _examples(self, sampling: Sampling, index: int, rows: Tensor) -> IndexBatches:
        if isinstance(sampling, FullBatch):
            return IndexBatches.everything(self._population.counts[rows].numpy())
        return self._draw_batches(sampling, index, rows)

    def block(self, sampling: Cyclic) -> int:
        """Returns the index of the block of every client's examples from which this round's batch is drawn."""
        return self._round % sampling.blocks

    def _draw_batches(
        self, sampling: Poisson | FixedSize | Cyclic | Allocation, index: int, rows: Tensor
    ) -> IndexBatches:
        """Draws the batches of some rows, padded if computation time must not reveal their sizes."""
        chosen = self._drawn(sampling, index, rows)
        if not self._population.pad_batches:
            return chosen
        cells = bound_batch_sizes(sampling, tuple(self._population.shard.sizes[rows].tolist()))
        return chosen.padded(Padding(np.array(cells), self._population.counts[rows].numpy()))

    def _drawn(self, sampling: Poisson | FixedSize | Cyclic | Allocation, index: int, rows: Tensor) -> IndexBatches:
        """Draws the batches of some rows, with a separate random stream for each client."""
        sizes, clients = self._population.counts, self._population.shard.ids
        if rows.shape[0] < clients.shape[0]:  # rows are ascending; otherwise they are all rows
            sizes, clients = sizes[rows], clients[rows]
        sizes = sizes.numpy()
        if isinstance(sampling, Cyclic) and sampling.rate == 1:
            return IndexBatches.listed(
                [np.arange(self.block(sampling), size, sampling.blocks) for size in sizes.tolist()]
            )
        if isinstance(sampling, Allocation):
            return self._allocated(sampling.batches, index, clients.tolist(), sizes)
        words = self._randomness.first_words("batch", self._round, index, clients.tolist(), sizes.tolist())
        if isinstance(sampling, Poisson):
            return IndexBatches.marked(sizes, is_below(words, sampling.rate))
        if isinstance(sampling, Cyclic):
            positions = IndexBatches.everything(sizes).positions
            in_block = positions % sampling.blocks == self.block(sampling)
            return IndexBatches.marked(sizes, in_block & is_below(words, sampling.rate))
        # a fixed number of examples: the first ones of a random order
        ends = sizes.cumsum().tolist()
        return IndexBatches.listed([make_order(words[a:b])[: sampling.size] for a, b in pairwise([0, *ends])])

    def _allocated(self, batches: int, index: int, clients: Sequence[int], sizes: NDArray[np.int64]) -> IndexBatches:
        """Returns the examples that are assigned to the round's batch of the epoch.

        The random stream is named by the epoch and not by the round, so each round of the epoch draws the same
        assignment again, also after a resume. Each query of a round, and each epoch, has a separate assignment.
        """
        epoch, batch = divmod(self._round, batches)
        words = self._randomness.first_words("allocation", epoch, index, clients, sizes.tolist())
        return IndexBatches.marked(sizes, uniform_below(words, batches) == batch)


@lru_cache(maxsize=8)
def bound_batch_sizes(sampling: Poisson | FixedSize | Cyclic | Allocation, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns a size that each client's batch exceeds with a probability of at most `EXCEEDED`; public.

    Args:
        sampling: Sampling of the examples.
        sizes: Public number of examples of each client.
    """
    from scipy.stats import binom

    if isinstance(sampling, FixedSize):
        return tuple(min(sampling.size, size) for size in sizes)
    if isinstance(sampling, Allocation):
        rate = 1 / sampling.batches
    else:
        rate = sampling.rate
    if isinstance(sampling, Cyclic):
        drawn_from = [-(-size // sampling.blocks) for size in sizes]
    else:
        drawn_from = list(sizes)
    ceilings = {size: int(binom.isf(EXCEEDED, size, rate)) for size in {*drawn_from} if size}
    return tuple(ceilings.get(size, 0) for size in drawn_from)
