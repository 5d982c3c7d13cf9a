"""Targets that are numbers, from a configuration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fedpriv.config import build, forecast, load_config
from fedpriv.data import Split
from fedpriv.errors import ConfigError, DataError
from fedpriv.evaluation.regression import Mae, Rmse

N = 60


def config(folder: Path, **changed: object) -> Path:
    draws = np.random.default_rng(3)
    age, dose = draws.uniform(20, 80, N), draws.uniform(0, 5, N)
    stay = 0.3 * age - 2 * dose + draws.normal(size=N)
    lines = [f"{a},{d},{s}" for a, d, s in zip(age, dose, stay, strict=True)]
    for name in ("train", "test"):
        (folder / f"{name}.csv").write_text("\n".join(["age,dose,stay", *lines]))
    settings: dict[str, object] = {
        "data": {
            "name": "csv",
            "train": str(folder / "train.csv"),
            "test": str(folder / "test.csv"),
            "label": "stay",
            "numbers": {"age": [0, 100], "dose": [0, 5], "stay": [-20, 40]},
            "partition": {"kind": "iid", "n_clients": 3},
        },
        "model": "linear_regression",
        "loss": "mse",
        "strategy": {"name": "dp_gd", "learning_rate": 0.4},
        "privacy": {"noise_on": "none"},
        "rounds": 400,
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**settings, **changed}))
    return path


def test_noiseless_regression_matches_least_squares(tmp_path: Path):
    training = build(load_config(config(tmp_path)))
    for _ in training:
        pass
    x, y = training.population.examples.inputs.double().numpy(), training.population.examples.targets.double().numpy()
    assert x.shape == (N, 3)  # age, dose, the constant; not the target
    assert abs(y).max() <= 1
    solution = np.linalg.lstsq(x, y, rcond=None)[0]
    result = training.result()
    np.testing.assert_allclose(result.params.numpy(), solution, atol=1e-4)
    assert result.test_loss == pytest.approx(float(np.square(x @ solution - y).mean()), rel=1e-4)
    assert result.test_accuracy is None
    assert "test RMSE" in str(result)


def test_regression_errors_in_target_units(tmp_path: Path):
    path = config(tmp_path, log={"metrics": {"rmse": "rmse", "off_by": "mae"}}, rounds=3)
    training = build(load_config(path))
    for report in training:
        assert {"test_rmse", "test_off_by"} <= report.metrics.keys()
    result, examples = training.result(), training.population.examples  # the test file is the same
    ages, doses, stays = np.loadtxt(tmp_path / "train.csv", delimiter=",", skiprows=1).T
    row = np.stack([2 * ages / 100 - 1, 2 * doses / 5 - 1, np.ones(N)], 1)
    # the model predicts a place in [-1, 1], which is -20 to 40
    days = -20 + 60 * (row @ result.params.double().numpy() + 1) / 2
    assert examples.counts.sum() == N
    assert result.measures["test_rmse"] == pytest.approx(np.sqrt(np.square(days - stays).mean()), rel=1e-5)
    assert result.measures["test_off_by"] == pytest.approx(np.abs(days - stays).mean(), rel=1e-5)


def test_regression_metric_on_classes_raises(tmp_path: Path):
    path = config(tmp_path, log={"metrics": {"rmse": "rmse"}})
    settings = yaml.safe_load(path.read_text())
    settings["data"] = {"name": "digits", "flat": True, "partition": {"kind": "iid", "n_clients": 3}}
    path.write_text(yaml.safe_dump({**settings, "model": "softmax", "loss": "cross_entropy"}))
    with pytest.raises(ConfigError, match=r"log\.metrics\.rmse = 'rmse': needs targets that are numbers"):
        build(load_config(path))


def test_rmse_of_infinite_output_is_nan():
    outputs, targets = torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 0.0])
    assert Rmse(10)(outputs, targets).item() == pytest.approx(10 * 5**0.5)
    assert Mae(10)(outputs, targets).item() == 20
    assert Rmse()(outputs * torch.inf, targets).isnan()
    with pytest.raises(ValueError, match="one number per example"):
        Rmse()(torch.zeros(2, 2), targets)


def test_forecast_for_regression(tmp_path: Path):
    assert forecast(load_config(config(tmp_path, privacy={"epsilon": 3})), timed=True).seconds_per_round > 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "softmax"}, "model = 'softmax': computes scores of classes, but the targets are numbers"),
        ({"model": "logistic_regression"}, "use linear_regression"),
        ({"loss": "hinge"}, "loss = 'hinge': is for classes, but the targets are numbers: use mse"),
    ],
)
def test_classification_setting_for_regression_raises(tmp_path: Path, changed: dict[str, object], message: str):
    with pytest.raises(ConfigError) as caught:
        build(load_config(config(tmp_path, **changed)))
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", ["stratified", "by_label", "dirichlet"])
def test_class_partition_for_regression_raises(tmp_path: Path, kind: str):
    path = config(tmp_path)
    settings = yaml.safe_load(path.read_text())
    settings["data"]["partition"]["kind"] = kind
    path.write_text(yaml.safe_dump(settings))
    with pytest.raises(ConfigError, match=r"data\.partition\.kind = .*: divides by class"):
        build(load_config(path))


def test_numeric_label_without_range_raises(tmp_path: Path):
    path = config(tmp_path)
    settings = yaml.safe_load(path.read_text())
    del settings["data"]["numbers"]["stay"]
    path.write_text(yaml.safe_dump(settings))
    with pytest.raises(
        ConfigError, match="list the values of stay, or for regression, set the range of stay in numbers"
    ):
        build(load_config(path))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([1.0, float("nan")]), r"train\[1\] has a target that is NaN"),
        (torch.tensor([1, 2]), "use float"),
        (torch.zeros(2, 1), "use float"),
    ],
)
def test_invalid_regression_targets_raise(targets: torch.Tensor, message: str):
    examples = torch.utils.data.TensorDataset(torch.zeros(2, 3), targets)
    with pytest.raises(DataError, match=message):
        Split(examples, examples, None, None, "two rows")
