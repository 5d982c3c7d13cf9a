"""Models and losses that mix or remember examples are refused before a run begins, by name; harmless ones are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv import models
from fedpriv.clients.batch import Batch
from fedpriv.oracle.backends import BACKENDS
from fedpriv.privacy.clipping import Clip

FEATURES, CLASSES = 6, 3


def clients(model: nn.Module, loss=None, x: Tensor | None = None, y: Tensor | None = None) -> list[fp.Client]:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(12, FEATURES, generator=draw) if x is None else x
    y = torch.randint(0, CLASSES, (len(x),), generator=draw) if y is None else y
    # equal in content, for that is nothing to a trial, and examples of their own
    both = [TensorDataset(x[::2].clone(), y[::2].clone()), TensorDataset(x, y)]
    return fp.make_clients(model, loss or nn.CrossEntropyLoss(), both)


def start(*args: object, **options: object) -> fp.Training:
    return fp.Training(clients(*args, **options), fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1)


def around(layer: nn.Module) -> nn.Module:
    """The layer in the middle of a network."""
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.Sequential(nn.Tanh(), layer), nn.Linear(4, CLASSES))


class Mapped(nn.Module):
    """A layer from a function, with an attribute that it may misuse as a memory."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.kept = function, None

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


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
    "running mean": (running_mean, "differently when it is asked again"),
    "mean of the first batch": (of_the_first_batch, "differently when it is asked again"),
    "batch size": (over_the_batch_size, "alone is not what it gives in a batch"),
    "batch size in training": (
        lambda layer, x: x / len(x) if layer.training else x,
        "alone is not what it gives in a batch",
    ),
    "batch size, with dropout": (
        lambda layer, x: nn.functional.dropout(x / len(x), 0.5, layer.training),
        "alone is not what it gives in a batch",
    ),
    **{
        f"alone, example {place}": (alone_doubled(place), "alone is not what it gives in a batch")
        for place in (0, 1, 2)
    },
    "place in the batch": (
        lambda _, x: x + torch.arange(len(x)).view(-1, 1),
        "alone is not what it gives in a batch",
    ),
    "own generator": (lambda _, x: x * torch.rand(1, generator=OWN), "random numbers that are not torch's"),
}
OWN = torch.Generator().manual_seed(1)


@pytest.mark.parametrize("kind", MIXING)
def test_a_layer_that_mixes_or_remembers_is_refused_by_its_path(kind: str) -> None:
    function, reason = MIXING[kind]
    with pytest.raises(fp.ConfigError, match=rf"^model\.1\.1 = 'Mapped': .*{reason}"):
        start(around(Mapped(function)))


def test_mixing_between_layers_is_laid_to_the_module_whose_forward_does_it() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inside(x - x.mean(0))

    with pytest.raises(fp.ConfigError, match=r"^model\.1\.1 = 'Block'"):
        start(around(Block()))


def test_a_layer_that_needs_a_whole_batch_is_refused() -> None:
    with pytest.raises(fp.ConfigError, match=r"^model = 'Sequential': gives \(3,\) for 1 examples"):
        start(nn.Sequential(nn.Linear(FEATURES, CLASSES), Mapped(lambda _, x: x.squeeze())))
    with pytest.raises(fp.ConfigError, match=r"^model = 'Sequential': it and the loss cannot .* not tuple"):
        start(nn.Sequential(nn.Linear(FEATURES, CLASSES), Mapped(lambda _, x: (x, x))))


