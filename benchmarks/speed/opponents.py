"""Other ways to compute a gradient: torch without privacy, a loop written by hand, and opacus with both hooks."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader, TensorDataset

CLIP = 1.0
_SUM = nn.CrossEntropyLoss(reduction="sum")

Step = Callable[[Any, Tensor], object]


def plain(model: nn.Module) -> Step:
    """Returns a step that computes the gradient of the batch's loss, by one backward pass."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def step(x: Any, y: Tensor) -> Tensor:
        outputs = model(**x) if isinstance(x, dict) else model(x)
        return flat(torch.autograd.grad(_SUM(outputs, y), parameters))

    return step


def functorch(model: nn.Module) -> Step:
    """Returns a step with per-example gradients from torch.func's vmap, clipped and added, as in its tutorial."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    mean = nn.CrossEntropyLoss()

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return mean(functional_call(model, parameters, (x.unsqueeze(0),)), y.unsqueeze(0))

    gradients = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")

    def step(x: Tensor, y: Tensor) -> Tensor:
        rows = torch.cat([g.flatten(1) for g in gradients(trained, x, y).values()], 1)
        return (rows * (CLIP / rows.norm(dim=1, keepdim=True)).clamp_max(1)).sum(0)

    return step


def by_hand(model: nn.Module) -> Step:
    """Returns a simple loop with a backward pass for each example, clipped and added."""
    gradient = plain(model)

    def step(x: Tensor, y: Tensor) -> Tensor:
        total: Tensor | float = 0.0
        for one in range(len(x)):
            row = gradient(x[one : one + 1], y[one : one + 1])
            total = total + row * min(1.0, CLIP / float(row.norm()))
        return torch.as_tensor(total)

    return step


def products_by_hand(model: nn.Module) -> Step:
    """Linear layers with ReLU between them: the minimum that norms and float64 sums take in torch."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]

    def step(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            inputs = [x.flatten(1)]
            for layer in layers[:-1]:
                inputs.append(nn.functional.relu(layer(inputs[-1])))
            delta = layers[-1](inputs[-1]).softmax(1)
            delta[torch.arange(len(y)), y] -= 1
            deltas = [delta]
            for layer, values in zip(layers[:0:-1], inputs[:0:-1], strict=True):
                deltas.insert(0, (deltas[0] @ layer.weight) * (values > 0))
            pairs = [*zip(deltas, inputs, strict=True)]
            squares = [d.double().square().sum(1) * (a.double().square().sum(1) + 1) for d, a in pairs]
            factors = (CLIP / torch.stack(squares).sum(0).sqrt()).clamp_max(1).unsqueeze(1)
            weighted = [d.double() * factors for d in deltas]
            sums = [(w.T @ a.double(), w.sum(0)) for w, a in zip(weighted, inputs, strict=True)]
            return flat(tuple(part for pair in sums for part in pair))

    return step


def opacus(model: nn.Module, kind: str, batch: int, noise: float = 0.0) -> Step:
    """Returns opacus's clipped gradient, with noise and without a step: `kind` is `hooks` or `ghost`."""
    from opacus import PrivacyEngine

    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    warnings.filterwarnings("ignore", message="Secure RNG turned off")
    model = copy.deepcopy(model).train()
    shapes = DataLoader(TensorDataset(torch.zeros(batch, 1)), batch_size=batch)  # passes the batch size to opacus
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        criterion=nn.CrossEntropyLoss(),
        data_loader=shapes,
        noise_multiplier=noise,
        max_grad_norm=CLIP,
        poisson_sampling=False,
        grad_sample_mode=kind,
    )
    private, optimizer, criterion = made[0], made[1], made[2] if kind == "ghost" else nn.CrossEntropyLoss()

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        criterion(private(x), y).backward()
        optimizer.step()

    return step


def flat(gradients: tuple[Tensor, ...]) -> Tensor:
    """Returns one vector."""
    return torch.cat([g.flatten() for g in gradients])
