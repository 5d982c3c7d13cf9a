"""Differences of gradients, anchors and adaptive clipping: sensitivity, price and order of what is released."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from privacy_worlds import clients_of, digits_of, oracle_of, start_rows, with_record
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.algorithms.mirror_descent import EuclideanBall, accelerated_mirror_descent
from fedpriv.algorithms.scaffold import scaffold
from fedpriv.algorithms.svrg import AnchorBudget, Epochs, svrg
from fedpriv.papers import claims
from fedpriv.papers.published import Published
from fedpriv.privacy.clipping import ROUNDING
from fedpriv.strategies.adaptive_clipping import ClipToReceivedBound, adaptive_clipping
from fedpriv.strategies.fedavg import fedavg

SIZES = (4, 7, 5)
VICTIM = 1
BARELY = fp.Privacy(noise_multiplier=1e-3, clip=fp.Clip(0.5))


def row_sensitivity(bound: float, unit: str) -> float:
    return 2 * bound * (3 / sum(SIZES) if unit == "sample" else 1)


@pytest.mark.parametrize("unit", ["sample", "client"])
@pytest.mark.parametrize(("given", "effective"), [(None, 1.0), (0.03, 0.03), (7.0, 1.0)])
def test_difference_sensitivity_within_bound(unit, given, effective):
    privacy = replace(BARELY, unit=unit)
    base = digits_of(SIZES)
    params, anchor = start_rows(3), start_rows(3, seed=2)
    x, _ = base[VICTIM]
    moves = []
    for scale in (1e3, -1e3):
        if unit == "sample":
            other = with_record(base, VICTIM, 2, x[2] * scale, 5)
        else:
            other = [base[0], (x * scale, torch.full((SIZES[1],), 5)), base[2]]
        first, second = (oracle_of(side, privacy, seed=3) for side in (base, other))
        change = first.gradient_difference(params, anchor, given) - second.gradient_difference(params, anchor, given)
        assert change[[0, 2]].abs().max() == 0
        moves.append(float(change[VICTIM].norm()))
        record = first.engine.ledger.records[0]
        assert (record.query, record.bound) == ("gradient_difference", effective * (1 + ROUNDING))
        assert record.noise_multiplier == 1e-3
    allowed = row_sensitivity(effective, unit)
    assert 0.4 * allowed < max(moves) <= allowed * (1 + 1e-4)


def test_difference_noise_scaled_to_bound():
    """Equal points differ by nothing: what is left is noise of standard deviation multiplier * 2 bound * factor."""
    privacy = fp.Privacy(noise_multiplier=2.0, clip=fp.Clip(0.5))
    rows = start_rows(3)
    noise = oracle_of(digits_of(SIZES), privacy).gradient_difference(rows, rows, 0.01)
    expected = 2.0 * row_sensitivity(0.01, "sample")
    np.testing.assert_allclose(noise.std(1).numpy(), expected, rtol=0.15)


def test_full_gradient_recorded_unsampled():
    privacy = fp.Privacy(noise_multiplier=1.0, sampling=fp.Poisson(0.3))
    oracle = oracle_of(digits_of(SIZES), privacy)
    oracle.full_gradient(start_rows(3))
    oracle.gradient(start_rows(3))
    full, drawn = oracle.engine.ledger.records
    assert (full.sampling, full.rate, drawn.sampling, drawn.rate) == ("full", 1.0, "poisson", 0.3)


def test_svrg_anchor_per_epoch_spends_target():
    epochs = Epochs(5)
    privacy = fp.Privacy(epsilon=1.0, sampling=fp.Poisson(0.2), schedule=AnchorBudget(epochs, 4.0))
    training = fp.Training(
        clients_of(digits_of((40, 30))), svrg(0.1, 5, smoothness=0.5), privacy, rounds=15, seed=1, secret_seed=1
    )
    for _ in training:
        pass
    records = training.ledger.records
    assert [r.query for r in records] == (["full_gradient"] + ["gradient_difference"] * 4) * 3
    anchor, inner = records[0].noise_multiplier, records[1].noise_multiplier
    assert inner == pytest.approx(4 * anchor)
    assert 0.95 < training.spent().epsilon <= 1.0
    # the first difference of an epoch is bounded by smoothness times one step
    assert all(r.bound <= 2.0 * (1 + ROUNDING) for r in records)
    assert training.plan.evaluations[:3] == pytest.approx((70.0, 28.0, 28.0))
    assert training.result().gradient_evaluations == pytest.approx(3 * (70 + 4 * 28))


def test_difference_at_unreceived_point_raises():
    """SVRG itself runs under secure aggregation."""
    privacy = fp.Privacy(epsilon=2.0, trust=fp.SecureAggregation(2))
    training = fp.Training(clients_of(digits_of((20, 20))), svrg(0.1, 3), privacy, rounds=6)
    assert len(list(training)) == 6
    oracle = oracle_of(digits_of((20, 20)), fp.Privacy(noise_multiplier=1.0, trust=fp.SecureAggregation(2)))
    here, elsewhere = start_rows(2), start_rows(2, seed=9)
    oracle.begin_round(0, torch.arange(2), torch.cat([here, here], 1))
    with pytest.raises(fp.PrivacyError, match="not received"):
        oracle.gradient_difference(here, elsewhere)


@pytest.mark.parametrize(
    ("epsilon", "doubling", "length", "stated"),
    [(0.2, False, 5000, 1.9e4), (0.2, True, 10, 1.3e4), (1.0, False, 5000, 4.7e5), (1.0, True, 10, 3.2e5)],
)
def test_svrg_published_noise_true_epsilon(epsilon, doubling, length, stated):
    claim = claims.svrg(epsilon, 200_000, 15, length, doubling=doubling)
    assert claim.tight_total == pytest.approx(stated, rel=0.05)


def test_known_draws_epsilon_at_rate_one_is_gaussian():
    from fedpriv.privacy.accounting import gaussian

    assert claims.erm._epsilon_of_known_draws(0.3, 7, 1.0, 1e-5) == pytest.approx(
        gaussian.compute_epsilon(0.3 * math.sqrt(7), 1e-5), rel=1e-6
    )


def one_round_of_accmd(x: torch.Tensor, published: bool, seed: int) -> torch.Tensor:
    """What one round of AccMD returns, at a nominal epsilon of 0.1."""
    y = torch.arange(len(x)) % 10
    privacy = (
        fp.Privacy(published=Published(0.1, "gaussian", 1e-3, scale=0.05, exact_queries=("full_gradient",)))
        if published
        else fp.Privacy(epsilon=0.1, delta=1e-3)
    )
    training = fp.Training(
        clients_of([(x, y)]),
        accelerated_mirror_descent(EuclideanBall(5.0), 0.5, published=published),
        privacy,
        rounds=1,
        seed=seed,
        secret_seed=seed,
        compute=fp.Compute(dtype="float64"),
    )
    list(training)
    assert math.isinf(training.spent().epsilon) == published
    return training.progress.models[0].clone()


def test_attack_on_mirror_descent_published_only():
    """T = 1 without noise in the y-step: the output is a function of the data, so equality reveals the data."""
    x = digits_of((20,))[0][0]
    neighbour = x.clone()
    neighbour[3] = neighbour[3].flip(0)
    outputs = {
        data: one_round_of_accmd(rows, True, seed) for data, rows in (("a", x), ("b", neighbour)) for seed in (1,)
    }
    again = one_round_of_accmd(x, True, seed=2)  # other noise, same data
    assert torch.equal(again, outputs["a"]) and not torch.equal(again, outputs["b"])
    # the sound variant: outputs of the same data differ more among themselves than between neighbours on average
    sound = [[one_round_of_accmd(rows, False, seed) for seed in range(8)] for rows in (x, neighbour)]
    distance = (torch.stack(sound[0]).mean(0) - torch.stack(sound[1]).mean(0)).norm()
    spread = torch.stack(sound[0]).std(0).norm()
    assert not torch.equal(sound[0][0], sound[0][1])
    assert distance < spread


def test_adaptive_clipping_message_norm_at_most_one():
    class Anything:
        receives, sends, memory = ("model",), ("update",), "none"

        def init(self, params):
            return {}

        def __call__(self, received, state, oracle):
            return torch.tensor([[3.0, 4.0], [0.03, 0.04], [0.0, 0.0], [1e30, 0.0]]), state

    step = ClipToReceivedBound(Anything(), 0.3)
    received = torch.cat([torch.zeros(4, 2), torch.full((4, 1), 0.5)], 1)
    message, _ = step(received, {}, None)
    assert (message.norm(dim=1) <= 1 + 1e-6).all()
    torch.testing.assert_close(message[:, 2], torch.tensor([-0.3, 0.3, 0.3, -0.3]))
    torch.testing.assert_close(message[0, :2], torch.tensor([0.6, 0.8]) * math.sqrt(1 - 0.09))


def test_adaptive_clipping_bound_reaches_quantile():
    """Without noise to speak of, half of the clients are inside the bound in the end."""
    stream = np.random.default_rng(0)
    sizes = stream.uniform(0.2, 2.0, 40)
    data = [TensorDataset(torch.tensor([[1.0]]), torch.tensor([[s]], dtype=torch.float32)) for s in sizes]
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    clients = fp.make_clients(model, nn.MSELoss(), data)
    privacy = fp.Privacy(noise_multiplier=1e-3, noise_on="message", unit="client")
    strategy = adaptive_clipping(fedavg(1e-4), 1e-6, quantile=0.5)
    training = fp.Training(clients, strategy, privacy, rounds=150)
    list(training)
    # an update is lr 2 s at the start, and the model hardly moves
    assert float(training.progress.server.clip_bound) == pytest.approx(2e-4 * np.median(sizes), rel=0.1)
    assert training.progress.models.shape[-1] == 1
    assert [r.query for r in training.ledger.records] == ["message"] * 150


@pytest.mark.parametrize(("said", "moved"), [(40.0, math.exp(-0.2 * 0.7)), (-40.0, math.exp(0.2 * 0.3)), (0.06, None)])
def test_adaptive_clipping_step_factor_bounded(said: float, moved: float | None):
    """Noise moves the measured fraction far out of [0, 1]; a factor of e^(-0.2 * 200) would ruin the run."""
    strategy = adaptive_clipping(fedavg(1.0), 0.5, quantile=0.3, clip_learning_rate=0.2, share=0.1)
    _, state = strategy.aggregator.init(torch.zeros(2, 3, dtype=torch.float64))
    message = torch.zeros(2, 4, dtype=torch.float64)
    message[:, -1] = said
    received, state = strategy.aggregator(message, fp.Star(2), state)
    inside = (0.06 / 0.1 + 1) / 2  # share * (2 b - 1) of a fraction b
    assert float(state.clip_bound) == pytest.approx(0.5 * (moved or math.exp(-0.2 * (inside - 0.3))), rel=1e-9)
    assert received[:, -1].tolist() == [float(state.clip_bound)] * 2


@pytest.mark.parametrize("clip", [fp.Clip(0.1), fp.Clip(10.0), fp.Clip(1.0, "l1")])
def test_adaptive_clipping_other_clip_raises(clip: fp.Clip):
    """A smaller clip would shrink update and bit unnoticed; a larger one would add needless noise."""
    privacy = fp.Privacy(epsilon=5.0, noise_on="message", unit="client", clip=clip)
    if clip.norm == "l1":
        privacy = replace(privacy, mechanism=fp.Laplace())
    with pytest.raises(fp.ConfigError, match=r"privacy\.clip.*norm: l2, bound: 1"):
        fp.Training(clients_of(digits_of((10, 12))), adaptive_clipping(fedavg(0.1)), privacy, rounds=2)


@pytest.mark.parametrize("trust", [fp.SecureAggregation(12), fp.Central(0.5)])
def test_adaptive_clipping_epsilon_equals_fedavg(trust):
    """The bit is part of the message, so each round is one release, also where only sums are received."""
    spent = []
    for strategy in (fedavg(0.1), adaptive_clipping(fedavg(0.1))):
        privacy = fp.Privacy(noise_multiplier=3.0, noise_on="message", unit="client", trust=trust)
        training = fp.Training(clients_of(digits_of((4,) * 12)), strategy, privacy, rounds=3)
        assert len(list(training)) == 3 and len(training.ledger.records) == 3
        spent.append(training.spent().epsilon)
    assert spent[0] == spent[1]


def test_scaffold_messages_with_secure_aggregation_raise():
    clients = clients_of(digits_of((10, 12, 9)))
    privacy = fp.Privacy(epsilon=5.0, noise_on="message", unit="client")
    training = fp.Training(clients, scaffold(0.1, 2), privacy, rounds=4)
    assert len(list(training)) == 4 and len(training.ledger.records) == 4
    with pytest.raises(fp.ConfigError, match="each client's message"):
        fp.Training(
            clients_of(digits_of((10, 12, 9))),
            scaffold(0.1, 2),
            replace(privacy, trust=fp.SecureAggregation(2)),
            rounds=4,
        )
