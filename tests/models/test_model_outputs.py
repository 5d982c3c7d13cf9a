"""Shapes of outputs, parameters and examples that people use: trained as plain torch does, and measured."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from typing import Any

import networkx as nx
import pytest
import torch
from plain_torch import assert_same_parameters, rows, trained_by_torch, trained_here
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.layout import Layout
from fedpriv.evaluation.evaluator import Evaluator

DRAW = torch.Generator().manual_seed(5)
X = torch.randn(40, 4, generator=DRAW)
WEIGHTS = torch.tensor([1.0, -1.0, 0.5, 2.0])
NUMBERS = X @ WEIGHTS + torch.randn(40, generator=DRAW)
LABELS = (NUMBERS > 0).float()
SEVERAL = torch.stack([LABELS, (X[:, 0] > 0).float(), (X[:, 1] + 0.5 * X[:, 2] > 0).float()], 1)
TRAIN, TEST = slice(0, 24), slice(24, 40)
BACKENDS = ["ghost", "vmap", "loop"]


class OneNumber(nn.Module):
    """One number for each example, in one of the shapes that people give it."""

    def __init__(self, shape: Callable[[Tensor], Tensor], last: Callable[[Tensor], Tensor] = lambda o: o) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.hidden, self.out = nn.Linear(4, 3), nn.Linear(3, 1)
        self.shape, self.last = shape, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.shape(self.out(torch.tanh(self.hidden(x)))))


SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "squeeze(-1)": lambda o: o.squeeze(-1),
    "[:, 0]": lambda o: o[:, 0],
    "flatten()": lambda o: o.flatten(),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_one_output_classifier_matches_torch(shape: str, backend: Any) -> None:
    model, loss = OneNumber(SHAPES[shape]), nn.BCEWithLogitsLoss()
    compute = fp.Compute(backend=backend)
    test = rows(X[TEST], LABELS[TEST])
    result, _ = trained_here(model, loss, rows(X[TRAIN], LABELS[TRAIN]), test=test, compute=compute)
    expected = trained_by_torch(
        model, lambda o, t: F.binary_cross_entropy_with_logits(o, t, reduction="none"), X[TRAIN], LABELS[TRAIN]
    )
    assert_same_parameters(result, expected)
    scores = expected(X[TEST]).detach()
    facts = result.to_json()
    assert facts["test_accuracy"] == pytest.approx(float(((scores > 0) == (LABELS[TEST] > 0)).float().mean()))
    assert facts["test_auroc"] == pytest.approx(roc_auc_score(LABELS[TEST], scores))
    assert "test_rmse" not in facts


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_one_output_regression_matches_torch(shape: str, backend: Any) -> None:
    model, compute = OneNumber(SHAPES[shape]), fp.Compute(backend=backend)
    test = rows(X[TEST], NUMBERS[TEST])
    result, _ = trained_here(model, nn.MSELoss(), rows(X[TRAIN], NUMBERS[TRAIN]), test=test, compute=compute)
    expected = trained_by_torch(model, lambda o, t: (o - t).square(), X[TRAIN], NUMBERS[TRAIN])
    assert_same_parameters(result, expected)
    error = expected(X[TEST]).detach() - NUMBERS[TEST]
    facts = result.to_json()
    assert facts["test_rmse"] == pytest.approx(float(error.square().mean().sqrt()), rel=1e-4)
    assert facts["test_mae"] == pytest.approx(float(error.abs().mean()), rel=1e-4)
    assert facts["test_accuracy"] is None
    assert "test_auroc" not in facts
    assert "test RMSE" in str(result)


def test_squeeze_without_dimension_raises_with_fix() -> None:
    with pytest.raises(fp.ConfigError, match=r"squeeze\(-1\) keeps the rows"):
        trained_here(OneNumber(lambda o: o.squeeze()), nn.BCEWithLogitsLoss(), rows(X, LABELS))


def test_bce_loss_threshold_is_one_half() -> None:
    model = OneNumber(SHAPES["squeeze(-1)"], torch.sigmoid)
    test = rows(X[TEST], LABELS[TEST])
    result, _ = trained_here(model, nn.BCELoss(), rows(X[TRAIN], LABELS[TRAIN]), test=test)
    expected = trained_by_torch(
        model, lambda o, t: F.binary_cross_entropy(o, t, reduction="none"), X[TRAIN], LABELS[TRAIN]
    )
    assert_same_parameters(result, expected)
    right = (expected(X[TEST]).detach() > 0.5) == (LABELS[TEST] > 0)
    assert result.test_accuracy == pytest.approx(float(right.float().mean()))


def test_custom_loss_has_auroc_without_accuracy() -> None:
    """The threshold of its outputs for class 1 is unknown."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets)

    test = rows(X[TEST], LABELS[TEST])
    result, _ = trained_here(OneNumber(SHAPES["[:, 0]"]), loss, rows(X[TRAIN], LABELS[TRAIN]), test=test)
    facts = result.to_json()
    assert 0 <= facts["test_auroc"] <= 1
    assert facts["test_accuracy"] is None
    assert "test_rmse" not in facts


