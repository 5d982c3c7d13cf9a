"""Raises Python warnings about weakened privacy. The warnings point to a line of the user's code, not to code of
fedpriv.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence

from torch import nn

from fedpriv import models
from fedpriv.errors import PromiseWarning, format_count
from fedpriv.planning.plan import Plan
from fedpriv.privacy.settings import Privacy

GAP = (
    "log.optimum: the result reveals the gap to the optimum, computed on the training data without noise, which "
    "epsilon does not cover; leave this setting out unless the data are public"
)
_EXTENDED = (
    "this run includes {rounds} of the earlier run that it extends: the total epsilon holds if the results of that "
    "run did not influence the number of further rounds and their noise"
)
_PRECEDED = (
    "this run counts {releases} of an earlier run: the total epsilon holds if their results did not influence the "
    "number of rounds and their noise"
)
_SEED = "secret_seed is set: anyone who knows the seed can subtract the noise; leave secret_seed out for real data"


def not_covered(privacy: Privacy, optimum: float | None) -> tuple[str, ...]:
    """Returns information that a run reveals about the data and that epsilon does not cover, in words.

    Args:
        privacy: The privacy settings.
        optimum: Smallest value of the objective, if it is given.
    """
    if optimum is not None and privacy.private:
        return ("the optimality gap, exact",)
    return ()


def privacy_warnings(
    plan: Plan, sizes: Sequence[int], model: nn.Module, *, optimum: float | None, secret_seed: int | None
) -> list[str]:
    """Returns warnings about settings that weaken a run's privacy.

    Args:
        plan: The run's plan.
        sizes: Public number of examples of each client.
        model: The trained model.
        optimum: Smallest value of the objective, if it is given.
        secret_seed: Seed of the noise, if it is given.
    """
    texts = plan.warnings(sizes)
    if plan.privacy.private:
        if plan.first is not None and plan.first.rounds == 0:
            texts.append(_PRECEDED.format(releases=format_count(len(plan.first.records), "release")))
        elif plan.first is not None:
            texts.append(_EXTENDED.format(rounds=format_count(plan.first.rounds, "round")))
        if optimum is not None:
            texts.append(GAP)
        if secret_seed is not None:
            texts.append(_SEED)
        texts += models.check_released_buffers(model)
    return texts


def warn(text: str) -> None:
    """Raise a Python warning that points to the innermost line outside fedpriv."""
    frame = inspect.currentframe()
    level = 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "fedpriv":
        frame = frame.f_back
        level += 1
    warnings.warn(text, PromiseWarning, stacklevel=level)
