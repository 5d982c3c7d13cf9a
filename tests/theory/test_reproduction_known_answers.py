"""The scripts under `benchmarks/reproduce` against closed forms, the library itself and other people's estimators."""

import math
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.feature_selection import mutual_info_regression
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import LinearSVM, resolve_loss
from fedpriv.network.rounds import initial_state, run_rounds
from fedpriv.planning.plan import make_plan
from fedpriv.privacy.schedules import Geometric
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.proximal import L2
from fedpriv.strategies.schedules import StepSize

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "reproduce"))

from sensors import Promise, SensorEngine, Sensors
from svm_problem import Problem
from svm_runs import METHODS, NODES, WEIGHT, Blocks, Cell, Prices, suboptimality
from tracking_information import leaks, mutual_information, own_information


def small_svm(regularizer, per_node=5, dim=3):
    draws = np.random.default_rng(0)
    x = draws.standard_normal((NODES * per_node, dim))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.where(x[:, 0] + 0.3 * draws.standard_normal(len(x)) > 0, 1.0, -1.0)
    return Problem(sparse.csr_array(x), y, regularizer, WEIGHT)


@pytest.mark.parametrize(("regularizer", "smallest"), [("l2", 0.05), ("l1", 0.1)])
def test_certified_optimum_1d_closed_form(regularizer, smallest):
    # max(0, 1 - w) + .1 w^2 / 2 and max(0, 1 - w) + .1 |w| are smallest at w = 1
    signs = np.array([1.0, -1.0, -1.0, 1.0, 1.0, -1.0])
    solved = Problem(sparse.csr_array(signs[:, None]), signs, regularizer, 0.1).solved()
    assert solved.best == pytest.approx(smallest, abs=1e-9)
    assert 0 <= solved.gap + 1e-15 < 1e-9


@pytest.mark.parametrize("regularizer", ["l2", "l1"])
def test_certified_optimum_is_minimum(regularizer):
    problem = small_svm(regularizer).solved()
    assert abs(problem.gap) < 1e-8
    points = np.random.default_rng(1).standard_normal((3, 4000)) * np.geomspace(0.01, 30, 4000)
    assert problem.objective(points).min() > problem.best - 1e-12


def test_blocked_runs_equal_library_run():
    problem, method = small_svm("l2"), METHODS[0]
    cell = Cell("messages", "rounds", math.inf, 15, 0.0)
    gaps = suboptimality(problem, method, [cell], [3.0, 20.0], Prices(1.0, 15, ()), seed=0, points=1)
    rows = torch.from_numpy(problem.x.toarray()).float(), torch.from_numpy((problem.y > 0).astype(np.int64))
    data = [TensorDataset(*part) for part in zip(*(whole.chunk(NODES) for whole in rows), strict=True)]
    for index, gamma in enumerate((3.0, 20.0)):
        strategy = fp.dual_averaging(L2(WEIGHT), gamma=gamma)
        clients = fp.make_clients(LinearSVM(3), resolve_loss("hinge"), data)
        done = fp.train(clients, strategy, fp.Privacy(noise_on="none"), rounds=15, network=method.graph)
        value = problem.objective(done.params.double().numpy()[:, None])[0]
        assert gaps[0, 0, index] == pytest.approx(value, abs=1e-5)


def test_blocked_noise_scaled_by_sensitivity():
    # replace-one: a row of norm 1 moves the mean of 5 by 2/5; the problem's own part is not random at rate 1
    problem, prices = small_svm("l2", dim=3000), Prices(1.0, 1, ())
    oracle = Blocks(problem, prices, [0.0, 1.5], seed=0).oracle
    exact, noised = oracle.gradient(torch.zeros(NODES, 6000)).reshape(NODES, 2, 3000).unbind(1)
    assert float((noised - exact).std()) == pytest.approx(1.5 * 2 / 5, rel=0.02)


def test_sensor_gradient_and_optimum():
    """The gradient equals autograd's; tracking without noise ends at the optimum."""
    sensors = Sensors.drawn(6, 3, 2)
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    drawn = np.random.default_rng(0)
    matrix = torch.from_numpy(drawn.uniform(0, 10, (6, 3, 2)))
    reading = torch.from_numpy(
        (matrix.numpy() @ drawn.standard_normal((1, 2, 1)))[..., 0] + drawn.standard_normal((6, 1, 3))[:, 0]
    )
    value = (reading - (matrix @ x[..., None])[..., 0]).square().sum() + 0.01 * x.square().sum()
    assert torch.allclose(sensors.gradient(x.detach())[:, 0], torch.autograd.grad(value, x)[0])
    strategy = fp.gradient_tracking(StepSize(0.0005), 1000.0)
    oracle = SensorEngine(sensors, Promise(Geometric(0.98)), torch.zeros(1), seed=0).oracle
    graph, start = fp.Graph(nx.complete_graph(6)), initial_state(strategy, x.detach())
    runs = run_rounds(strategy, oracle, graph, start, Randomness(0), rounds=1000)
    last = [done.progress.models for done in runs][-1]
    assert float(sensors.residual(last)) < 1e-8


def test_promise_noise_equals_plan_epsilon():
    promise, graph = Promise(Geometric(0.97 / 0.99)), fp.Graph(nx.cycle_graph(4))
    plan = make_plan(fp.decentralized_sgd(), promise.privacy, [1] * 4, graph, rounds=30)
    assert promise.noise_multiplier(30) == pytest.approx(plan.spent().epsilon, rel=1e-9)


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.95])
def test_mutual_information_of_normal_variables(correlation):
    draws = np.random.default_rng(3).standard_normal((2, 3000, 1))
    a, b = draws[0], correlation * draws[0] + math.sqrt(1 - correlation**2) * draws[1]
    found = mutual_information(a, b)
    assert found == pytest.approx(-math.log(1 - correlation**2) / 2, abs=0.05)
    assert found == pytest.approx(mutual_info_regression(a, b[:, 0], random_state=0)[0], abs=0.02)


def test_mutual_information_with_itself_is_maximal():
    v = np.random.default_rng(4).standard_normal((800, 1))
    assert mutual_information(v, v) == pytest.approx(own_information(800), rel=0.02)


def test_ten_times_epsilon_leaks_more():
    assert leaks(10.0, 300, 3, None)["m_nmi"] > leaks(1.0, 300, 3, None)["m_nmi"] + 0.1