def test_multilabel_accuracy_and_auroc() -> None:
    torch.manual_seed(2)
    model, loss = nn.Linear(4, 3), nn.BCEWithLogitsLoss()
    # no example has the third label: the area is the mean of the other two
    truth = torch.cat([SEVERAL[TEST, :2], torch.zeros(16, 1)], 1)
    result, _ = trained_here(model, loss, rows(X[TRAIN], SEVERAL[TRAIN]), test=rows(X[TEST], truth))
    scores = result.model(X[TEST]).detach()
    facts = result.to_json()
    assert facts["test_accuracy"] == pytest.approx(float(((scores > 0) == (truth > 0)).float().mean()))
    assert facts["test_auroc"] == pytest.approx(roc_auc_score(truth[:, :2], scores[:, :2]))


def test_auroc_independent_of_batches() -> None:
    """AUROC is no mean over batches: 2 500 examples are three of them."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2500, 4, generator=draw)
    y = (x @ WEIGHTS + 3 * torch.randn(2500, generator=draw) > 0).float()
    model = OneNumber(SHAPES["squeeze(-1)"])
    result, _ = trained_here(model, nn.BCEWithLogitsLoss(), rows(X, LABELS), test=rows(x, y))
    scores = result.model(x).detach()
    assert result.to_json()["test_auroc"] == pytest.approx(roc_auc_score(y, scores), rel=1e-6)


def test_node_auroc_matches_sklearn() -> None:
    data = [rows(X[i : i + 8], LABELS[i : i + 8]) for i in (0, 8, 16)]
    clients = fp.make_clients(OneNumber(SHAPES["squeeze(-1)"]), nn.BCEWithLogitsLoss(), data)
    graph = fp.Graph(nx.path_graph(3))
    test = rows(X[TEST], LABELS[TEST])
    result = fp.train(clients, fp.decentralized_sgd(), fp.Privacy(noise_on="none"), rounds=2, network=graph, test=test)
    areas = [roc_auc_score(LABELS[TEST], model_of(result, row)(X[TEST]).detach()) for row in result.node_params]
    assert result.to_json()["node_test_auroc"]["min"] == pytest.approx(min(areas))


def model_of(result: fp.Result, row: Tensor) -> nn.Module:
    model = OneNumber(SHAPES["squeeze(-1)"])
    nn.utils.vector_to_parameters(row.float(), model.parameters())
    return model


def test_custom_metric_replaces_default() -> None:
    test = rows(X[TEST], NUMBERS[TEST])
    data = rows(X[TRAIN], NUMBERS[TRAIN])
    model = OneNumber(SHAPES["squeeze(-1)"])
    result, _ = trained_here(model, nn.MSELoss(), data, test=test, metrics={"rmse": fp.Rmse(10.0)})
    error = result.model(X[TEST]).detach() - NUMBERS[TEST]
    assert result.to_json()["test_rmse"] == pytest.approx(10 * float(error.square().mean().sqrt()), rel=1e-4)


class Temperature(nn.Module):
    """Scores times a number that is trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.linear, self.scale = nn.Linear(4, 3), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_scalar_parameter_matches_torch(backend: Any) -> None:
    y = torch.arange(40) % 3
    result, _ = trained_here(Temperature(), nn.CrossEntropyLoss(), rows(X, y), compute=fp.Compute(backend=backend))
    expected = trained_by_torch(Temperature(), lambda o, t: F.cross_entropy(o, t, reduction="none"), X, y)
    assert_same_parameters(result, expected)


