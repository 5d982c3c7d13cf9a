"""Targets that a loss ignores do not count in accuracy and perplexity; where they are unknown, neither is shown."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import fedpriv
from fedpriv.evaluation.evaluator import Evaluator

CLASSES, LENGTH = 4, 6
LOSSES = [
    lambda index: nn.CrossEntropyLoss(ignore_index=index),
    lambda index: functools.partial(functional.cross_entropy, ignore_index=index),
    lambda index: functools.partial(nn.CrossEntropyLoss(ignore_index=index)),
]


class Tokens(nn.Module):
    """Scores `[n, 4, length]` of tokens `[n, length]`."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Embedding(CLASSES, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.scores(tokens).mT


def sequences(ignored: int, n: int = 20) -> TensorDataset:
    """Tokens, and the same tokens as targets, half of them replaced by the one that is ignored."""
    stream = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, CLASSES, (n, LENGTH), generator=stream)
    counts = torch.arange(LENGTH) % 2 == 0
    return TensorDataset(tokens, tokens.where(counts, ignored))


def half_right() -> Tokens:
    """A model that predicts tokens 1 and 2 right, and 1 for 3."""
    model = Tokens()
    with torch.no_grad():
        model.scores.weight.copy_(torch.eye(CLASSES)[[0, 1, 2, 1]] * 3)
    return model


def measured(loss: object, test: TensorDataset, model: nn.Module) -> dict[str, float]:
    evaluate = Evaluator(model, loss, test)
    return evaluate(torch.cat([p.detach().flatten() for p in model.parameters()]))


@pytest.mark.parametrize("make", LOSSES)
@pytest.mark.parametrize("ignored", [0, 255, -100])
def test_ignored_tokens_excluded_from_metrics(make, ignored: int):
    test, model = sequences(ignored), half_right()
    found = measured(make(ignored), test, model)
    tokens, targets = test.tensors
    counts = targets != ignored
    assert found["test_accuracy"] == pytest.approx(float((tokens[counts] != 3).double().mean()))
    plain = functional.cross_entropy(model(tokens), targets, ignore_index=ignored)
    assert found["test_perplexity"] == pytest.approx(plain.exp().item(), rel=1e-5)


def test_ignored_classes_excluded_from_accuracy():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(3, CLASSES)
    y = model(x).argmax(1)
    y[::2] = 255
    assert measured(nn.CrossEntropyLoss(ignore_index=255), TensorDataset(x, y), model)["test_accuracy"] == 1


def test_custom_loss_omits_token_metrics():
    def of_examples(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets, ignore_index=0, reduction="none").mean(1)

    loss = fedpriv.models.Loss(of_examples)
    data = sequences(0, n=8)
    clients = fedpriv.make_clients(Tokens(), loss, [data, data])
    with pytest.warns(UserWarning, match=r"accuracy and perplexity are left out.*ignore_index"):
        result = fedpriv.train(
            clients, fedpriv.fedavg(0.1), fedpriv.Privacy(noise_on="none"), rounds=1, test=sequences(0)
        )
    columns = result.history[0]
    assert columns["test_loss"] > 0 and result.test_accuracy is None
    assert "test_accuracy" not in columns and "test_perplexity" not in columns


def test_invalid_test_target_raises_before_release():
    """A target that no position of the clients has, behind the first of a sequence."""
    tokens, targets = sequences(-100).tensors
    targets = targets.clone()
    targets[3, 2] = CLASSES
    clients = fedpriv.make_clients(Tokens(), nn.CrossEntropyLoss(), [sequences(-100), sequences(-100)])
    with pytest.raises(fedpriv.DataError, match="test example"):
        fedpriv.train(
            clients, fedpriv.fedavg(0.1), fedpriv.Privacy(epsilon=8), rounds=1, test=TensorDataset(tokens, targets)
        )
