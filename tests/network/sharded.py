"""A run whose rows lie in two places: each thread holds some clients' rows, and they meet in the network alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

import fedpriv as fp
from fedpriv.network.rounds import initial_state, run_rounds
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Strategy

Network = fp.Star | fp.Graph


class Meeting:
    """Where the threads wait for each other and exchange values."""

    def __init__(self, parties: int) -> None:
        self._barrier, self._brought = threading.Barrier(parties, timeout=60), [None] * parties

    def exchange(self, place: int, value: Any) -> list[Any]:
        """What everyone brought."""
        self._brought[place] = value
        self._barrier.wait()
        found = list(self._brought)
        self._barrier.wait()
        return found

    def abort(self) -> None:
        """Nobody need wait for one that failed."""
        self._barrier.abort()


class ShardedNetwork:
    """One place's view of a network: its own rows, and sums, maxima and neighbours' rows over all places."""

    def __init__(self, whole: Network, ids: Tensor, place: int, meeting: Meeting) -> None:
        self._whole, self._ids, self._place, self._meeting = whole, ids, place, meeting
        self.n_clients, self.everyone = whole.n_clients, whole.everyone

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)  # numbers_sent, answers, spectral_gap

    def participants(self, round_index: int, randomness: Randomness) -> Tensor:
        self._cohort = self._whole.participants(round_index, randomness)
        return self._cohort

    def local_positions(self, cohort: Tensor, like: Tensor | None = None) -> Tensor:
        return torch.isin(self._ids, cohort).nonzero()[:, 0]

    def _all(self, rows: Tensor) -> Tensor:
        """Participants' rows in the order of the cohort."""
        ids = self._meeting.exchange(self._place, self._ids[self.local_positions(self._cohort)])
        return torch.cat(self._meeting.exchange(self._place, rows))[torch.cat(ids).argsort()]

    def mean(self, rows: Tensor) -> Tensor:
        self._whole.numbers_sent += sum(self._meeting.exchange(self._place, rows.numel()))
        return self.scatter(self.total(rows) / self._whole.cohort.expected(self.n_clients))

    def mix(self, rows: Tensor) -> Tensor:
        mine = torch.isin(self._cohort, self._ids)
        return self._whole.mix(self._all(rows))[mine]

    def replace_rows(self, rows: Tensor, others: Tensor) -> Tensor:
        return others.index_copy(0, self.local_positions(self._cohort), rows)

    def gather(self, rows: Tensor) -> Tensor:
        self._whole.numbers_sent += sum(self._meeting.exchange(self._place, rows.numel()))
        return rows

    def total(self, rows: Tensor) -> Tensor:
        return torch.stack(self._meeting.exchange(self._place, rows.sum(0, keepdim=True))).sum(0)

    def largest(self, rows: Tensor) -> Tensor:
        return torch.cat(self._meeting.exchange(self._place, rows)).amax(0, keepdim=True)

    def scatter(self, row: Tensor) -> Tensor:
        return row.expand(len(self._ids), -1)


def in_shards(work: Callable[[Tensor, int, Meeting], Any], shards: Sequence[Sequence[int]]) -> list[Any]:
    """`work(ids, place, meeting)` of every shard, at once."""
    meeting = Meeting(len(shards))

    def of(place: int) -> Any:
        try:
            return work(torch.tensor(shards[place]), place, meeting)
        except BaseException:
            meeting.abort()
            raise

    with ThreadPoolExecutor(len(shards)) as pool:
        return list(pool.map(of, range(len(shards))))


class Quadratics:
    """Noisy answers about f_i(x) = ||A_i x - b_i||^2 / 2 and c_i(x) = D_i x - e_i, for the clients `ids`.

    An answer's noise follows from round, question and client, as in earnest.
    """

    def __init__(self, ids: Tensor, n_clients: int, dim: int, noise: float) -> None:
        draw = torch.Generator().manual_seed(3)
        self._a = torch.randn(n_clients, 8, dim, generator=draw, dtype=torch.float64)[ids]
        self._b = torch.randn(n_clients, 8, generator=draw, dtype=torch.float64)[ids]
        self._d = torch.randn(n_clients, 2, dim, generator=draw, dtype=torch.float64)[ids]
        self._weights = (torch.arange(n_clients, dtype=torch.float64) + 1)[ids] * 2 / (n_clients + 1)
        self._ids, self._noise, self.n_clients = ids, noise, n_clients

    is_aggregate = False

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> None:
        self._round, self._index = round_index, 0
        self._here = torch.isin(self._ids, cohort).nonzero()[:, 0]

    def release_message(self, message: Tensor) -> Tensor:
        return message

    @property
    def numbers(self) -> Tensor:
        return self._ids[self._here]

    @property
    def weights(self) -> Tensor:
        return self._weights[self._here]

    @property
    def equality(self) -> Tensor:
        return torch.tensor([[False, True]]).expand(len(self._here), -1)

    def _noised(self, rows: Tensor) -> Tensor:
        self._index += 1
        for row, client in zip(rows, self._ids[self._here].tolist(), strict=True):
            draw = torch.Generator().manual_seed(1000 * self._round + 100 * self._index + client)
            row += self._noise * torch.randn(len(row), generator=draw, dtype=row.dtype)
        return rows

    def client_gradient(self, params: Tensor) -> Tensor:
        a = self._a[self._here]
        residual = torch.einsum("kmd,kd->km", a, params) - self._b[self._here]
        return self._noised(torch.einsum("kmd,km->kd", a, residual) / 8)

    def gradient(self, params: Tensor) -> Tensor:
        return self.client_gradient(params) * self.weights.unsqueeze(1)

    full_gradient = gradient

    def gradient_difference(self, params: Tensor, anchor: Tensor, bound: float | None = None) -> Tensor:
        return self.gradient(params) - self.gradient(anchor)

    def _constraints(self, params: Tensor) -> Tensor:
        return torch.einsum("kmd,kd->km", self._d[self._here], params) - 0.1

    def statistic(self, params: Tensor, name: str) -> Tensor:
        return self._noised(self._constraints(params).clone())

    def lagrangian_gradient(self, params: Tensor, multipliers: Tensor) -> Tensor:
        return self.gradient(params) + torch.einsum("kmd,km->kd", self._d[self._here], multipliers)

    def exact(self, params: Tensor) -> tuple[Tensor, Tensor]:
        residual = torch.einsum("kmd,kd->km", self._a[self._here], params) - self._b[self._here]
        return residual.square().sum(1) / (2 * self.n_clients), self._constraints(params)


def trajectory(
    strategy: Strategy, network: Network | ShardedNetwork, ids: Tensor, dim: int, noise: float, rounds: int
) -> list[tuple[Tensor, Tensor, int, Any]]:
    """Models, what is heard, numbers sent and state of the server, after every round."""
    start = torch.randn(1, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64).repeat(len(ids), 1)
    oracle = Quadratics(ids, network.n_clients, dim, noise)
    rounds_of = run_rounds(strategy, oracle, network, initial_state(strategy, start), Randomness(5, 6), rounds=rounds)
    return [(r.progress.models, r.progress.received, r.progress.numbers_sent, r.progress.server) for r in rounds_of]
