"""Results leave at whole multiples of the pace, and are what they are without it."""

from __future__ import annotations

import pytest
import torch
from fake_clock import FakeClock
from hypothesis import given
from hypothesis import strategies as st

import fedpriv as fp
from fedpriv.errors import ConfigError
from fedpriv.settings import pace
from fedpriv.settings.pace import wait_for_pace


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    made = FakeClock()
    monkeypatch.setattr(pace, "time", made)
    return made


@given(start=st.floats(0, 1e6), elapsed=st.floats(1e-6, 100), seconds=st.floats(0.01, 50))
def test_result_time_is_multiple_of_pace(start: float, elapsed: float, seconds: float):
    clock = FakeClock(start + elapsed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "time", clock)
        wait_for_pace(start, seconds)
    turns = (clock.now - start) / seconds
    assert turns == pytest.approx(round(turns), abs=1e-6)
    assert round(turns) >= 1
    assert clock.now >= start + elapsed - 1e-9
    assert clock.now < start + elapsed + seconds + 1e-6


def test_results_within_pace_leave_together(clock: FakeClock):
    leaves = []
    for elapsed in (0.1, 0.5, 0.99):
        clock.now = 100 + elapsed
        wait_for_pace(100.0, 1.0)
        leaves.append(clock.now)
    assert leaves == [pytest.approx(101.0)] * 3
    clock.now = 101.5  # one that takes longer shows that it did, and no more
    wait_for_pace(100.0, 1.0)
    assert clock.now == pytest.approx(102.0)


def test_no_pace_no_wait(clock: FakeClock):
    wait_for_pace(0.0, None)
    assert not clock.slept


def test_paced_run_releases_same_values(clock: FakeClock, monkeypatch: pytest.MonkeyPatch):
    from fedpriv.runs import training

    def models_of(seconds: float | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        draw = torch.Generator().manual_seed(0)
        data = torch.utils.data.TensorDataset(
            torch.randn(20, 3, generator=draw), torch.randint(2, (20,), generator=draw)
        )
        clients = fp.make_clients(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), [data])
        privacy = fp.Privacy(noise_multiplier=1.0, sampling=fp.Poisson(0.5))
        compute = fp.Compute(pad_seconds=seconds)
        run = fp.Training(clients, fp.fedavg(0.1), privacy, rounds=3, seed=0, secret_seed=0, compute=compute)
        return [run.progress.models.clone() for _ in run]

    monkeypatch.setattr(training, "time", clock)
    plain = models_of(None)
    assert not clock.slept
    paced = models_of(7.0)
    assert clock.slept == [pytest.approx(7.0)] * 3  # on this clock rounds take no time
    assert all(torch.equal(a, b) for a, b in zip(plain, paced, strict=True))


def test_pace_not_positive_raises():
    with pytest.raises(ConfigError, match=r"compute\.pad_seconds"):
        fp.Compute(pad_seconds=0.0)
