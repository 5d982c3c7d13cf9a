"""Choices of a configuration that are no plug-ins: samplings, trusts, noises, schedules, cohorts, optimisers.

Each is one word, or a word with options: `privacy.sampling: {poisson: {rate: 0.01}}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from fedpriv.config.base import Choice
from fedpriv.config.network import CohortChoice
from fedpriv.config.privacy import MATRIX, SAMPLING, SECRETS, TRUST, ScheduleChoice
from fedpriv.config.spelling import SPELLINGS
from fedpriv.network.local import CyclicCohort, Everyone, FixedCohort, PoissonCohort
from fedpriv.privacy import pairwise, schedules, settings
from fedpriv.privacy.matrices import BLT, BSR, Banded
from fedpriv.strategies import proximal
from fedpriv.strategies.optimizers import Adam, AdamW, Momentum, Optimizer, Sgd


@dataclass(frozen=True)
class Choices:
    """A setting that is one of several words.

    Attributes:
        field: The setting.
        model: The section that reads it.
        classes: What each word makes in Python, whose docstring describes it.
    """

    field: str
    model: type[Choice]
    classes: Mapping[str, type]


def _model(spelling: Any) -> type[Choice]:  # noqa: ANN401 - an annotation
    """Returns the section behind a spelling that `by_key` made."""
    return get_args(spelling)[0]


CHOICES: Mapping[str, Choices] = {
    "samplings": Choices(
        "privacy.sampling",
        _model(SAMPLING),
        {
            "full": settings.FullBatch,
            "poisson": settings.Poisson,
            "allocation": settings.Allocation,
            "fixed_size": settings.FixedSize,
            "cyclic": settings.Cyclic,
        },
    ),
    "trusts": Choices(
        "privacy.trust",
        _model(TRUST),
        {
            "local": settings.Local,
            "secure_aggregation": settings.SecureAggregation,
            "central": settings.Central,
            "pairwise": pairwise.Pairwise,
        },
    ),
    "secrets": Choices(
        "privacy.trust.pairwise.secrets",
        _model(SECRETS),
        {
            "complete": pairwise.Complete,
            "random_regular": pairwise.RandomRegular,
            "topology": pairwise.Topology,
        },
    ),
    "noises": Choices(
        "privacy.noise.time",
        _model(MATRIX),
        {"independent": settings.Independent, "bsr": BSR, "banded": Banded, "blt": BLT},
    ),
    "schedules": Choices(
        "privacy.schedule",
        ScheduleChoice,
        {"uniform": schedules.Uniform, "geometric": schedules.Geometric, "function": schedules.Custom},
    ),
    "cohorts": Choices(
        "network.cohort",
        CohortChoice,
        {"everyone": Everyone, "poisson": PoissonCohort, "fixed": FixedCohort, "cyclic": CyclicCohort},
    ),
    "optimizers": Choices(
        "strategy.optimizer",
        _model(SPELLINGS[Optimizer[Any]]),
        {"sgd": Sgd, "momentum": Momentum, "adam": Adam, "adamw": AdamW},
    ),
    "regularizers": Choices(
        "strategy.regularizer",
        _model(SPELLINGS[proximal.Proximal]),
        {
            "zero": proximal.Zero,
            "l2": proximal.L2,
            "l1": proximal.L1,
            "elastic_net": proximal.ElasticNet,
            "ball": proximal.Ball,
            "box": proximal.Box,
            "simplex": proximal.Simplex,
        },
    ),
}


def descriptions(choices: Choices) -> dict[str, str]:
    """Returns the first sentence about each word."""
    return {word: _first_sentence(kind) for word, kind in choices.classes.items()}


def _first_sentence(kind: type) -> str:
    paragraph = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
    return re.split(r"(?<!et al)\. ", paragraph, maxsplit=1)[0].rstrip(".") + "."
