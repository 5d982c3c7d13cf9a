"""Scores on private test data: the noised number of examples that each trial's model classifies correctly.

Guarantee: each trial has one more Gaussian release, which is included in the cost of the search. A person with one
record in the training data and one in the test data is covered at the cost of both. The number of test examples counts
as public.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedpriv.clients import Layout, size
from fedpriv.config import Config
from fedpriv.config.building import load_data, make_model, read_outline
from fedpriv.errors import ConfigError
from fedpriv.evaluation import Evaluator
from fedpriv.planning import Plan
from fedpriv.privacy import GaussianRows, Record, RecordTable, Relation, add_and_round
from fedpriv.randomness import Randomness
from fedpriv.storage import files
from fedpriv.tuning.settings import METRIC

_SCORE = "noised_score.json"  # in a trial's folder
_BOUND = 0.5  # an example is correct or wrong: half above or below the middle


def with_score(plan: Plan, noise: float) -> Plan:
    """Returns the plan of a trial that also releases a score."""
    first = plan.records[0]
    last = plan.records[-1]
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
    return replace(plan, records=plan.records + RecordTable.of([score]), calibrated=False)


def check(config: Config) -> None:
    """Raises an error for runs in which a noised score is no more private than an exact one.

    Raises:
        ConfigError: If a setting does not fit; the error names it.
    """
    if config.privacy.unit != "sample":
        fix = (
            "cannot be combined with score_noise, whose noisy scores protect only one test example: use unit sample, "
            "or public test data without score_noise"
        )
        raise ConfigError("privacy.unit", config.privacy.unit, fix)
    if config.problem.server is not None:
        fix = (
            "cannot be combined with score_noise, because the server trains on the test data: leave it out, or use "
            "public test data without score_noise"
        )
        raise ConfigError("problem.server", "(given)", fix)


def noised_accuracy(config: Config, path: Path, noise: float, relation: Relation) -> float:
    """Returns a finished trial's noised test accuracy; nothing else about the test data is released.

    It is computed once: it is stored in the trial's folder before it is returned, and read from there after a kill.

    Args:
        config: The configuration of the trial.
        path: The folder of the trial.
        noise: Standard deviation of the number of correct predictions, relative to the change due to one example.
        relation: The neighbouring relation.

    Raises:
        ConfigError: If the model predicts no classes.
    """
    if (path / _SCORE).exists():
        return float(json.loads(files.read(path / _SCORE)))
    split = load_data(config)
    model, loss = make_model(config, read_outline(config))
    model.load_state_dict(torch.load(path / "model.pt", weights_only=True))
    evaluate = Evaluator(model, loss, split.test)
    # the kind depends only on types and shapes: an error that depended on values of labels would reveal them
    if evaluate.task.kind != "classes":
        fix = (
            f"needs {METRIC}, which is defined only for labels that are class numbers and a model with one score per "
            "class: leave score_noise out, or use such data and such a model"
        )
        raise ConfigError("search.score_noise", noise, fix)
    metrics = evaluate(Layout.of(model).row_of(model))
    count = size(split.test)
    right = min(max(round(metrics[METRIC] * count), 0), count)
    score = add_rounded_noise(right, compute_deviation(noise, relation), Randomness()) / count
    files.write_whole(path / _SCORE, json.dumps(score).encode())
    return score


def add_rounded_noise(right: int, scale: float, randomness: Randomness) -> int:
    """Adds a real normal number, and rounds the sum to an integer (`fedpriv.privacy.exact_rounding`).

    Args:
        right: The number of correct predictions.
        scale: Standard deviation of the noise.
        randomness: Random streams.
    """
    (key,) = randomness.keys("score", 0, 0, [0]).numpy()
    noised = np.empty((1, 1))
    add_and_round(
        np.array([[float(right)]]), GaussianRows([key.tobytes()], [scale], 1), slice(0, 1), np.ones((1, 1)), noised
    )
    return int(noised[0, 0])


def compute_deviation(noise: float, relation: Relation) -> float:
    """Returns the deviation of the noise: `noise` times the change due to a neighbour, as in `Record`."""
    if relation == "replace_one":
        return noise * _BOUND * 2
    return noise * _BOUND
