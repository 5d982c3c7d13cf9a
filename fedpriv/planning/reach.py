"""Computes the largest distance that a run can move its model, to detect a step size, clip bound and number of rounds
that are together too small for any data.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedpriv.errors import FedprivError, format_count
from fedpriv.network.graph import Graph
from fedpriv.network.local import Everyone, Star
from fedpriv.network.rounds import RoundNetwork, initial_state, run_rounds
from fedpriv.oracle.dry_run import recording_oracle
from fedpriv.oracle.synthetic import LargestNormEngine
from fedpriv.privacy.pairwise import Pairwise
from fedpriv.privacy.settings import FullBatch, Independent, Local, Privacy
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Strategy

_ENOUGH = 0.3  # of the norm of the first model
_ROUNDS = 100  # that are followed; later rounds move it as far as these do on average
_MOST_ROWS = 10_000


def reach_warnings(
    strategy: Strategy, privacy: Privacy, network: RoundNetwork, rounds: int, start_norm: float
) -> list[str]:
    """Returns a warning if step size, clip bound and number of rounds let the model move by much less than its norm.

    A network that starts at random values has to move by a good part of their norm before it predicts anything. A model
    that starts at zero has no such scale, and gets no warning.

    Args:
        strategy: The algorithm.
        privacy: The privacy settings.
        network: The network.
        rounds: Number of rounds.
        start_norm: l2 norm of the parameters that the run starts from.
    """
    if not privacy.private or start_norm == 0:
        return []
    reach = compute_reach(strategy, privacy, network, rounds)
    if reach is None or reach >= _ENOUGH * start_norm:
        return []
    return [
        f"in {format_count(rounds, 'round')} with this step size and clip bound {privacy.clip.bound:g}, the parameters "
        f"can move by a distance of at most {reach:.2g}, but the initial parameters have norm {start_norm:.2g}. A "
        "network with random initial values learns little within that distance: increase the step size or the number "
        "of rounds. For a pretrained model, the distance may be enough"
    ]


def compute_reach(strategy: Strategy, privacy: Privacy, network: RoundNetwork, rounds: int) -> float | None:
    """Returns the distance that the model moves if all query results have the largest norm and the same direction.

    Args:
        strategy: The algorithm.
        privacy: The privacy settings.
        network: The network; on a star one client represents all.
        rounds: Number of rounds.

    Returns:
        The distance in rounds without noise; None for a strategy for which it cannot be computed in this way.
    """
    if isinstance(network, Graph):
        nodes = network
    else:
        nodes = Star(1, Everyone())
    followed = min(rounds, _ROUNDS)
    if nodes.n_clients * followed > _MOST_ROWS:
        return None
    trust = privacy.trust
    if isinstance(trust, Pairwise):  # its secrets name the run's clients
        trust = Local()
    noised = replace(
        privacy, epsilon=None, noise_multiplier=1.0, sampling=FullBatch(), noise=Independent(), trust=trust
    )
    oracle = recording_oracle(noised, [1] * nodes.n_clients, LargestNormEngine(privacy.clip.bound))
    progress = initial_state(strategy, torch.zeros(1, 1, dtype=torch.float64).expand(nodes.n_clients, 1))
    try:
        for result in run_rounds(strategy, oracle, nodes, progress, Randomness(0), rounds=followed):
            progress = result.progress
    except (FedprivError, ArithmeticError, RuntimeError):  # a strategy may be for models of one size
        return None
    moved = abs(float(progress.models.mean()))
    return moved * rounds / followed
