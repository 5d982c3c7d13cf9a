"""The active nodes and links of a graph in each round. They are drawn from the public seed and never depend on data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedpriv.errors import ConfigError
from fedpriv.network.links import Directed, Undirected, nx
from fedpriv.randomness.keystream import Keystream
from fedpriv.randomness.streams import Randomness
from fedpriv.settings.checks import Count, Probability, Whole, validate_arguments
from fedpriv.settings.plugins import Registry, RegistryEntry, resolve_round_function

_TYPICAL, _MOST = 500, 10_000  # rounds
_ALL = 200_000  # the most pairs of links or of nodes in all possible rounds together, if the rounds are listed
Links = Sequence[tuple[int, int]]
NodesAndLinks = tuple[Sequence[int], Links]  # the active nodes of a round, sorted, and the links between them


class Activity(Protocol):
    """Chooses the links of a round."""

    def links(self, graph: Undirected, round_index: int, stream: Keystream) -> Undirected:
        """Returns the graph of a round: the active nodes and the active links between them."""
        ...

    def probability(self, graph: Undirected) -> NDArray[np.float64]:
        """Returns the probability that each node is active in a round, `[n]`."""
        ...

    def typical(self, graph: Undirected) -> Iterator[Undirected]:
        """Yields graphs of some rounds, drawn with fixed seeds. Their mean equals or estimates the expectation over
        rounds.
        """
        ...


@runtime_checkable
class Names(Protocol):
    """Optional method of an activity that lists a round's active nodes without creating its graph, for faster plans."""

    def active(self, n_nodes: int, edges: Sequence[tuple[int, int]], stream: Keystream) -> list[int]:
        """Returns the active nodes, sorted, of a graph with these edges, as `Activity.links` draws them from this
        stream.
        """
        ...


@runtime_checkable
class Listed(Protocol):
    """Optional method of an activity whose possible rounds are equally likely, and few enough to list them all."""

    def every(self, graph: Undirected) -> Iterator[NodesAndLinks] | None:
        """Yields each possible round once; None if there are too many of them."""
        ...


def _probability_one(_: Activity, graph: Undirected) -> NDArray[np.float64]:
    """Returns 1 for every node: all are active in every round."""
    return np.ones(len(graph))


def _first_rounds(activity: Activity, graph: Undirected, rounds: int = _TYPICAL) -> Iterator[Undirected]:
    """Yields the graphs of the first rounds of a fixed seed."""
    return (activity.links(graph, k, Randomness().stream("topology", k)) for k in range(rounds))


@validate_arguments("network.activity")
@dataclass(frozen=True)
class Always:
    """The whole graph, every round."""

    def links(self, graph: Undirected, round_index: int, stream: Keystream) -> Undirected:
        """Returns the graph itself."""
        return graph

    probability = _probability_one

    def typical(self, graph: Undirected) -> Iterator[Undirected]:
        """Yields the graph, once."""
        yield graph