class SharedBackward(Function):
    """The identity, whose gradient is scaled by the batch's mean."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].mean()


def test_a_backward_pass_that_mixes_is_refused() -> None:
    with pytest.raises(fp.ConfigError, match=r"^model = 'Sequential': an example's gradient depends on the other"):
        start(around(Mapped(lambda _, x: SharedBackward.apply(x))))


# --- losses


def less_the_mean(outputs: Tensor, labels: Tensor) -> Tensor:
    losses = models.cross_entropy(outputs, labels)
    return 100 * (losses - losses.mean())


def same_value_other_gradient(outputs: Tensor, labels: Tensor) -> Tensor:
    losses = models.cross_entropy(outputs, labels)
    return losses + 50 * (outputs.mean() - outputs.mean().detach())


def one_number(outputs: Tensor, labels: Tensor) -> Tensor:
    return models.cross_entropy(outputs, labels).mean()


@pytest.mark.parametrize("form", [less_the_mean, same_value_other_gradient, one_number])
def test_a_per_example_loss_that_looks_at_the_whole_batch_is_refused_by_name(form) -> None:
    for backend in ("linear", "vmap"):
        made = clients(models.SoftmaxRegression(FEATURES, CLASSES), models.Loss(form))
        with pytest.raises(fp.ConfigError, match=rf"^loss = 'Loss': its per-example form {form.__name__} "):
            fp.Training(made, fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1, compute=fp.Compute(backend))


def test_why_such_a_loss_must_be_refused() -> None:
    """One example of 100 moves the clipped sum by far more than the 2 that two clipped gradients may differ by."""
    torch.manual_seed(0)
    model, x, y = (
        models.SoftmaxRegression(FEATURES, CLASSES),
        1 + 0.1 * torch.randn(1, 100, FEATURES),
        torch.zeros(1, 100).long(),
    )
    batch = Batch(torch.zeros(1, dtype=torch.long), x, y, torch.ones(1, 100, dtype=torch.bool))
    neighbour = Batch(batch.rows, x.clone(), y, batch.mask)
    batch.inputs[0, 0], neighbour.inputs[0, 0] = 1e4, -1e4

    def towards_the_mean(outputs: Tensor, labels: Tensor) -> Tensor:
        return 100 * models.cross_entropy(outputs, labels) * outputs.detach().mean().tanh()

    linear, row = BACKENDS["linear"](model, models.Loss(towards_the_mean)), torch.ones(1, FEATURES * CLASSES)
    one, other = (linear.clipped_sum(row, b, Clip(1.0))[0] for b in (batch, neighbour))
    assert float((one - other).norm()) > 100
    with pytest.raises(fp.ConfigError, match="its per-example form towards_the_mean"):
        start(model, models.Loss(towards_the_mean))


def test_a_loss_with_a_memory_is_refused() -> None:
    seen: list[Tensor] = []

    def drifting(outputs: Tensor, labels: Tensor) -> Tensor:
        seen.append(outputs.detach().mean())
        return nn.functional.cross_entropy(outputs, labels) * (1 + len(seen))

    with pytest.raises(fp.ConfigError, match=r"^loss = 'drifting': answers the same example differently"):
        start(nn.Linear(FEATURES, CLASSES), drifting)

    def drifting_in_batches(outputs: Tensor, labels: Tensor) -> Tensor:
        seen.extend([outputs] if len(outputs) > 1 else [])
        return nn.functional.cross_entropy(outputs, labels, reduction="none") * (1 + max(len(seen) - 1, 0))

    seen.clear()
    with pytest.raises(fp.ConfigError, match=r"per-example form drifting_in_batches answers the same example diff"):
        start(nn.Linear(FEATURES, CLASSES), models.Loss(drifting_in_batches))


def test_a_loss_of_many_numbers_is_refused() -> None:
    with pytest.raises(fp.ConfigError, match=r"^loss = 'MSELoss': gives 3 numbers for one example"):
        start(nn.Linear(FEATURES, CLASSES), nn.MSELoss(reduction="none"), y=torch.rand(12, CLASSES))


def test_a_loss_without_trainable_parameters_in_it_is_refused() -> None:
    class Unused(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    with pytest.raises(fp.ConfigError, match=r"^model = 'Unused': no trainable parameter has a part in its loss"):
        start(Unused(FEATURES, CLASSES))


def test_what_cannot_be_computed_at_all_says_so() -> None:
    with pytest.raises(fp.ConfigError, match=r"^model = 'Linear': .*examples of shape \(6,\) \(RuntimeError: mat1"):
        start(nn.Linear(FEATURES + 1, CLASSES))


# --- what must go on working


class Tokens(nn.Module):
    """Needs whole numbers, and its recurrence runs over the second axis."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(most, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        state = torch.zeros(len(words), 4)
        for step in self.embed(words).transpose(0, 1):  # [n, t, 4] -> [t, n, 4]
            state = torch.tanh(self.mix(state) + step)
        return self.head(state)


