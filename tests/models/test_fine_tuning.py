"""A configuration trains a part of a model, and goes on bit for bit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config import Config, build, fingerprint, forecast, load_config
from fedpriv.errors import ConfigError
from fedpriv.models import MnistCNN, train_only
from fedpriv.runs.results import Result
from fedpriv.storage.folder import RunFolder

RUN = Path(__file__).parents[1] / "run.yaml"
CNN = "model={name: mnist_cnn, channels: [2, 4], train: [layers.9.*]}"
SMALL = [CNN, "data.partition.n_clients=20", "rounds=4", "strategy={name: scaffold, learning_rate: .5}"]
HEAD, BODY = 4 * 2 * 2 * 10 + 10, 2 * 25 + 2 + 4 + 2 * 4 * 25 + 4 + 8


def command(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.stderr
    return done.stdout


def trained(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_train_only_freezes_other_parameters():
    model = MnistCNN()
    assert train_only(model, ["layers.9.*", "*.bias"]) is model
    assert trained(model) == {"layers.9.weight", *(f"layers.{i}.bias" for i in (0, 1, 4, 5, 9))}
    train_only(model, ["layers.[15].weight"])
    assert trained(model) == {"layers.1.weight", "layers.5.weight"}


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("layer.9.*", r"did you mean 'layers\.9\.\*'"),
        ("layers.9.weigth", r"'layers\.9\.weight'"),
        ("", "choose one of"),
    ],
)
def test_train_pattern_without_match_raises(pattern: str, near: str):
    with pytest.raises(ConfigError, match=rf"^model\.train = '{re.escape(pattern)}': .*{near}"):
        train_only(MnistCNN(), ["layers.0.*", pattern])


def test_config_wrong_train_pattern_raises():
    for wrong, message in (
        ("[haed.*]", r"^model\.train = 'haed\.\*'"),
        ("[]", r"^model\.train = "),
        ("3", r"^model\.train"),
    ):
        with pytest.raises(ConfigError, match=message):
            forecast(load_config(RUN, [f"model={{name: softmax, train: {wrong}}}"]))


def test_plan_and_show_print_parameter_counts(tmp_path: Path):
    pattern = rf"parameters +{HEAD} trained, {BODY} frozen"
    assert re.search(pattern, command("plan", str(RUN), *SMALL))
    assert "frozen" not in command("plan", str(RUN))
    assert f"{HEAD} numbers each" in command("plan", str(RUN), *SMALL)
    shown = command("train", str(RUN), "--out", str(tmp_path / "run"), *SMALL)
    assert re.search(pattern, shown)
    assert re.search(pattern, command("show", str(tmp_path / "run")))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["parameters"] == {"trained": HEAD, "frozen": BODY}
    assert result["bytes_sent"] % (4 * HEAD) == 0


def parts_and_whole(tmp_path: Path, config: Config) -> tuple[Result, Result]:
    """A run that was left after its third round and resumed from its folder, and one that was not left."""
    with RunFolder.new(tmp_path / "parts") as folder:
        for report in build(config, folder):
            if report.round == 3:
                break
    with RunFolder(tmp_path / "parts") as folder:
        resumed = build(config, folder, resume=True)
        assert resumed.progress.round == 3
        list(resumed)
    whole = build(config)
    list(whole)
    return resumed.result(), whole.result()


def test_fine_tuning_resumed_run_equals_unbroken(tmp_path: Path):
    config = load_config(RUN, [*SMALL, "secret_seed=3", "log.checkpoint_every=2"])
    resumed, whole = parts_and_whole(tmp_path, config)
    start, found = build(config).population.model.state_dict(), resumed.model.state_dict()
    assert torch.equal(resumed.params, whole.params)
    assert len(whole.params) == HEAD
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, found[name])
        assert torch.equal(value, start[name]) == (not name.startswith("layers.9."))


def test_train_patterns_change_fingerprint():
    assert fingerprint(load_config(RUN, ["model={name: softmax, train: null}"])) == fingerprint(load_config(RUN))
    assert fingerprint(load_config(RUN, ["model={name: softmax, train: ['*']}"])) != fingerprint(load_config(RUN))
