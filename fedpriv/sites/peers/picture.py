"""The graph of a plan: as a line for each site, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import networkx as nx

from fedpriv.network import Graph
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.storage import BLUE, GREY, new_figure, write_png


def neighbour_names(resolved_plan: ResolvedPlan, number: int) -> Sequence[str]:
    """Returns the names of a site's neighbours; empty for a plan with a server."""
    if not isinstance(resolved_plan.network, Graph):
        return []
    return [resolved_plan.cards[other].name for other in sorted(resolved_plan.network.graph.neighbors(number))]


def draw_graph(resolved_plan: ResolvedPlan, path: Path) -> int:
    """Draws the sites of a plan on a graph, with the weight of each link; returns the number of links.

    Args:
        resolved_plan: The plan.
        path: The PNG file to write.
    """
    network = resolved_plan.network
    assert isinstance(network, Graph)
    figure = new_figure(6, 5)
    axes = figure.subplots()
    graph = network.graph
    positions = nx.circular_layout(graph)
    weights = {(a, b): f"{network.weights[a, b]:.2f}" for a, b in graph.edges}
    names = {number: card.name for number, card in enumerate(resolved_plan.cards)}
    nx.draw_networkx_edges(graph, positions, ax=axes, edge_color=GREY)
    nx.draw_networkx_nodes(graph, positions, ax=axes, node_color=BLUE, node_size=2600)
    nx.draw_networkx_labels(graph, positions, names, ax=axes, font_color="white", font_size=8)
    if len(weights) <= 60:  # more are not legible
        nx.draw_networkx_edge_labels(graph, positions, weights, ax=axes, font_size=7, font_color=GREY)
    axes.set_title(f"{resolved_plan.strategy.name}: who sends to whom, and with which weight", loc="left", fontsize=10)
    axes.margins(0.15)
    axes.axis("off")
    write_png(figure, path)
    return len(weights)
