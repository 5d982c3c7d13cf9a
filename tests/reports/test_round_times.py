"""No clock is told where draws are secret."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from reported_runs import clients
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fedpriv as fp
from fedpriv.reports import sinks
from fedpriv.runs.results import RoundReport


def test_tensorboard_has_no_round_times(tmp_path: Path) -> None:
    """The duration of a round reveals how many examples were drawn in secret."""
    assert "seconds" not in {field.name for field in fields(RoundReport)}
    board = sinks.TensorBoard(tmp_path)
    training = fp.Training(
        clients(), fp.fedavg(0.5), fp.Privacy(epsilon=1, delta=1e-3, sampling=fp.Poisson(0.3)), rounds=5
    )
    for report in training:
        board.write(report)
    board.text("privacy", str(training.spent()), 5)
    board.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    tags = events.Tags()
    times = {event.wall_time for tag in tags["scalars"] for event in events.Scalars(tag)}
    times |= {event.wall_time for tag in tags["tensors"] for event in events.Tensors(tag)}
    assert tags["scalars"] and tags["tensors"]
    assert len(times) == 1


@pytest.mark.parametrize(
    ("privacy", "coarse"),
    [
        (fp.Privacy(epsilon=1, delta=1e-3, sampling=fp.Poisson(0.3)), True),
        (fp.Privacy(epsilon=1, delta=1e-2, unit="client", trust=fp.Central(0.5)), True),
        (fp.Privacy(epsilon=1, delta=1e-3), False),
        (fp.Privacy(noise_on="none", sampling=fp.Poisson(0.3)), False),
    ],
    ids=["secret batches", "secret cohorts", "nothing secret", "no privacy guarantee"],
)
def test_seconds_rounded_with_secret_draws(privacy: fp.Privacy, coarse: bool) -> None:
    training = fp.Training(clients(), fp.fedavg(0.5), privacy, rounds=2)
    list(training)
    training._seconds = 137.25
    assert training.result().seconds == (100.0 if coarse else 137.25)


@pytest.mark.parametrize("at", ["gradient", "none"])
def test_seconds_rounded_with_secret_sizes(at: str) -> None:
    """All examples are in each batch, so the duration reveals their number."""
    declared = [fp.Client(client.model, client.loss, client.loader, public_size=50) for client in clients()]
    training = fp.Training(declared, fp.fedavg(0.5), fp.Privacy(epsilon=1, delta=1e-2, noise_on=at), rounds=2)
    list(training)
    training._seconds = 137.25
    assert training.result().seconds == (137.25 if at == "none" else 100.0)
