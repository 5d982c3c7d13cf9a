"""Trains with one call."""

from __future__ import annotations

import sys
from dataclasses import fields

from fedpriv.planning.arguments import check_sinks, suggest_argument
from fedpriv.runs.options import TrainingOptions, TrainOptions, takes_options
from fedpriv.runs.results import Result
from fedpriv.runs.training import Training
from fedpriv.settings.checks import validate_arguments


@validate_arguments("", suggest_argument)
@takes_options(TrainOptions)
def train(options: TrainOptions) -> Result:
    """Runs an algorithm on the clients' data and returns the result.

    Returns:
        The result, with the trained module as `model` and an upper bound on the epsilon as `spent`.

    Guarantee: every query result is noised and accounted for before the strategy receives it. A query that would exceed
    the target epsilon returns no result and ends the run. Python warnings are issued for settings that weaken privacy,
    and if a model or a test loss is not finite.

    Raises:
        ConfigError: If settings cannot work. The error is raised before data are read, and names field, value and fix.
        FedprivError: If data or a folder cannot be used.

    Examples:
        >>> import fedpriv, torch
        >>> from torch import nn
        >>> x, y = torch.linspace(-1, 1, 60)[:, None], torch.arange(60) // 30
        >>> data = [torch.utils.data.TensorDataset(x[i::3], y[i::3]) for i in range(3)]
        >>> clients = fedpriv.make_clients(nn.Linear(1, 2), nn.CrossEntropyLoss(), data[:2])
        >>> privacy = fedpriv.Privacy(epsilon=2.0, delta=1e-5)
        >>> result = fedpriv.train(clients, fedpriv.fedavg(0.5), privacy, rounds=5, test=data[2])
        >>> result.rounds, result.spent.epsilon <= 2.0
        (5, True)
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
