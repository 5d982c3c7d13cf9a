"""Batches drawn secretly from the current block of examples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import pld_privacy_accountant
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.errors import ConfigError
from fedpriv.models import SoftmaxRegression

SIZES, ROUNDS, BLOCKS, RATE = (400, 37), 20, 4, 0.3
PRIVACY = fp.Privacy(
    noise_multiplier=2.0, relation="add_remove", sampling=fp.Cyclic(BLOCKS, RATE), noise=fp.BSR(BLOCKS)
)


def training_of(privacy: fp.Privacy = PRIVACY, **options: Any) -> fp.Training:
    draw = torch.Generator().manual_seed(0)
    data = [TensorDataset(torch.randn(m, 3, generator=draw), torch.arange(m) % 2) for m in SIZES]
    clients = fp.make_clients(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), data)
    return fp.Training(clients, fp.fedavg(0.5), privacy, rounds=ROUNDS, seed=1, secret_seed=1, **options)


def test_batch_drawn_from_current_slot_at_rate() -> None:
    draws, drawn = training_of().oracle.engine._sampler, np.zeros(SIZES[0])
    turns = 300
    for t in range(BLOCKS * turns):
        draws.begin_round(t, torch.arange(2))
        chosen = draws._draw_batches(PRIVACY.sampling, 0, torch.arange(2))
        assert (chosen.positions % BLOCKS == t % BLOCKS).all()
        drawn[chosen.positions[: chosen.counts[0]]] += 1
    expected, deviation = turns * RATE, (turns * RATE * (1 - RATE)) ** 0.5
    assert abs(drawn.mean() - expected) < 5 * deviation / SIZES[0] ** 0.5
    assert np.abs(drawn - expected).max() < 5 * deviation
    assert drawn.std() == pytest.approx(deviation, rel=0.2)  # not all alike


def test_privacy_cost_equals_one_slot_rounds() -> None:
    training = training_of()
    list(training)
    column = np.linalg.norm(fp.BSR(BLOCKS).factor(ROUNDS, BLOCKS).column(ROUNDS))
    event = PoissonSampledDpEvent(RATE, GaussianDpEvent(2.0 / column))
    known = pld_privacy_accountant.PLDAccountant().compose(event, ROUNDS // BLOCKS).get_epsilon(1e-5)
    assert training.result().spent.epsilon == pytest.approx(known, rel=1e-3)
    assert all(record.sampling == "poisson" and record.rate == RATE for record in training.ledger.records)
    independent = training_of(replace(PRIVACY, noise=fp.Independent()))
    assert independent.plan.spent().epsilon < training.plan.spent().epsilon


def test_mean_divided_by_expected_batch_size() -> None:
    oracle = training_of().oracle
    assert oracle.queries.expected_batch_size(PRIVACY.sampling, torch.tensor([400.0])).tolist() == [
        pytest.approx(400 * RATE / BLOCKS)
    ]


def test_resumed_run_has_planned_privacy_cost(tmp_path: Path) -> None:
    stopped = training_of(folder=tmp_path / "stopped", checkpoint_every=2)
    rounds = iter(stopped)
    for _ in range(7):
        next(rounds)
    rounds.close()
    stopped.folder.close()  # pyright: ignore
    again = training_of(folder=tmp_path / "stopped", checkpoint_every=2, resume=True)
    list(again)
    assert [record.round for record in again.ledger.records] == [record.round for record in again.plan.records]
    assert again.result().spent.epsilon == again.plan.spent().epsilon


@pytest.mark.parametrize("noise", [fp.BSR(BLOCKS + 1), fp.BLT(2)], ids=str)
def test_noise_longer_than_slot_cycle_raises(noise: fp.BSR | fp.BLT) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.noise\.correlated.*at most 4 rounds, the number of blocks"):
        training_of(replace(PRIVACY, noise=noise))


def test_drawn_blocks_hide_batch_size() -> None:
    assert PRIVACY.hides_round_size
    assert not replace(PRIVACY, sampling=fp.Cyclic(BLOCKS)).hides_round_size
