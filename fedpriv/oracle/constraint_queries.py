"""What questions about constraints compute before noise: bounded sums, and what is public about them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from torch import Tensor

from fedpriv.clients.batch import Batch
from fedpriv.clients.population import Population
from fedpriv.errors import ConfigError
from fedpriv.oracle.backends.functional import Functional
from fedpriv.oracle.values import LossWeights, ProblemValues, Share, losses_of
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.settings import Privacy


class ConstraintQueries:
    """Objectives and constraints of a population, and their bounded form.

    Args:
        population: The clients.
        privacy: The promise.

    Attributes:
        problem: Exact objectives and constraints.
    """

    def __init__(self, population: Population, privacy: Privacy) -> None:
        self._population, self._privacy = population, privacy
        self._functional = Functional(population.model, population.loss)
        self._shares = [
            Share(client.problem, *population.examples_of(i), client.public_size)
            for i, client in enumerate(population.clients)
        ]
        self.problem = ProblemValues(population.model, population.loss, self._shares, population.params.dtype)
        self._unit = Clip(1.0, privacy.clip.norm)

    @cached_property
    def weights(self) -> LossWeights:
        """Coefficients of every example's loss.

        Raises:
            ConfigError: the problem has no private form, or needs counts that nobody declared public.
        """
        population, privacy, stacks = self._population, self._privacy, self.problem.sums()
        if privacy.private and privacy.unit == "client":
            fix = "a client's constraint values cannot be kept from whoever sees them; use unit: sample"
            raise ConfigError("privacy.unit", "client", fix)
        counted = any(stack.counts_are_public() for stack in stacks)
        if privacy.private and counted and not privacy.statistics.public_counts:
            fix = (
                "a constraint divides by the number of a client's examples in a group, which must be public: state the "
                "group's public fraction in the constraint, or set privacy.statistics.public_counts: true"
            )
            raise ConfigError("privacy.statistics.public_counts", False, fix)
        if privacy.private and counted and privacy.relation == "add_remove":
            fix = "presence shows in the counts; state the groups' public fractions, or use relation: replace_one"
            raise ConfigError("privacy.statistics.public_counts", True, fix)
        return LossWeights(stacks, self._shares, population.device, population.params.dtype)

    @property
    def n_sums(self) -> int:
        """Numbers in a client's statistic."""
        return self.weights.total.shape[1]

    def bounded_sum(self, params: Tensor, batch: Batch) -> Tensor:
        """Sum of contributions, each of norm at most 1: `[k, dim] -> [k, q]`; a loss that is not finite counts as zero.

        Losses are centred at half their bound, so that an example that keeps its group changes its contribution by one
        bound instead of two.
        """
        half = self._privacy.statistics.bound / 2
        centred = losses_of(self._functional, params, batch).clamp(0, 2 * half) - half
        reach = half * self._reach[batch.rows]
        parts = self.weights.of_statistics(batch) * centred.unsqueeze(2) / reach[:, None, None]
        return (self._unit.rows(parts)[0] * batch.mask.unsqueeze(2)).sum(1)

    def factors(self, sampled: Tensor) -> list[float]:
        """Public factor of each client's row, from a bounded sum to its statistic."""
        return (sampled * self._reach.cpu() * self._privacy.statistics.bound / 2).tolist()

    def values(self, statistics: Tensor) -> Tensor:
        """Constraint values `[n, m]` from released statistics `[n, q]`: the centre is added back."""
        return self.weights.values(statistics + self._privacy.statistics.bound / 2 * self.weights.total)

    def deviation(self, scales: Sequence[float], sampled: Tensor) -> Tensor:
        """Bound on the standard deviation of constraint values `[n, m]`, of noise and of the draw of a batch.

        Args:
            scales: Noise scale of each client.
            sampled: Examples over expected examples of a batch, `[n]`. A sum over a batch that takes each example with
                probability q, divided by q, has variance `(1 - q) / q` times the sum of squares, each at most known.
        """
        noise = self._reach.new_tensor(scales) * self._privacy.mechanism.deviation
        largest = self._reach * self._privacy.statistics.bound / 2
        draw = (sampled.to(noise) - 1) * self._population.sizes.to(noise) * largest.square()
        return self.weights.matrix.norm(dim=2) * (noise.square() + draw).sqrt().unsqueeze(1)

    @cached_property
    def _reach(self) -> Tensor:
        """Largest norm of an example's coefficients, `[n]`; public."""
        return self._unit.norms(self.weights.largest)
