"""Metrics of yes-or-no answers: against scikit-learn and torchmetrics, in Python and in configurations."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as peer
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv
from fedpriv.config import load_config
from fedpriv.config.building import build
from fedpriv.data.torchvision_compat import import_torchvision
from fedpriv.errors import ConfigError
from fedpriv.evaluation.binary import BINARY

N = 500
CONFIG = Path(__file__).parents[1] / "run.yaml"


def answers(labels: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(4)
    shape = (N,) if labels is None else (N, labels)
    scores = 2 * torch.randn(shape, generator=draw)
    return scores, (torch.rand(shape, generator=draw) < torch.sigmoid(scores + 0.3)).long()


def expected(scores: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    chances, truth = torch.sigmoid(scores.double()).numpy(), targets.numpy()
    predicted = chances >= 0.5
    import_torchvision("transforms")  # torchmetrics imports it, and fails beside a torch for the processor alone
    import torchmetrics.functional.classification as other

    return {
        "auc": float(peer.roc_auc_score(truth, chances)),
        "sensitivity": float(peer.recall_score(truth, predicted)),
        "specificity": float(peer.recall_score(truth, predicted, pos_label=0)),
        "brier": float(peer.brier_score_loss(truth, chances)),
        "calibration_error": float(other.binary_calibration_error(torch.tensor(chances), targets, n_bins=10)),
    }


@pytest.mark.parametrize("name", BINARY)
def test_binary_metrics_match_sklearn_and_torchmetrics(name: str):
    scores, targets = answers()
    wanted = pytest.approx(expected(scores, targets)[name], abs=1e-6)
    metric = BINARY[name]()
    assert metric(scores, targets) == wanted
    assert metric(scores.unsqueeze(1), targets) == wanted
    assert metric(torch.stack([-scores / 2, scores / 2], 1), targets) == wanted, "two classes"
    assert fedpriv.binary_metrics(probabilities=True)[name](torch.sigmoid(scores), targets) == wanted


@pytest.mark.parametrize("name", BINARY)
def test_binary_metrics_average_labels(name: str):
    scores, targets = answers(3)
    each = [BINARY[name]()(scores[:, label], targets[:, label]) for label in range(3)]
    assert BINARY[name]()(scores, targets) == pytest.approx(float(np.mean(each)))


def test_threshold_trades_sensitivity_for_specificity():
    scores, targets = answers()
    low, high = (fedpriv.binary_metrics(threshold=value) for value in (0.2, 0.8))
    assert low["sensitivity"](scores, targets) > high["sensitivity"](scores, targets)
    assert low["specificity"](scores, targets) < high["specificity"](scores, targets)


def test_undefined_binary_metric_is_nan():
    scores = torch.tensor([1.0, -1.0])
    ones = torch.ones(2, dtype=torch.long)
    assert math.isnan(fedpriv.Auc()(scores, ones)) and math.isnan(fedpriv.Specificity()(scores, ones))
    assert fedpriv.Sensitivity()(scores, ones) == 0.5
    assert math.isnan(fedpriv.Brier()(torch.tensor([math.inf, math.nan]), ones))


@pytest.mark.parametrize(
    ("outputs", "targets", "reason"),
    [(torch.randn(4, 3), torch.ones(4), "shape"), (torch.randn(4), torch.tensor([0, 1, 2, 1]), "neither 0 nor 1")],
)
def test_binary_metric_other_task_raises(outputs: torch.Tensor, targets: torch.Tensor, reason: str):
    with pytest.raises(ValueError, match=reason):
        fedpriv.Auc()(outputs, targets)


def test_run_reports_binary_metrics():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(300, 3, generator=draw)
    data = TensorDataset(x, (x[:, 0] > 0).float())
    clients = fedpriv.make_clients(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), nn.BCEWithLogitsLoss(), [data])
    result = fedpriv.train(
        clients,
        fedpriv.fedavg(1.0),
        fedpriv.Privacy(noise_on="none"),
        rounds=5,
        test=data,
        metrics=fedpriv.binary_metrics(),
    )
    assert result.measures["test_sensitivity"] > 0.8 and result.measures["test_auc"] > 0.95
    assert "test sensitivity" in str(result)


def test_config_reports_binary_metrics(tmp_path: Path):
    lines = "".join(f"{age},{'ill' if age > 50 else 'well'}\n" for age in range(20, 90))
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text("age,outcome\n" + lines.replace("20,", "21,"))
    config = tmp_path / "run.yaml"
    config.write_text(
        f"data: {{name: csv, train: {tmp_path}/train.csv, test: {tmp_path}/test.csv, label: outcome, "
        "classes: [well, ill], numbers: {age: [0, 100]}, partition: {kind: iid, n_clients: 1}}\n"
        "model: logistic_regression\nloss: logistic\nstrategy: {name: fedavg, learning_rate: 5}\n"
        "privacy: {noise_on: none}\nrounds: 20\n"
        "log: {test: true, metrics: {auc: auc, sens: sensitivity, brier: brier}}\n"
    )
    training = build(load_config(config))
    for _ in training:
        pass
    measured = training.result().measures
    assert measured["test_auc"] == 1.0 and 0 <= measured["test_brier"] < 0.25 and measured["test_sens"] > 0.5


def test_config_binary_metric_ten_classes_raises():
    with pytest.raises(ConfigError, match="two classes"):
        build(load_config(CONFIG, ["log.metrics={auc: auc}"]))
    with pytest.raises(ConfigError, match="must be one of rmse, mae, auc"):
        build(load_config(CONFIG, ["log.metrics={a: nothing}"]))
