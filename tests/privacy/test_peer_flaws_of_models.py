"""Flaws in what another simulator did with models and broken examples: fedpriv refuses or survives each of them."""

from __future__ import annotations

import math

import pytest
import torch
from peer_runs import SIZES, training_of
from privacy_worlds import clients_of, digits_of
from torch import Tensor, nn

import fedpriv as fp


class Counting(nn.Module):
    """A model with a buffer that adds up what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.register_buffer("seen", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + x.sum(0)
        return self.linear(x)


def test_batch_norm_raises_with_fix() -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    with pytest.raises(fp.ConfigError, match=r"model\.1 = 'BatchNorm1d'.*GroupNorm.*fix_model"):
        fp.train(clients_of(digits_of(SIZES), model), fp.inexact_admm(), fp.Privacy(epsilon=3), rounds=1)


def test_batch_norm_of_any_client_raises() -> None:
    """One that normalises over the batch hides no better in the second place: its statistics are nobody else's."""
    plain = nn.Sequential(nn.Linear(64, 8), nn.GroupNorm(1, 8), nn.Linear(8, 10))
    mixing = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    data = digits_of(SIZES)
    clients = [*clients_of(data[:2], plain), *clients_of(data[2:], mixing)]
    with pytest.raises(fp.ConfigError, match=r"clients\[2\]\.model = '1\.running_mean'"):
        fp.train(clients, fp.inexact_admm(), fp.Privacy(epsilon=3), rounds=2)


@pytest.mark.parametrize("backend", ["loop", "vmap", "ghost"])
@pytest.mark.parametrize("unit", ["sample", "client"])
def test_model_buffers_not_released(unit: str, backend: str) -> None:
    training = fp.Training(
        clients_of(digits_of(SIZES), Counting()),
        fp.inexact_admm(),
        fp.Privacy(epsilon=3, unit=unit),
        rounds=2,
        compute=fp.Compute(backend=backend, device="cpu"),
    )
    list(training)
    buffers = [training.result().model.seen, *(client.model.seen for client in training.population.clients)]
    assert all(torch.equal(buffer, torch.zeros(64)) for buffer in buffers)


@pytest.mark.parametrize("privacy", [
    fp.Privacy(epsilon=3),
    fp.Privacy(epsilon=3, unit="client"),
    fp.Privacy(epsilon=3, unit="client", noise_on="message"),
    fp.Privacy(epsilon=3, mechanism=fp.Laplace(), clip=fp.Clip(1.0, "l1"), sampling=fp.Poisson(0.5)),
], ids=["sample", "client", "message", "laplace"])  # fmt: skip
def test_overflowing_client_model_stays_finite(privacy: fp.Privacy) -> None:
    """There: one NaN client destroyed the model, an infinite update was clipped to NaN."""
    data = digits_of(SIZES)
    for broken in (math.inf, 3e38):
        # finite inputs in float64 that overflow in the model; the loader refuses inputs that are not finite themselves
        x = data[1][0] * 0 + min(broken, 1e300)
        training = fp.Training(
            clients_of([data[0], (x, data[1][1]), data[2]]), fp.fedavg(0.5, local_steps=1), privacy, rounds=4
        )
        list(training)
        assert torch.isfinite(training.result().params).all()
        assert training.result().params.abs().max() > 0


def test_nonfinite_input_raises() -> None:
    data = digits_of(SIZES)
    data[1][0][4, 7] = math.nan
    with pytest.raises(fp.DataError, match=r"client 1: input 4 .*not finite"):
        training_of(fp.Privacy(epsilon=3), data=data)
