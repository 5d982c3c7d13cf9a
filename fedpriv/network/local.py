"""Clients around a server (a star), and the cohorts that take part in its rounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.distributed.devices import move_to_device
from fedpriv.errors import ConfigError
from fedpriv.randomness.streams import Randomness
from fedpriv.settings.checks import Count, Probability, validate_arguments
from fedpriv.storage.identity import list_digest_parts


@validate_arguments("network.cohort")
@dataclass(frozen=True)
class Everyone:
    """All clients take part in every round (the default).

    Examples:
        >>> import fedpriv
        >>> fedpriv.Star(8, cohort=fedpriv.Everyone()).active_fraction
        1.0
    """

    def draw(self, n_clients: int, round_index: int, randomness: Randomness) -> Tensor:
        """Returns the indices of all clients."""
        return torch.arange(n_clients)

    def expected(self, n_clients: int) -> float:
        """Returns `n_clients`."""
        return float(n_clients)


@validate_arguments("network.cohort")
@dataclass(frozen=True)
class PoissonCohort:
    """Each client takes part in a round with probability `rate`, independently.

    These cohorts are public, so they do not lower the privacy cost. Secret cohorts do lower it; see
    `Central(cohort_rate)`.

    Args:
        rate: Probability that a client takes part in a round, in (0, 1].

    Examples:
        >>> import fedpriv
        >>> fedpriv.Star(8, cohort=fedpriv.PoissonCohort(0.5)).active_fraction
        0.5
    """

    rate: Probability

    def draw(self, n_clients: int, round_index: int, randomness: Randomness) -> Tensor:
        """Returns a new cohort without repeats, sorted; it may be empty."""
        return torch.from_numpy(randomness.stream("cohort", round_index).below(self.rate, n_clients).nonzero()[0])

    def expected(self, n_clients: int) -> float:
        """Returns the expected cohort size, by which sums are divided."""
        return self.rate * n_clients


@validate_arguments("network.cohort")
@dataclass(frozen=True)
class FixedCohort:
    """In each round `size` clients, drawn at random without replacement, take part.

    Args:
        size: Number of clients in a round.

    Examples:
        >>> import fedpriv
        >>> fedpriv.Star(8, cohort=fedpriv.FixedCohort(2)).active_fraction
        0.25
    """

    size: Count

    def draw(self, n_clients: int, round_index: int, randomness: Randomness) -> Tensor:
        """Returns `size` distinct indices, sorted."""
        chosen = randomness.stream("cohort", round_index).permutation(n_clients)[: self.size]
        return torch.from_numpy(chosen).sort().values

    def expected(self, n_clients: int) -> float:
        """Returns `size`."""
        return float(self.size)


@validate_arguments("network.cohort")
@dataclass(frozen=True)
class CyclicCohort:
    """Fixed blocks of clients that take turns: client i is in block `i mod blocks`, and round t uses block `t mod
    blocks`.

    Args:
        blocks: Number of blocks.

    Examples:
        >>> import fedpriv
        >>> fedpriv.Star(8, cohort=fedpriv.CyclicCohort(4)).active_fraction
        0.25
    """

    blocks: Count

    def draw(self, n_clients: int, round_index: int, randomness: Randomness) -> Tensor:
        """Returns the block of the round, without randomness."""
        return torch.arange(round_index % self.blocks, n_clients, self.blocks)

    def expected(self, n_clients: int) -> float:
        """Returns the mean size of a block, by which sums are divided."""
        return n_clients / self.blocks


Cohort = Everyone | PoissonCohort | FixedCohort | CyclicCohort


@validate_arguments("network")
class Star:
    """Clients around a server, simulated in one process.

    Args:
        n_clients: Number of clients.
        cohort: Chooses the participants of a round: `Everyone()` (default), `PoissonCohort(rate)`,
            `FixedCohort(size)` or `CyclicCohort(blocks)`.

    Raises:
        ConfigError: If the cohort is larger than the number of clients.

    Examples:
        >>> import fedpriv
        >>> fedpriv.Star(10).everyone
        True
    """

    def __init__(self, n_clients: Count, cohort: Cohort | None = None) -> None:
        self.n_clients = n_clients
        self.cohort = cohort or Everyone()
        expected = self.cohort.expected(n_clients)
        if expected > n_clients:
            fix = f"must be at most {n_clients}, the number of clients"
            raise ConfigError("network.cohort.fixed", int(expected), fix)
        if isinstance(self.cohort, CyclicCohort) and self.cohort.blocks > n_clients:
            fix = f"must be at most {n_clients}, the number of clients, since each block needs one"
            raise ConfigError("network.cohort.cyclic.blocks", self.cohort.blocks, fix)
        self._drawn = torch.arange(n_clients)  # the round's cohort
        self.numbers_sent = 0

    @property
    def spectral_gap(self) -> float:
        """1, since one exchange averages exactly."""
        return 1.0

    @property
    def active_fraction(self) -> float:
        """Expected fraction of clients in a round."""
        return self.cohort.expected(self.n_clients) / self.n_clients

    @property
    def everyone(self) -> bool:
        """True if all clients take part in every round."""
        return isinstance(self.cohort, Everyone)

    @property
    def blocks(self) -> int:
        """Number of fixed blocks of clients that take turns; 1 unless cohorts are cyclic."""
        if isinstance(self.cohort, CyclicCohort):
            return self.cohort.blocks
        return 1

    @property
    def answers(self) -> int:
        """Number of rows that the server sends back in a round."""
        return self._drawn.shape[0]

    @property
    def expected_rows(self) -> float:
        """Average number of rows sent in a round, to the server and back."""
        return 2 * self.cohort.expected(self.n_clients)

    def participants(self, round_index: int, randomness: Randomness) -> Tensor:
        """Draws and returns the clients of this round, sorted, `[k]`."""
        self._drawn = self.cohort.draw(self.n_clients, round_index, randomness)
        self.numbers_sent = 0
        return self._drawn

    def mean(self, rows: Tensor) -> Tensor:
        """Returns the sum of rows over the expected number of participants, for all clients: `[k, dim] -> [n, dim]`."""
        self.numbers_sent += rows.numel()
        return _sum_over(rows, self.cohort.expected(self.n_clients)).expand(self.n_clients, -1)

    def mix(self, rows: Tensor) -> Tensor:
        """Returns the mean of the participants' rows for each participant, `[k, dim] -> [k, dim]`."""
        self.numbers_sent += rows.numel()
        return _sum_over(rows, len(rows)).expand_as(rows)

    def replace_rows(self, rows: Tensor, others: Tensor) -> Tensor:
        """Returns `others` with the participants' rows replaced: `[k, dim], [n, dim] -> [n, dim]`."""
        if len(rows) == len(others):
            return rows
        return others.index_copy(0, self._drawn.to(others.device), rows)

    def facts(self) -> None:
        """Returns None, because these facts describe graphs without a server."""
        return

    def gather(self, rows: Tensor) -> Tensor:
        """Returns all rows unchanged, because the server receives every row."""
        self.numbers_sent += rows.numel()
        return rows

    def total(self, rows: Tensor) -> Tensor:
        """Returns the sum of the rows: `[k, dim] -> [1, dim]`."""
        return sum_replicated_rows(rows)

    def largest(self, rows: Tensor) -> Tensor:
        """Returns the largest entry of each column: `[k, dim] -> [1, dim]`."""
        return rows.amax(0, keepdim=True)

    def scatter(self, row: Tensor) -> Tensor:
        """Returns the row for all clients: `[1, dim] -> [n, dim]`."""
        return row.expand(self.n_clients, -1)

    def local_positions(self, cohort: Tensor, like: Tensor) -> Tensor:
        """Returns the cohort, on the device of `like`. Positions equal the clients' numbers, because this process has
        the rows of all clients.
        """
        if cohort.shape[0] == self.n_clients:
            return cohort
        (self._drawn,) = move_to_device(like.device, cohort)
        return self._drawn


def sum_replicated_rows(rows: Tensor) -> Tensor:
    """Returns the sum of the rows, `[k, dim] -> [1, dim]`. If the rows are one expanded row, that row is multiplied by
    their number.
    """
    if len(rows) and rows.stride(0) == 0:
        return rows[:1] * len(rows)
    return rows.sum(0, keepdim=True)


def _sum_over(rows: Tensor, count: float) -> Tensor:
    """Returns the sum of the rows over `count`, `[k, dim] -> [1, dim]`; the mean of equal rows is exactly that row."""
    n_rows = rows.shape[0]
    if n_rows == count == 1:
        return rows
    if n_rows and rows.stride(0) == 0:
        return rows[:1] * (n_rows / count)
    if n_rows == 1:
        return rows / count
    return rows.sum(0, keepdim=True) / count


@list_digest_parts.register(Star)
def _settings(network: Star) -> tuple[object, ...]:
    return network.n_clients, network.cohort
