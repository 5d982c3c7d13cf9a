"""Which nodes and links of a graph are active in a round: drawn from the public seed, never a function of data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import comb
from typing import Protocol, runtime_checkable

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from fedpriv.errors import ConfigError
from fedpriv.network.links import Directed, Undirected
from fedpriv.randomness.keystream import Keystream
from fedpriv.randomness.streams import Randomness
from fedpriv.settings.checks import Count, Probability, Whole, checked
from fedpriv.settings.plugins import Registry, RegistryEntry, function_of_round

_TYPICAL, _MOST = 500, 10_000  # rounds


class Activity(Protocol):
    """Chooses the links of a round."""

    def links(self, graph: Undirected, round_index: int, stream: Keystream) -> Undirected:
        """The graph of a round: the active nodes and the active links between them."""
        ...

    def probability(self, graph: Undirected) -> NDArray[np.float64]:
        """Probability that each node is active in a round, `[n]`."""
        ...

    def typical(self, graph: Undirected) -> Iterator[Undirected]:
        """Graphs of some rounds, with fixed seeds: their mean is or estimates the expectation over all rounds."""
        ...


@runtime_checkable
class Names(Protocol):
    """An activity that tells a round's active nodes without making its graph. This is optional: plans are faster."""

    def active(self, edges: Sequence[tuple[int, int]], stream: Keystream) -> list[int]:
        """The active nodes, sorted, of a graph with these edges; those of `Activity.links`, from the same stream."""
        ...


def _one(_: Activity, graph: Undirected) -> NDArray[np.float64]:
    """Every node is active in every round."""
    return np.ones(len(graph))


def _first(activity: Activity, graph: Undirected, rounds: int = _TYPICAL) -> Iterator[Undirected]:
    """The first rounds of a seed."""
    return (activity.links(graph, k, Randomness().stream("topology", k)) for k in range(rounds))


@checked("network.activity")
@dataclass(frozen=True)
class Always:
    """The whole graph, every round."""

    def links(self, graph: Undirected, round_index: int, stream: Keystream) -> Undirected:
        """The graph."""
        return graph

    probability = _one

    def typical(self, graph: Undirected) -> Iterator[Undirected]:
        """The graph, once."""
        yield graph