class TwoInputs(nn.Module):
    """A model of two tensors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.first(x) + self.second(z)


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_several_inputs_match_torch(backend: Any) -> None:
    y, z = torch.arange(40) % 3, torch.randn(40, 2, generator=torch.Generator().manual_seed(1))
    data = rows(X[TRAIN], z[TRAIN], y[TRAIN])
    test = rows(X[TEST], z[TEST], y[TEST])
    result, _ = trained_here(TwoInputs(), nn.CrossEntropyLoss(), data, test=test, compute=fp.Compute(backend=backend))
    inputs = (X[TRAIN], z[TRAIN])
    expected = trained_by_torch(TwoInputs(), lambda o, t: F.cross_entropy(o, t, reduction="none"), inputs, y[TRAIN])
    assert_same_parameters(result, expected)
    right = expected(X[TEST], z[TEST]).argmax(1) == y[TEST]
    assert result.test_accuracy == pytest.approx(float(right.float().mean()))


def test_third_tensor_without_input_raises() -> None:
    data = TensorDataset(X, torch.arange(40) % 3, torch.arange(40))
    with pytest.raises(fp.ConfigError, match=r"3 were given.*a collate_fn that returns \(inputs, target\)"):
        trained_here(nn.Linear(4, 3), nn.CrossEntropyLoss(), data)


def test_recurrent_layer_trains_without_warning() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.out = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.lstm(x)[0][:, -1])

    data = rows(torch.randn(10, 3, 4), torch.arange(10) % 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fp.train(
            fp.make_clients(Recurrent(), nn.CrossEntropyLoss(), [data]),
            fp.fedavg(0.1),
            fp.Privacy(noise_multiplier=1.0),
            rounds=1,
        )
    said = [text for text in (str(one.message) for one in caught) if "the parameters can move" not in text]
    assert not said
    assert "Loop" not in json.dumps(result.to_json()["backend"])


def test_integer_labels_one_output_auroc_only() -> None:
    """A custom loss may use probabilities or logits, so the threshold for an accuracy is unknown."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy(outputs, targets.float())

    model = OneNumber(SHAPES["squeeze(-1)"], torch.sigmoid)
    result, _ = trained_here(model, loss, rows(X[TRAIN], LABELS[TRAIN].long()), test=rows(X[TEST], LABELS[TEST].long()))
    facts = result.to_json()
    assert facts["test_accuracy"] is None
    assert facts["test_auroc"] == pytest.approx(roc_auc_score(LABELS[TEST], result.model(X[TEST]).detach()))


def test_one_class_test_set_has_no_auroc() -> None:
    data = [rows(X[i : i + 8], LABELS[i : i + 8]) for i in (0, 8, 16)]
    clients = fp.make_clients(OneNumber(SHAPES["squeeze(-1)"]), nn.BCEWithLogitsLoss(), data)
    one_class = rows(X[TEST][LABELS[TEST] > 0], LABELS[TEST][LABELS[TEST] > 0])
    both = rows(X[TEST], LABELS[TEST])
    tests = [one_class, both, None]
    result = fp.train(
        clients, fp.fedavg(0.1), fp.Privacy(noise_on="none"), rounds=1, test=one_class, client_tests=tests
    )
    facts = result.to_json()
    assert "test_auroc" not in facts
    area = roc_auc_score(LABELS[TEST], result.model(X[TEST]).detach())
    assert facts["client_test_auroc"]["mean"] == pytest.approx(area)
    assert "nan" not in str(result)


def test_infinite_outputs_auroc_is_nan() -> None:
    model = OneNumber(lambda o: o.squeeze(-1) * math.inf)
    test = rows(X[TEST], LABELS[TEST])
    found = Evaluator(model, nn.BCEWithLogitsLoss(), test)(Layout.of(model).row_of(model))
    assert math.isnan(found["test_auroc"])


def test_two_input_model_one_tensor_raises() -> None:
    data = TensorDataset(X, torch.arange(40) % 3)
    with pytest.raises(fp.ConfigError, match=r"cannot be computed on examples of shape") as refused:
        trained_here(TwoInputs(), nn.CrossEntropyLoss(), data)
    assert "collate_fn" not in str(refused.value)
