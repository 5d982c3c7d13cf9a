"""Draws a communication graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import networkx as nx

from fedpriv.errors import ConfigError
from fedpriv.network import Graph
from fedpriv.storage import BLUE, new_figure, write_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(network: Graph, path: Path) -> None:
    """Draws nodes and links into a PNG file; up to 50 nodes are numbered.

    Args:
        network: The graph.
        path: PNG file to write.

    Raises:
        ConfigError: If the name does not end in .png.
    """
    if path.suffix != ".png":
        raise ConfigError("--out", str(path), "the picture must be a PNG file; use a name that ends in .png")
    write_png(draw_figure(network), path)


def draw_figure(network: Graph) -> Figure:
    """Returns a picture of nodes and links; up to 50 nodes are numbered."""
    figure = new_figure(6, 6.4)
    axes = figure.subplots()
    graph = network.graph
    n = len(graph)
    # start from a planar layout if there is one; otherwise networkx starts from a circle
    if nx.is_planar(graph):
        start = nx.planar_layout(graph)
    else:
        start = None
    # distances on paper follow distances on the graph, which keeps rings, grids and hubs recognisable; the time is
    # cubic
    if n <= 300:
        positions = nx.kamada_kawai_layout(graph, pos=start)
    else:
        positions = nx.spring_layout(graph, seed=0)
    nx.draw_networkx_edges(graph, positions, ax=axes, edge_color="#B0B4B8", width=0.8 if n <= 300 else 0.3)
    size = 260 if n <= 50 else max(4, 3000 // n)
    nx.draw_networkx_nodes(graph, positions, ax=axes, node_color=BLUE, node_size=size)
    if n <= 50:
        nx.draw_networkx_labels(graph, positions, ax=axes, font_size=8, font_color="white")
    gap = f"spectral gap {network.spectral_gap:.3g}"
    axes.set_title(f"{n} nodes, {graph.number_of_edges()} links, {gap}", loc="left", fontsize=10)
    axes.set_axis_off()
    return figure
