"""Harmless models and losses are let through, and the trial leaves no trace of itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from trial_models import CLASSES, FEATURES, Mapped, around, clients, start

import fedpriv as fp
from fedpriv import models
from fedpriv.clients.batch import Batch
from fedpriv.oracle.backends import BACKENDS


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
def test_non_mixing_layers_accepted(kind: str) -> None:
    assert len(list(start(HARMLESS[kind]))) == 1


@pytest.mark.parametrize("model", [Tokens(120), LateWords(20)])
def test_integer_inputs_synthetic_or_from_data(model: nn.Module) -> None:
    words = torch.randint(100, 120, (12, 5), generator=torch.Generator().manual_seed(0))
    assert len(list(start(model, x=words))) == 1


def test_mixing_model_on_real_examples_raises() -> None:
    class Mixing(LateWords):
        def forward(self, words: Tensor) -> Tensor:
            outputs = super().forward(words)
            return outputs - outputs.mean(0)

    words = torch.randint(100, 120, (12, 5), generator=torch.Generator().manual_seed(0))
    with pytest.raises(fp.ConfigError, match=r"^model = 'Mixing': .*depends on the other examples"):
        start(Mixing(20), x=words)


def test_model_test_leaves_no_trace() -> None:
    """The model, torch's random generator and the trained parameters stay unchanged."""
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


def test_dense_labels_one_loss_per_example() -> None:
    """Torch's unreduced cross-entropy has a number for each target; an example's loss is their mean."""
    torch.manual_seed(0)
    model = nn.Conv2d(1, CLASSES, 1)
    x, y = torch.randn(4, 1, 2, 4), torch.randint(0, CLASSES, (4, 2, 4))
    batch = Batch(torch.zeros(1, dtype=torch.long), x[None], y[None], torch.ones(1, 4, dtype=torch.bool))
    row = torch.randn(1, 2 * CLASSES)
    sums = [BACKENDS[b](model, nn.CrossEntropyLoss()).clipped_sum(row, batch, None)[0] for b in ("loop", "vmap")]
    torch.testing.assert_close(*sums)
    assert len(list(start(model, x=x, y=y))) == 1


def test_model_test_perturbs_parameters() -> None:
    """Zeros would hide the effect of a layer; large values may saturate it."""
    rows: list[Tensor] = []

    class RecordingLinear(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            rows.append(self.weight.detach().clone())
            return super().forward(input)

    model = RecordingLinear(100 * FEATURES, CLASSES)
    nn.init.zeros_(model.weight)
    start(model, x=torch.rand(12, 100 * FEATURES))
    assert float(rows[0].std()) == pytest.approx(0.05, rel=0.1)
