"""The graph of a plan: as a line for each site, and as a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import networkx as nx

from fedpriv.network.graph import Graph
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.storage.files import write_whole

_LINE, _NODE, _TEXT = "#5F6368", "#1A73E8", "white"


def neighbour_names(terms: ResolvedPlan, number: int) -> Sequence[str]:
    """Returns the names of a site's neighbours; none of a plan with a server."""
    if not isinstance(terms.network, Graph):
        return []
    return [terms.cards[other].name for other in sorted(terms.network.graph.neighbors(number))]


def draw_graph(terms: ResolvedPlan, path: Path) -> int:
    """Draws the sites of a plan on a graph, with the weight of each link; returns the number of links.

    Args:
        terms: The plan.
        path: The PNG file to write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    network = terms.network
    assert isinstance(network, Graph)
    figure = Figure(figsize=(6, 5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    graph = network.graph
    positions = nx.circular_layout(graph)
    weights = {(a, b): f"{network.weights[a, b]:.2f}" for a, b in graph.edges}
    names = {number: card.name for number, card in enumerate(terms.cards)}
    nx.draw_networkx_edges(graph, positions, ax=axes, edge_color=_LINE)
    nx.draw_networkx_nodes(graph, positions, ax=axes, node_color=_NODE, node_size=2600)
    nx.draw_networkx_labels(graph, positions, names, ax=axes, font_color=_TEXT, font_size=8)
    if len(weights) <= 60:  # more are not legible
        nx.draw_networkx_edge_labels(graph, positions, weights, ax=axes, font_size=7, font_color=_LINE)
    axes.set_title(f"{terms.strategy.name}: who sends to whom, and with which weight", loc="left", fontsize=10)
    axes.margins(0.15)
    axes.axis("off")
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_whole(path, picture.getvalue())
    return len(weights)
