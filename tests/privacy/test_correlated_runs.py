"""Whole runs with noise that is correlated between rounds: its law, its price, and that they go on bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from correlated_runs import NOISES, PRIVACY, ROUNDS, SIZES, dense, training_of
from torch import Tensor

import fedpriv as fp
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.gaussian import compute_epsilon
from fedpriv.privacy.correlated import compute_sensitivity
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.matrices import Matrix
from fedpriv.privacy.mechanisms import Gaussian, add_noise
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness
from fedpriv.runs.integrity import find_problems
from fedpriv.runs.run_files import RunFiles
from fedpriv.strategies.base import Strategy

TRUSTS = [fp.Local(), fp.Central(), fp.SecureAggregation(3)]


def graph() -> fp.Graph:
    return fp.Graph(nx.cycle_graph(4))


# --- the noise -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 5, 40_000])
@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_noise_equals_inverse_matrix_times_draws(noise: Matrix, dim: int) -> None:
    """After a stop, C starts anew: the first round of another process has the noise of that round alone."""
    factor, randomness, scale = noise.factor(ROUNDS, 4), Randomness(0, 1), 3.0
    record = Record(0, "gradient", 0, "gaussian", 1.0, "sample", "add_remove")
    clients, zeros = [2, 5, 6], torch.zeros(3, dim, dtype=torch.float64)

    def released(past: NoiseHistory, t: int) -> Tensor:
        made = add_noise(zeros, [scale] * 3, Gaussian(), replace(record, round=t), randomness, clients, past=past)
        return made._value

    past = NoiseHistory(factor)
    told = torch.stack([released(past, t) for t in range(ROUNDS)])
    units = [Gaussian().draw(randomness.keys("noise", t, 0, clients), dim) for t in range(ROUNDS)]
    expected = scale * np.linalg.inv(dense(factor, ROUNDS)) @ torch.stack(units).flatten(1).numpy()
    assert torch.allclose(told.flatten(1), torch.from_numpy(expected), atol=1e-4)  # the grid is 2^-20 of 4
    alone = scale * units[ROUNDS - 1]
    assert torch.allclose(released(NoiseHistory(factor), ROUNDS - 1), alone, atol=1e-4)
    assert torch.allclose(released(past, 3), scale * units[3], atol=1e-4)


def test_incomplete_round_restarts_matrix() -> None:
    factor = fp.BLT(2).factor(ROUNDS, 4)
    broken = NoiseHistory(factor)
    draws = torch.randn(3, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def made(past: NoiseHistory, t: int) -> Tensor:
        past.begin(t, 4, 2, torch.device("cpu"))
        out = past.filtered(draws[t].clone(), slice(0, 4), t)
        past.finish(t)
        return out

    made(broken, 0)
    broken.begin(1, 4, 2, torch.device("cpu"))
    broken.filtered(draws[1, :2].clone(), slice(0, 2), 1)  # and then an error
    assert torch.equal(made(broken, 2), draws[2])
    assert broken.first == 2


# --- what it costs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", TRUSTS, ids=str)
@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_round_epsilon_equals_leading_block(noise: Matrix, trust: fp.Local, tmp_path: Path) -> None:
    training = training_of(replace(PRIVACY, noise=noise, trust=trust), folder=tmp_path)
    told = [report.epsilon for report in training]
    factor, multiplier = noise.factor(ROUNDS, 4), training.plan.privacy.noise_multiplier
    assert multiplier is not None
    for rounds, epsilon in enumerate(told, start=1):
        assert epsilon == pytest.approx(
            compute_epsilon(compute_sensitivity(factor, rounds, 4) / multiplier, 1e-5), rel=1e-9
        )
    assert told[-1] == pytest.approx(training.result().spent.epsilon, rel=1e-12) == pytest.approx(4.0, rel=1e-4)
    assert told[-1] <= 4.0
    assert "replace_one(same blocks)" in str(training.result().spent)
    file = LedgerFile.read(tmp_path / "ledger.jsonl")
    assert file.header.factor == factor
    assert account(file.records, 4, 1e-5).epsilon == pytest.approx(told[-1], rel=1e-12)
    assert not find_problems(RunFiles.read(tmp_path))


def test_cyclic_independent_noise_epsilon() -> None:
    """Slot 0 of 4 is the batch of 3 rounds among 10."""
    training = training_of(fp.Privacy(noise_multiplier=2.0, sampling=fp.Cyclic(4)))
    list(training)
    assert training.result().spent.epsilon == pytest.approx(compute_epsilon(math.sqrt(3) / 2, 1e-5), rel=1e-9)


def test_relation_scales_sensitivity() -> None:
    scales = [
        training_of(replace(PRIVACY, relation=relation), rounds=5).plan.privacy.sensitivity
        for relation in ("add_remove", "replace_one")
    ]
    assert scales[1] == 2 * scales[0]


def test_cyclic_batches_fixed_per_slot() -> None:
    training = training_of()
    seen: dict[int, list[tuple[int, ...]]] = {}
    for t in range(8):
        training.oracle.engine._sampler.begin_round(t, torch.arange(4))
        chosen = training.oracle.engine._sampler._draw_batches(fp.Cyclic(4), 0, torch.arange(4))
        starts = np.concatenate([[0], chosen.counts.cumsum()])
        for client in range(4):
            seen.setdefault(client, []).append(tuple(chosen.positions[starts[client] : starts[client + 1]].tolist()))
    for client, size in enumerate(SIZES):
        assert seen[client][:4] == seen[client][4:]
        assert sorted(sum(seen[client][:4], ())) == list(range(size))


STRATEGIES: dict[str, Callable[[], tuple[Strategy, object]]] = {
    "fedavg": lambda: (fp.fedavg(0.5), None),
    "fedavg, adam": lambda: (fp.fedavg(0.5, optimizer=fp.Adam(noise_floor=0.1)), None),
    "fedopt": lambda: (fp.fedopt(0.5), None),
    "inexact_admm": lambda: (fp.inexact_admm(), None),
    "dp_gd": lambda: (fp.gradient_descent(0.5), None),
    "dsgd": lambda: (fp.decentralized_sgd(0.1), graph()),
    "gradient_tracking": lambda: (fp.gradient_tracking(0.1), graph()),
    "gradient_tracking_pair": lambda: (fp.gradient_tracking_pair(0.1), graph()),
    "dual_averaging": lambda: (fp.dual_averaging(), graph()),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_resumed_run_epsilon_equals_plan(name: str, tmp_path: Path) -> None:
    """C starts anew, and each round is released once."""
    for resume in (False, True):
        strategy, network = STRATEGIES[name]()
        privacy = replace(PRIVACY, noise=fp.BSR(3), epsilon=None, noise_multiplier=3.0)
        training = training_of(privacy, strategy, network=network, folder=tmp_path, resume=resume)
        for report in training:
            if report.round == 5 and not resume:
                break
        training.folder.close()  # pyright: ignore
    assert [record.round for record in training.ledger.records] == [*range(ROUNDS)]
    assert training.result().spent.epsilon == training.plan.spent().epsilon
    assert torch.isfinite(training.progress.models).all()


@pytest.mark.parametrize("trust", [fp.Central(), fp.SecureAggregation(3)], ids=str)
def test_cyclic_cohorts_epsilon_and_slots(trust: fp.Central, tmp_path: Path) -> None:
    privacy = fp.Privacy(epsilon=8.0, unit="client", noise_on="message", trust=trust, noise=fp.BSR(2))
    training = training_of(privacy, network=fp.Star(4, fp.CyclicCohort(2)), folder=tmp_path)
    list(training)
    factor, multiplier = fp.BSR(2).factor(ROUNDS, 2), training.plan.privacy.noise_multiplier
    assert multiplier is not None
    expected = compute_epsilon(compute_sensitivity(factor, ROUNDS, 2) / multiplier, 1e-5)
    assert training.result().spent.epsilon == pytest.approx(expected, rel=1e-9)
    assert all(
        r.clients is None and r.time is not None and r.time.block == r.round % 2 for r in training.ledger.records
    )
    assert not find_problems(RunFiles.read(tmp_path))
