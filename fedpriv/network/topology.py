"""Communication graphs by name or from a file: undirected, nodes 0 .. n-1, no self-loops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fedpriv.errors import ConfigError
from fedpriv.network.links import Undirected, nx
from fedpriv.settings import checks
from fedpriv.settings.checks import Count, Probability
from fedpriv.settings.plugins import Registry, RegistryEntry

T = TypeVar("T")
Pairs = tuple[tuple[int, int], ...]
MOST_NODES, MOST_LINKS = 10_000, 1_000_000  # a larger graph would take one process minutes to check


def _check_size(n_clients: int, degree: float) -> None:
    """Raises an error before a graph is created if this would take minutes."""
    if n_clients > MOST_NODES:
        fix = f"a graph has at most {MOST_NODES:,} nodes; use the star for more clients"
        raise ConfigError("network.topology", f"{n_clients} nodes", fix)
    if n_clients * degree / 2 > MOST_LINKS:
        fix = f"a graph has at most {MOST_LINKS:,} links; use a sparser one, or fewer clients"
        raise ConfigError("network.topology", f"{n_clients * degree / 2:.4g} links", fix)


def check_graph(graph: Undirected, n_clients: int) -> Undirected:
    """Returns the graph with nodes 0 .. n-1 and without self-loops.

    Other labels are numbered in sorted order (as text where they are not comparable).

    Raises:
        ConfigError: If the graph is directed or too large, or its number of nodes is not the number of clients.
    """
    _check_size(len(graph), 2 * graph.number_of_edges() / max(len(graph), 1))
    if graph.is_directed():
        raise ConfigError("network.topology", "a directed graph", "links must go both ways: use an undirected graph")
    if len(graph) != n_clients:
        fix = f"the graph has {len(graph)} nodes but there are {n_clients} clients; make the numbers equal"
        raise ConfigError("network.topology", len(graph), fix)
    simple = nx.Graph(graph)
    simple.remove_edges_from(list(nx.selfloop_edges(simple)))
    if set(simple) == set(range(n_clients)):
        numbered = nx.Graph()
        numbered.add_nodes_from(range(n_clients))
        numbered.add_edges_from(simple.edges)
        return numbered
    order = sorted(simple, key=_sort_key)
    return nx.relabel_nodes(simple, {label: index for index, label in enumerate(order)})


def ring(n_clients: int) -> Undirected:
    """Returns a ring: each node has two neighbours.

    Args:
        n_clients: Number of nodes.

    Returns:
        The graph.

    Examples:
        >>> from fedpriv.network import topology
        >>> topology.ring(6).number_of_edges()
        6
    """
    _check_size(n_clients, 2)
    return nx.cycle_graph(n_clients)


def path(n_clients: int) -> Undirected:
    """Returns a path: a line of nodes.

    Args:
        n_clients: Number of nodes.

    Returns:
        The graph.

    Examples:
        >>> from fedpriv.network import topology
        >>> topology.path(6).number_of_edges()
        5
    """
    _check_size(n_clients, 2)
    return nx.path_graph(n_clients)


def hub(n_clients: int) -> Undirected:
    """Returns a graph in which node 0 is the only neighbour of all others; unlike on `Star`, there is no server.

    Args:
        n_clients: Number of nodes.

    Returns:
        The graph.

    Examples:
        >>> from fedpriv.network import topology
        >>> topology.hub(6).number_of_edges()
        5
    """
    _check_size(n_clients, 2)
    return nx.star_graph(n_clients - 1)


def complete(n_clients: int) -> Undirected:
    """Returns the complete graph: every two nodes are linked.

    Args:
        n_clients: Number of nodes.

    Returns:
        The graph.

    Examples:
        >>> from fedpriv.network import topology
        >>> topology.complete(6).number_of_edges()
        15
    """
    _check_size(n_clients, n_clients - 1)
    return nx.complete_graph(n_clients)


@checks.validate_arguments("network.topology")
def grid(n_clients: int, rows: Count) -> Undirected:
    """Returns a grid of `rows` by `n / rows` nodes.

    Args:
        n_clients: Number of nodes.
        rows: Number of rows, a divisor of the number of nodes.

    Returns:
        The graph.

    Examples:
        >>> from fedpriv.network import topology
        >>> topology.grid(6, rows=2).number_of_edges()
        7
    """
    return nx.grid_2d_graph(rows, _columns(n_clients, rows))


@checks.validate_arguments("network.topology")
def torus(n_clients: int, rows: Count) -> Undirected:
    """Returns a torus: a grid with its opposite sides joined.

    Args:
        n_clients: Number of nodes.
        rows: Number of rows, a divisor of the number of nodes.

    Returns:
        The graph.

    Examples:
        >>> from fedpriv.network import topology
        >>> topology.torus(9, rows=3).number_of_edges()
        18
    """
    return nx.grid_2d_graph(rows, _columns(n_clients, rows), periodic=True)


def hypercube(n_clients: int) -> Undirected:
    """Returns a hypercube: nodes are neighbours if their numbers differ in one bit; n is a power of two.

    Args:
        n_clients: Number of nodes.

    Returns:
        The graph.

    Examples:
        >>> from fedpriv.network import topology
        >>> topology.hypercube(8).number_of_edges()
        12
    """
    bits = n_clients.bit_length() - 1
    _check_size(n_clients, bits)
    if n_clients != 1 << bits:
        raise ConfigError(
            "network.topology", f"hypercube of {n_clients}", "the number of clients must be a power of two, e.g. 64"
        )
    if bits:
        return nx.Graph((i, i ^ (1 << b)) for i in range(n_clients) for b in range(bits))
    return nx.empty_graph(1)


def exponential(n_clients: int) -> Undirected:
    """Returns the exponential graph: node i is linked with i +- 2^j mod n (Assran et al., 2019, made undirected).

    Args:
        n_clients: Number of nodes.

    Returns:
        The graph.

    Examples:
        >>> from fedpriv.network import topology
        >>> topology.exponential(8).number_of_edges()
        20
    """
    _check_size(n_clients, 2 * n_clients.bit_length())
    graph = nx.empty_graph(n_clients)
    jumps = [1 << j for j in range(max(n_clients - 1, 1).bit_length())]
    graph.add_edges_from((i, (i + jump) % n_clients) for i in range(n_clients) for jump in jumps)
    return graph


@checks.validate_arguments("network.topology")
def erdos_renyi(n_clients: int, p: Probability, seed: int = 0) -> Undirected:
    """Returns a random graph: each pair is linked with probability p.

    Args:
        n_clients: Number of nodes.
        p: Probability of a link.
        seed: Public seed of the graph; 0 by default.

    Returns:
        The graph.

    Examples:
        >>> from fedpriv.network import topology
        >>> topology.erdos_renyi(6, p=1.0).number_of_edges()
        15
    """
    _check_size(n_clients, p * (n_clients - 1))
    return nx.gnp_random_graph(n_clients, p, seed)


@checks.validate_arguments("network.topology")
def random_regular(n_clients: int, degree: Count, seed: int = 0) -> Undirected:
    """Returns a graph drawn uniformly from those in which every node has `degree` neighbours.

    Args:
        n_clients: Number of nodes.
        degree: Number of neighbours of a node.
        seed: Public seed of the graph; 0 by default.

    Returns:
        The graph.

    Examples:
        >>> from fedpriv.network import topology
        >>> topology.random_regular(6, degree=3).number_of_edges()
        9
    """
    if degree >= n_clients or n_clients * degree % 2:
        fix = f"must be below the number of clients, {n_clients}, and the product of the two must be even"
        raise ConfigError("network.topology.degree", degree, fix)
    _check_size(n_clients, degree)
    return nx.random_regular_graph(degree, n_clients, seed)


@checks.validate_arguments("network.topology")
def watts_strogatz(n_clients: int, neighbours: Count, rewire: Probability, seed: int = 0) -> Undirected:
    """Returns a small world: a ring of `neighbours` nearest neighbours, with randomly rewired links.

    Args:
        n_clients: Number of nodes.
        neighbours: Number of nearest neighbours in the ring.
        rewire: Probability with which each link is rewired.
        seed: Public seed of the graph; 0 by default.

    Returns:
        The graph.

    Examples:
        >>> from fedpriv.network import topology
        >>> topology.watts_strogatz(8, neighbours=4, rewire=0.1).number_of_edges()
        16
    """
    if neighbours > n_clients:
        raise ConfigError(
            "network.topology.neighbours", neighbours, f"must be at most the number of clients, {n_clients}"
        )
    _check_size(n_clients, neighbours)
    return nx.watts_strogatz_graph(n_clients, neighbours, rewire, seed)


@checks.validate_arguments("network.topology")
def barabasi_albert(n_clients: int, links: Count, seed: int = 0) -> Undirected:
    """Returns a graph of preferential attachment: each new node adds `links` links.

    Args:
        n_clients: Number of nodes.
        links: Number of links of a new node.
        seed: Public seed of the graph; 0 by default.

    Returns:
        The graph.

    Examples:
        >>> from fedpriv.network import topology
        >>> topology.barabasi_albert(6, links=2).number_of_edges()
        8
    """
    if links >= n_clients:
        raise ConfigError("network.topology.links", links, f"must be below the number of clients, {n_clients}")
    _check_size(n_clients, 2 * links)
    return nx.barabasi_albert_graph(n_clients, links, seed)


@checks.validate_arguments("network.topology")
def links(n_clients: int, pairs: Pairs) -> Undirected:
    """Returns the graph with exactly these links.

    Args:
        n_clients: Number of nodes.
        pairs: Pairs of nodes 0 .. n-1, e.g. `[[0, 1], [1, 2]]`.

    Returns:
        The graph.

    Examples:
        >>> from fedpriv.network import topology
        >>> topology.links(3, pairs=((0, 1), (1, 2))).number_of_edges()
        2
    """
    _check_size(n_clients, 2 * len(pairs) / n_clients)
    graph = nx.empty_graph(n_clients)
    for a, b in pairs:
        if a == b or not (0 <= a < n_clients and 0 <= b < n_clients):
            fix = f"must link two different nodes from 0 to {n_clients - 1}"
            raise ConfigError("network.topology.pairs", [a, b], fix)
    graph.add_edges_from(pairs)
    return graph


def edge_list(file: str) -> Undirected:
    """Reads a graph from lines `a b`, one link each, with comments after #. Nodes are 0 .. n-1, 1 .. n, or names."""
    links: list[tuple[Any, Any]] = []  # text, until they are numbered
    for number, line in enumerate(_read(file, Path.read_text).splitlines(), start=1):
        ends = line.split("#")[0].split()
        if ends and (len(ends) < 2 or ends[0] == ends[1] or not "".join(ends[2:] or "{").startswith("{")):
            raise ConfigError(
                "network.topology.file",
                f"{file}, line {number}: {line}",
                "each line must contain two different nodes, e.g. 0 1",
            )
        if ends:
            links.append((ends[0], ends[1]))
    graph: nx.Graph[Any] = nx.Graph(links)
    return _numbered(graph, file)


