"""Which clients and examples an answer is computed on: secret draws, and new ones wherever noise is new."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedpriv.clients.batch import Batch
from fedpriv.clients.population import Population
from fedpriv.privacy.settings import FullBatch, Poisson, Sampling
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
        rows = zip(self._rows.tolist(), self._drawn.tolist(), strict=True)
        chosen = [self._examples(row, sampling, index) if drawn else torch.arange(0) for row, drawn in rows]
        return self._population.drawn_batches(self._rows, chosen)

    def _examples(self, row: int, sampling: Sampling, index: int) -> Tensor:
        size, client = int(self._population.counts[row]), self._population.part.numbers[row]
        if isinstance(sampling, FullBatch):
            return torch.arange(size)
        stream = self._randomness.stream("batch", self._round, index, client)
        if isinstance(sampling, Poisson):
            return torch.from_numpy(stream.below(sampling.rate, size).nonzero()[0])
        return torch.from_numpy(stream.permutation(size)[: sampling.size])
