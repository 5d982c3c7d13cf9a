"""The experiments of gradient tracking at tiny sizes, against the library, closed forms and a separate program."""

from __future__ import annotations

import math
from functools import partial
from itertools import islice

import networkx as nx
import numpy as np
import pytest
import torch
import tracking_beyond
import tracking_information
import tracking_mnist
import tracking_sensors
from experiment import Bench
from sensors import Promise, SensorEngine, Sensors
from torch.nn import functional
from torch.utils.data import TensorDataset
from tracking import TRACKING
from tracking_sensors import METHODS, Network, noise_for, residuals, robust_budget, states, until

import fedpriv as fp
from fedpriv.data import Split
from fedpriv.network.rounds import initial_state, run_rounds
from fedpriv.papers.claims import TrackingNoise
from fedpriv.privacy.schedules import Uniform
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.schedules import StepSize

NOISELESS = TrackingNoise(math.inf, 0.0005, 0.998, 0.999)


def ended(method, gradient, weights, start, noise=NOISELESS, beta=100.0, rounds=1):
    return list(islice(states(method, gradient, weights, start, noise, beta, 0), rounds))[-1]


@pytest.fixture
def small():
    sensors = Sensors.drawn(8, 3, 2)
    start = torch.from_numpy(np.random.default_rng(1).standard_normal((8, 2)))
    return sensors, start, Network.drawn(8), lambda x: sensors.gradient(x).reshape(x.shape)


def test_names_cover_the_paper():
    names = {one.name.removeprefix("tracking-") for one in TRACKING}
    assert names == {"sensors", "until", "mnist", "grid", "graphs", "information", "beyond"}


@pytest.mark.parametrize(
    ("method", "strategy"),
    [
        ("Algorithm 1", lambda step: fp.gradient_tracking(step, 100.0)),
        ("DPOP", fp.decentralized_sgd),
        ("Diff-TV-AB", fp.gradient_tracking_pair),
    ],
)
def test_plain_program_equals_library_without_noise(small, method, strategy):
    """From one common start: the library does not mix it. It reports W x, and moves along y a round later."""
    sensors, start, network, gradient = small
    start, steady = start[:1].expand(8, -1).clone(), TrackingNoise(math.inf, 0.0005, 1 - 2e-9, 1 - 1e-9)
    made, graph = strategy(StepSize(0.0005, ratio=1 - 2e-9)), fp.Graph(nx.erdos_renyi_graph(8, 0.5, seed=1))
    oracle = SensorEngine(sensors, Promise(Uniform()), torch.zeros(1), seed=0).oracle
    runs = run_rounds(made, oracle, graph, initial_state(made, start), Randomness(0), rounds=20)
    models = [done.progress.models for done in runs]
    rounds = 19 if method == "Diff-TV-AB" else 20
    expected = network.weights @ ended(method, gradient, network.weights, start, steady, rounds=rounds)
    assert torch.allclose(models[-1], expected, rtol=1e-6)
    assert not torch.allclose(models[-2], expected, rtol=1e-4)


@pytest.mark.parametrize("method", ["Algorithm 1", "PP-DOAGT", "Diff-TV-AB"])
def test_tracking_reaches_optimum_gradient_descent_does_not(small, method):
    sensors, start, network, gradient = small
    constant = TrackingNoise(math.inf, 0.0005, 0.999999, 0.9999999)
    left = sensors.residual(ended(method, gradient, network.weights, start, constant, 1000.0, 3000))
    descent = sensors.residual(ended("DPOP", gradient, network.weights, start, constant, 0.0, 3000))
    assert float(left) < 1e-8 < 1e-5 < float(descent)


def test_first_message_noise_has_published_scale():
    noise, _ = noise_for(1.0)
    assert noise.on_messages == pytest.approx(0.0495)
    start = torch.zeros(4, 50_000, dtype=torch.float64)
    moved = ended("DPOP", torch.zeros_like, torch.eye(4, dtype=torch.float64), start, noise)
    assert float(moved.abs().mean()) == pytest.approx(0.0495, rel=0.01)


