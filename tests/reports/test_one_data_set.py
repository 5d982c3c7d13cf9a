"""What is said of one thing is said in the singular, and a statement of one data set says only what applies."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.errors import format_count

CONFIG = """
data: {name: digits, partition: {kind: iid, n_clients: 1}}
model: softmax
loss: cross_entropy
strategy: dp_gd
privacy: {epsilon: 2.0, sampling: {poisson: {rate: 0.1}}}
rounds: 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    (folder / "run.yaml").write_text(CONFIG)
    done = CliRunner().invoke(app, ["train", str(folder / "run.yaml"), "--out", str(folder / "run")])
    assert done.exit_code == 0, done.output
    assert "dp_gd: 1 client, 1 round, in" in done.output
    assert "1 record in a chain" in done.output
    return folder


def test_statement_of_one_data_set_in_singular(folder: Path) -> None:
    page = folder / "statement.md"
    done = CliRunner().invoke(app, ["statement", str(folder / "run"), "--out", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "1 data holder with 1437 records |" in text
    for wrong in (
        "1437 to 1437",
        "1 data holders",
        "one other data holder",
        "colluder",
        "epsilon of one data holder",
        "each data holder has ",
        "SIMULATED",
        "others may collude",
        "1 rounds",
    ):
        assert wrong not in text.replace("how many records each has", ""), wrong
    assert "| who looks | what they see | epsilon of one record | epsilon of 10 records of one person |" in text


def test_init_prints_target_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["init"])
    assert done.exit_code == 0, done.output
    assert f"into {tmp_path}" in done.output.replace("\n", "")


def test_counted_singular_and_plural() -> None:
    assert (format_count(1, "colluder"), format_count(2, "colluder"), format_count(0, "run")) == (
        "1 colluder",
        "2 colluders",
        "0 runs",
    )
