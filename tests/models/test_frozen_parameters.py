"""Only trainable parameters are rows: frozen ones are neither sent nor noised nor moved, bit for bit."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from frozen_parts import CLASSES, assert_frozen_as, clients, data, resnet, small
from torch import nn

import fedpriv as fp
from fedpriv.clients.layout import Layout
from fedpriv.models import fix_model, validate_model

HEAD = 4 * CLASSES + CLASSES
STRATEGIES = {
    "fedavg": lambda: fp.fedavg(0.5),
    "iadmm": fp.inexact_admm,
    "scaffold": lambda: fp.scaffold(0.5),
    "tracking": lambda: fp.gradient_tracking(fp.StepSize(0.5)),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_frozen_parameters_stay_fixed(name: str) -> None:
    made = clients()
    network = fp.Star(3) if name != "tracking" else fp.Graph(nx.complete_graph(3))
    training = fp.Training(
        made,
        STRATEGIES[name](),
        fp.Privacy(epsilon=20),
        rounds=3,
        network=network,
        test=data()[0],
        seed=1,
        secret_seed=1,
    )
    assert training.population.dim == HEAD
    list(training)
    result = training.result()
    assert result.params.shape == (HEAD,)
    assert result.node_params.shape == (3, HEAD)
    start = resnet()
    for model in (result.model, *(client.model for client in made)):
        assert_frozen_as(model, start)
        assert not torch.equal(model.head.weight, start.head.weight)
        assert {n for n, p in model.named_parameters() if p.requires_grad} == {"head.weight", "head.bias"}


def test_bytes_sent_count_trained_parameters() -> None:
    training = fp.Training(clients(), fp.fedavg(0.5), fp.Privacy(epsilon=3), rounds=1)
    (report,) = training
    assert report.metrics["bytes_sent"] == 4 * HEAD * 2 * 3  # up and down, for each of three clients


def test_constraints_use_frozen_parameters() -> None:
    """The exact value at a row equals that of the module with this row in it."""
    model = small().float()
    problem = fp.Problem(constraints=(fp.LossAtMost(0.5),))
    made = fp.make_clients(model, nn.CrossEntropyLoss(), data(), problem)
    training = fp.Training(made, fp.proximal_al(), fp.Privacy(noise_on="none"), rounds=2)
    objective, values = training.oracle.engine.problem(training.population.params)
    for i, client in enumerate(made):
        x, y = client.examples()
        loss = nn.functional.cross_entropy(model(x), y)
        torch.testing.assert_close(objective[i] * 3, loss.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(values[i, 0], loss.detach() - 0.5, rtol=1e-5, atol=1e-6)
    list(training)
    assert_frozen_as(training.result().model, model)


def test_model_without_trainable_parameters_raises() -> None:
    for model in (nn.Linear(4, 2).requires_grad_(False), nn.Flatten()):
        with pytest.raises(
            fp.ConfigError,
            match=rf"^model = '{type(model).__name__}': has no trainable parameter: set requires_grad=True",
        ):
            validate_model(model)
    with pytest.raises(fp.ConfigError, match="has no trainable parameter"):
        fp.train(clients(resnet().requires_grad_(False)), fp.fedavg(0.5), fp.Privacy(epsilon=3), rounds=1)


def test_layout_depends_on_parameter_order() -> None:
    """Rows hold no names: the same names and shapes in another order would be swapped without an error."""

    def pair(first: str, second: str) -> nn.Module:
        return nn.ModuleDict({first: nn.Linear(2, 2), second: nn.Linear(2, 2)})

    assert Layout.of(pair("a", "b")) == Layout.of(pair("a", "b"))
    assert Layout.of(pair("a", "b")) != Layout.of(pair("b", "a"))


# --- repaired models


@pytest.mark.filterwarnings("ignore:model.* was replaced by a new GroupNorm")
def test_fix_model_keeps_frozen_parameters() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.BatchNorm2d(8, affine=False))
    model[0].weight.requires_grad_(False)
    model[1].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    fixed = fix_model(model)
    assert not [n for n, p in fixed.named_parameters() if p.requires_grad and n not in ("0.bias", "2.weight")]
    assert {n for n, p in fixed.named_parameters() if p.requires_grad} == {"0.bias", "2.weight"}


# --- eval mode


def test_trained_model_in_eval_mode() -> None:
    test = data()[2]
    result = fp.train(clients(), fp.fedavg(0.5), fp.Privacy(epsilon=20), rounds=2, test=test)
    assert not any(module.training for module in result.model.modules())
    x, y = test.tensors
    with torch.no_grad():
        first, second = result.model(x), result.model(x)
    assert torch.equal(first, second)
    assert float((first.argmax(1) == y).double().mean()) == result.test_accuracy


def test_evaluation_restores_layer_modes() -> None:
    """A part that the user set to eval mode must stay in eval mode after the first test."""
    model = resnet()
    model.body.eval()
    made = clients(model)
    training = fp.Training(made, fp.fedavg(0.5), fp.Privacy(epsilon=3), rounds=2, test=data()[0])
    list(training)
    assert training.population.model.training
    assert not training.population.model.body[3].training
