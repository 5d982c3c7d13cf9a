"""Query engines that compute results without data: zeros, unit impulses and random numbers.

Zeros are used to plan a run (dry_run.py). Impulses show the effect of a round's noise on the models of a strategy.
Random numbers test that a strategy's messages are `linear` and that its clients keep no state from query results.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpriv.oracle.oracle import Oracle, RoundContext
from fedpriv.oracle.query import Query, QueryBuilder
from fedpriv.privacy.settings import Privacy


class ZeroEngine:
    """Returns zeros for all queries.

    Args:
        n_constraints: Number of constraint values of a client; all are treated as inequalities.
    """

    is_aggregate = False

    def __init__(self, n_constraints: int = 1) -> None:
        self._n_constraints = n_constraints

    def begin_round(self, context: RoundContext) -> tuple[RoundContext, Tensor | None]:
        """See `QueryEngine`."""
        return context, None

    def gradients(self, query: Query, context: RoundContext, params: Tensor, anchor: Tensor | None) -> Tensor:
        """See `QueryEngine`."""
        return torch.zeros_like(params)

    def constraint_values(self, query: Query, context: RoundContext, params: Tensor) -> Tensor:
        """See `QueryEngine`."""
        return params.new_zeros(len(params), self._n_constraints)

    def exact(self, query: Query, context: RoundContext, params: Tensor) -> tuple[Tensor, Tensor]:
        """See `QueryEngine`; zeros that depend on the parameters, so that they have (zero) gradients."""
        zeros = 0 * params.sum(1)
        return zeros, zeros.unsqueeze(1).expand(-1, self._n_constraints)

    def message(self, query: Query, context: RoundContext, message: Tensor) -> Tensor:
        """See `QueryEngine`."""
        return torch.zeros_like(message)

    def equality(self, context: RoundContext) -> Tensor:
        """See `QueryEngine`."""
        return torch.zeros(len(context.clients), self._n_constraints, dtype=torch.bool)

    def common_bound(self, bound: float | None) -> float | None:
        """See `QueryEngine`; returns the default, since the real bound may depend on query results."""
        return None

    def noise_variances(self, context: RoundContext) -> tuple[Sequence[float], Sequence[float]]:
        """See `QueryEngine`."""
        zeros = [0.0] * len(context.positions)
        return zeros, zeros


class ImpulseEngine(ZeroEngine):
    """Returns `size` times unit vector t to every client in round t, in a space with one dimension per round.

    If a strategy is linear in the results and starts at zero, entry t of its final model is the remaining factor of the
    noise of round t.
    """

    def __init__(self, size: float) -> None:
        super().__init__()
        self._size = size

    def gradients(self, query: Query, context: RoundContext, params: Tensor, anchor: Tensor | None) -> Tensor:
        """See `QueryEngine`."""
        return self._impulse(params, context.round)

    def message(self, query: Query, context: RoundContext, message: Tensor) -> Tensor:
        """See `QueryEngine`."""
        return self._impulse(message, context.round)

    def _impulse(self, like: Tensor, round_index: int) -> Tensor:
        answer = torch.zeros_like(like)
        answer[:, round_index] = self._size
        return answer


class LargestNormEngine(ZeroEngine):
    """Returns the same number for every query, the largest result that the clip bound allows for models with one
    parameter.

    Args:
        size: The norm of a result.
    """

    def __init__(self, size: float) -> None:
        super().__init__()
        self._size = size

    def gradients(self, query: Query, context: RoundContext, params: Tensor, anchor: Tensor | None) -> Tensor:
        """See `QueryEngine`."""
        return torch.full_like(params, -self._size)

    def message(self, query: Query, context: RoundContext, message: Tensor) -> Tensor:
        """See `QueryEngine`."""
        return torch.full_like(message, -self._size)


class RandomEngine(ZeroEngine):
    """Returns random results of dimension 2, with one constraint.

    Args:
        n_clients: Number of clients.
        rounds: Number of rounds with results.
        spread: Size of changes to single clients' results that leave the sum unchanged; a linear strategy is
            unaffected.
        seed: Seed of the results.
    """

    def __init__(self, n_clients: int, rounds: int, spread: float, seed: int = 0) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self._answers, self._moves = torch.randn(2, rounds, n_clients, 2, generator=draw, dtype=torch.float64)
        self._spread = spread

    def gradients(self, query: Query, context: RoundContext, params: Tensor, anchor: Tensor | None) -> Tensor:
        """See `QueryEngine`."""
        return self._rows(context)

    def constraint_values(self, query: Query, context: RoundContext, params: Tensor) -> Tensor:
        """See `QueryEngine`."""
        return self._rows(context)[:, :1]

    def exact(self, query: Query, context: RoundContext, params: Tensor) -> tuple[Tensor, Tensor]:
        """See `QueryEngine`."""
        rows = self._rows(context)
        return rows[:, 0], rows[:, 1:]

    def message(self, query: Query, context: RoundContext, message: Tensor) -> Tensor:
        """See `QueryEngine`; messages are not noised, since the test is about their contents."""
        return message

    def _rows(self, context: RoundContext) -> Tensor:
        moves = self._moves[context.round][context.cohort]
        return self._answers[context.round][context.cohort] + self._spread * (moves - moves.mean(0))


def random_oracle(n_clients: int, rounds: int, spread: float = 0.0, seed: int = 0) -> Oracle[RandomEngine]:
    """Returns an oracle with random results, for a strategy without privacy; see `RandomEngine` for the arguments.

    Clients have unequal weights, so sums of weighted messages are not sums of results.
    """
    weights: list[float] = torch.linspace(0.5, 1.5, n_clients, dtype=torch.float64).tolist()
    engine = RandomEngine(n_clients, rounds, spread, seed)
    return Oracle(QueryBuilder(Privacy(noise_on="none"), weights), engine, torch.empty(0, dtype=torch.float64))