def test_order_of_sensor_methods_is_the_papers():
    ends = {method: np.mean(residuals(method, 10.0, 100, 20, 150)["ends"]) for method in METHODS}
    assert ends["Algorithm 1"] < 0.6 * ends["DPOP"]
    assert ends["Algorithm 1"] < ends["PP-DOAGT"] < 3 * ends["Algorithm 1"]


def test_robust_budget_closed_form_and_growth():
    noise, _ = noise_for(1.0)
    assert 3.03 < robust_budget(noise, 3000) < 3.05  # about 3 epsilon / q2, as 3 alpha_k of table 3
    assert robust_budget(noise, 300, 800.0) > 10 * robust_budget(noise, 300)
    one = robust_budget(noise, 2)
    assert one == pytest.approx(2 * noise.steps(1)[0] / noise.scales(2)[1])  # x(1) and s(1) move by alpha_1 delta each


def test_sensors_experiment_prints_budgets(tmp_path):
    found = tracking_sensors.sensors_run(Bench("quick", tmp_path))
    budgets = [row for row in found.rows if row.setting.startswith("budget of Diff")]
    assert [row.paper for row in budgets] == [7.12, 20.34, 102.40]
    noise = noise_for(1.0)[0]
    assert budgets[1].ours > 2 / noise.on_messages > 20.34  # the contradiction with table 3
    assert all(math.isinf(row.true) for row in found.rows)


def test_until_counts_rounds_and_bytes():
    found = until("Algorithm 1", 3, 100, 400, 1.0)
    assert found["rounds"] < 60
    assert found["bytes"] == found["rounds"] * Network.drawn(100).links * 2 * 8
    pair = until("PP-DOAGT", 3, 100, 400, 1.0)
    assert pair["bytes"] == 2 * pair["rounds"] * Network.drawn(100).links * 2 * 8
    assert math.isinf(until("DPOP", 3, 100, 30, 1e-9)["bytes"])


def test_until_experiment_has_least_bytes_for_one_variable(tmp_path):
    rows = {row.setting: row.ours for row in tracking_sensors.until_run(Bench("quick", tmp_path)).rows}
    assert rows["Algorithm 1: kilobytes"] < rows["PP-DOAGT (our reading): kilobytes"]


def test_guarded_sensors_improve_with_epsilon():
    medians = tracking_beyond.guarded("mixed", 20.0, 0.001, 5, (1.0, 1000.0), 20, 9, 60)
    assert medians[1] < 0.2 * medians[0]


@pytest.fixture
def digits(monkeypatch):
    """Images of which a bright row names the digit."""
    labels = torch.arange(600) % 10
    images = torch.zeros(600, 1, 28, 28)
    images[torch.arange(600), 0, 2 * labels + 4] = 1.0
    data = TensorDataset(images, labels)
    split = Split(data, data, n_classes=10, writers=None, description="made up")
    monkeypatch.setattr(tracking_mnist, "mnist", lambda: split)
    tracking_mnist.digits.cache_clear()
    yield
    tracking_mnist.digits.cache_clear()


def test_grouped_network_equals_one_network_each():
    nets = tracking_mnist.Networks(3, (2, 3))
    draws = torch.Generator().manual_seed(0)
    params = nets.start(0) + 0.1 * torch.randn(3, nets.start(0).shape[1], generator=draws)
    images, labels = torch.randn(3, 5, 28, 28, generator=draws), torch.randint(10, (3, 5), generator=draws)
    found = nets.gradient(params, images, labels)
    for agent in range(3):
        leaf = params[agent].clone().requires_grad_(True)
        parts = [
            p.reshape(s) for p, s in zip(leaf.split([math.prod(s) for s in nets.shapes]), nets.shapes, strict=True)
        ]
        x = images[agent][:, None]
        for w, scale, shift in (parts[:3], parts[3:6]):
            x = functional.batch_norm(functional.conv2d(x, w, padding=2), None, None, scale, shift, training=True)
            x = functional.max_pool2d(functional.relu(x), 2)
        loss = functional.cross_entropy(functional.linear(x.flatten(1), parts[6], parts[7]), labels[agent])
        assert torch.allclose(found[agent], torch.autograd.grad(loss, leaf)[0], atol=1e-5)