def graphml(file: str) -> Undirected:
    """Reads a GraphML file. Nodes are 0 .. n-1, or 1 .. n, or have names."""
    return _numbered(_read(file, nx.read_graphml), file)


def _sort_key(label: object) -> tuple[str, int | str]:
    """Sorts labels by type, then whole numbers by value and all others as text."""
    if isinstance(label, int):
        return str(type(label)), label
    return str(type(label)), str(label)


def _numbered(graph: Undirected, file: str) -> Undirected:
    """Converts text labels to numbers if all labels are numbers.

    A gap between the numbers, or a name among them, raises an error, because it is probably a typing error.
    """
    labels = {label: str(label) for label in graph}
    names = sorted(text for text in labels.values() if not text.isdecimal())
    if len(names) == len(labels):
        return graph
    numbers = sorted({int(text) for text in labels.values() if text.isdecimal()})
    gaps = [number for expected, number in enumerate(numbers, start=min(numbers[0], 1)) if number != expected]
    misfits = [*names, *gaps]
    if misfits:
        fix = f"node {misfits[0]} does not match the others: number nodes 0 .. n-1 or 1 .. n, or give all of them names"
        raise ConfigError("network.topology.file", file, fix)
    return nx.relabel_nodes(graph, {label: int(text) for label, text in labels.items()})


