"""What commands refuse, in one line and without leaving anything."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from commands import DIGITS, SMALL, error_line, fedpriv, trained
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.errors import LedgerError


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rounds=-3", "rounds = -3: must be a whole number from 1 to 1 000 000"),
        ("privacy.clip.bound=0", "privacy.clip.bound = 0: must be a positive, finite number"),
        ("privacy.delta=0", "privacy.delta = 0: Gaussian noise needs delta > 0"),
        ("network.cohort.fixed=6", "network.cohort.fixed = 6: must be at most 5, the number of clients"),
        ("strategy.name=iadm_prox", "strategy = 'iadm_prox': is unknown; did you mean 'iadmm_prox'"),
        ("data={name: mnist, root: nowhere, partition: {kind: iid, n_clients: 5}}", "nowhere"),
        ("data={name: femnist, root: nowhere, partition: {kind: by_writer}}", "folder nowhere does not exist"),
    ],
)
def test_invalid_override_exits_in_one_line(override: str, message: str, tmp_path: Path):
    assert message in error_line("train", DIGITS, "--out", str(tmp_path / "run"), *SMALL, override)
    assert not (tmp_path / "run").exists()


def test_train_into_existing_run_raises(tmp_path: Path):
    folder = trained(tmp_path / "run")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert f"{folder} contains another run; resume it (fedpriv resume {folder})" in error_line(
        "train", DIGITS, "--out", str(folder), *SMALL
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert "is finished, so there is nothing to resume; print its results with: fedpriv show" in error_line(
        "resume", str(folder)
    )


@pytest.mark.parametrize("command", [["resume"], ["train", "--extend"]], ids=" ".join)
def test_resume_python_run_folder_raises(command: list[str], tmp_path: Path):
    def train_in_python() -> None:
        dataset = TensorDataset(torch.rand(4, 2), torch.arange(4) % 2)
        clients = fp.make_clients(nn.Linear(2, 2), nn.functional.cross_entropy, [dataset])
        strategy, privacy = fp.gradient_descent(learning_rate=0.1), fp.Privacy(epsilon=1, delta=1e-5)
        fp.train(clients, strategy, privacy, rounds=1, folder=tmp_path / "run")

    train_in_python()
    output = error_line(*command, str(tmp_path / "run"))
    assert "contains the run of a Python program" in output
    assert "fedpriv show, report, statement and account can read the folder" in output
    assert "epsilon=1 " in fedpriv("account", str(tmp_path / "run")).stdout
    with pytest.raises(LedgerError, match="use another folder, or resume=True"):
        train_in_python()


def test_folder_without_run_raises(tmp_path: Path):
    assert "contains no run" in error_line("resume", str(tmp_path))
    assert "contains no run" in error_line("show", str(tmp_path))


@pytest.mark.parametrize("name", ["digits_iadmm.yml", "digits_iadmm.json", "digits_iadmm.toml"])
def test_shipped_config_wrong_suffix_suggests_name(name: str) -> None:
    output = CliRunner().invoke(app, ["plan", name])
    message = " ".join(output.stderr.split())
    assert output.exit_code == 2
    assert "a configuration is a .yaml file; did you mean 'digits_iadmm'" in message and "Errno" not in message


def test_custom_config_wrong_suffix_suggests_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("rounds: 1")
    output = CliRunner().invoke(app, ["plan", str(tmp_path / "mine.yml")])
    message = "".join(output.stderr.split())
    assert "thisfiledoesnotexist;didyoumean" in message and "mine.yaml" in message and "Errno" not in message
