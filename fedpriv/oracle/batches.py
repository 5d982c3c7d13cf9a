"""Which clients and examples an answer is computed on: secret draws, and new ones wherever noise is new."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from fedpriv.clients.batch import Batch
from fedpriv.clients.chosen import Chosen
from fedpriv.clients.population import Population
from fedpriv.privacy.settings import FullBatch, Poisson, Sampling
from fedpriv.randomness.keystream import below, order_of
from fedpriv.randomness.streams import Randomness


class Draws:
    """The draws of one run, a round at a time.

    Args:
        population: The clients.
        randomness: The run's random streams.
        cohort_rate: Probability with which each client of a round is drawn; 1 draws all.
    """

    def __init__(self, population: Population, randomness: Randomness, cohort_rate: float) -> None:
        self._population, self._randomness, self._cohort_rate = population, randomness, cohort_rate

    def begin_round(self, round_index: int, cohort: Tensor) -> None:
        """Draw among the clients `cohort [k]` of a round; what follows is of those of them that are here."""
        part = self._population.part
        self._round, self._rows = round_index, part.rows(cohort)
        self._drawn = torch.ones(len(self._rows), dtype=torch.bool)
        if self._cohort_rate < 1:
            stream = self._randomness.stream("secret_cohort", round_index)
            self._drawn = torch.from_numpy(stream.below(self._cohort_rate, part.n_clients))[part.ids[self._rows]]

    def of_drawn(self, rows: Tensor) -> Tensor:
        """The rows `[k, dim]`, with zeros for clients that were not drawn."""
        return rows.where(self._drawn.to(rows.device).unsqueeze(1), 0)

    def batches(self, sampling: Sampling, index: int) -> Iterator[Batch]:
        """The examples behind answer number `index` of the round; none of clients that were not drawn."""
        if isinstance(sampling, FullBatch) and bool(self._drawn.all()):
            return self._population.full_batches(self._rows)
        return self._population.drawn_batches(self._rows, self._chosen(sampling, index))

    def _chosen(self, sampling: Sampling, index: int) -> Chosen:
        """None of clients that were not drawn. Each client's draws have a random stream of their own."""
        sizes = self._population.counts[self._rows].where(self._drawn, 0).numpy()
        if isinstance(sampling, FullBatch):
            return Chosen.everything(sizes)
        clients = self._population.part.ids[self._rows]
        words = self._randomness.first_words("batch", self._round, index, clients.tolist(), sizes.tolist())
        if isinstance(sampling, Poisson):
            return Chosen.marked(sizes, below(words, sampling.rate))
        ends = sizes.cumsum().tolist()
        return Chosen.listed([order_of(words[a:b])[: sampling.size] for a, b in pairwise([0, *ends])])
