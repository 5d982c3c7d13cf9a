"""Mixing matrices: doubly stochastic weights on the links of a graph.

`W[i, j]` is the weight of node j's message at node i. Sources: Xiao and Boyd, 2004 (Metropolis, max-degree);
Nedic, Olshevsky and Rabbat, 2018 (a survey).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpriv.errors import ConfigError
from fedpriv.network.links import Directed, Undirected, nx
from fedpriv.settings.plugins import Registry, RegistryEntry

Weights = sparse.csr_array
LinkWeight = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]
_DENSE = 512  # largest number of nodes for which eigenvalues are computed from the dense matrix


def metropolis(graph: Undirected) -> Weights:
    """Returns weights `1 / (1 + max(d_i, d_j))` on links between nodes with degrees d_i and d_j; the diagonal gets the
    rest.

    Examples:
        >>> import networkx
        >>> from fedpriv.network import mixing
        >>> mixing.metropolis(networkx.path_graph(3)).toarray().round(2).tolist()
        [[0.67, 0.33, 0.0], [0.33, 0.33, 0.33], [0.0, 0.33, 0.67]]
    """
    return _from_links(graph, lambda a, b: 1 / (1 + np.maximum(a, b)))


def lazy_metropolis(graph: Undirected) -> Weights:
    """Returns `(I + W) / 2` for the W of `metropolis`; it has no negative eigenvalues.

    Examples:
        >>> import networkx
        >>> from fedpriv.network import mixing
        >>> mixing.lazy_metropolis(networkx.path_graph(3)).toarray().round(2).tolist()
        [[0.83, 0.17, 0.0], [0.17, 0.67, 0.17], [0.0, 0.17, 0.83]]
    """
    return sparse.csr_array((sparse.eye_array(len(graph)) + metropolis(graph)) / 2)


def max_degree(graph: Undirected) -> Weights:
    """Returns weights `1 / (1 + d_max)` on every link, where d_max is the largest degree; the rest on the diagonal.

    Examples:
        >>> import networkx
        >>> from fedpriv.network import mixing
        >>> mixing.max_degree(networkx.path_graph(3)).toarray().round(2).tolist()
        [[0.67, 0.33, 0.0], [0.33, 0.33, 0.33], [0.0, 0.33, 0.67]]
    """
    largest = max((degree for _, degree in graph.degree), default=0)
    return _from_links(graph, lambda a, _: np.full(len(a), 1 / (1 + largest)))


def from_file(graph: Undirected, file: str) -> Weights:
    """Reads a matrix from a file: `.npy`, or text with one row a line."""
    try:
        if file.endswith(".npy"):
            loaded = np.load(Path(file))
        else:
            loaded = np.loadtxt(Path(file), delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise ConfigError("network.mixing.file", file, f"cannot be read ({error})") from error
    return check_mixing_matrix(loaded, graph)


def shift(graph: Directed) -> Weights:
    """Returns weights `1 / (1 + d)` on directed links, where every node has d incoming and d outgoing links."""
    adjacency = nx.to_scipy_sparse_array(graph, nodelist=sorted(graph), dtype=float)
    degree = adjacency.sum(1).max(initial=0)
    return sparse.csr_array((sparse.eye_array(len(graph)) + adjacency.T) / (1 + degree))


def check_mixing_matrix(weights: NDArray[np.float64] | Weights, graph: Undirected, tolerance: float = 1e-8) -> Weights:
    """Checks that weights are a mixing matrix of a graph, and returns them.

    Args:
        weights: The matrix, `[n, n]`.
        graph: The graph; only its links may have weight.
        tolerance: Allowed rounding error of sums.

    Raises:
        ConfigError: If the matrix has a wrong shape, entries that are negative or not finite, rows that do not sum to
            one, or a weight without a link; if it is not symmetric; or if the graph is not connected. The message
            names the row or node.
    """
    matrix = sparse.csr_array(weights)
    n = len(graph)
    if matrix.shape != (n, n):  # pyright: ignore[reportUnnecessaryComparison] - scipy is not typed
        raise _wrong(f"of shape {matrix.shape}", f"there are {n} nodes: use shape ({n}, {n})")
    rows, columns = matrix.nonzero()
    values = matrix[rows, columns]
    for bad, fix in ((~np.isfinite(values), "must be finite"), (values < 0, "must not be negative")):
        if bad.any():
            position = int(bad.argmax())
            raise _wrong(f"W[{rows[position]}, {columns[position]}] = {values[position]}", fix)
    gap = sparse.coo_array(matrix - matrix.T)
    if gap.nnz and np.abs(gap.data).max() > tolerance:
        position = int(np.abs(gap.data).argmax())
        i, j = int(gap.coords[0][position]), int(gap.coords[1][position])
        raise _wrong(
            f"W[{i}, {j}] != W[{j}, {i}]", "the matrix must be symmetric, so that mixing keeps the mean over nodes"
        )
    sums = matrix.sum(1)
    row = int(abs(sums - 1).argmax())
    if abs(sums[row] - 1) > tolerance:
        raise _wrong(f"row {row} sums to {sums[row]:g}", "each row must sum to 1")
    for i, j in zip(rows.tolist(), columns.tolist(), strict=True):
        if i != j and not graph.has_edge(i, j):
            raise _wrong(f"W[{i}, {j}] = {matrix[i, j]:g}", f"must be zero: nodes {i} and {j} have no link")
    check_connected(graph)
    _check_mixes(nx.from_edgelist(zip(rows.tolist(), columns.tolist(), strict=True)), n)
    return matrix


def check_connected(graph: Undirected) -> None:
    """Raises an error if a graph is not connected.

    Raises:
        ConfigError: If the graph is not connected; the message names a node that node 0 cannot reach.
    """
    unreachable = _unreachable_node(graph, len(graph))
    if unreachable is not None:
        fix = f"node {unreachable} cannot be reached from node 0; add links, or use another seed for the graph"
        raise ConfigError("network.topology", "a disconnected graph", fix)


def _check_mixes(used: Undirected, n: int) -> None:
    """Raises an error for weights under which the nodes' values never converge to each other; `used` contains the links
    with weight.
    """
    unreachable = _unreachable_node(used, n)
    if unreachable is not None:
        raise _wrong(
            "a disconnected matrix",
            f"no path of links with positive weight leads from node 0 to node {unreachable}; give more links a weight",
        )
    if n > 1 and nx.is_bipartite(used):  # a loop, W[i, i] > 0, is an odd cycle
        raise _wrong(
            "W[i, i] = 0 for all i",
            "the nodes' values would alternate between two sides and never agree; set W[0, 0] > 0",
        )


def _unreachable_node(graph: Undirected, n: int) -> int | None:
    """Returns the smallest node that node 0 cannot reach; None if node 0 reaches all nodes."""
    unreachable = set(range(n)) - nx.node_connected_component(graph, 0)
    return min(unreachable, default=None)


def compute_contraction(weights: Weights) -> float:
    """Returns the second largest absolute eigenvalue of symmetric weights, the factor by which mixing shrinks
    differences between nodes.

    Examples:
        >>> import networkx
        >>> from fedpriv.network import mixing
        >>> round(mixing.compute_contraction(mixing.metropolis(networkx.path_graph(3))), 3)
        0.667
    """
    n = weights.shape[0]  # pyright: ignore[reportOptionalSubscript] - scipy is not typed
    if n == 1:
        return 0.0
    if n <= _DENSE:
        centred = weights.toarray() - 1 / n
        return float(np.linalg.norm(centred, 2))
    from scipy.sparse.linalg import LinearOperator, eigsh  # slow to import, and for large graphs alone

    centred = LinearOperator((n, n), matvec=lambda v: weights @ v - v.mean(), dtype=float)  # type: ignore[call-arg]
    return float(
        abs(eigsh(centred, k=1, which="LM", return_eigenvectors=False, v0=np.random.default_rng(0).random(n))[0])
    )


def _from_links(graph: Undirected, weight: LinkWeight) -> Weights:
    """Returns weights from a function of the degrees of a link's two nodes; diagonals make rows sum to 1."""
    n = len(graph)
    number = {node: index for index, node in enumerate(sorted(graph))}
    links = np.array([(number[a], number[b]) for a, b in graph.edges], dtype=int).reshape(-1, 2)
    degree = np.bincount(links.ravel(), minlength=n)
    values = weight(degree[links[:, 0]], degree[links[:, 1]])
    diagonal = 1 - np.bincount(links.ravel(), np.repeat(values, 2), minlength=n)
    everyone = np.arange(n)
    rows = np.concatenate([links[:, 0], links[:, 1], everyone])
    columns = np.concatenate([links[:, 1], links[:, 0], everyone])
    return sparse.csr_array((np.concatenate([values, values, diagonal]), (rows, columns)), shape=(n, n))


def _wrong(value: str, fix: str) -> ConfigError:
    return ConfigError("network.mixing", value, fix)


MixingEntry = RegistryEntry[Weights]

_MIXINGS = {
    "metropolis": MixingEntry(metropolis, "1 / (1 + the larger degree) on each link"),
    "lazy_metropolis": MixingEntry(lazy_metropolis, "half of it, the other half stays: no negative eigenvalues"),
    "max_degree": MixingEntry(max_degree, "1 / (1 + largest degree) on each link"),
    "file": MixingEntry(from_file, "the user's own matrix, from .npy or comma-separated text"),
}
MIXINGS = Registry(_MIXINGS, (Weights,))
