"""The types of communication graphs: networkx graphs, with nodes 0 .. n-1 once they are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import networkx as nx

if TYPE_CHECKING:
    Undirected = nx.Graph[int]
    Directed = nx.DiGraph[int]
else:
    Undirected, Directed = nx.Graph, nx.DiGraph
