"""Warnings about the network of a run."""

from __future__ import annotations

from typing import Literal

from fedpriv.network.graph import Graph
from fedpriv.network.rounds import RoundNetwork
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.gossip import GossipAverage


def warn_of_missing_network(strategy: Strategy, n_clients: int, language: Literal["python", "yaml"]) -> list[str]:
    """Returns a warning if a decentralised strategy is used without a network, in which case the run has a server.

    Args:
        strategy: The algorithm.
        n_clients: Number of clients.
        language: The language in which the warning shows how to give a graph.
    """
    if n_clients == 1 or not isinstance(strategy.aggregator, GossipAverage):
        return []
    if language == "python":
        graph = f"network=fedpriv.Graph(networkx.cycle_graph({n_clients}))"
        star = f"network=fedpriv.Star({n_clients})"
    else:
        graph, star = "network.topology: ring", "network.topology: star"
    return [
        f"{strategy.name} averages over neighbours in a graph, but the run has no network, so a server computes "
        f"the exact mean of all clients. Write {graph} for a graph, or {star} for a server"
    ]


def as_graph(network: RoundNetwork) -> Graph | None:
    """Returns the network if it is a graph; None if clients talk to a server."""
    if isinstance(network, Graph):
        return network
    return None