def _columns(n_clients: int, rows: int) -> int:
    """Returns the number of columns of a grid."""
    _check_size(n_clients, 4)
    if n_clients % rows:
        raise ConfigError("network.topology.rows", rows, f"must divide the number of clients, {n_clients}")
    return n_clients // rows


def _read(file: str, reader: Callable[[Path], T]) -> T:
    try:
        return reader(Path(file))
    except Exception as error:  # the readers raise any error of their parsers
        raise ConfigError("network.topology.file", file, f"cannot be read ({error})") from error


GraphEntry = RegistryEntry[Undirected]

_GRAPHS = {
    "ring": GraphEntry(ring, "each node has two neighbours"),
    "path": GraphEntry(path, "a ring, cut open"),
    "hub": GraphEntry(hub, "a star graph of peers around node 0 (no server)"),
    "complete": GraphEntry(complete, "each node is linked to all others"),
    "grid": GraphEntry(grid, "rows by n / rows"),
    "torus": GraphEntry(torus, "a grid with joined opposite sides"),
    "hypercube": GraphEntry(hypercube, "numbers that differ in one bit are linked; n is a power of two"),
    "exponential": GraphEntry(exponential, "i is linked with i +- 2^j mod n"),
    "erdos_renyi": GraphEntry(erdos_renyi, "each pair is linked with probability p"),
    "random_regular": GraphEntry(random_regular, "everyone has the same number of random neighbours"),
    "watts_strogatz": GraphEntry(watts_strogatz, "small world: a ring with rewired links"),
    "barabasi_albert": GraphEntry(barabasi_albert, "preferential attachment: few hubs, many leaves"),
    "links": GraphEntry(links, "exactly the pairs of nodes that are listed"),
    "edge_list": GraphEntry(edge_list, "from a file, one link a line"),
    "graphml": GraphEntry(graphml, "from a GraphML file"),
}
# the last node of the star graph is the server
_STAR = GraphEntry(
    lambda n_clients: nx.star_graph(n_clients), "a server that exchanges messages with all clients (no graph)"
)
TOPOLOGIES = Registry({"star": _STAR, **_GRAPHS}, lambda: (nx.Graph,))
