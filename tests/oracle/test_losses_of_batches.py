"""A loss that is not the mean or sum of its examples' losses is refused, whatever outputs and targets look like."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map
from torch.utils.data import TensorDataset

import fedpriv as fp

B, C = 9, 5
DRAW = torch.Generator().manual_seed(0)
SCORES, OTHERS = torch.randn(B, C, generator=DRAW), torch.randn(B, C, generator=DRAW)
SIDE = torch.randn(B, generator=DRAW)
LABELS = torch.tensor([0, 1, 2, 3, 4, 1, 0, 2, 2])
BITS = torch.tensor([0.0, 1, 0, 0, 0, 0, 1, 0, 0])
PRICES = torch.linspace(0, 9, B)
WORDS = torch.randint(1, C, (B, 4), generator=DRAW)
PADDED = WORDS.where(torch.arange(4) < torch.arange(B)[:, None] % 4 + 1, -100)
WEIGHT = torch.tensor([1.0, 2, 3, 4, 5])
Named = namedtuple("Named", "logits hidden")


@dataclass
class Plain:
    """An object that is not registered with any pytree library."""

    logits: Tensor


class Lookup(nn.Module):
    """Returns the rows of a nesting of tensors, times a trained number."""

    def __init__(self, outputs: Any, wrap: Any = None) -> None:
        super().__init__()
        self.outputs, self.wrap, self.scale = outputs, wrap, nn.Parameter(torch.ones(()))

    def forward(self, index: Tensor) -> Any:
        rows = tree_map(lambda values: values[index] * self.scale, self.outputs)
        return self.wrap(rows) if self.wrap else rows


def start(loss: Any, outputs: Any, targets: Tensor, wrap: Any = None) -> fp.Training:
    data = TensorDataset(torch.arange(B), targets)
    clients = fp.make_clients(Lookup(outputs, wrap), loss, [data])
    return fp.Training(clients, fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1)


def weighted_bce(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    weights = torch.where(targets == 1, 9.0, 1.0)
    return (weights * losses).sum() / weights.sum()


def weighted_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    weights = torch.where(targets > 5, 9.0, 1.0)
    return (weights * (outputs - targets) ** 2).sum() / weights.sum()


def contrastive(outputs: Any, _: Tensor) -> Tensor:
    scores = F.normalize(outputs[0]) @ F.normalize(outputs[1]).T / 0.1
    return F.cross_entropy(scores, torch.arange(len(scores)))


def ranking(outputs: Tensor, targets: Tensor) -> Tensor:
    sign = torch.sign(targets[:, None] - targets[None])
    return F.softplus(-sign * (outputs[:, None] - outputs[None]))[sign != 0].mean()


def batch_dice(outputs: Any, targets: Tensor) -> Tensor:
    p = outputs["p"].sigmoid()
    return 1 - 2 * (p * targets).sum() / (p.sum() + targets.sum())


def flooding(outputs: Tensor, labels: Tensor) -> Tensor:
    return (F.cross_entropy(outputs, labels) - 0.1).abs() + 0.1


def mixup(outputs: Tensor, labels: Tensor) -> Tensor:
    order = torch.randperm(len(labels))
    return F.cross_entropy(outputs, labels) + F.cross_entropy(outputs, labels[order])


def few_only(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels) * (1 if len(labels) < 100 else 2)


MIXING = {
    "weights in a dict": (lambda o, y: F.cross_entropy(o["logits"], y, weight=WEIGHT), {"logits": SCORES}, LABELS),
    "weighted module in a dict": (
        lambda o, y: nn.CrossEntropyLoss(weight=WEIGHT)(o["a"]["b"], y),
        {"a": {"b": SCORES}},
        LABELS,
    ),
    "norm of a batch in a named tuple": (
        lambda o, y: F.cross_entropy(o.logits, y) + o.hidden.norm(),
        Named(SCORES, OTHERS),
        LABELS,
    ),
    "contrastive": (contrastive, (SCORES, OTHERS), LABELS),
    "dice of a batch": (batch_dice, {"p": SIDE}, BITS),
    "hand-weighted bce": (weighted_bce, SIDE, BITS),
    "weights by large targets": (weighted_squares, SIDE, PRICES),
    "ranking": (ranking, SIDE, PRICES),
    "flooding": (flooding, SCORES, LABELS),
    "mixup": (mixup, SCORES, LABELS),
    "another one for large batches": (few_only, SCORES, LABELS),
    "penalty on a batch's mean": (lambda o, y: F.mse_loss(o[0], y) + o[0].mean() ** 2, (SIDE,), PRICES),
}


@pytest.mark.parametrize("kind", MIXING)
def test_loss_mixing_examples_raises(kind: str) -> None:
    with pytest.raises(fp.ConfigError, match=r"^loss = "):
        start(*MIXING[kind])


def test_mixing_loss_of_object_output_raises() -> None:
    loss = lambda o, y: F.cross_entropy(o.logits, y, weight=WEIGHT)  # noqa: E731
    with pytest.raises(fp.ConfigError, match="neither the mean"):
        start(loss, SCORES, LABELS, wrap=Plain)


APART = {
    "dict": (lambda o, y: F.cross_entropy(o["logits"], y), {"logits": SCORES}, LABELS, None),
    "object": (lambda o, y: F.cross_entropy(o.logits, y), SCORES, LABELS, Plain),
    "weights over a public number": (lambda o, y: (torch.where(y > 5, 9.0, 1.0) * (o - y) ** 2).mean(), SIDE, PRICES),
    "dice of each": (
        lambda o, y: (1 - 2 * (o.sigmoid() * y) / (o.sigmoid() + y + 1)).mean(),
        SIDE,
        BITS,
    ),
    "noise on the outputs": (lambda o, y: F.cross_entropy(o + 0.1 * torch.randn_like(o), y), SCORES, LABELS),
    "extra outputs": (
        lambda o, y: F.cross_entropy(o[0], y) + 0.01 * o[1].square().sum(1).mean(),
        (SCORES, OTHERS),
        LABELS,
    ),
    "sequences": (
        lambda o, y: F.cross_entropy(o.unflatten(1, (C, 1)).expand(-1, -1, 4), y),
        SCORES,
        WORDS,
    ),
}


@pytest.mark.parametrize("kind", APART)
def test_per_example_loss_accepted_without_warning(kind: str) -> None:
    training = start(*APART[kind])
    assert not [text for text in training.warnings if "loss" in text]


def test_mean_over_unpadded_labels_warns() -> None:
    loss = lambda o, y: F.cross_entropy(o["s"].unflatten(1, (C, 1)).expand(-1, -1, 4), y)  # noqa: E731
    assert any("mean over the labels of each example" in text for text in start(loss, {"s": SCORES}, PADDED).warnings)


def test_loss_sum_over_batch_warns() -> None:
    loss = lambda o, y: F.cross_entropy(o["s"], y, reduction="sum")  # noqa: E731
    assert any("sums over a batch" in text for text in start(loss, {"s": SCORES}, LABELS).warnings)


def test_loss_without_gradient_raises() -> None:
    with pytest.raises(fp.ConfigError, match="a gradient of 0 for each tested example"):
        start(lambda o, y: (o * 0).sum(1).mean(), SCORES, LABELS)


def test_parameter_penalty_in_loss_raises() -> None:
    weight = nn.Parameter(torch.ones(3))
    with pytest.raises(fp.ConfigError, match="its gradient would be dropped"):
        start(lambda o, y: F.cross_entropy(o["s"], y) + weight.square().sum(), {"s": SCORES}, LABELS)


def test_rare_class_of_last_client_tested() -> None:
    """The loss mixes only examples of a class that one example of the last client has."""

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        weights = torch.where(labels == 4, 9.0, 1.0)
        return (weights * F.cross_entropy(outputs, labels, reduction="none")).sum() / weights.sum()

    parts = [
        TensorDataset(torch.arange(B), torch.zeros(B).long() + (i == 3) * 4 * (torch.arange(B) == 7)) for i in range(4)
    ]
    clients = fp.make_clients(Lookup(SCORES), loss, parts)
    with pytest.raises(fp.ConfigError, match="neither the mean"):
        fp.Training(clients, fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1)
