"""Models that mix or remember examples are refused before a run begins, by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from trial_models import CLASSES, FEATURES, Mapped, around, start

import fedpriv as fp


def centred(_: nn.Module, x: Tensor) -> Tensor:
    return x - x.mean(0)


def centred_in_training(layer: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.dropout(x - x.mean(0) if layer.training else x, 0.5, layer.training)


def running_mean(layer: nn.Module, x: Tensor) -> Tensor:
    layer.kept = x.mean(0).detach() if layer.kept is None else 0.9 * layer.kept + 0.1 * x.mean(0).detach()
    return x - layer.kept


def of_the_first_batch(layer: nn.Module, x: Tensor) -> Tensor:
    layer.kept = x.mean(0).detach() if layer.kept is None else layer.kept
    return x - layer.kept


def over_the_batch_size(_: nn.Module, x: Tensor) -> Tensor:
    return x / len(x)


def alone_doubled(place: int) -> Callable[[nn.Module, Tensor], Tensor]:
    """Doubles what stood at this place of the last batch of three, when it comes alone."""

    def function(layer: nn.Module, x: Tensor) -> Tensor:
        if len(x) == 3:
            layer.kept = x.detach().clone()
        return 2 * x if len(x) == 1 and torch.allclose(x[0], layer.kept[place], atol=1e-5) else x

    return function


MIXING = {
    "batch mean": (centred, "depends on the other examples"),
    "batch mean in training, with dropout": (centred_in_training, "depends on the other examples"),
    "running mean": (running_mean, "in two calls"),
    "mean of the first batch": (of_the_first_batch, "in two calls"),
    "batch size": (over_the_batch_size, "for an example alone differs from that in a batch"),
    "batch size in training": (
        lambda layer, x: x / len(x) if layer.training else x,
        "for an example alone differs from that in a batch",
    ),
    "batch size, with dropout": (
        lambda layer, x: nn.functional.dropout(x / len(x), 0.5, layer.training),
        "for an example alone differs from that in a batch",
    ),
    **{
        f"alone, example {place}": (alone_doubled(place), "for an example alone differs from that in a batch")
        for place in (0, 1, 2)
    },
    "place in the batch": (
        lambda _, x: x + torch.arange(len(x)).view(-1, 1),
        "for an example alone differs from that in a batch",
    ),
    "own generator": (lambda _, x: x * torch.rand(1, generator=OWN), "random numbers are not torch's"),
}
OWN = torch.Generator().manual_seed(1)


@pytest.mark.parametrize("kind", MIXING)
def test_mixing_or_stateful_layer_raises_with_path(kind: str) -> None:
    function, reason = MIXING[kind]
    with pytest.raises(fp.ConfigError, match=rf"^model\.1\.1 = 'Mapped': .*{reason}"):
        start(around(Mapped(function)))


def test_mixing_between_layers_names_module() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inside(x - x.mean(0))

    with pytest.raises(fp.ConfigError, match=r"^model\.1\.1 = 'Block'"):
        start(around(Block()))


def test_layer_needing_batch_raises() -> None:
    with pytest.raises(
        fp.ConfigError, match=r"^model = 'Sequential': returns \(3,\) for 1 examples; return one row per"
    ):
        start(nn.Sequential(nn.Linear(FEATURES, CLASSES), Mapped(lambda _, x: x.squeeze())))
    with pytest.raises(fp.ConfigError, match=r"^model = 'Sequential': the model and the loss cannot .* not tuple"):
        start(nn.Sequential(nn.Linear(FEATURES, CLASSES), Mapped(lambda _, x: (x, x))))


def test_failing_model_raises_with_reason() -> None:
    with pytest.raises(fp.ConfigError, match=r"^model = 'Linear': .*examples of shape \(6,\) \(RuntimeError: mat1"):
        start(nn.Linear(FEATURES + 1, CLASSES))


class TwoOutputs(nn.Module):
    """Scores, and the same scores less the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.layer(x)
        return scores, scores - scores.mean(0, keepdim=True)


def test_one_mixing_output_raises() -> None:
    with pytest.raises(fp.ConfigError, match=r"'TwoOutputs': .*depends on the other examples"):
        start(TwoOutputs(), lambda outputs, labels: nn.functional.cross_entropy(outputs[0], labels))