@validate_arguments("network.activity")
@dataclass(frozen=True)
class RandomEdges:
    """In each round `count` links are drawn uniformly without repeats. Only the nodes at the ends of these links are
    active.

    Liu, Johansson and Shi (2023) use 1 or 2 links.

    Args:
        count: Number of links in a round; 1 by default.

    Examples:
        >>> import fedpriv, networkx
        >>> fedpriv.Graph(networkx.cycle_graph(4), activity=fedpriv.RandomEdges(1)).active_fraction
        0.5
    """

    count: Count = 1

    def links(self, graph: Undirected, round_index: int, stream: Keystream) -> Undirected:
        """Returns the drawn links and their ends."""
        edges = list(graph.edges)
        return nx.Graph(edges[i] for i in self._chosen(len(edges), stream))

    def active(self, n_nodes: int, edges: Sequence[tuple[int, int]], stream: Keystream) -> list[int]:
        """Returns the ends of the drawn links, sorted."""
        return sorted({end for i in self._chosen(len(edges), stream) for end in edges[i]})

    def _chosen(self, links: int, stream: Keystream) -> list[int]:
        self._check(links)
        return stream.first_of_permutation(links, self.count).tolist()

    def probability(self, graph: Undirected) -> NDArray[np.float64]:
        """Returns the probability that at least one of a node's links is drawn."""
        total = graph.number_of_edges()
        self._check(total)
        no_link = [comb(total - graph.degree[node], self.count) / comb(total, self.count) for node in sorted(graph)]
        return 1 - np.array(no_link)

    def typical(self, graph: Undirected) -> Iterator[Undirected]:
        """Yields rounds that draw each link about equally often.

        Each pass over the links uses them in a random order, `count` at a time. If there are very many links, a pass
        uses only some of them.
        """
        edges = list(graph.edges)
        generator = np.random.default_rng(0)
        self._check(len(edges))
        for _ in range(max(1, _TYPICAL * self.count // len(edges))):
            order = generator.permutation(len(edges)).tolist()
            # the last round of a pass is completed by links of its beginning
            order += order[: -len(order) % self.count]
            for first in range(0, min(len(order), _MOST * self.count), self.count):
                yield nx.Graph(edges[i] for i in order[first : first + self.count])

    def every(self, graph: Undirected) -> Iterator[NodesAndLinks] | None:
        """Yields each choice of links once; None on large graphs."""
        self._check(graph.number_of_edges())
        if comb(graph.number_of_edges(), self.count) * self.count**2 > _ALL:
            return None
        return (
            (sorted({end for link in links for end in link}), links) for links in combinations(graph.edges, self.count)
        )

    def _check(self, links: int) -> None:
        if self.count > links:
            raise ConfigError(
                "network.activity.count", self.count, f"the graph has only {links} links: use at most that number"
            )


@validate_arguments("network.activity")
@dataclass(frozen=True)
class RandomLinks:
    """Each link can be used in a round with probability `rate`, independently; all nodes are active.

    Args:
        rate: Probability of a link, in (0, 1].

    Examples:
        >>> import fedpriv, networkx
        >>> fedpriv.Graph(networkx.cycle_graph(4), activity=fedpriv.RandomLinks(0.5)).active_fraction
        1.0
    """

    rate: Probability

    def links(self, graph: Undirected, round_index: int, stream: Keystream) -> Undirected:
        """Returns all nodes, with the links that were drawn for this round."""
        edges = list(graph.edges)
        is_up = stream.random(len(edges)) < self.rate
        active = nx.empty_graph(len(graph))
        active.add_edges_from(edge for edge, is_active in zip(edges, is_up, strict=True) if is_active)
        return active

    probability = _probability_one

    typical = _first_rounds


@validate_arguments("network.activity")
@dataclass(frozen=True)
class RandomNodes:
    """Each node is active in a round with probability `rate`, independently, and uses its links to active neighbours.

    Args:
        rate: Probability that a node is active, in (0, 1].

    Examples:
        >>> import fedpriv, networkx
        >>> fedpriv.Graph(networkx.cycle_graph(4), activity=fedpriv.RandomNodes(0.5)).active_fraction
        0.5
    """

    rate: Probability

    def links(self, graph: Undirected, round_index: int, stream: Keystream) -> Undirected:
        """Returns the graph of the active nodes; it may be empty."""
        return nx.Graph(graph.subgraph(self.active(len(graph), (), stream)))

    def active(self, n_nodes: int, edges: Sequence[tuple[int, int]], stream: Keystream) -> list[int]:
        """Returns the drawn nodes, sorted."""
        return stream.below(self.rate, n_nodes).nonzero()[0].tolist()

    def probability(self, graph: Undirected) -> NDArray[np.float64]:
        """Returns the rate for each node."""
        return np.full(len(graph), self.rate)

    typical = _first_rounds


@validate_arguments("network.activity")
@dataclass(frozen=True)
class ExactNodes:
    """Exactly `count` nodes, drawn uniformly in each round, are active, and use their links to active neighbours.

    It is definition 2 of Liu, Johansson and Shi (2023), with `count` = n iota. The nodes are drawn from the public
    seed, so the sampling of nodes does not amplify privacy: a node pays in full for each of its active rounds.

    Args:
        count: Number of active nodes in a round.

    Raises:
        ConfigError: If the graph has fewer nodes, when a round is drawn.

    Examples:
        >>> import fedpriv, networkx
        >>> fedpriv.Graph(networkx.complete_graph(10), activity=fedpriv.ExactNodes(count=2)).active_fraction
        0.2
    """

    count: Count

    def links(self, graph: Undirected, round_index: int, stream: Keystream) -> Undirected:
        """Returns the graph of the drawn nodes."""
        return nx.Graph(graph.subgraph(self.active(len(graph), (), stream)))

    def active(self, n_nodes: int, edges: Sequence[tuple[int, int]], stream: Keystream) -> list[int]:
        """Returns the drawn nodes, sorted."""
        self._check(n_nodes)
        return sorted(stream.first_of_permutation(n_nodes, self.count).tolist())

    def probability(self, graph: Undirected) -> NDArray[np.float64]:
        """Returns `count / n` for each node."""
        self._check(len(graph))
        return np.full(len(graph), self.count / len(graph))

    typical = _first_rounds

    def every(self, graph: Undirected) -> Iterator[NodesAndLinks] | None:
        """Yields each choice of nodes once; None on large graphs."""
        self._check(len(graph))
        if comb(len(graph), self.count) * self.count**2 > _ALL:
            return None
        linked = {(a, b) for edge in graph.edges for a, b in (edge, edge[::-1])}
        choices = combinations(range(len(graph)), self.count)
        return ((nodes, [pair for pair in combinations(nodes, 2) if pair in linked]) for nodes in choices)

    def _check(self, nodes: int) -> None:
        if self.count > nodes:
            raise ConfigError("network.activity.count", self.count, f"the graph has only {nodes} nodes")


@validate_arguments("network.activity")
@dataclass(frozen=True)
class OnePeerExponential:
    """In round k, node i sends to node `i + 2^(k mod log2 n)` only (Ying et al., 2021).

    The links are directed, and the links of the graph itself are not used. If n is a power of two, log2 n rounds
    compute the exact average.

    Examples:
        >>> import fedpriv, networkx
        >>> fedpriv.Graph(networkx.complete_graph(4), activity=fedpriv.OnePeerExponential()).active_fraction
        1.0
    """

    def links(self, graph: Undirected, round_index: int, stream: Keystream) -> Directed:
        """Returns a directed graph with one outgoing and one incoming link a node."""
        n = len(graph)
        jump = 1 << (round_index % max(1, (n - 1).bit_length()))
        if n > 1:
            return nx.DiGraph((i, (i + jump) % n) for i in range(n))
        return nx.empty_graph(1, nx.DiGraph)

    probability = _probability_one

    def typical(self, graph: Undirected) -> Iterator[Undirected]:
        """Yields the graph of each jump once."""
        return _first_rounds(self, graph, max(1, (len(graph) - 1).bit_length()))


@validate_arguments("network.activity")
@dataclass(frozen=True)
class LinkFunction:
    """Links of each round from a function, which must not use data; nodes without a link are inactive.

    Args:
        function: Maps a round, from 0, to the pairs of nodes that are linked in this round; all pairs must be links of
            the graph.

    Examples:
        >>> import networkx
        >>> from fedpriv.network.graph import Graph
        >>> every_other = LinkFunction(lambda round_index: [(0, 1)] if round_index % 2 else [(1, 2)])
        >>> Graph(networkx.path_graph(3), activity=every_other).active_fraction
        0.6666666666666666
    """

    function: Callable[[int], Iterable[tuple[int, int]]]

    def links(self, graph: Undirected, round_index: int, stream: Keystream) -> Undirected:
        """Returns the graph of the function's links.

        Raises:
            ConfigError: If the graph has no such link.
        """
        active = nx.Graph(self.function(round_index))
        for a, b in active.edges:
            if not graph.has_edge(a, b):
                raise ConfigError(
                    "network.activity",
                    (a, b),
                    f"the activity function returned this link in round {round_index}, but the graph has no such link",
                )
        return active

    def probability(self, graph: Undirected) -> NDArray[np.float64]:
        """Returns the share of the first rounds in which each node has a link."""
        counts = np.zeros(len(graph))
        for links in self.typical(graph):
            counts[list(links)] += 1
        return counts / _TYPICAL

    typical = _first_rounds


@validate_arguments("network.outages")
@dataclass(frozen=True)
class Outage:
    """A period in which a node is away: the rounds `start <= round < stop`.

    Args:
        node: Number of the node, from 0.
        start: First round of the outage, from 0; 0 by default.
        stop: First round after the outage; None (default) if the node never returns.

    Raises:
        ConfigError: If `stop` is not after `start`.

    Examples:
        >>> import fedpriv
        >>> [fedpriv.Outage(node=2, start=1, stop=3).covers(k) for k in range(4)]
        [False, True, True, False]
    """

    node: Whole
    start: Whole = 0
    stop: Count | None = None

    def __post_init__(self) -> None:
        if self.stop is not None and self.stop <= self.start:
            fix = f"must be after start, {self.start}; leave it out if the node never returns"
            raise ConfigError("network.outages.stop", self.stop, fix)

    def covers(self, round_index: int) -> bool:
        """True if the node is away in this round."""
        return self.start <= round_index and (self.stop is None or round_index < self.stop)


def remove_absent_nodes(links: Undirected, outages: Sequence[Outage], round_index: int) -> Undirected:
    """Returns a round's graph without the nodes that are away."""
    gone = {outage.node for outage in outages if outage.covers(round_index)}
    if gone & set(links):
        return nx.Graph(links.subgraph(set(links) - gone))
    return links


def _function(function: str) -> Activity:
    """Returns the activity for a public function, named `package.module:name`, that maps rounds to links (pairs of
    nodes).
    """
    return LinkFunction(resolve_round_function(function, Iterable, "network.activity.function"))


ActivityEntry = RegistryEntry[Activity]

_ACTIVITIES = {
    "always": ActivityEntry(Always, "the whole graph, every round"),
    "random_edges": ActivityEntry(RandomEdges, "a few random links; only their ends are active"),
    "random_links": ActivityEntry(RandomLinks, "each link is up with a probability; all nodes are active"),
    "random_nodes": ActivityEntry(RandomNodes, "each node is active with a probability"),
    "exact_nodes": ActivityEntry(ExactNodes, "the same number of random nodes is active in each round"),
    "one_peer_exponential": ActivityEntry(OnePeerExponential, "each node sends to one other, 2^k further"),
    "function": ActivityEntry(_function, "the user's function of the round"),
}
ACTIVITIES = Registry(_ACTIVITIES, (Activity,))
