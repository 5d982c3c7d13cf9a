"""SVRG and SVRG++ without noise: independent optima, rates, and the papers' epochs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from erm_optimum import LAM, ONE, OPTIMUM, X, Y, gap
from erm_worlds import l2_optimum, logistic_objective, run

import fedpriv as fp
from fedpriv.algorithms.svrg import AnchorBudget, Epochs, Secant, proven, svrg
from fedpriv.strategies.erm import gradient_descent
from fedpriv.strategies.proximal import L2


@pytest.mark.parametrize("doubling", [False, True])
@pytest.mark.parametrize("smoothness", [None, 0.25])
def test_svrg_reaches_reference_optimum(doubling: bool, smoothness: float | None):
    strategy = svrg(2.0, 2 if doubling else 20, L2(LAM), smoothness=smoothness, doubling=doubling)
    found = run(strategy, ONE, rounds=Epochs(2, True).rounds(7) if doubling else 600)[-1]
    np.testing.assert_allclose(found, OPTIMUM, atol=1e-8)


def test_svrg_mini_batches_converge_linearly():
    """With exact anchors the gap falls by a factor an epoch, though each step sees a tenth of the data."""
    privacy = fp.Privacy(noise_on="none", sampling=fp.Poisson(0.2))
    length = 40
    path = run(svrg(1.0, length, L2(LAM)), ONE, rounds=15 * length, privacy=privacy)
    gaps = np.array([gap(path[length * epoch - 1]) for epoch in range(1, 16)])
    known = gaps > 1e-13  # below, the gap is rounding
    assert known.sum() >= 4 and gaps[-1] < 1e-9
    t = np.arange(15)[known]
    slope, intercept = np.polyfit(t, np.log(gaps[known]), 1)
    assert slope < -0.5  # a factor of 0.6 an epoch or better
    assert np.abs(np.log(gaps[known]) - (slope * t + intercept)).max() < 3
    # plain steps on the same batches stall far away
    plain = run(gradient_descent(1.0, L2(LAM)), ONE, rounds=15 * length, privacy=privacy)
    assert gap(plain[-1]) > 1e-6


def test_svrg_plus_plus_epochs_double():
    epochs = Epochs(3, doubling=True)
    anchors = [t for t in range(epochs.rounds(4)) if epochs.is_anchor(t)]
    assert anchors == [0, 7, 20, 45]
    assert np.diff([*anchors, epochs.rounds(4)]).tolist() == [3 * 2**s + 1 for s in (1, 2, 3, 4)]
    assert [AnchorBudget(epochs, 5.0).share(t) for t in (0, 1, 6, 7, 8)] == [5, 1, 1, 5, 1]
    assert [t for t in range(12) if Epochs(4).is_anchor(t)] == [0, 4, 8]


@pytest.mark.parametrize(("smoothness", "convexity"), [(0.25, 0.01), (2.0, 0.5), (1.0, 1.0)])
def test_svrg_proven_epoch_is_shortest(smoothness: float, convexity: float):
    """Equation 4 holds for it and fails for one step less; no other step size gets by with fewer."""

    def left(eta: float, m: int) -> float:
        return 1 / (eta * (1 - 8 * eta * smoothness) * convexity * m) + 8 * smoothness * eta * (m + 1) / (
            m * (1 - 8 * smoothness * eta)
        )

    eta, m = proven(smoothness, convexity)
    assert left(eta, m) < 0.5 <= left(eta, m - 1) + 1e-12
    for factor in (0.5, 0.9, 1.1, 1.9):
        assert proven(smoothness, convexity, learning_rate=factor * eta)[1] >= m
    with pytest.raises(fp.ConfigError, match="24 smoothness"):
        proven(smoothness, convexity, learning_rate=1 / (12 * smoothness))
    assert left(1 / (12 * smoothness), 10**9) > 0.5  # the paper's largest step never meets its own condition


def test_svrg_proven_epoch_halves_gap():
    """Theorem 4.2 without noise, on mini-batches."""
    lam = 1.0
    eta, m = proven(0.25, lam)
    privacy = fp.Privacy(noise_on="none", sampling=fp.Poisson(0.1))
    path = run(svrg(eta, m, L2(lam)), ONE, rounds=4 * m, privacy=privacy)
    best = l2_optimum(X, Y, lam)
    gaps = [logistic_objective(w, X, Y)[0] + lam / 2 * w @ w for w in (np.zeros_like(best), *path[m - 1 :: m])]
    gaps = np.array(gaps) - (logistic_objective(best, X, Y)[0] + lam / 2 * best @ best)
    assert (gaps[1:] < 0.5 * gaps[:-1]).all()


def test_svrg_plus_plus_epoch_halves_gap():
    """Theorem 4.4 without noise, without strong convexity: at most A / 2^s after epoch s, and fitted so."""
    epochs, eta, count = Epochs(8, doubling=True), 4 / 13, 6
    privacy = fp.Privacy(noise_on="none", sampling=fp.Poisson(0.2))
    path = run(svrg(eta, 8, doubling=True), ONE, rounds=epochs.rounds(count), privacy=privacy)
    best = l2_optimum(X, Y, 0.0)
    start, low = np.log(2), logistic_objective(best, X, Y)[0]
    s = np.arange(1, count + 1)
    gaps = np.array([logistic_objective(path[epochs.rounds(i) - 1], X, Y)[0] for i in s]) - low
    assert (gaps <= (2 * (start - low) + best @ best / (4 * eta / 3 * 8)) / 2**s).all()
    assert np.polyfit(s[2:], np.log2(gaps[2:]), 1)[0] < -1


def test_svrg_epoch_lengths_vary():
    epochs = Epochs((2, 3, 5))
    assert [t for t in range(16) if epochs.is_anchor(t)] == [0, 2, 5, 10, 15]
    assert (epochs.rounds(4), epochs.whole(14), epochs.whole(10**9)) == (15, 3, 2 + (10**9 - 5) // 5)
    found = run(svrg(2.0, (5, 20), L2(LAM)), ONE, rounds=605)[-1]
    np.testing.assert_allclose(found, OPTIMUM, atol=1e-8)
    with pytest.raises(fp.ConfigError, match="must be one number if epochs double"):
        Epochs((2, 3), doubling=True)


def test_svrg_barzilai_borwein_equals_formula():
    """Tan et al. (2016): eta_s = ||dx||^2 / (m <dx, dg>), g the gradient of the objective at two anchors."""
    length, first = 8, 0.5
    path = run(svrg(first, length, L2(LAM), barzilai_borwein=True), ONE, rounds=6 * length)
    anchor, last, eta = np.zeros(X.shape[1]), None, first
    for epoch in range(6):
        gradient = logistic_objective(anchor, X, Y)[1] + LAM * anchor
        if last is not None:
            dx, dg = anchor - last[0], gradient - last[1]
            eta = dx @ dx / (length * (dx @ dg))
            assert 1 / (length * (0.25 + LAM)) <= eta <= 1 / (length * LAM)
        last, x, total = (anchor, gradient), anchor, 0
        for _ in range(length):
            x = (x - eta * logistic_objective(x, X, Y)[1]) / (1 + eta * LAM)
            total = total + x
        anchor = total / length
        np.testing.assert_allclose(path[(epoch + 1) * length - 1], anchor, atol=1e-10)
    with pytest.raises(fp.ConfigError, match="strongly convex regularizer"):
        svrg(first, length, barzilai_borwein=True)


def test_svrg_barzilai_borwein_step_stays_in_bounds_with_noise():
    """Noise can hide the curvature; the step stays between 1 / (m (L + lam)) and 1 / (m lam)."""
    server = svrg(0.1, 4, L2(0.1), smoothness=0.25, barzilai_borwein=True).aggregator
    point = torch.zeros(1, 3)
    for slope, expected in ((-5.0, 1 / 0.4), (100.0, 1 / 1.4), (0.1, 1 / 0.8)):
        last = Secant(point, point, 0.1)
        assert server._next_secant(last, point + 1, point + slope, 4, 2).rate == pytest.approx(expected)
    assert server._next_secant(last, point, point + 1, 4, 2).rate == 0.1
