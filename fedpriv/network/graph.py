"""A network without a server: nodes on a graph that average the messages of their neighbours (gossip)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from fedpriv.distributed.devices import move_to_device
from fedpriv.errors import ConfigError
from fedpriv.network import mixing
from fedpriv.network.activity import Activity, Always, Listed, Names, OnePeerExponential, Outage, remove_absent_nodes
from fedpriv.network.links import Undirected, nx
from fedpriv.network.local import Star
from fedpriv.network.mixing import Weights
from fedpriv.network.topology import check_graph
from fedpriv.randomness.streams import Randomness
from fedpriv.settings import checks
from fedpriv.settings.checks import Bound
from fedpriv.storage.identity import list_digest_parts

_SPARSE_FROM = 256


# rows are equal to the last digit long before a thousand steps
MixingSteps = Annotated[int, Bound("must be a whole number from 1 to 1000", 1, 1000, "[]")]


@dataclass(frozen=True)
class GraphFacts:
    """Properties of a graph and its mixing matrix W.

    Attributes:
        nodes: Number of nodes.
        links: Number of links.
        diameter: Number of links in the longest of all shortest paths between two nodes.
        mean_degree: Neighbours of a node, on average.
        spectral_gap: One minus the second largest absolute eigenvalue of W. The larger the gap, the faster the nodes'
            models converge to each other.
        contraction: The factor `sqrt(rho(E[W'W] - 11'/n))` by which a round shrinks the differences between nodes,
            called beta in eq 4 of Liu, Johansson and Shi.
        active_fraction: Expected fraction of active nodes (iota).
        contraction_exact: True if all possible rounds were listed, as for `RandomEdges` and `ExactNodes` on small
            graphs. Otherwise the contraction of random rounds is estimated from at least 500 rounds.
    """

    nodes: int
    links: int
    diameter: int
    mean_degree: float
    spectral_gap: float
    contraction: float
    active_fraction: float
    contraction_exact: bool


@checks.validate_arguments("network")
class Graph:
    """Nodes on a communication graph that average with their neighbours (gossip), simulated in one process.

    Inactive nodes compute and send nothing, and keep their rows. So a round's mixing matrix is W on the active nodes
    and the identity elsewhere.

    Args:
        graph: Undirected connected networkx graph with nodes 0 .. n-1; node i is client i.
        weights: Mixing matrix W `[n, n]`, symmetric with rows that sum to 1, or a function from a graph to a matrix;
            by default `fedpriv.network.mixing.metropolis`.
        activity: Chooses the active nodes and links of each round, e.g. `RandomNodes(0.5)`. By default (None) all nodes
            and links are active.
        outages: Rounds in which single nodes are away; none by default.
        mixing_steps: Number of exchanges between neighbours for each mixing step of the algorithm, 1 by default. More
            exchanges cost messages, but no epsilon.

    Raises:
        ConfigError: If the graph is not connected, or the weights are not a mixing matrix.

    Examples:
        >>> import fedpriv, networkx
        >>> ring = fedpriv.Graph(networkx.cycle_graph(4))
        >>> ring.facts().links, round(ring.spectral_gap, 3)
        (4, 0.667)
    """

    def __init__(
        self,
        graph: Undirected,
        weights: Callable[[Undirected], Weights] | np.ndarray = mixing.metropolis,
        *,
        activity: Activity | None = None,
        outages: Sequence[Outage] = (),
        mixing_steps: MixingSteps = 1,
    ) -> None:
        self.graph = check_graph(graph, len(graph))
        self.n_clients = len(graph)
        self.activity = activity or Always()
        if callable(weights):
            self._make_weights = weights
            matrix = weights(self.graph)
        else:
            self._make_weights = None
            matrix = weights
        self.weights: Weights = mixing.check_mixing_matrix(matrix, self.graph)
        for outage in outages:
            if not 0 <= outage.node < self.n_clients:
                raise ConfigError(
                    "network.outages.node", outage.node, f"must be a node of the graph, from 0 to {self.n_clients - 1}"
                )
        changes = bool(outages) or not isinstance(self.activity, Always)
        if changes and self._make_weights is None:
            fix = (
                "a matrix of your own works only if all links are used in every round (no activity, no outages); use "
                "a rule instead, e.g. metropolis"
            )
            raise ConfigError("network.mixing", "a fixed matrix", fix)
        self._outages = tuple(outages)
        self.mixing_steps = mixing_steps
        self._everyone = torch.arange(self.n_clients)
        # the round: its active nodes, its number of directed links, and the sent numbers
        self._cohort = self._everyone
        self._round_links = 2 * self.graph.number_of_edges()
        self.numbers_sent = 0
        # the round's W of the active nodes, and the same as a tensor once it is needed
        self._current: Weights = self.weights
        self._matrix: Tensor | None = None

    @property
    def settings(self) -> tuple[object, ...]:
        """All settings of the network, from which its digest is computed."""
        matrix = self.weights.tocoo()
        return (
            self.graph,
            matrix.coords,
            matrix.data,
            self._make_weights,
            self.activity,
            self._outages,
            self.mixing_steps,
        )

    @property
    def current(self) -> Weights:
        """The round's W for the active nodes and one mixing step, `[k, k]`."""
        return self._current

    @property
    def everyone(self) -> bool:
        """True if all nodes take part in every round."""
        return isinstance(self.activity, Always) and not self._outages

    @property
    def answers(self) -> int:
        """Number of rows that a server sends back in a round: 0, since there is no server."""
        return 0

    @property
    def spectral_gap(self) -> float:
        """One minus the second largest absolute eigenvalue of W, one mixing step."""
        return self._spectral_gap

    @cached_property
    def _spectral_gap(self) -> float:
        return 1 - mixing.compute_contraction(self.weights)

    @cached_property
    def active_fraction(self) -> float:
        """Expected fraction of active nodes (iota)."""
        return float(self.activity.probability(self.graph).mean())

    @cached_property
    def expected_rows(self) -> float:
        """Average number of rows sent in a round, without outages."""
        if isinstance(self.activity, Always):
            return 2.0 * self.graph.number_of_edges() * self.mixing_steps
        typical = self.activity.typical(self.graph)
        return float(np.mean([_count_directed(links) for links in typical])) * self.mixing_steps

    def participants(self, round_index: int, randomness: Randomness) -> Tensor:
        """Draws the round's links, and returns the active nodes, sorted, `[k]`."""
        self.numbers_sent = 0
        links = self.activity.links(self.graph, round_index, randomness.stream("topology", round_index))
        links = remove_absent_nodes(links, self._outages, round_index)
        if links is self.graph:
            if self._current is not self.weights:
                self._current = self.weights
                self._matrix = None
            self._cohort = self._everyone
            self._round_links = 2 * links.number_of_edges()
            return self._cohort
        self._cohort = torch.tensor(sorted(links), dtype=torch.long)
        self._round_links = _count_directed(links)
        if len(links):
            self._current = self._weights_on(links)
        else:
            self._current = self.weights
        self._matrix = None
        return self._cohort

    def active(self, round_index: int, randomness: Randomness) -> list[int]:
        """Returns the nodes that `participants` draws, without drawing anything else of the round."""
        if self.everyone:
            return self._everyone.tolist()
        stream = randomness.stream("topology", round_index)
        if self._names is not None:
            return self._names.active(self.n_clients, self._edges, stream)
        return sorted(
            remove_absent_nodes(self.activity.links(self.graph, round_index, stream), self._outages, round_index)
        )

    @cached_property
    def _names(self) -> Names | None:
        if isinstance(self.activity, Names) and not self._outages:
            return self.activity
        return None

    @cached_property
    def _edges(self) -> list[tuple[int, int]]:
        return list(self.graph.edges)

    def mix(self, rows: Tensor) -> Tensor:
        """Multiplies by the round's W, `mixing_steps` times: `[k, dim] -> [k, dim]`, row i belongs to active node i."""
        if not len(rows):
            return rows
        matrix = self._matrix
        if matrix is None or matrix.dtype != rows.dtype or matrix.device != rows.device:
            matrix = self._matrix = to_torch(self._current, rows, self.mixing_steps)[0]
        self.numbers_sent += self.numbers_in(rows)
        if matrix.layout == torch.strided:
            return matrix @ rows  # a dense matrix holds the power already
        for _ in range(self.mixing_steps):
            rows = matrix @ rows
        return rows

    def numbers_in(self, rows: Tensor) -> int:
        """Returns the number of numbers that all active nodes send when rows of this width are mixed."""
        return self._round_links * self.mixing_steps * rows.shape[1]

    def replace_rows(self, rows: Tensor, others: Tensor) -> Tensor:
        """Returns `others` with the active nodes' rows replaced: `[k, dim], [n, dim] -> [n, dim]`."""
        if len(rows) == len(others):
            return rows
        return others.index_copy(0, self._cohort.to(others.device), rows)

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

    def local_positions(self, cohort: Tensor, like: Tensor) -> Tensor:
        """Returns the positions of the cohort's nodes, on the device of `like`. They equal the nodes' numbers, because
        this process has the rows of all nodes.
        """
        if len(cohort) in (0, self.n_clients):
            return cohort
        self._matrix, self._cohort = to_torch(self._current, like, self.mixing_steps, cohort)
        return self._cohort

    def facts(self) -> GraphFacts:
        """Returns properties of the graph; estimates use a fixed seed."""
        return GraphFacts(
            nodes=self.n_clients,
            links=self.graph.number_of_edges(),
            diameter=nx.diameter(self.graph),
            mean_degree=2 * self.graph.number_of_edges() / self.n_clients,
            spectral_gap=self.spectral_gap,
            contraction=self._contraction(),
            active_fraction=self.active_fraction,
            contraction_exact=isinstance(self.activity, Always | OnePeerExponential) or self._all_rounds is not None,
        )

    def _contraction(self) -> float:
        if isinstance(self.activity, Always):
            return (1 - self.spectral_gap) ** self.mixing_steps
        rounds = self._all_rounds or [(links, [sorted(links)]) for links in self.activity.typical(self.graph)]
        count = sum(len(places) for _, places in rounds)
        expected = np.eye(self.n_clients)  # W'W of a round is the identity elsewhere
        for links, places in rounds:
            if links.number_of_edges():
                matrix = np.linalg.matrix_power(self._weights_on(links).toarray(), self.mixing_steps)
                nodes = np.array(places)
                change = (matrix.T @ matrix - np.eye(len(matrix))) / count
                np.add.at(expected, (nodes[:, :, None], nodes[:, None]), change)
        return float(np.sqrt(max(0.0, np.linalg.eigvalsh(expected - 1 / self.n_clients).max())))

    @cached_property
    def _all_rounds(self) -> list[tuple[Undirected, list[list[int]]]] | None:
        """All equally likely rounds, if they are listed: each shape of links, and the nodes that it joins."""
        every = self.activity.every(self.graph) if isinstance(self.activity, Listed) else None
        if every is None:
            return None
        places: dict[tuple[int, tuple[tuple[int, int], ...]], list[list[int]]] = {}
        for nodes, links in every:
            position = {node: index for index, node in enumerate(nodes)}
            shape = len(nodes), tuple((position[a], position[b]) for a, b in links)
            places.setdefault(shape, []).append([*nodes])
        return [(_graph_of(size, links), nodes) for (size, links), nodes in places.items()]

    def _weights_on(self, links: Undirected) -> Weights:
        if isinstance(links, nx.DiGraph):
            return mixing.shift(links)
        make = self._make_weights
        assert make is not None
        return make(nx.relabel_nodes(links, {node: index for index, node in enumerate(sorted(links))}))


