"""One trial: a run in a folder of its own, which goes on where it was killed, and its score."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedpriv.config import Config, build, to_yaml
from fedpriv.errors import ConfigError
from fedpriv.reports.sinks import Jsonl
from fedpriv.runs.results import RoundReport
from fedpriv.storage import files, strict_json
from fedpriv.storage.folder import RunFolder
from fedpriv.tuning import scores
from fedpriv.tuning.settings import SearchSettings

Watch = Callable[[int, RoundReport], None]
_CONFIG, _RESULT, _METRICS = "config.yaml", "result.json", "metrics.jsonl"


def run_trial(config: Config, path: Path, number: int, settings: SearchSettings, watch: Watch) -> float | None:
    """Make a run, or what is left of it, and return its score; None if that is not finite.

    A run that was killed repeats the rounds after its checkpoint with the same noise, so it is paid for once.

    Args:
        config: The run.
        path: Its folder.
        number: Which trial it is, for `watch`.
        settings: Say what the score is.
        watch: Is told of every round.

    Raises:
        ConfigError: the run has no such metric.
    """
    if not (path / _RESULT).exists():
        _run(config, path, lambda report: watch(number, report))
    if settings.score_noise is not None:
        return scores.noised_accuracy(config, path, settings.score_noise, config.privacy.relation)
    return score_of(json.loads(files.read(path / _RESULT)), settings.metric)


def score_of(result: dict[str, Any], metric: str) -> float | None:
    """A metric of a finished run.

    Raises:
        ConfigError: it has no such metric.
    """
    if metric not in result:
        there = ", ".join(name for name in result if name.startswith(("test_", "client_test_")))
        raise ConfigError("search.metric", metric, f"is no metric of these runs; there are: {there}")
    value = result[metric]
    if value is None or not math.isfinite(value):
        return None
    return float(value)


def _run(config: Config, path: Path, tell: Callable[[RoundReport], None]) -> None:
    resumed = (path / _CONFIG).exists()
    with RunFolder(path) if resumed else RunFolder.new(path) as folder:
        if not resumed:
            folder.write(_CONFIG, to_yaml(config).encode())
        training = build(config, folder, resume=resumed)
        sink = Jsonl(path / _METRICS, math.inf if training.ledger.replays else training.progress.round)
        try:
            for report in training:
                sink.write(report)
                tell(report)
        finally:
            sink.close()
        result = training.result()
        result.save(path)
        folder.write(_RESULT, (strict_json.dumps(training.linked(result), indent=2) + "\n").encode())
