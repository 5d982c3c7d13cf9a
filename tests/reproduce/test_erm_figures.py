"""The experiments of Wang, Ye and Xu (2017): the numpy algorithms, the bounds, and each experiment at a small size."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from erm_figures import (
    PERTURBED,
    LeastSquares,
    beyond,
    descent_on_least_squares,
    figure_1,
    figure_2,
    polyak_lojasiewicz,
    problem,
)
from erm_problem import (
    Problem,
    classical_deviation,
    covertype_rows,
    epsilon_on_path,
    exact_descent,
    printed_epsilon,
    sensitivity,
    svrg,
)
from experiment import Bench
from matplotlib.figure import Figure
from scipy.optimize import minimize
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import LogisticRegression, resolve_loss
from fedpriv.papers import claims
from fedpriv.privacy.accounting import gaussian
from fedpriv.strategies import L2


def drawn(n: int = 300, dim: int = 6, lam: float = 0.05, seed: int = 0) -> Problem:
    stream = np.random.default_rng(seed)
    x = stream.normal(size=(n, dim))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    s = np.where(x @ np.linspace(-1, 1, dim) + 0.3 * stream.normal(size=n) > 0, 1.0, -1.0)
    return Problem(x, s, lam)


@pytest.fixture
def covertype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file like UCI's with 4000 made-up rows."""
    stream = np.random.default_rng(0)
    measured, flags = stream.integers(0, 250, (4000, 10)), stream.integers(0, 2, (4000, 44))
    labels = 1 + (measured[:, 5] + stream.integers(0, 150, 4000) > 200)
    (tmp_path / "covertype").mkdir()
    rows = np.concatenate([measured, flags, labels[:, None]], 1)
    np.savetxt(tmp_path / "covertype" / "covtype.data", rows, "%d", ",")
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path))
    for cached in (covertype_rows, problem):
        cached.cache_clear()
    yield
    for cached in (covertype_rows, problem):
        cached.cache_clear()


def test_optimum_equals_scipy():
    for lam in (0.0, 0.05):
        chosen = drawn(lam=lam)
        found = minimize(lambda w, p=chosen: p.values(w[None])[0], np.zeros(6), method="BFGS", options={"gtol": 1e-9})
        assert chosen.optimum == pytest.approx(found.fun, abs=1e-10)


@pytest.mark.parametrize(("doubling", "barzilai_borwein"), [(False, False), (False, True), (True, False)])
def test_svrg_equals_library_on_equal_rows(doubling: bool, barzilai_borwein: bool):
    """On copies of one row a drawn row's gradient is the mean, so both runs are free of chance."""
    x, lam, step = np.tile([[0.6, -0.8, 0.0]], (7, 1)), 0.05, 0.7
    chosen, lengths = Problem(x, np.ones(7), lam), [4, 8] if doubling else [5, 5, 5]
    options = {"doubling": doubling, "barzilai_borwein": barzilai_borwein}
    found = svrg(chosen, lengths, step, [0.0], 0, **options)
    data = TensorDataset(torch.from_numpy(x), torch.ones(7, dtype=torch.long))
    clients = fp.make_clients(LogisticRegression(3), resolve_loss("shifted_logistic"), [data])
    strategy = fp.svrg(step, 2 if doubling else 5, L2(lam), smoothness=0.25, **options)
    compute = fp.Compute(device="cpu", dtype="float64")
    rounds = fp.Epochs(2, True).rounds(2) if doubling else 15
    training = fp.Training(clients, strategy, fp.Privacy(noise_on="none"), rounds=rounds, compute=compute)
    for _ in training:
        pass
    np.testing.assert_allclose(found.models, training.progress.models[:1].numpy(), atol=1e-12)
    assert found.passes[0] == pytest.approx(1 + 2 * lengths[0] / 7)


def test_svrg_noise_has_printed_variance():
    """Without data the anchor is the mean of a random walk; runs side by side have noise of their own."""
    m, step = 40, 0.5
    found = svrg(Problem(np.zeros((3, 2000)), np.ones(3), 0.0), [m], step, [1.0, 2.0], 0)
    expected = step * math.sqrt(sum((j / m) ** 2 for j in range(1, m + 1)))
    np.testing.assert_allclose(found.models.std(1), [expected, 2 * expected], rtol=0.05)
    assert abs(np.corrcoef(found.models)[0, 1]) < 0.1