def _graph_of(nodes: int, links: Sequence[tuple[int, int]]) -> Undirected:
    graph = nx.empty_graph(nodes)
    graph.add_edges_from(links)
    return graph


def _count_directed(links: Undirected) -> int:
    """Returns the number of directed links; a link in both directions counts twice."""
    if links.is_directed():
        return links.number_of_edges()
    return 2 * links.number_of_edges()


def as_peer_graph(network: Star | Graph) -> Graph:
    """Returns the network if it is a graph.

    Raises:
        ConfigError: If the network is a star.
    """
    if isinstance(network, Star):
        raise ConfigError(
            "network.topology",
            "star",
            "is not a graph of peers, but has a server; the star-shaped graph of peers is called hub",
        )
    return network


def to_torch(weights: Weights, like: Tensor, steps: int, *others: Tensor) -> list[Tensor]:
    """Returns weights with the type and device of `like`, and other tensors on that device, moved in one copy.

    Small weights, `[k, k]` or, for one step, `[k, j]`, become dense and are raised to the power `steps`. Large ones
    become sparse, and are not raised to a power.
    """
    size: tuple[int, int] = weights.shape  # pyright: ignore[reportAssignmentType] - scipy is not typed
    entries = size[0] * size[1]
    if entries < _SPARSE_FROM**2 or weights.nnz > entries / 4:
        dense = weights.toarray()
        if steps > 1:
            dense = np.linalg.matrix_power(dense, steps)
        return move_to_device(like.device, torch.from_numpy(dense).to(like.dtype), *others)
    coo = sparse.coo_array(weights)
    indices = torch.from_numpy(np.stack(coo.coords).astype(np.int64))
    values = torch.from_numpy(coo.data)
    indices, values, *others_moved = move_to_device(like.device, indices, values.to(like.dtype), *others)
    return [torch.sparse_coo_tensor(indices, values, size, check_invariants=True).coalesce(), *others_moved]


@list_digest_parts.register(Graph)
def _settings(network: Graph) -> tuple[object, ...]:
    return network.settings


def graph_line(facts: GraphFacts) -> str:
    """Describes a graph and its mixing matrix in one line."""
    about = "" if facts.contraction_exact else "about "
    return (
        f"{facts.nodes} nodes, {facts.links} links, {facts.mean_degree:.3g} neighbours on average, diameter "
        f"{facts.diameter}, spectral gap {facts.spectral_gap:.4g}, contraction of a round "
        f"{about}{facts.contraction:.4g}, active {facts.active_fraction:.3g}"
    )
