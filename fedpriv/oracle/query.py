"""The queries of strategies: how each is clipped and sampled, and which facts about its result are public.

Both the plan of a run and the run itself build their queries with this module, so that a run makes the queries of its
plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.hulls import RowClip
from fedpriv.privacy.release import ReleaseScheme, release_scheme
from fedpriv.privacy.settings import Allocation, Cyclic, FixedSize, Poisson, Privacy, Sampling


@dataclass(frozen=True)
class Query:
    """One query of one round.

    Attributes:
        name: Name of the query in the ledger.
        clip: Bound on each privacy unit's contribution.
        sampling: Sampling of its examples.
        budget_share: Share of the privacy budget, relative to a gradient of the same round, which has share 1.
        is_weighted: True if each client's result is multiplied by its share of all examples.
        gradients_per_example: Number of gradients that are computed for each example.
        multipliers: Public multipliers of the constraints, `[k, m]`, in the gradient of a Lagrangian.
    """

    name: str
    clip: Clip
    sampling: Sampling
    budget_share: float = 1.0
    is_weighted: bool = True
    gradients_per_example: int = 1
    multipliers: Tensor | None = None


class QueryBuilder:
    """Builds the queries of a run, clipped and sampled according to its privacy settings.

    Args:
        privacy: The privacy settings.
        sizes: Public number of examples of each client.

    Attributes:
        privacy: The privacy settings.
        n_clients: Number of clients.
        scheme: Computes privacy costs and releases results.
        sizes: Public number of examples of each client, `[n_clients]` in float64.
    """

    def __init__(self, privacy: Privacy, sizes: Sequence[int] | Sequence[float]) -> None:
        self.privacy = privacy
        self.n_clients = len(sizes)
        self.scheme: ReleaseScheme = release_scheme(privacy, sizes)
        self.sizes = torch.as_tensor(sizes, dtype=torch.double)
        self._mean_size = self.sizes.mean()
        self._factors_of_all: dict[tuple[Sampling, bool], list[float]] = {}

    def gradient(self) -> Query:
        """Returns the query for the gradient of each client's objective."""
        return self._query("gradient")

    def client_gradient(self) -> Query:
        """Returns the query for the gradient of each client's unweighted mean loss."""
        return replace(self._query("client_gradient"), is_weighted=False)

    def full_gradient(self) -> Query:
        """Returns the query for the gradient of each client's objective on all its examples."""
        return self._query("full_gradient")

    def gradient_difference(self, bound: float | None) -> Query:
        """Returns the query for the difference of gradients at two points.

        Args:
            bound: Norm to which a difference is clipped; by default, and at most, twice the clip bound of a gradient.
        """
        query = self._query("gradient_difference")
        if isinstance(query.clip, RowClip):
            fix = "the strategy queries differences of gradients, which need a plain bound: use fedpriv.Clip"
            raise ConfigError("privacy.clip", type(query.clip).__name__, fix)
        # two clipped gradients do not differ by more
        widest = 2 * self.privacy.clip.bound
        if bound is None:
            bound = widest
        clip = replace(query.clip, bound=min(bound, widest))
        return replace(query, clip=clip, gradients_per_example=2)

    def lagrangian_gradient(self, multipliers: Tensor) -> Query:
        """Returns the query for the gradient of each client's `f_i + <multipliers_i, c_i>`."""
        return replace(self._query("lagrangian_gradient"), is_weighted=False, multipliers=multipliers)

    def constraint_values(self) -> Query:
        """Returns the query for constraint values, to which each example contributes a vector of norm at most 1."""
        norm = self.privacy.clip.norm
        share = self.privacy.statistics.relative_share(norm)
        query = self._query("statistic:constraints")
        return replace(query, clip=Clip(1.0, norm), budget_share=share, gradients_per_example=0)

    def exact(self) -> Query:
        """Returns the query for the objective and constraints of each client without noise.

        Raises:
            ConfigError: If the run is private.
        """
        if self.privacy.noise_on != "none":
            fix = "the strategy needs exact query results, which are not private; set privacy.noise_on to 'none'"
            raise ConfigError("privacy.noise_on", self.privacy.noise_on, fix)
        return self._query("exact")

    def message(self) -> Query:
        """Returns the query for a client's message, which depends on all its examples."""
        return replace(self._query("message"), gradients_per_example=0)

    def _query(self, name: str) -> Query:
        return Query(name, self.privacy.clip, self.scheme.sampling_of(name))

    def is_released(self, query: Query) -> bool:
        """Returns True if the result leaves its client: with `noise_on: message`, only messages do."""
        return query.name == "message" or self.privacy.boundary != "message"

    def weights(self, clients: Tensor) -> Tensor:
        """Returns the weight of each of these clients, `n m_i / sum(m)` over all n clients, `[k]`."""
        return self.sizes[clients] / self._mean_size

    def factors(self, query: Query, clients: Tensor) -> list[float]:
        """Returns the public factor of each of these clients' rows, from a sum over the batch to the result.

        Args:
            query: The query.
            clients: The clients, each once, ascending.
        """
        if clients.shape[0] < self.n_clients:
            return self._factors(query, clients)
        # the factors of all clients are the same in every round
        key = (query.sampling, query.is_weighted)
        if key not in self._factors_of_all:
            self._factors_of_all[key] = self._factors(query, clients)
        return self._factors_of_all[key]

    def planned_factors(self, query: Query, clients: Tensor) -> list[float]:
        """Returns the factors with which a plan computes the cost of a query result, in the order of its clients.

        The contributions of whole clients all have the same factor, and the privacy cost of a row depends only on
        ratios of factors. The factors of statistics depend on public facts about the data. A plan does not need these
        facts, because it uses equal factors, which have the largest privacy cost: no row then gets more noise relative
        to its sensitivity than another.
        """
        if self.privacy.unit == "sample" and not query.name.startswith("statistic:"):
            return self.factors(query, clients)
        return [1.0] * clients.shape[0]

    def _factors(self, query: Query, clients: Tensor) -> list[float]:
        sizes = self.sizes[clients]
        if query.is_weighted:
            weights = self.weights(clients)
        else:
            weights = 1.0
        return (weights / self.expected_batch_size(query.sampling, sizes)).tolist()

    @staticmethod
    def expected_batch_size(sampling: Sampling, sizes: Tensor) -> Tensor:
        """Returns the expected batch size of clients with `sizes` examples, `[k] -> [k]`."""
        if isinstance(sampling, Poisson):
            return sizes * sampling.rate
        if isinstance(sampling, Cyclic):
            return sizes * sampling.rate / sampling.blocks
        if isinstance(sampling, Allocation):
            return sizes / sampling.batches
        if isinstance(sampling, FixedSize):
            return sizes.clamp_max(sampling.size)
        return sizes
