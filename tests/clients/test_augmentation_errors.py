"""Augmentations that do not fit are refused by name, in Python and by the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from augmented import X, Y, model, population, tables, v2
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.clients.augmentation import Augmentation
from fedpriv.clients.population import Population


def refuses(x: Tensor) -> Tensor:
    raise ValueError("no")


def test_augmentation_invalid_arguments_raise() -> None:
    with pytest.raises(fp.ConfigError, match=r"augmentation.multiplicity = 0"):
        Augmentation([fp.Flip()], 0)
    with pytest.raises(fp.ConfigError, match=r"augmentation.transforms = .*must be an object such as Flip\(\)"):
        Augmentation([fp.Flip])


def test_augmentation_unsuitable_for_examples_raises() -> None:
    with pytest.raises(fp.ConfigError, match=r"augmentation returns \(1, 4, 4\) float32 for \(1, 6, 6\) float32"):
        population(Augmentation([v2.CenterCrop(4)]))
    with pytest.raises(fp.ConfigError, match=r"augmentation raises on an example .*ValueError: no"):
        population(Augmentation([refuses]))
    with pytest.raises(fp.ConfigError, match=r"flip.*needs images \[c, h, w\], but an input is \(36,\) float32"):
        population(Augmentation([fp.Flip()]), datasets=[TensorDataset(X.flatten(1), Y)])


def test_different_augmentations_raise() -> None:
    clients = [
        fp.Client(model(), nn.CrossEntropyLoss(), DataLoader(data), augmentation=augmentation)
        for data, augmentation in zip(tables(), (None, Augmentation([fp.Flip()]), None), strict=True)
    ]
    with pytest.raises(fp.ConfigError, match=r"clients\[1\].augmentation = .*: must be the same for all clients"):
        Population(clients)


def test_augmentation_with_constraints_raises() -> None:
    problem = fp.Problem(constraints=(fp.LossAtMost(1.0),))
    clients = fp.make_clients(model(), nn.CrossEntropyLoss(), tables(), problem, Augmentation([fp.Flip()]))
    with pytest.raises(fp.ConfigError, match="which need fixed examples"):
        Population(clients)


CONFIG = """
data: {name: digits, partition: {kind: iid, n_clients: 3}, %s}
model: softmax
strategy: {name: fedavg, learning_rate: 1.0}
privacy: {epsilon: 3, sampling: {poisson: {rate: 0.2}}}
rounds: 2
seed: 0
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("augment: [{name: crop, padding: 0}]", "padding = 0: must be a whole number, at least 1"),
        ("augment: [{name: cropp}]", "is unknown; did you mean 'crop'"),
        ("augment: [{name: flip, chanse: 1.0}]", "chanse"),
        ("augment: {name: flip}", "must be a list"),
        ("augmentation_multiplicity: 0", "data.augmentation_multiplicity = 0"),
        ("augment: [flip], flat: true", "needs images"),
    ],
)
def test_train_invalid_augmentation_exits_2(options: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG % options)
    result = CliRunner().invoke(app, ["train", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_train_with_several_views(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG % "augment: [{name: crop, padding: 1}], augmentation_multiplicity: 2")
    result = CliRunner().invoke(app, ["train", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "out" / "result.json").read_text())["rounds"] == 2