@checked("network.activity")
@dataclass(frozen=True)
class RandomEdges:
    """`count` links, uniformly without repeats; only their ends are active (Liu, Johansson, Shi: 1 or 2 links)."""

    count: Count = 1

    def links(self, graph: Undirected, round_index: int, stream: Keystream) -> Undirected:
        """The drawn links and their ends."""
        edges = list(graph.edges)
        return nx.Graph(edges[i] for i in self._chosen(len(edges), stream))

    def active(self, edges: Sequence[tuple[int, int]], stream: Keystream) -> list[int]:
        """The ends of the drawn links."""
        return sorted({end for i in self._chosen(len(edges), stream) for end in edges[i]})

    def _chosen(self, links: int, stream: Keystream) -> list[int]:
        self._check(links)
        return stream.permutation(links)[: self.count].tolist()

    def probability(self, graph: Undirected) -> NDArray[np.float64]:
        """One minus the chance that none of a node's links is drawn."""
        total = graph.number_of_edges()
        self._check(total)
        none = [comb(total - graph.degree[node], self.count) / comb(total, self.count) for node in sorted(graph)]
        return 1 - np.array(none)

    def typical(self, graph: Undirected) -> Iterator[Undirected]:
        """Each link about equally often: all links (of very many, some) in random orders, `count` after `count`."""
        edges, draw = list(graph.edges), np.random.default_rng(0)
        self._check(len(edges))
        for _ in range(max(1, _TYPICAL * self.count // len(edges))):
            order = draw.permutation(len(edges)).tolist()
            order += order[: -len(order) % self.count]
            for first in range(0, min(len(order), _MOST * self.count), self.count):
                yield nx.Graph(edges[i] for i in order[first : first + self.count])

    def _check(self, links: int) -> None:
        if self.count > links:
            raise ConfigError("network.activity.count", self.count, f"the graph has only {links} links")


@checked("network.activity")
@dataclass(frozen=True)
class RandomLinks:
    """Each link is up with probability `rate`, on its own; all nodes are active."""

    rate: Probability

    def links(self, graph: Undirected, round_index: int, stream: Keystream) -> Undirected:
        """All nodes, some links."""
        edges = list(graph.edges)
        up = stream.random(len(edges)) < self.rate
        drawn = nx.empty_graph(len(graph))
        drawn.add_edges_from(edge for edge, kept in zip(edges, up, strict=True) if kept)
        return drawn

    probability = _one

    typical = _first


@checked("network.activity")
@dataclass(frozen=True)
class RandomNodes:
    """Each node is active with probability `rate`, independently, with its links to active neighbours."""

    rate: Probability

    def links(self, graph: Undirected, round_index: int, stream: Keystream) -> Undirected:
        """The graph on the active nodes; there may be none."""
        active = stream.random(len(graph)) < self.rate
        return nx.Graph(graph.subgraph(node for node in graph if active[node]))

    def probability(self, graph: Undirected) -> NDArray[np.float64]:
        """The rate."""
        return np.full(len(graph), self.rate)

    typical = _first


@checked("network.activity")
@dataclass(frozen=True)
class OnePeerExponential:
    """Round k: node i sends to `i + 2^(k mod log2 n)` only (Ying et al., 2021); the graph itself is not used.

    Links are directed. For n a power of two, log2 n rounds average exactly.
    """

    def links(self, graph: Undirected, round_index: int, stream: Keystream) -> Directed:
        """One outgoing and one incoming link a node."""
        n = len(graph)
        jump = 1 << (round_index % max(1, (n - 1).bit_length()))
        if n > 1:
            return nx.DiGraph((i, (i + jump) % n) for i in range(n))
        return nx.empty_graph(1, nx.DiGraph)

    probability = _one

    def typical(self, graph: Undirected) -> Iterator[Undirected]:
        """Each jump once."""
        return _first(self, graph, max(1, (len(graph) - 1).bit_length()))


@dataclass(frozen=True)
class LinkFunction:
    """Links from a function of the round, which must not look at data; nodes without a link are inactive."""

    function: Callable[[int], Iterable[tuple[int, int]]]

    def links(self, graph: Undirected, round_index: int, stream: Keystream) -> Undirected:
        """The function's links.

        Raises:
            ConfigError: the graph has no such link.
        """
        drawn = nx.Graph(self.function(round_index))
        for a, b in drawn.edges:
            if not graph.has_edge(a, b):
                raise ConfigError("network.activity", (a, b), f"round {round_index}: the graph has no such link")
        return drawn

    def probability(self, graph: Undirected) -> NDArray[np.float64]:
        """How often each node has a link in the first rounds."""
        counts = np.zeros(len(graph))
        for links in self.typical(graph):
            counts[list(links)] += 1
        return counts / _TYPICAL

    typical = _first


@checked("network.outages")
@dataclass(frozen=True)
class Outage:
    """A node that is away in rounds `start <= round < stop`; None for `stop` means that it never returns."""

    node: Whole
    start: Whole = 0
    stop: Count | None = None

    def __post_init__(self) -> None:
        if self.stop is not None and self.stop <= self.start:
            fix = f"must be after start, {self.start}; leave it out if the node is gone for good"
            raise ConfigError("network.outages.stop", self.stop, fix)

    def covers(self, round_index: int) -> bool:
        """Whether the node is away in this round."""
        return self.start <= round_index and (self.stop is None or round_index < self.stop)


def without(links: Undirected, outages: Sequence[Outage], round_index: int) -> Undirected:
    """The links that are left without the nodes that are away."""
    gone = {outage.node for outage in outages if outage.covers(round_index)}
    if gone & set(links):
        return nx.Graph(links.subgraph(set(links) - gone))
    return links


def _function(function: str) -> Activity:
    """`package.module:name` of a public function of the round that gives links (pairs of nodes)."""
    return LinkFunction(function_of_round(function, Iterable, "network.activity.function"))


ActivityEntry = RegistryEntry[Activity]

_ACTIVITIES = {
    "always": ActivityEntry(Always, "the whole graph, every round"),
    "random_edges": ActivityEntry(RandomEdges, "a few random links; only their ends are active"),
    "random_links": ActivityEntry(RandomLinks, "each link is up with a probability; all nodes are active"),
    "random_nodes": ActivityEntry(RandomNodes, "each node is active with a probability"),
    "one_peer_exponential": ActivityEntry(OnePeerExponential, "each node sends to one other, 2^k further"),
    "function": ActivityEntry(_function, "the user's function of the round"),
}
ACTIVITIES = Registry(_ACTIVITIES, (Activity,))
