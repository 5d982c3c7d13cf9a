"""The links of one node in each round of a plan, with their weights; and a node's view of the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.network import Graph
from fedpriv.sites.resolved_plan import ResolvedPlan


@dataclass(frozen=True)
class RoundLinks:
    """One node's links in a round of the plan.

    Attributes:
        is_active: True if the node takes part in the round.
        self_weight: The weight `W[i, i]` of the node's own row.
        weights: The weight `W[i, j]` of each neighbour's row, by the neighbour's number.
    """

    is_active: bool
    self_weight: float
    weights: Mapping[int, float]


class PlannedLinks:
    """The links of one node in the rounds of a plan, drawn from the public seed as in a run of one process.

    Args:
        resolved_plan: The plan, on a graph.
        number: The node.
    """

    def __init__(self, resolved_plan: ResolvedPlan, number: int) -> None:
        network = resolved_plan.new_network()
        assert isinstance(network, Graph)
        self._network = network
        self._public = resolved_plan.public
        self._number = number
        self.neighbours = sorted(network.graph.neighbors(number))

    def links_in_round(self, index: int) -> RoundLinks:
        """Returns the links of round `index`, from 0."""
        cohort = self._network.participants(index, self._public).tolist()
        if self._number not in cohort:
            return RoundLinks(False, 1.0, {})
        position = cohort.index(self._number)
        row = self._network.current[[position], :].tocoo()
        weights = {cohort[column]: float(value) for column, value in zip(row.coords[1], row.data, strict=True)}
        self_weight = weights.pop(self._number, 0.0)
        return RoundLinks(True, self_weight, {other: weight for other, weight in weights.items() if weight > 0})


@dataclass(frozen=True)
class Correction:
    """A correction of a node's mixed row for a link that was up in a round that the node closed without it.

    Attributes:
        neighbour: Number of the neighbour.
        weight: The link's weight in that round.
        theirs: The neighbour's released row of that round, `[m]`.
        ours: This node's released row of that round, `[m]`.
    """

    neighbour: int
    weight: float
    theirs: Tensor
    ours: Tensor

    @property
    def row(self) -> Tensor:
        """The missing part of the mixed row of that round, `[m]`."""
        return self.weight * (self.theirs - self.ours)


class NodeNetwork:
    """The network of one node: all rows are its own row, and `mix` averages it with its neighbours' rows.

    The weight of a link that is down is added to the node's own row. The neighbour does the same, so over all nodes the
    weights of the round are symmetric, and rows and columns sum to 1 (doubly stochastic).

    Args:
        n_clients: Number of all nodes.
    """

    def __init__(self, n_clients: int) -> None:
        self.n_clients = n_clients
        self._links = RoundLinks(False, 1.0, {})
        self._rows: Mapping[int, Tensor] = {}
        self._corrections: Sequence[Correction] = ()

    def begin(self, links: RoundLinks, rows: Mapping[int, Tensor], corrections: Sequence[Correction]) -> None:
        """Begins the mixing of a round.

        Args:
            links: The node's links.
            rows: The released row `[m]` of each neighbour with a link that is up.
            corrections: Corrections of earlier rounds.
        """
        self._links = links
        self._rows = rows
        self._corrections = corrections

    def mix(self, rows: Tensor) -> Tensor:
        """Returns the node's row averaged with its neighbours' rows, `[1, m] -> [1, m]`; no rows if it is inactive."""
        if not len(rows):
            return rows
        links = self._links
        up = sorted(self._rows)
        down_weight = sum(weight for other, weight in links.weights.items() if other not in self._rows)
        weights = [links.self_weight + down_weight, *(links.weights[other] for other in up)]
        stacked = torch.stack([rows[0], *(self._rows[other].to(rows) for other in up)])
        mixed = torch.tensor([weights], dtype=rows.dtype) @ stacked
        for correction in self._corrections:
            mixed += correction.row.to(rows)
        return mixed

    def replace_rows(self, rows: Tensor, others: Tensor) -> Tensor:
        """Returns the node's new row, or its row in `others` if it took no part: `[k, m], [1, m] -> [1, m]`."""
        if len(rows):
            return rows
        return others

    def mean(self, rows: Tensor) -> Tensor:
        """Not available without a server, like `gather`, `total` and `largest`.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "network.topology",
            "a graph",
            "this strategy needs a server, but a graph has none: use the star topology, or a gossip strategy",
        )

    gather = total = largest = mean

    def scatter(self, row: Tensor) -> Tensor:
        """Not available without a server; see `mean`."""
        return self.mean(row)
