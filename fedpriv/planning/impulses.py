"""Computes the response of a strategy's models to each round's noise, by a run with unit vectors as query results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.errors import FedprivError
from fedpriv.network.graph import Graph
from fedpriv.network.local import Everyone, Star
from fedpriv.network.rounds import RoundNetwork, initial_state, run_rounds
from fedpriv.oracle.dry_run import recording_oracle
from fedpriv.oracle.synthetic import ImpulseEngine
from fedpriv.privacy.pairwise import Pairwise
from fedpriv.privacy.settings import FullBatch, Independent, Local, Privacy
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Strategy

Array = NDArray[np.float64]
MOST_ROUNDS = 2000
"""Largest number of rounds for which the response to noise is computed."""
_MOST_NUMBERS = 5_000_000  # of all nodes' models
_LINEAR = 1e-6  # relative: twice the noise must leave twice as much


def compute_responses(
    strategy: Strategy, privacy: Privacy, network: RoundNetwork, rounds: int, randomness: Randomness
) -> Array | None:
    """Returns how much of a round's noise is in the model after each round, averaged over nodes.

    Args:
        strategy: The algorithm.
        privacy: The privacy settings; only `noise_on` is used.
        network: The network. On a star, one client represents each cohort, because all its clients have the same noise.
        rounds: Number of rounds.
        randomness: The run's public random streams, which draw links.

    Returns:
        `[rounds, rounds]`, row k after round k; zero right of the diagonal. None for more than `MOST_ROUNDS` rounds,
        and for a strategy that is not linear in the query results or leads to numbers that overflow.
    """
    if isinstance(network, Graph):
        nodes = network
    else:
        nodes = Star(1, Everyone())
    if rounds > MOST_ROUNDS or nodes.n_clients * rounds > _MOST_NUMBERS:
        return None
    try:
        once = _responses(strategy, privacy, nodes, rounds, randomness, 1.0)
        twice = _responses(strategy, privacy, nodes, rounds, randomness, 2.0)
    except (FedprivError, ArithmeticError, RuntimeError):  # a strategy may be for models of one size
        return None
    if once.shape != (rounds, rounds) or not (np.isfinite(twice).all() and once[-1].any()):
        return None
    if np.allclose(twice, 2 * once, rtol=_LINEAR, atol=0):
        return once
    return None


def _responses(
    strategy: Strategy, privacy: Privacy, network: Star | Graph, rounds: int, randomness: Randomness, size: float
) -> Array:
    """Runs with `size` times the t-th unit vector as the result of round t; returns the models, averaged over nodes."""
    # secrets of pairs name the run's clients, and a star is followed with one client
    if isinstance(privacy.trust, Pairwise):
        trust = Local()
    else:
        trust = privacy.trust
    noised = replace(
        privacy, epsilon=None, noise_multiplier=1.0, sampling=FullBatch(), noise=Independent(), trust=trust
    )
    oracle = recording_oracle(noised, [1] * network.n_clients, ImpulseEngine(size))
    start = torch.zeros(1, rounds, dtype=torch.float64).expand(network.n_clients, -1)
    models = list[Array]()
    for result in run_rounds(strategy, oracle, network, initial_state(strategy, start), randomness, rounds=rounds):
        models.append(result.progress.models.mean(0).numpy().copy())
    return np.stack(models)
