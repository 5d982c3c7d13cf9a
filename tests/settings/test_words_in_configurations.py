"""Words of other libraries in a configuration and on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from answers import answer
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config import load_config
from fedpriv.config.base import EXAMPLES

RUN = Path(__file__).parents[1] / "run.yaml"
IN_YAML = {
    "epochs=5": "epochs = 5: unknown",
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
    "strategy.lr=0.1": "unknown",
    "log_dir=a": "write log.tensorboard=true",
    "compute.gpu=true": "write compute.device=cuda",
    "compute.device=gpu": "write 'cuda'",
    "epsilon=3": "write privacy.epsilon=3",
}


@pytest.mark.parametrize("given", IN_YAML)
def test_other_words_for_settings_of_a_configuration(given: str):
    said = answer(lambda: load_config(RUN, [given]))
    assert said.startswith(given.split("=")[0])
    assert IN_YAML[given] in said


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
def test_a_command_line_option_that_is_a_setting_is_answered_with_it(command: str, option: str, setting: str):
    told = CliRunner().invoke(app, [command, "digits_iadmm", option, "3"])
    assert told.exit_code == 2
    assert f"write {setting}" in " ".join(told.stderr.replace("│", " ").split())


def test_an_unknown_command_line_option_is_not_taken_for_a_setting():
    told = CliRunner().invoke(app, ["train", "digits_iadmm", "--zzz"])
    assert told.exit_code == 2 and "No such option" in told.stderr and "settings come" not in told.stderr


def test_other_words_for_settings_of_a_strategy():
    said = answer(lambda: load_config(RUN, ["strategy={name: fedavg, lr: 0.1}"]))
    assert "strategy.lr = 0.1: unknown" in said and "write strategy.learning_rate: 0.1" in said


def test_a_missing_setting_of_a_strategy_is_required_with_an_example():
    said = answer(lambda: load_config(RUN, ["strategy={name: fedavg}"]))
    assert said == "strategy.learning_rate = None: is required, e.g. learning_rate: 0.1"


@pytest.mark.parametrize("field", [field for field in EXAMPLES if field != "data.label"])
def test_an_absent_section_is_required_with_an_example_that_is_one(field: str, tmp_path: Path):
    content = yaml.safe_load(RUN.read_text())
    *sections, key = field.split(".")
    section = content
    for name in sections:
        section = section[name]
    del section[key]
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(content))
    said = answer(lambda: load_config(path))
    assert said == f"{field} = None: is required, e.g. {EXAMPLES[field]}"
    section |= yaml.safe_load(EXAMPLES[field].partition(" if ")[0])
    path.write_text(yaml.safe_dump(content))
    load_config(path)
