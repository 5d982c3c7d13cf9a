"""A picture of a communication graph."""

from __future__ import annotations

from pathlib import Path

import networkx as nx

from fedpriv.errors import ConfigError
from fedpriv.network.graph import Graph


def draw(network: Graph, path: Path) -> None:
    """Draw nodes and links; circular for up to 24 nodes, by springs for more.

    Args:
        network: The graph.
        path: PNG file to write.

    Raises:
        ConfigError: another kind of file.
    """
    if path.suffix != ".png":
        raise ConfigError("--out", str(path), "pictures are PNG files; give a name that ends in .png")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 6.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    graph = network.graph
    places = nx.circular_layout(graph) if len(graph) <= 24 else nx.spring_layout(graph, seed=0)
    nx.draw_networkx_edges(graph, places, ax=axes, edge_color="#B0B4B8", width=0.8)
    nx.draw_networkx_nodes(graph, places, ax=axes, node_color="#0072B2", node_size=max(8, 1500 // len(graph)))
    gap = f"spectral gap {network.spectral_gap:.3g}"
    axes.set_title(f"{len(graph)} nodes, {graph.number_of_edges()} links, {gap}", loc="left", fontsize=10)
    axes.set_axis_off()
    figure.savefig(path)
