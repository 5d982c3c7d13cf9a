"""The types of communication graphs: networkx graphs, with nodes 0 .. n-1 once they are checked.

Modules take networkx from here. It is imported when something of it is first used: 12 MB, and as much time as a round
of a small model, which only runs on a graph need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx

    Undirected = nx.Graph[int]
    Directed = nx.DiGraph[int]
else:
    import lazy_loader

    nx = lazy_loader.load("networkx")
    # names of types, which are looked up where an annotation is evaluated: in a module that has `nx` as well
    Undirected, Directed = "nx.Graph", "nx.DiGraph"

__all__ = ["Directed", "Undirected", "nx"]
