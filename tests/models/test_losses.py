"""Losses that people write: each is trained as plain torch trains the mean of single examples' losses, or refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from plain_torch import assert_same_parameters, classes, linear, rows, trained_by_torch, trained_here
from torch import Tensor, nn
from torch.nn import functional as F

import fedpriv as fp
from fedpriv import models
from fedpriv.clients.batch import Batch
from fedpriv.clients.layout import Layout
from fedpriv.errors import ConfigError
from fedpriv.oracle.backend_selection import build_backend
from fedpriv.oracle.backends.functional import Functional
from fedpriv.oracle.backends.loop import LoopBackend
from fedpriv.privacy.clipping import Clip

X, Y = classes()
WEIGHTS = torch.tensor([1.0, 5.0, 20.0])
BINARY = (Y > 0).float()
NUMBERS = torch.linspace(-1, 1, len(Y))
MANY = torch.stack([Y == 0, Y > 0, Y == 2], 1).float()


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    cross_entropy = F.cross_entropy(outputs, targets, reduction="none")
    return ((1 - torch.exp(-cross_entropy)) ** 2 * cross_entropy).mean()


def focal_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    cross_entropy = F.cross_entropy(outputs, targets, reduction="none")
    return (1 - torch.exp(-cross_entropy)) ** 2 * cross_entropy


def weighted(**options: Any) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda outputs, targets: F.cross_entropy(outputs, targets, weight=WEIGHTS, reduction="none", **options)


CLASS_LOSSES: dict[str, tuple[Any, Callable[[Tensor, Tensor], Tensor]]] = {
    "cross entropy, as a module": (nn.CrossEntropyLoss(), lambda o, t: F.cross_entropy(o, t, reduction="none")),
    "cross entropy, as a function": (F.cross_entropy, lambda o, t: F.cross_entropy(o, t, reduction="none")),
    "a lambda": (lambda o, t: F.cross_entropy(o, t), lambda o, t: F.cross_entropy(o, t, reduction="none")),
    "label smoothing": (
        nn.CrossEntropyLoss(label_smoothing=0.1),
        lambda o, t: F.cross_entropy(o, t, label_smoothing=0.1, reduction="none"),
    ),
    "class weights": (nn.CrossEntropyLoss(weight=WEIGHTS), weighted()),
    "weights and label smoothing": (
        nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1),
        weighted(label_smoothing=0.1),
    ),
    "weights by functools.partial": (functools.partial(F.cross_entropy, weight=WEIGHTS), weighted()),
    "focal loss written by hand": (focal, focal_losses),
    "multi margin": (nn.MultiMarginLoss(), lambda o, t: F.multi_margin_loss(o, t, reduction="none")),
    "multi margin with weights": (
        nn.MultiMarginLoss(weight=WEIGHTS),
        lambda o, t: F.multi_margin_loss(o, t, weight=WEIGHTS, reduction="none"),
    ),
    "reduction none": (
        nn.CrossEntropyLoss(reduction="none"),
        lambda o, t: F.cross_entropy(o, t, reduction="none"),
    ),
    "reduction none, as a lambda": (
        lambda o, t: F.cross_entropy(o, t, reduction="none"),
        lambda o, t: F.cross_entropy(o, t, reduction="none"),
    ),
    "reduction sum": (nn.CrossEntropyLoss(reduction="sum"), lambda o, t: F.cross_entropy(o, t, reduction="none")),
    "reduction sum, as a lambda": (
        lambda o, t: F.cross_entropy(o, t, reduction="sum"),
        lambda o, t: F.cross_entropy(o, t, reduction="none"),
    ),
    "a loss of ours": (models.Loss(focal_losses), focal_losses),
}


@pytest.mark.parametrize("name", CLASS_LOSSES)
@pytest.mark.parametrize("backend", ["auto", "loop"])
def test_class_losses_match_torch(name: str, backend: Any) -> None:
    loss, losses = CLASS_LOSSES[name]
    result, _ = trained_here(linear(3), loss, rows(X, Y), compute=fp.Compute(backend=backend))
    assert_same_parameters(result, trained_by_torch(linear(3), losses, X, Y))


def test_sum_reduction_warns_once() -> None:
    """The loss is tested with several targets, and each shows the same reduction."""
    _, warned = trained_here(linear(3), lambda o, t: F.cross_entropy(o, t, reduction="sum"), rows(X, Y))
    assert sum("sums over a batch" in text for text in warned) == 1


def test_weighted_nll_matches_torch() -> None:
    def model() -> nn.Module:
        return nn.Sequential(linear(3), nn.LogSoftmax(1))

    result, warned = trained_here(model(), nn.NLLLoss(weight=WEIGHTS), rows(X, Y))
    assert_same_parameters(
        result, trained_by_torch(model(), lambda o, t: F.nll_loss(o, t, WEIGHTS, reduction="none"), X, Y)
    )
    assert any("NLLLoss(weight=...)" in text and "number of examples" in text for text in warned)


NUMBER_LOSSES: dict[str, tuple[Any, Callable[[Tensor, Tensor], Tensor]]] = {
    "squared error": (nn.MSELoss(), lambda o, t: (o - t).square()),
    "absolute error": (nn.L1Loss(), lambda o, t: (o - t).abs()),
    "Huber": (nn.HuberLoss(), lambda o, t: F.huber_loss(o, t, reduction="none")),
    "smooth L1": (nn.SmoothL1Loss(), lambda o, t: F.smooth_l1_loss(o, t, reduction="none")),
    "Poisson": (nn.PoissonNLLLoss(), lambda o, t: F.poisson_nll_loss(o, t, reduction="none")),
}


@pytest.mark.parametrize("name", NUMBER_LOSSES)
def test_regression_losses_match_torch(name: str) -> None:
    loss, losses = NUMBER_LOSSES[name]
    targets = NUMBERS[:, None].abs()
    result, _ = trained_here(linear(1), loss, rows(X, targets))
    assert_same_parameters(result, trained_by_torch(linear(1), losses, X, targets))


def test_output_column_and_flat_targets_not_broadcast() -> None:
    """The batch loss of torch compares all outputs with all targets; the intended loss compares per example."""
    result, warned = trained_here(linear(1), nn.MSELoss(), rows(X, NUMBERS), test=rows(X, NUMBERS))
    model = trained_by_torch(linear(1), lambda o, t: (o[:, 0] - t).square(), X, NUMBERS)
    assert_same_parameters(result, model)
    assert any("every output of a batch with every target" in text for text in warned)
    with torch.no_grad():
        assert result.test_loss == pytest.approx(float((model(X)[:, 0] - NUMBERS).square().mean()), rel=1e-4)


def test_flat_outputs_and_target_column_not_broadcast() -> None:
    """The same mistake from the other side."""
    model = nn.Sequential(linear(1), nn.Flatten(0))
    result, warned = trained_here(model, nn.MSELoss(), rows(X, NUMBERS[:, None]))
    expected = trained_by_torch(linear(1), lambda o, t: (o - t).square(), X, NUMBERS[:, None])
    assert_same_parameters(result, expected)
    assert any("every output of a batch with every target" in text for text in warned)


def test_bce_pos_weight_matches_torch() -> None:
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0))
    targets = BINARY[:, None]
    result, _ = trained_here(linear(1), loss, rows(X, targets))
    expected = trained_by_torch(
        linear(1),
        lambda o, t: F.binary_cross_entropy_with_logits(o, t, pos_weight=torch.tensor(4.0), reduction="none"),
        X,
        targets,
    )
    assert_same_parameters(result, expected)


def test_multilabel_weight_matches_torch() -> None:
    weight = torch.tensor([1.0, 2.0, 3.0])
    result, _ = trained_here(linear(3), nn.BCEWithLogitsLoss(weight=weight), rows(X, MANY))
    expected = trained_by_torch(
        linear(3),
        lambda o, t: F.binary_cross_entropy_with_logits(o, t, weight=weight, reduction="none").mean(1),
        X,
        MANY,
    )
    assert_same_parameters(result, expected)


def test_soft_targets_match_torch() -> None:
    soft = torch.softmax(torch.randn(len(X), 3, generator=torch.Generator().manual_seed(5)), 1)
    result, _ = trained_here(linear(3), nn.CrossEntropyLoss(), rows(X, soft))
    assert_same_parameters(
        result, trained_by_torch(linear(3), lambda o, t: F.cross_entropy(o, t, reduction="none"), X, soft)
    )


@pytest.mark.parametrize("backend", ["auto", "vmap", "loop"])
def test_ignored_labels_excluded_from_example_mean(backend: Any) -> None:
    """As for a padded sentence: its loss is the mean over its own words."""
    targets = torch.stack([Y, (Y + 1) % 3], 1)
    targets[::2, 1] = -100

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = linear(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).unflatten(1, (3, 2))

    def losses(outputs: Tensor, labels: Tensor) -> Tensor:
        return torch.stack([F.cross_entropy(o[None], t[None]) for o, t in zip(outputs, labels, strict=True)])

    result, _ = trained_here(Words(), nn.CrossEntropyLoss(), rows(X, targets), compute=fp.Compute(backend=backend))
    assert_same_parameters(result, trained_by_torch(Words(), losses, X, targets))


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum"), models.Loss(models.cross_entropy)]
)
def test_closed_gradients_match_autograd(loss: nn.Module) -> None:
    outputs, labels = torch.randn(7, 3, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 2, 2, 1, 0, 1])
    outputs.data[1] = torch.tensor([torch.inf, 0.0, 0.0])
    outputs.data[2] *= 300
    closed = Functional(linear(3), loss).closed_gradients(outputs, labels)
    (recorded,) = torch.autograd.grad(F.cross_entropy(outputs, labels, reduction="sum"), outputs)
    assert closed is not None
    assert bool(recorded[1].isnan().all())
    torch.testing.assert_close(closed, recorded, rtol=1e-12, atol=1e-15, equal_nan=True)


def test_closed_gradients_bitwise_equal_any_batch() -> None:
    outputs, labels = torch.randn(130, 10) * 3, torch.arange(130) % 10
    function = Functional(linear(10), nn.CrossEntropyLoss()).closed_gradients
    whole = function(outputs, labels)
    assert whole is not None
    with_ignored = function(outputs, labels.index_fill(0, torch.tensor([3]), -100))
    assert with_ignored is not None and torch.equal(with_ignored[4:], whole[4:]) and not with_ignored[3].any()
    for size in (1, 7, 16, 33, 129):
        part = function(outputs[-size:], labels[-size:])
        assert part is not None and torch.equal(part, whole[-size:])


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        (nn.CrossEntropyLoss(), torch.tensor([0, -100, 1])),
        (nn.CrossEntropyLoss(ignore_index=0), torch.tensor([0, 1, 2])),
        (nn.CrossEntropyLoss(label_smoothing=0.1), torch.tensor([0, 1, 2])),
        (nn.CrossEntropyLoss(weight=WEIGHTS), torch.tensor([0, 1, 2])),
        (nn.CrossEntropyLoss(), torch.softmax(torch.randn(3, 3), 1)),
    ],
    ids=["ignored", "a class ignored", "smoothing", "weights", "probabilities"],
)
@pytest.mark.parametrize(
    "model", [linear(3), nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))], ids=["linear", "chain"]
)
def test_losses_without_closed_gradient_match_loop(loss: nn.Module, labels: Tensor, model: nn.Module) -> None:
    x = torch.randn(3, 4)
    batch = Batch(torch.arange(1), x[None], labels[None], torch.ones(1, 3, dtype=torch.bool))
    row = Layout.of(model).row_of(model).unsqueeze(0)
    sums, _ = build_backend("auto", model, loss).clipped_sum(row, batch, Clip(0.3))
    expected, _ = LoopBackend(model, loss).clipped_sum(row, batch, Clip(0.3))
    torch.testing.assert_close(sums, expected, rtol=1e-5, atol=1e-6)


def test_class_weights_raise_positives_and_warn() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(400, 4, generator=generator)
    labels = (inputs[:, 0] + torch.randn(400, generator=generator) > 1.5).long()
    weight = torch.tensor([1.0, 20.0])
    plain, _ = trained_here(linear(2), nn.CrossEntropyLoss(), rows(inputs, labels))
    more, warned = trained_here(linear(2), nn.CrossEntropyLoss(weight=weight), rows(inputs, labels))
    positives = [int((result.model(inputs).argmax(1) == 1).sum()) for result in (plain, more)]
    assert positives[1] > 1.5 * positives[0]
    assert any("CrossEntropyLoss(weight=...)" in text for text in warned)


def test_evaluation_loss_is_mean_for_any_reduction() -> None:
    for loss in (
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.CrossEntropyLoss(reduction="none"),
        lambda o, t: F.cross_entropy(o, t, reduction="none"),
    ):
        result, _ = trained_here(linear(3), loss, rows(X, Y), test=rows(X, Y))
        with torch.no_grad():
            assert result.test_loss == pytest.approx(float(F.cross_entropy(result.model(X), Y)), rel=1e-5)
    result, _ = trained_here(linear(3), nn.CrossEntropyLoss(weight=WEIGHTS), rows(X, Y), test=rows(X, Y))
    with torch.no_grad():
        expected = (F.cross_entropy(result.model(X), Y, reduction="none") * WEIGHTS[Y]).mean()
    assert result.test_loss == pytest.approx(float(expected), rel=1e-5)


def refused(model: nn.Module, loss: Any, targets: Tensor = Y) -> str:
    with pytest.raises(ConfigError) as found:
        trained_here(model, loss, rows(X, targets))
    return str(found.value)


def test_weighted_lambda_loss_raises_with_fix() -> None:
    text = refused(linear(3), lambda o, t: F.cross_entropy(o, t, weight=WEIGHTS))
    assert "neither the mean" in text
    assert "fedpriv.models.Loss(lambda outputs, targets: ...)" in text
    assert "reduction='none'" in text
    loss = models.Loss(weighted())
    result, _ = trained_here(linear(3), loss, rows(X, Y))
    assert_same_parameters(result, trained_by_torch(linear(3), weighted(), X, Y))


def test_batch_penalty_loss_raises() -> None:
    assert "neither the mean" in refused(linear(3), lambda o, t: F.cross_entropy(o, t) + o.mean(0).square().sum())


def test_contrastive_loss_raises() -> None:
    def contrast(outputs: Tensor, targets: Tensor) -> Tensor:
        near = outputs @ outputs.T
        same = (targets[:, None] == targets[None]).float()
        return -(torch.log_softmax(near, 1) * same / same.sum(1, keepdim=True)).sum(1).mean()

    assert "neither the mean" in refused(linear(3), contrast)


def test_position_weighted_loss_raises() -> None:
    loss = nn.BCEWithLogitsLoss(weight=torch.rand(len(X), 1))
    assert "loss" in refused(linear(1), loss, BINARY[:, None])


def test_parameter_penalty_loss_raises_with_fix() -> None:
    model = linear(3)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) + 0.1 * sum(p.square().sum() for p in model.parameters())

    text = refused(model, loss)
    assert "reads a parameter of the shape of the model's weight" in text
    assert "weight_decay" in text
    assert "regularizer" in text


def test_other_module_penalty_loss_raises() -> None:
    other = nn.Linear(2, 2)
    text = refused(linear(3), lambda o, t: F.cross_entropy(o, t) + other.weight.sum())
    assert "reads a parameter of shape (2, 2)" in text


def test_loss_with_trainable_parameter_raises() -> None:
    class Temperature(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.temperature = nn.Parameter(torch.ones(1))

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(outputs / self.temperature, targets)

    text = refused(linear(3), Temperature())
    assert "has its own parameter temperature" in text
    assert "part of the model" in text
    frozen = Temperature().requires_grad_(False)
    result, _ = trained_here(linear(3), frozen, rows(X, Y))
    assert_same_parameters(
        result, trained_by_torch(linear(3), lambda o, t: F.cross_entropy(o, t, reduction="none"), X, Y)
    )


def test_forward_pass_state_change_warns_once() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = linear(3)
            self.calls = 0
            self.register_buffer("total", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.total += 1
            return self.layer(x)

    result, warned = trained_here(Counts(), nn.CrossEntropyLoss(), rows(X, Y))
    assert sum("the buffers total" in text for text in warned) == 1
    assert sum("the attributes calls" in text for text in warned) == 1
    assert float(result.model.total) == 0.0
