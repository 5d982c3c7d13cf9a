"""Step sizes that change from round to round, the same for every strategy."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from resuming import assert_resumes_exactly
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.config import fingerprint, load_config, to_yaml
from fedpriv.strategies.schedules import Rate, evaluate_rate

RUN = Path(__file__).parents[1] / "run.yaml"
ROUNDS = 6

OF_TORCH: dict[str, tuple[Callable[[int], float], Callable[[optim.Optimizer], optim.lr_scheduler.LRScheduler]]] = {
    "cosine": (fp.Cosine(0.5, 9, 0.1), lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 9, 0.1)),
    "steps": (fp.Steps(0.5, 3, 0.2), lambda o: optim.lr_scheduler.StepLR(o, 3, 0.2)),
    "geometric": (fp.StepSize(0.5, ratio=0.9), lambda o: optim.lr_scheduler.ExponentialLR(o, 0.9)),
    "warm-up": (fp.Warmup(0.5, 4), lambda o: optim.lr_scheduler.LinearLR(o, 1 / 4, total_iters=3)),
}


@pytest.mark.parametrize("name", OF_TORCH)
def test_schedules_match_torch(name: str) -> None:
    ours, theirs = OF_TORCH[name]
    optimizer = optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    scheduler = theirs(optimizer)
    for t in range(1, 10):
        assert ours(t) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_cosine_after_warmup_and_past_end() -> None:
    whole = fp.Cosine(1.0, 10, warmup=4)
    assert [whole(t) for t in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]
    assert [whole(t) for t in range(5, 11)] == [fp.Cosine(1.0, 6)(t) for t in range(1, 7)]
    assert whole(10) == whole(11) > 0
    with pytest.raises(fp.ConfigError, match="less than rounds"):
        fp.Cosine(1.0, 4, warmup=4)


# every strategy that takes steps, from its step size
STRATEGIES: dict[str, Callable[[Rate], fp.Strategy]] = {
    "fedavg": lambda rate: fp.fedavg(rate, 2),
    "fedprox": lambda rate: fp.fedprox(rate, 0.1, 2),
    "fedopt": fp.fedopt,
    "scaffold": lambda rate: fp.scaffold(rate, 2),
    "dp_gd": fp.gradient_descent,
    "dp_gd, momentum": lambda rate: fp.gradient_descent(rate, momentum=0.5),
    "dp_svrg": lambda rate: fp.svrg(rate, 3),
    "dp_svrg_plus_plus": lambda rate: fp.svrg(rate, 1, doubling=True),
    "decentralized_sgd": fp.decentralized_sgd,
    "gradient_tracking": lambda rate: fp.gradient_tracking(rate, 0.2),
    "gradient_tracking_pair": fp.gradient_tracking_pair,
    "iadmm, eta": lambda rate: fp.inexact_admm(fp.Prox(rate)),
    "iadmm, radius": lambda rate: fp.inexact_admm(fp.Trust(rate)),
    "iadmm, rho": lambda rate: fp.inexact_admm(rho=rate),
}
ON_A_GRAPH = {"decentralized_sgd", "gradient_tracking", "gradient_tracking_pair"}


def trained(strategy: fp.Strategy, name: str, privacy: fp.Privacy | None = None, **options: Any) -> Tensor:
    torch.manual_seed(0)
    data = [TensorDataset(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(3)]
    network = fp.Graph(nx.path_graph(3)) if name in ON_A_GRAPH else fp.Star(3)
    clients = fp.make_clients(nn.Linear(4, 3), nn.CrossEntropyLoss(), data)
    options = {"rounds": ROUNDS, "seed": 0, "network": network, **options}
    return fp.train(clients, strategy, privacy or fp.Privacy(noise_on="none"), **options).node_params


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_accept_number_schedule_function(name: str) -> None:
    make, asked = STRATEGIES[name], set[int]()

    def constant(t: int) -> float:
        asked.add(t)
        return 0.25

    def late(t: int) -> float:
        return 0.25 if t < ROUNDS else 0.01

    wanted = trained(make(0.25), name)
    assert torch.equal(trained(make(constant), name), wanted)
    anchors = {1, 4} if name == "dp_svrg_plus_plus" else set[int]()  # rounds without a step
    assert {*range(1, ROUNDS + 1)} - anchors <= asked
    assert torch.equal(trained(make(fp.StepSize(0.25)), name), wanted)
    assert not torch.equal(trained(make(fp.Cosine(0.25, ROUNDS)), name), wanted)
    if "svrg" not in name:  # the last round may ask for a gradient and take no step
        assert not torch.equal(trained(make(late), name), wanted)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "dp_gd, momentum", "dp_svrg", "iadmm, rho"])
def test_scheduled_run_resumes_exactly(name: str, tmp_path: Path) -> None:
    privacy = fp.Privacy(noise_multiplier=1.0)

    def training(folder: Path, *, resume: bool = False) -> fp.Training:
        torch.manual_seed(0)
        data = [TensorDataset(torch.randn(6, 4), torch.randint(0, 3, (6,))) for _ in range(3)]
        clients = fp.make_clients(nn.Linear(4, 3), nn.CrossEntropyLoss(), data)
        network = fp.Graph(nx.path_graph(3)) if name in ON_A_GRAPH else fp.Star(3)
        settings = {"rounds": ROUNDS, "seed": 0, "secret_seed": 1, "network": network, "checkpoint_every": 1}
        strategy = STRATEGIES[name](fp.Cosine(0.2, ROUNDS, warmup=2))
        return fp.Training(clients, strategy, privacy, folder=folder, **settings, resume=resume)

    assert_resumes_exactly(training, tmp_path)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "0.1", None, True])
def test_schedule_function_bad_value_raises(value: object) -> None:
    with pytest.raises(fp.ConfigError, match=r"strategy.schedule = 'half': returns .* in round 2"):
        trained(fp.fedavg(half_then(value)), "fedavg")


def half_then(value: object) -> Any:
    def half(t: int) -> Any:
        return 0.5 if t == 1 else value

    return half


def test_schedule_function_error_raises() -> None:
    def broken(t: int) -> float:
        return {}[t]

    with pytest.raises(fp.ConfigError, match="raises an error in round 1"):
        trained(fp.fedavg(broken), "fedavg")


def test_tracking_schedule_above_limit_raises() -> None:
    with pytest.raises(
        fp.ConfigError, match=r"strategy.beta = 2: must be at most 1.33\d*, since step_size \* beta must be at most 1"
    ):
        trained(fp.gradient_tracking(fp.Warmup(1.0, 4), 2), "gradient_tracking")


def of_yaml(strategy: str) -> Any:
    return load_config(RUN, [f"strategy={{{strategy}}}"])


IN_YAML: dict[str, object] = {
    "0.5": 0.5,
    "{scale: 0.5}": fp.StepSize(0.5),
    "{power: 0.5}": fp.StepSize(power=0.5),
    "{cosine: {peak: 0.5, rounds: 30, warmup: 3}}": fp.Cosine(0.5, 30, warmup=3),
    "{warmup: {peak: 1, rounds: 3}}": fp.Warmup(1.0, 3),
    "{steps: {start: 1, every: 10}}": fp.Steps(1.0, 10),
}


@pytest.mark.parametrize("text", IN_YAML)
def test_schedule_from_yaml_round_trips(text: str, tmp_path: Path) -> None:
    config = of_yaml(f"name: fedavg, learning_rate: {text}")
    assert config.recipe(10).strategy.local_step.learning_rate == IN_YAML[text]
    (tmp_path / "again.yaml").write_text(to_yaml(config))
    assert fingerprint(load_config(tmp_path / "again.yaml")) == fingerprint(config)


def test_schedule_function_from_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_schedules.py").write_text("def root(t: int) -> float:\n    return 1 / t**0.5\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = "name: decentralized_sgd, step_size: {function: 'own_schedules:root'}"
    with pytest.raises(fp.ConfigError, match="--allow-plugins"):
        of_yaml(text)
    with fp.allow_plugins():
        config = of_yaml(text)
        rate = config.recipe(10).strategy.local_step.step_size
    assert [evaluate_rate(rate, t) for t in (1, 4)] == [1.0, 0.5]
    assert "function: own_schedules:root" in to_yaml(config)


WRONG = {
    "{cosin: {peak: 1}}": "learning_rate.cosin = .* did you mean 'cosine'",
    "{scal: 1}": "learning_rate.scal = 1: is unknown; did you mean 'scale'",
    "{cosine: {peak: 1}}": "learning_rate.cosine.rounds = None: is required",
    "{cosine: {peak: -1, rounds: 3}}": "learning_rate.cosine.peak = -1: must be a positive",
    "{steps: {start: 1, every: 1}, warmup: {peak: 1, rounds: 2}}": "must set exactly one of cosine, warmup, steps, fun",
    "-1": "learning_rate = -1: must be a positive, finite number",
    "fast": "learning_rate = 'fast': must be a positive, finite number",
}


@pytest.mark.parametrize("text", WRONG)
def test_schedule_yaml_error_names_field_and_fix(text: str) -> None:
    with pytest.raises(fp.ConfigError, match=WRONG[text]):
        of_yaml(f"name: fedavg, learning_rate: {text}")
