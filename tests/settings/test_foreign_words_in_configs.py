"""Words of other libraries in a configuration and on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from error_texts import error_of
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config import load_config
from fedpriv.config.base import EXAMPLES

RUN = Path(__file__).parents[1] / "run.yaml"
IN_YAML = {
    "epochs=5": "epochs = 5: is unknown; it is called rounds here: write rounds=5",
    "privacy.eps=3": "write privacy.epsilon=3",
    "privacy.max_grad_norm=2": "write 'privacy.clip={bound: 2}'",
    "privacy.batch_size=64": "write 'privacy.sampling={poisson: {rate: 64 / n}}' (n is the number of examples",
    "privacy.sampling={allocation: {batch_size: 32}}": "write privacy.sampling: {allocation: {batches: n / 32}} (n is",
    "privacy.sampling={cyclic: {batch_size: 32}}": "write privacy.sampling: {cyclic: {blocks: n / 32}} (n is",
    "privacy.sampling={poisson: {lot_size: 32}}": "write privacy.sampling: {poisson: {rate: 32 / n}} (n is",
    "privacy.sampling={fixed_size: {batch_size: 32}}": "write privacy.sampling: {fixed_size: {size: 32}}",
    "privacy.clip={max_norm: 2}": "it is called bound here: write privacy.clip.bound: 2",
    "privacy.clip.max_norm=2": "it is called bound here: write privacy.clip.bound=2",
    "privacy.sample_rate=0.1": "write 'privacy.sampling={poisson: {rate: 0.1}}'",
    "lr=0.1": "write strategy.learning_rate=0.1",
    "strategy.lr=0.1": "is unknown; it is called eta here: write strategy.eta=0.1",
    "log_dir=a": "write log.tensorboard=true",
    "compute.gpu=true": "write compute.device=cuda",
    "compute.device=gpu": "write 'cuda'",
    "epsilon=3": "write privacy.epsilon=3",
}


@pytest.mark.parametrize("given", IN_YAML)
def test_foreign_config_word_translated(given: str):
    message = error_of(lambda: load_config(RUN, [given]))
    assert message.startswith(given.split("=")[0])
    assert IN_YAML[given] in message


@pytest.mark.parametrize(
    ("option", "setting"),
    [
        ("--epochs", "rounds=VALUE"),
        ("--lr", "strategy.learning_rate=VALUE"),
        ("--epsilon", "privacy.epsilon=VALUE"),
        ("--max-grad-norm", "'privacy.clip={bound: VALUE}'"),
        ("--gpu", "compute.device=cuda"),
    ],
)
@pytest.mark.parametrize("command", ["train", "plan"])
def test_foreign_cli_option_suggests_setting(command: str, option: str, setting: str):
    output = CliRunner().invoke(app, [command, "digits_iadmm", option, "3"])
    assert output.exit_code == 2
    assert f"write {setting}" in " ".join(output.stderr.replace("│", " ").split())


def test_unknown_cli_option_suggests_no_setting():
    output = CliRunner().invoke(app, ["train", "digits_iadmm", "--zzz"])
    assert output.exit_code == 2 and "No such option" in output.stderr and "settings come" not in output.stderr


def test_foreign_strategy_word_in_config_translated():
    message = error_of(lambda: load_config(RUN, ["strategy={name: fedavg, lr: 0.1}"]))
    assert "strategy.lr = 0.1: is unknown" in message and "write strategy.learning_rate: 0.1" in message


def test_missing_strategy_setting_shows_example():
    message = error_of(lambda: load_config(RUN, ["strategy={name: fedavg}"]))
    assert message == "strategy.learning_rate = None: is required, e.g. learning_rate: 0.1"


@pytest.mark.parametrize("field", [field for field in EXAMPLES if field not in ("data.label", "data.test")])
def test_missing_section_shows_valid_example(field: str, tmp_path: Path):
    content = yaml.safe_load(RUN.read_text())
    *sections, key = field.split(".")
    section = content
    for name in sections:
        section = section[name]
    del section[key]
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(content))
    message = error_of(lambda: load_config(path))
    assert message == f"{field} = None: is required, e.g. {EXAMPLES[field]}"
    section |= yaml.safe_load(EXAMPLES[field].partition(" if ")[0])
    path.write_text(yaml.safe_dump(content))
    load_config(path)
