"""Settings of noise that cancels between pairs of clients, and its description in records.

Two clients that share a secret add the same noise with opposite signs. Each row is protected by the client's individual
noise and by the noise of its pairs; in a sum over all clients only individual noise remains.

Sources: Dwork et al. (2006); Sabater, Bellet and Ramon (2022); Allouah et al. (2024).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from fedpriv.errors import ConfigError
from fedpriv.settings.checks import Bound, Count, Whole, validate_arguments

Edges = tuple[tuple[int, int], ...]
"""Pairs of clients, the smaller number first, in order."""
PairRatio = Annotated[float, Bound("must be a number from 0 to 1000", 0, 1000, "[]")]
_FIELD = "privacy.trust.pairwise.secrets"


@dataclass(frozen=True)
class Complete:
    """Every two clients share a secret.

    Examples:
        >>> from fedpriv.privacy.pairwise import Complete
        >>> Complete().edges(4) is None
        True
    """

    def edges(self, n_clients: int) -> Edges | None:
        """Returns None, which represents all pairs."""
        return None

    def __str__(self) -> str:
        return "complete"


@validate_arguments(_FIELD)
@dataclass(frozen=True)
class RandomRegular:
    """Every client shares a secret with `degree` others, drawn at random from a public seed.

    Args:
        degree: Number of secrets of a client. It must be below the number of clients, and the product of the two
            numbers must be even.
        seed: Public seed of the graph.

    Examples:
        >>> from fedpriv.privacy.pairwise import RandomRegular
        >>> len(RandomRegular(degree=2).edges(6))
        6
    """

    degree: Count
    seed: Whole = 0

    def edges(self, n_clients: int) -> Edges | None:
        """Returns the pairs among `n_clients` clients.

        Raises:
            ConfigError: If no graph has this degree and number of clients.
        """
        if self.degree >= n_clients or n_clients * self.degree % 2:
            fix = f"must be below the number of clients, {n_clients}, and the product of the two must be even"
            raise ConfigError(f"{_FIELD}.random_regular.degree", self.degree, fix)
        import networkx as nx  # 12 MB that only this needs

        return sort_pairs(nx.random_regular_graph(self.degree, n_clients, self.seed).edges)

    def __str__(self) -> str:
        return f"random_regular(degree={self.degree})"


@dataclass(frozen=True)
class Topology:
    """Neighbours in the run's network share a secret. The network must be a graph."""

    def edges(self, n_clients: int) -> Edges | None:
        """Always raises ConfigError: a run takes the pairs from its network and replaces this setting by `Links`."""
        raise ConfigError(
            _FIELD,
            "topology",
            "the run has no network that defines the pairs: set network.topology, or use complete or random_regular",
        )

    def __str__(self) -> str:
        return "topology"


@dataclass(frozen=True)
class Links:
    """The pairs of a list share a secret.

    Args:
        pairs: Pairs of client numbers; their order, and the order within a pair, do not matter.
        name: Name of the list, as printed.

    Examples:
        >>> from fedpriv.privacy.pairwise import Links
        >>> Links(((2, 1), (0, 1))).edges(3)
        ((0, 1), (1, 2))
    """

    pairs: Edges
    name: str = "links"

    def edges(self, n_clients: int) -> Edges | None:
        """Returns the pairs, sorted.

        Raises:
            ConfigError: If a pair holds one client twice, or a client that does not exist.
        """
        for a, b in self.pairs:
            if a == b or not (0 <= a < n_clients and 0 <= b < n_clients):
                raise ConfigError(_FIELD, (a, b), f"must be two different clients from 0 to {n_clients - 1}")
        return sort_pairs(self.pairs)

    def __str__(self) -> str:
        return self.name


Secrets = Complete | RandomRegular | Topology | Links


