"""Public facts from which a strategy may give advice on its settings before a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


class Peers(Protocol):
    """The graph of a run without a server."""

    @property
    def spectral_gap(self) -> float:
        """One minus the second largest absolute eigenvalue of W."""
        ...

    @property
    def weights(self) -> Any:  # noqa: ANN401 - scipy is not typed
        """The mixing matrix W, sparse `[n, n]`."""
        ...


@dataclass(frozen=True)
class ConstraintNoise:
    """Noise of private constraint values, known before a run.

    Attributes:
        deviation: Largest standard deviation of the noise of a constraint value.
        reach: Half of the largest change of a value by one example; None if the privacy budget can no longer be
            changed.
        examples: Number of examples of the client with the fewest.
        dim: Number of entries of a gradient.
    """

    deviation: float
    reach: float | None = None
    examples: int = 1
    dim: int = 1


@dataclass(frozen=True)
class RunInfo:
    """Public facts of a run before it begins, for a strategy's advice on its settings.

    Attributes:
        rounds: Number of rounds.
        graph: The communication graph; None with a server.
        constraints: Noise of constraint values; None if the strategy does not query constraint values, or if their
            noise is not known yet.
    """

    rounds: int
    graph: Peers | None = None
    constraints: ConstraintNoise | None = None


@runtime_checkable
class Advises(Protocol):
    """A client update that gives advice on its settings before a run. This is optional."""

    def advice(self, run: RunInfo) -> list[str]:
        """Returns warnings about these settings in this run, a sentence or two each, with numbers."""
        ...