@pytest.mark.parametrize("lam", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("step", [0.1, 1.5])
def test_sensitivity_bounds_replaced_rows(lam: float, step: float):
    """No replaced row moves the last iterate further, and an adversarial one comes near for a small step."""
    n, worst = 20, 0.0
    stream = np.random.default_rng(1)
    for trial in range(40):
        chosen = drawn(n, 3, lam, trial)
        x, s = chosen.x.copy(), chosen.s.copy()
        if trial % 2:
            x[:, 0], x[:, 1:], s[:] = 1, 0, 1
            chosen = Problem(x.copy(), s.copy(), lam)
            x[0] *= -1  # pulls the other way
        else:
            x[0] = stream.normal(size=3)
            x[0] /= np.linalg.norm(x[0])
        ends = [exact_descent(p, step, 30, [30])[0][0] for p in (chosen, Problem(x, s, lam))]
        worst = max(worst, float(np.linalg.norm(ends[0] - ends[1])))
    bound = sensitivity(n, lam, step, 30)
    assert bound / 6 < worst <= bound


def test_sensitivity_equals_closed_forms():
    assert sensitivity(100, 0.0, 0.1, 50) == pytest.approx(2 * 0.1 * 50 / 100, rel=1e-5)
    assert sensitivity(100, 0.01, 3.0, 5000) == pytest.approx(2 / (100 * 0.01), rel=1e-5)
    with pytest.raises(ValueError, match="too long for the bound: at most 8"):
        sensitivity(100, 0.0, 8.1, 5)


def test_printed_epsilon_equals_claim():
    """It adds the anchors' gradients to `fedpriv claims dp_svrg`: 18 830 for the paper's sizes."""
    sigma = claims.svrg_deviation(0.2, 200_000, 15, 5000, delta=1e-3)
    inner = claims.svrg(0.2, 200_000, 15, 5000, delta=1e-3).tight_total
    assert inner <= printed_epsilon(sigma, 200_000, 75_000, 1e-3) <= 1.001 * inner
    assert inner == pytest.approx(18_830, rel=1e-3)


def test_epsilon_on_path_between_anchor_and_bound():
    sigma, n, steps = 0.05, 1000, 3000
    far, near = (epsilon_on_path(np.full(steps, d), sigma, n, 1e-3) for d in (10.0, 0.0))
    assert far == pytest.approx(printed_epsilon(sigma, n, steps, 1e-3), rel=0.1)
    # every step shows the anchor's gradient, and a drawn row no more than twice that
    alone = gaussian.compute_epsilon(2 / n * math.sqrt(steps) / sigma, 1e-3)
    assert 0.999 * alone <= near <= 1.05 * alone


def test_classical_noise_meets_stated_epsilon():
    for epsilon in (0.2, 0.5, 1.0):
        true = gaussian.compute_epsilon(1 / classical_deviation(1.0, epsilon, 1e-3), 1e-3)
        assert 0.4 * epsilon < true < epsilon


def shown(experiment, tmp_path: Path):
    found = experiment(Bench("quick", tmp_path, 1))
    found.draw(Figure())
    return found, {(row.setting.split(",")[0], row.stated): row for row in found.rows}


@pytest.mark.parametrize(("figure", "plus"), [(figure_1, ""), (figure_2, "++")])
def test_figures_state_true_epsilon(figure, plus: str, covertype, tmp_path: Path):
    """The published noise hides nothing of 4000 rows; that of output perturbation does what it states."""
    _, rows = shown(figure, tmp_path)
    for epsilon, true in (("0.2", 0.0903), ("0.5", 0.277), ("1", 0.634)):
        assert rows["DP-GD of [34]", epsilon].true == pytest.approx(true, rel=0.01)
        assert rows[f"DP-SVRG{plus}", epsilon].true > float(epsilon)
    exact = rows[f"DP-SVRG{plus} without noise", ""]
    assert exact.true == math.inf and exact.ours < rows[f"DP-SVRG{plus}", "0.2"].ours
    assert rows[f"DP-SVRG{plus}", "1"].ours < rows[f"DP-SVRG{plus}", "0.2"].ours


def test_pl_runs_match_expected_gap(monkeypatch, tmp_path: Path):
    small = LeastSquares.drawn(3000)
    monkeypatch.setattr(LeastSquares, "drawn", staticmethod(lambda: small))
    found, _ = shown(polyak_lojasiewicz, tmp_path)
    assert "rank 5 of 20" in found.verdict
    for row in found.rows:
        assert row.true == pytest.approx(float(row.stated), rel=1e-3)
    point = descent_on_least_squares(0.5, 40, 12)
    assert np.mean([curve[-1] for curve in point["curves"]]) == pytest.approx(point["expected"], rel=0.5)
    assert point["expected"] < point["bound"]


def test_pl_rate_is_linear_without_noise():
    """Theorem 6.2: a factor of at most 1 - mu / L a step, for an objective with directions that have no curvature."""
    made = LeastSquares.drawn(2000)
    assert len(made.curvatures) == 5
    step, mu = 1 / made.curvatures[0], made.curvatures[-1]
    gaps = np.array([made.expected(step, 0.0, t) for t in range(60)])
    assert (gaps[1:] <= (1 - mu * step) * gaps[:-1]).all() and gaps[0] == pytest.approx(made.gap(np.zeros(20)))


def test_beyond_has_equal_true_epsilon(covertype, tmp_path: Path):
    found, _ = shown(beyond, tmp_path)
    *sound, printed = found.rows
    assert all(0.98 < row.true <= 1 for row in sound) and printed.true > 100
    gaps = {row.setting.removeprefix("lambda 0.01: "): row.ours for row in found.rows}
    assert gaps["DP-SVRG, bounds 2 G"] > 1.2 * gaps["DP-SVRG, 8 epochs of 20"] and gaps[PERTURBED] > 0