@validate_arguments("privacy.trust.pairwise")
@dataclass(frozen=True)
class Pairwise:
    """Trust assumption without a trusted party, in which clients that share a secret add noise that cancels.

    An observer can read every message. Every query result is a function of jointly noised rows, so any strategy works
    unchanged, on a star and on a graph. This is a simulation: one process draws the noise of all pairs. The noise must
    be Gaussian.

    Args:
        colluders: Number of clients that may reveal all their information to each other and to the observer: their
            data, their noise and the noise of their pairs. The privacy cost is computed for the worst choice of
            colluders.
        ratio: Standard deviation of a pair's noise over the deviation of individual noise; usually 1 to 10. With more
            pairwise noise a row needs less individual noise, but more noise must be averaged out on a graph.
        secrets: The pairs that share a secret: `Complete()`, `RandomRegular(degree)`, `Topology()` or `Links(pairs)`.

    Source: Sabater, Bellet and Ramon (2022), Allouah et al. (2024); docs/threat_model.md has the privacy cost.

    Examples:
        >>> import fedpriv
        >>> privacy = fedpriv.Privacy(epsilon=1.0, trust=fedpriv.Pairwise(colluders=1, ratio=3.0))
        >>> fedpriv.plan([100] * 4, fedpriv.fedavg(0.1), privacy, rounds=5).spent.epsilon <= 1.0
        True
    """

    sums_only: ClassVar[bool] = False

    colluders: Whole
    ratio: PairRatio
    secrets: Secrets = Complete()

    def shares(self, n_clients: int) -> int:
        """Returns 1: each row has individual noise."""
        return 1

    def pairs(self, n_clients: int) -> Pairs:
        """Returns the pairwise noise as records hold it.

        Raises:
            ConfigError: If there is no such graph of secrets.
        """
        edges = self.secrets.edges(n_clients)
        return Pairs(self.ratio, self.colluders, name_pairs(edges), edges)

    def __str__(self) -> str:
        return f"pairwise(colluders={self.colluders}, ratio={self.ratio:g}, {self.secrets}, simulated)"


@dataclass(frozen=True)
class KeyAgreedPairwise(Pairwise):
    """`Pairwise` for organisations that agree on keys, so that no other party can compute the secret of a pair.

    A configuration cannot contain it. A site replaces `Pairwise` with it if the site draws pairwise noise from agreed
    keys.
    """

    def __str__(self) -> str:
        return f"pairwise(colluders={self.colluders}, ratio={self.ratio:g}, {self.secrets}, X25519)"


@dataclass(frozen=True)
class Pairs:
    """The pairwise noise of a record: everything that its privacy cost depends on.

    Attributes:
        ratio: Standard deviation of a pair's noise over the deviation of individual noise; 0 without pairwise noise.
        colluders: Number of clients that may reveal all their information.
        secrets: `"complete"`, or a digest of the pairs that share a secret.
        edges: The pairs that share a secret; None if all do. A ledger file holds them once, in its header.
    """

    ratio: float
    colluders: int
    secrets: str
    edges: Edges | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1000:
            raise ConfigError("record.pairs.ratio", self.ratio, "must be a number from 0 to 1000")
        if self.colluders < 0:
            raise ConfigError("record.pairs.colluders", self.colluders, "must be a whole number, at least 0")


def variance_inflation(pairs: Pairs | None, n_clients: int) -> list[float]:
    """Returns, for each client, the standard deviation of all noise in its row divided by the standard deviation of
    individual noise.
    """
    if pairs is None:
        return [1.0] * n_clients
    if pairs.edges is None:
        degrees = [n_clients - 1] * n_clients
    else:
        degrees = [sum(client in pair for pair in pairs.edges) for client in range(n_clients)]
    return [math.sqrt(1 + pairs.ratio**2 * degree) for degree in degrees]


def sort_pairs(pairs: object) -> Edges:
    """Returns sorted pairs, each once, the smaller number first."""
    return tuple(sorted({(min(a, b), max(a, b)) for a, b in pairs}))  # pyright: ignore


def name_pairs(edges: Edges | None) -> str:
    """Returns `"complete"`, or 32 hexadecimal digits that represent these pairs."""
    if edges is None:
        return "complete"
    return hashlib.blake2b(repr(edges).encode(), digest_size=16).hexdigest()