class LateWords(Tokens):
    """Has no embedding for the small numbers that are made up, so it is tried out on real examples."""

    def forward(self, words: Tensor) -> Tensor:
        return super().forward(words - 100)


def counting(layer: nn.Module, x: Tensor) -> Tensor:
    layer.kept = 1 if layer.kept is None else layer.kept + 1
    return x


HARMLESS = {
    "dropout": around(nn.Dropout(0.5)),
    "noise": around(Mapped(lambda layer, x: x + torch.randn_like(x) if layer.training else x)),
    "noise in eval mode too": around(Mapped(lambda _, x: x + torch.randn_like(x))),
    "layer norm": around(nn.LayerNorm(4)),
    "a counter that nothing reads": around(Mapped(counting)),
    "zeros at the start": models.SoftmaxRegression(FEATURES, CLASSES, bias=True),
    "eval mode": around(nn.Dropout(0.5)).eval(),
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_harmless_layers_are_let_through(kind: str) -> None:
    assert len(list(start(HARMLESS[kind]))) == 1


@pytest.mark.parametrize("model", [Tokens(120), LateWords(20)])
def test_whole_numbers_are_made_up_or_taken_from_the_data(model: nn.Module) -> None:
    words = torch.randint(100, 120, (12, 5), generator=torch.Generator().manual_seed(0))
    assert len(list(start(model, x=words))) == 1


def test_a_model_that_is_tried_on_real_examples_is_refused_too() -> None:
    class Mixing(LateWords):
        def forward(self, words: Tensor) -> Tensor:
            outputs = super().forward(words)
            return outputs - outputs.mean(0)

    words = torch.randint(100, 120, (12, 5), generator=torch.Generator().manual_seed(0))
    with pytest.raises(fp.ConfigError, match=r"^model = 'Mixing': .*depends on the other examples"):
        start(Mixing(20), x=words)


def test_the_trial_leaves_no_trace() -> None:
    """Neither in the model, nor in torch's generator, nor in what is trained."""
    model = around(Mapped(counting))
    made = clients(model)
    before = [p.detach().clone() for p in made[0].model.parameters()]
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    training = fp.Training(made, fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1)
    assert torch.equal(torch.rand(3), expected)
    assert training.population.model[1][1].kept is None
    assert not training.population.model[1][1]._forward_hooks
    assert all(torch.equal(p, b) for p, b in zip(made[0].model.parameters(), before, strict=True))


def test_labels_of_many_places_have_one_loss_an_example() -> None:
    """Torch's unreduced cross-entropy has a number for each target; an example's loss is their mean."""
    torch.manual_seed(0)
    model = nn.Conv2d(1, CLASSES, 1)
    x, y = torch.randn(4, 1, 2, 4), torch.randint(0, CLASSES, (4, 2, 4))
    batch = Batch(torch.zeros(1, dtype=torch.long), x[None], y[None], torch.ones(1, 4, dtype=torch.bool))
    row = torch.randn(1, 2 * CLASSES)
    sums = [BACKENDS[b](model, nn.CrossEntropyLoss()).clipped_sum(row, batch, None)[0] for b in ("loop", "vmap")]
    torch.testing.assert_close(*sums)
    assert len(list(start(model, x=x, y=y))) == 1


def test_a_trial_moves_the_initial_parameters_a_little() -> None:
    """Zeros would hide what a layer does; far away a layer may saturate and hide as much."""
    rows: list[Tensor] = []

    class Watched(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            rows.append(self.weight.detach().clone())
            return super().forward(input)

    model = Watched(100 * FEATURES, CLASSES)
    nn.init.zeros_(model.weight)
    start(model, x=torch.rand(12, 100 * FEATURES))
    assert float(rows[0].std()) == pytest.approx(0.05, rel=0.1)
