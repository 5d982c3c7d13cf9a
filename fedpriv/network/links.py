"""The types of communication graphs: networkx graphs, with nodes 0 .. n-1 once they are checked.

Modules import networkx from here. It is loaded when one of its names is first used, because it needs 12 MB and as much
time as a round of a small model, and only runs on a graph need it.
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
