"""Runs a trial in a separate folder, resumes it if it was killed, and reads its score."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpriv.config import Config, build, to_yaml
from fedpriv.errors import ConfigError
from fedpriv.runs import Result, RoundReport
from fedpriv.storage import RunFolder, files
from fedpriv.tuning import scores
from fedpriv.tuning.settings import SearchSettings

Watch = Callable[[int, RoundReport], None]
_CONFIG, _RESULT = "config.yaml", "result.json"


def run_trial(config: Config, path: Path, number: int, settings: SearchSettings, watch: Watch) -> float | None:
    """Starts a run, or resumes one that was killed; returns its score, None if that is not finite.

    A run that was killed resumes and releases nothing twice, so it is charged once.

    Args:
        config: The configuration of the run.
        path: The folder of the run.
        number: The number of the trial, for `watch`.
        settings: The settings of the search, which name the score.
        watch: Called with the number and the report of every round.

    Raises:
        ConfigError: If the run has no such metric.
    """
    if not (path / _RESULT).exists():
        run_in_folder(config, path, lambda report: watch(number, report))
    if settings.score_noise is not None:
        return scores.noised_accuracy(config, path, settings.score_noise, config.privacy.relation)
    return read_score(json.loads(files.read(path / _RESULT)), settings.metric)


def read_score(result: dict[str, Any], metric: str) -> float | None:
    """Returns a metric of a finished run; None if it is not finite.

    Raises:
        ConfigError: If the run has no such metric.
    """
    if metric not in result:
        available = ", ".join(name for name in result if name.startswith(("test_", "client_test_")))
        raise ConfigError("search.metric", metric, f"is not a metric of these runs; choose one of {available}")
    value = result[metric]
    if value is None or not math.isfinite(value):
        return None
    return float(value)


def run_in_folder(config: Config, path: Path, watch: Callable[[RoundReport], None]) -> Result:
    """Starts the run, or resumes it if its folder has a configuration; returns its result.

    Args:
        config: The configuration of the run.
        path: The folder of the run.
        watch: Called with the report of every round.
    """
    resumed = (path / _CONFIG).exists()
    if resumed:
        run_folder = RunFolder(path)
    else:
        run_folder = RunFolder.new(path)
    with run_folder as folder:
        if not resumed:
            folder.write(_CONFIG, to_yaml(config).encode())
        training = build(config, folder, resume=resumed)
        for report in training:
            watch(report)
        return training.result()