def test_cnn_learns_without_noise_and_not_at_delta_one(digits):
    learn = partial(tracking_mnist.learn, "Algorithm 1", "random", 4, beta=1.0, batch=8, rounds=20, channels=(2, 4))
    assert learn(0.0, 0.02)["test"] > 60
    assert learn(1.0, 0.02)["test"] < 30


@pytest.mark.parametrize(("run", "most"), [("mnist_run", 100.0), ("grid_run", 100.0), ("graphs_run", 100.0)])
def test_mnist_experiments_read_accuracies(monkeypatch, tmp_path, run, most):
    """Accuracies are made up here: high without noise for small steps, at chance with much of it."""

    def learn(method, graph, n, ratio, gamma, beta, *rest):
        test = 10.0 if ratio > 0.05 or gamma * beta > 1 else 90.0
        return {"test": test, "train": test, "mean_model": test, "curve": [[1, test]], "apart": 500.0, "weights": 9}

    learn.__qualname__ = learn.__name__ = f"learn_{run}"
    monkeypatch.setattr(tracking_mnist, "learn", learn)
    found = getattr(tracking_mnist, run)(Bench("quick", tmp_path))
    values = {row.setting: row.ours for row in found.rows}
    assert set(values.values()) == {10.0, 90.0}
    assert all(math.isinf(row.true) for row in found.rows if row.stated)
    assert max(values.values()) <= most
    expected = {
        "mnist_run": ("Algorithm 1, delta 1", "Algorithm 1, no noise"),
        "grid_run": ("gamma 0.001, beta 1, epsilon 1, delta 1", "gamma 0.001, beta 1, no noise"),
        "graphs_run": ("ring, 10 agents, 0.5", "ring, 10 agents, 1000"),
    }[run]
    assert [values[name] for name in expected] == [10.0, 90.0]


def test_eavesdropper_reads_correlated_but_not_encrypted():
    correlated = tracking_information.correlated(400, 60)
    assert correlated["eavesdropper"] == pytest.approx(1.0, abs=0.02)
    assert correlated["m_nmi"] < 0.6
    assert correlated["median"] < 1e-6
    encrypted = tracking_information.encrypted(400, 60)
    assert encrypted["eavesdropper"] < 0.05 < encrypted["m_nmi"]


def test_information_experiment_has_five_rows_of_the_paper(monkeypatch, tmp_path):
    monkeypatch.setattr(Bench, "pick", lambda self, quick, default, full: (120, 5))
    found = tracking_information.information_run(Bench("quick", tmp_path))
    claimed = {row.setting: row.paper for row in found.rows}
    assert claimed["algorithm 1, 10: M-NMI"] == 0.52
    assert claimed["correlated [8]: M-NMI of agent 2"] == 0.47
    assert claimed["encryption [12]: residual"] == 3.2e-6
    clipped = [row for row in found.rows if row.setting.startswith("gradient clipped")]
    assert [row.true for row in clipped] == [10.0, 1.0, 0.1]


def test_beyond_states_true_epsilons(monkeypatch, tmp_path):
    def trained(*settings):
        return {"test": 90.0, "nodes": 88.0, "epsilon": 0.99, "rounds": 4}

    monkeypatch.setattr(tracking_beyond, "trained", trained)
    monkeypatch.setattr(tracking_beyond, "BOUNDS", (20.0,))
    monkeypatch.setattr(tracking_beyond, "GAMMAS", (0.001,))
    found = tracking_beyond.beyond_run(Bench("quick", tmp_path))
    values = {(row.setting, row.true): row.ours for row in found.rows}
    ours = [values["sensors, fedpriv: median residual", e] for e in tracking_beyond.EPSILONS]
    assert ours[3] < 0.01 * ours[0]
    assert values["MNIST, fedpriv, random graph: test accuracy %", 0.99] == 90.0
