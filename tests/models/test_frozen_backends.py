"""Backends agree on models with frozen parts, with each other and with plain torch."""

from __future__ import annotations

import copy

import pytest
import torch
from frozen_parts import CLASSES, assert_frozen_as, clients, small
from torch import Tensor, nn

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.oracle.backends import BACKENDS, build_backend
from fedpriv.privacy.clipping import Clip


def one_layer(weight: bool, bias: bool) -> nn.Module:
    torch.manual_seed(2)
    layer = nn.Linear(25, CLASSES)
    layer.weight.requires_grad_(weight)
    layer.bias.requires_grad_(bias)
    return nn.Sequential(nn.Flatten(), layer).double()


MODELS = {"conv net": small(), "bias": one_layer(False, True), "weight": one_layer(True, False)}
MODELS["all of one layer"] = one_layer(True, True)


def by_autograd(model: nn.Module, row: Tensor, x: Tensor, y: Tensor, clip: Clip | None) -> Tensor:
    """The clipped sum with plain torch on the module itself, one example after another."""
    model, total = copy.deepcopy(model), torch.zeros_like(row)
    trained = [p for p in model.parameters() if p.requires_grad]
    torch.nn.utils.vector_to_parameters(row, trained)
    for i in range(len(x)):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)])
        total += gradient if clip is None else gradient * min(1.0, clip.bound / float(gradient.norm()))
    return total


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("clip", [Clip(0.3), None], ids=str)
@pytest.mark.parametrize("alike", [True, False])
def test_frozen_model_backends_match_torch(kind: str, clip: Clip | None, alike: bool) -> None:
    model, draw = MODELS[kind], torch.Generator().manual_seed(4)
    start = copy.deepcopy(model)
    x = torch.randn(2, 4, 1, 5, 5, generator=draw, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (2, 4), generator=draw)
    batch = Batch(torch.arange(2), x, y, torch.ones(2, 4, dtype=torch.bool))
    dim = sum(p.numel() for p in model.parameters() if p.requires_grad)
    rows = torch.randn(1 if alike else 2, dim, generator=draw, dtype=torch.float64).expand(2, -1)
    wanted = torch.stack([by_autograd(model, rows[i], x[i], y[i], clip) for i in range(2)])
    serving = ["loop", "vmap", "ghost", *(["linear"] if kind == "all of one layer" else [])]
    for name in serving:
        found, _ = BACKENDS[name](model, nn.CrossEntropyLoss()).clipped_sum(rows, batch, clip)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    assert_frozen_as(model, start)


@pytest.mark.parametrize("kind", ["bias", "weight"])
def test_linear_backend_with_frozen_part_raises(kind: str) -> None:
    loss = nn.CrossEntropyLoss()
    assert type(build_backend("auto", MODELS[kind], loss)) is BACKENDS["ghost"]
    with pytest.raises(fp.ConfigError, match="without frozen parameters"):
        build_backend("linear", MODELS[kind], loss)


@pytest.mark.parametrize("kind", MODELS)
def test_frozen_run_same_with_every_backend(kind: str) -> None:
    def run(backend: str) -> Tensor:
        made, compute = clients(MODELS[kind]), fp.Compute(backend, dtype="float64")
        return fp.train(
            made, fp.fedavg(0.5), fp.Privacy(epsilon=5), rounds=2, seed=3, secret_seed=3, compute=compute
        ).params

    for backend in ("vmap", "auto"):
        torch.testing.assert_close(run(backend), run("loop"), rtol=1e-9, atol=1e-12)
