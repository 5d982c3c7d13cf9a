"""Lines with sums of gradients, clipped per example or exact, over the plain gradient of the same batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import opponents
import torch
from memory import peak_megabytes
from nets import group_norm_resnet, mlp
from rows import OURS, PLAIN, Effort, Found, Row, interleaved
from subprocesses import apart
from torch import nn

from fedpriv.clients.batch import Batch
from fedpriv.models import Loss, MnistCNN, cross_entropy
from fedpriv.oracle.backends import build_backend
from fedpriv.privacy.clipping import Clip

LOSS = Loss(cross_entropy)
MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
MOST_BY_HAND = 64


def some(clients: int, examples: int, shape: tuple[int, ...]) -> Batch:
    """Returns random examples."""
    kept = torch.ones(clients, examples, dtype=torch.bool)
    inputs, targets = torch.randn(clients, examples, *shape), torch.randint(0, 10, (clients, examples))
    return Batch(torch.arange(clients), inputs, targets, kept)


def ours(model: nn.Module, batch: Batch, clip: Clip | None) -> tuple[Callable[[], object], str]:
    """Returns the sum that the backend of `auto` computes, and the backend's name."""
    backend = build_backend("auto", model, LOSS)
    row = torch.cat([p.detach().flatten() for p in model.parameters()])
    params = row.repeat(len(batch.inputs), 1)
    return lambda: backend.clipped_sum(params, batch, clip), type(backend).__name__.removesuffix("Backend").lower()


def clipped(model: Callable[[], nn.Module], batch: int, effort: Effort) -> Found:
    """Measures one client with one batch."""
    torch.manual_seed(0)
    made, data = model(), some(1, effort.of(batch), MNIST)
    x, y = data.inputs[0], data.targets[0]
    run, name = ours(made, data, Clip(opponents.CLIP))
    peers = {kind: opponents.opacus(made, kind, len(x)) for kind in ("ghost", "hooks")}
    steps = {PLAIN: opponents.plain(made)} | {f"opacus {kind}": step for kind, step in peers.items()}
    if batch <= MOST_BY_HAND:
        steps["loop by hand"] = opponents.by_hand(made)
    runs = {name: partial(step, x, y) for name, step in steps.items()}
    return Found(interleaved({OURS: run, **runs}, effort), name)


def clipped_mlp(parameters: int, effort: Effort) -> Found:
    """Measures one client with 64 examples, also with products written by hand."""
    torch.manual_seed(0)
    made, data = mlp(parameters), some(1, effort.of(64), MNIST)
    x, y = data.inputs[0], data.targets[0]
    run, name = ours(made, data, Clip(opponents.CLIP))
    steps = {PLAIN: opponents.plain(made), "products by hand": opponents.products_by_hand(made)}
    steps |= {f"opacus {kind}": opponents.opacus(made, kind, len(x)) for kind in ("ghost", "hooks")}
    runs = {name: partial(step, x, y) for name, step in steps.items()}
    return Found(interleaved({OURS: run, **runs}, effort), name)


def exact(effort: Effort) -> Found:
    """Measures one client with one batch, without clipping."""
    torch.manual_seed(0)
    model, data = MnistCNN(), some(1, effort.of(256), MNIST)
    run, name = ours(model, data, None)
    plain = partial(opponents.plain(model), data.inputs[0], data.targets[0])
    return Found(interleaved({OURS: run, PLAIN: plain}, effort), name)


def resnets(effort: Effort) -> Found:
    """Measures four clients with separate models and batches."""
    torch.manual_seed(0)
    model, data = group_norm_resnet(effort.of(64, 16)), some(effort.of(4), effort.of(4), CIFAR)
    run, name = ours(model, data, Clip(opponents.CLIP))
    steps = {PLAIN: opponents.plain(model), "opacus ghost": opponents.opacus(model, "ghost", len(data.inputs[0]))}
    runs = {name: partial(_each, step, data) for name, step in steps.items()}
    return Found(interleaved({OURS: run, **runs}, effort), name)


def _each(step: opponents.Step, data: Batch) -> list[object]:
    return [step(x, y) for x, y in zip(data.inputs, data.targets, strict=True)]


def memory_of_resnets(effort: Effort) -> Found:
    """Measures the peak memory of the same work above model, parameters and data, each contender in its own process."""
    return Found({name: apart(peak, name, effort.divide, effort=effort) for name in (OURS, PLAIN, "opacus ghost")})


def peak(contender: str, divide: int) -> float:
    """Returns the peak megabytes of one contender's step, above the memory in use before it."""
    torch.set_num_threads(1)
    effort = Effort(divide=divide)
    model, data = group_norm_resnet(effort.of(64, 16)), some(effort.of(4), effort.of(4), CIFAR)
    runs: dict[str, Callable[[], object]] = {
        OURS: ours(model, data, Clip(opponents.CLIP))[0],
        PLAIN: partial(_each, opponents.plain(model), data),
        "opacus ghost": partial(_each, opponents.opacus(model, "ghost", len(data.inputs[0])), data),
    }
    opponents.plain(model)(torch.randn(1, *CIFAR), torch.zeros(1, dtype=torch.long))  # torch's own buffers
    before = peak_megabytes()
    runs[contender]()
    return max(peak_megabytes() - before, 1.0)


def _cnn() -> nn.Module:
    return MnistCNN()


_AIMS = {64: "1.3", 256: "1.3", 1024: "1.1"}
_STEP = "plain gradient"
_RESNET = "ResNet-18 with GroupNorm, 11 M, 4 clients x 4 examples"

ROWS = (
    *(
        Row(f"clipped gradient, CNN 29 034, batch {batch}", _STEP, aim, partial(clipped, _cnn, batch))
        for batch, aim in _AIMS.items()
    ),
    *(
        Row(f"clipped gradient, MLP {dim:.0e}, batch 64", _STEP, "2.5", partial(clipped_mlp, dim))
        for dim in (100_000, 1_000_000)
    ),
    Row(f"clipped gradient, {_RESNET}", _STEP, "2.5", resnets),
    Row("the same, peak extra memory", _STEP, "300 MB", memory_of_resnets, unit="MB"),
    Row("exact gradient, CNN 29 034, batch 256", _STEP, "1.1", exact),
)
