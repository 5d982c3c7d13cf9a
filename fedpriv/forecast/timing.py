"""The time of a round, measured before a run."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace

from fedpriv.clients import make_clients
from fedpriv.errors import PromiseWarning
from fedpriv.planning import Compute, Plan, RunSketch
from fedpriv.runs import Training


def time_round(draft: RunSketch, plan: Plan, compute: Compute) -> tuple[float, str]:
    """Measures the seconds of the second round on synthetic data; the first one includes work that is done once a run.

    Returns:
        The seconds, and the backend that computed gradients (`Training.backend`).
    """
    clients = make_clients(draft.model, draft.loss, draft.outline.synthetic_datasets(), augmentation=draft.augmentation)
    privacy = replace(plan.privacy, epsilon=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PromiseWarning)  # about synthetic data
        training = Training(clients, draft.strategy, privacy, rounds=2, network=draft.network, compute=compute)
    first, second = (time.monotonic() for _ in training)
    return second - first, training.backend
