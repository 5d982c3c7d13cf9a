"""Trains with one call."""

from __future__ import annotations

import sys
from dataclasses import fields

from fedpriv.planning.arguments import check_sinks, explain
from fedpriv.runs.options import TrainingOptions, TrainOptions, takes_options
from fedpriv.runs.results import Result
from fedpriv.runs.training import Training
from fedpriv.settings.checks import checked


@checked("", explain)
@takes_options(TrainOptions)
def train(options: TrainOptions) -> Result:
    """Trains and returns the result.

    Returns:
        The result, with the trained module as `model` and an upper bound on the epsilon as `spent`.

    Guarantee: all information that the strategy receives about the data is noised and counted first. A release that
    would exceed the target epsilon is rejected and ends the run. Python warnings report weaker privacy, and models or
    test losses that are not finite.

    Raises:
        ConfigError: If settings cannot work; raised before data are read, with field, value and fix.
        FedprivError: If data or a folder cannot be used.
    """
    check_sinks(options.sinks)
    training = Training(**{field.name: getattr(options, field.name) for field in fields(TrainingOptions)})
    sinks = list(options.sinks)
    shown = options.progress
    if shown is None:
        shown = training.is_main and sys.stderr is not None and sys.stderr.isatty()
    if shown:
        from fedpriv.runs.progress_display import ProgressDisplay  # rich

        sinks.append(ProgressDisplay(options.rounds, training.progress.round))
    try:
        for reports in training.in_groups():
            for report in reports:
                for sink in sinks:
                    sink.write(report)
    finally:
        for sink in sinks:
            sink.close()
    return training.result()
