"""Scores on private test data: of each trial one number, how many examples its model gets right, with noise.

Guarantee: one more Gaussian answer a trial, in the price of the search. Who has a record among the training data and
one among the test data pays for both. The number of test examples counts as public.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from fedpriv.clients.layout import Layout
from fedpriv.config import Config
from fedpriv.config.building import load_data, make_model, outline
from fedpriv.data.base import size
from fedpriv.errors import ConfigError
from fedpriv.measuring.evaluator import Evaluator
from fedpriv.privacy.record import Record, Relation
from fedpriv.randomness.streams import Randomness, normal
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.planning import Plan
from fedpriv.tuning.settings import METRIC

_BOUND = 0.5  # an example counts as right or wrong: by as much above or below the middle


def with_score(plan: Plan, noise: float) -> Plan:
    """The plan of a trial that also tells a score."""
    first, last = plan.records[0], plan.records[-1]
    score = Record(
        last.round,
        "statistic:score",
        0,
        "gaussian",
        noise,
        first.unit,
        first.relation,
        bound=_BOUND,
        shared=first.shared,
        trust=first.trust,
    )
    return replace(plan, records=(*plan.records, score), calibrated=False)


def check(config: Config) -> None:
    """Refuse runs for which a noised score is no more private than an exact one.

    Raises:
        ConfigError: names the setting.
    """
    if config.privacy.unit != "sample":
        fix = "a noised score protects one test example: take unit sample, or public test data (no score_noise)"
        raise ConfigError("privacy.unit", config.privacy.unit, fix)
    if config.problem.server is not None:
        fix = "the server trains on the test data: leave it out, or take public test data (no score_noise)"
        raise ConfigError("problem.server", "(given)", fix)


def noised_accuracy(config: Config, path: Path, noise: float, relation: Relation) -> float:
    """Accuracy of a finished trial's model on the test data, with noise: nothing else of these data is told.

    The noise follows from the trial's secret seed: told again, after a kill or from an older list of trials, it is the
    same number.

    Args:
        config: The trial.
        path: Its folder.
        noise: Standard deviation of the number of right answers, over what one example changes.
        relation: Which data sets are neighbours.

    Raises:
        ConfigError: the run has no accuracy.
    """
    split = load_data(config)
    model, loss = make_model(config, outline(config))
    model.load_state_dict(torch.load(path / "model.pt", weights_only=True))
    found = Evaluator(model, loss, split.test)(Layout.of(model).row_of(model))
    if METRIC not in found:
        raise ConfigError("search.score_noise", noise, f"is for {METRIC}, which these runs have not: leave it out")
    count = size(split.test)
    right = min(max(round(found[METRIC] * count), 0), count)
    randomness = Checkpoint.load(path / "checkpoint.pt", torch.device("meta")).randomness()
    return noised(right, deviation(noise, relation), randomness) / count


def noised(right: int, scale: float, randomness: Randomness) -> int:
    """A number with noise of this deviation, rounded to a whole one: its last bits could tell what was added to."""
    return right + round(scale * float(normal(randomness.stream("score"), 1)))


def deviation(noise: float, relation: Relation) -> float:
    """Of the number of right answers: `noise` times what a neighbour changes, as in `Record`."""
    return noise * _BOUND * (2 if relation == "replace_one" else 1)
