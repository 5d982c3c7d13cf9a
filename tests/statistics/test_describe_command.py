"""`fedpriv describe`: from files of several owners to a table, a ledger and a budget."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpriv.cli import app

ASK = ["--number", "age=0:120", "--category", "sex=f,m"]


@pytest.fixture
def files(tmp_path):
    found = []
    for number in range(3):
        path = tmp_path / f"owner{number}.csv"
        rows = [f"{30 + (17 * k + number) % 41},{'fm'[k % 2]}" for k in range(400)]
        path.write_text("\n".join(["age,sex", *rows]) + "\n")
        found.append(str(path))
    return found


def run(*words: str):
    return CliRunner().invoke(app, ["describe", *words])


def test_table_of_three_owners(files):
    shown = run(*files, *ASK, "--epsilon", "5", "--trust", "pairwise")
    assert shown.exit_code == 0, shown.output
    assert "50 %" in shown.output and "epsilon=5" in shown.output and "95 % intervals" in shown.output


def test_plan_reads_no_value_and_spends_nothing(files, tmp_path):
    budget = tmp_path / "budget.jsonl"
    shown = run(*files, *ASK, "--plan", "--json")
    widths = json.loads(shown.output)["half_widths"]
    for path in files:
        changed = Path(path).read_text().replace("f\n", "x\n").replace("30,", "99,")
        Path(path).write_text(changed)
    assert json.loads(run(*files, *ASK, "--plan", "--json").output)["half_widths"] == widths
    assert not budget.exists()


def test_ledger_and_budget_count_the_statistics(files, tmp_path):
    folder, budget = tmp_path / "run", tmp_path / "budget.jsonl"
    made = CliRunner().invoke(app, ["budget", str(budget), "--epsilon", "1", "--delta", "1e-5"])
    assert made.exit_code == 0, made.output
    first = run(*files, *ASK, "--epsilon", "0.7", "--budget", str(budget), "--out", str(folder), "--json")
    assert json.loads(first.output)["epsilon"] <= 0.7
    assert (folder / "ledger.jsonl").exists()
    second = run(*files, *ASK, "--epsilon", "0.7", "--budget", str(budget))
    assert second.exit_code != 0
    assert "A run of up to epsilon=0.667 still fits" in second.output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--number", "age=120"], "COLUMN=LOW:HIGH"),
        (["--category", "sex"], "COLUMN=VALUE,VALUE"),
        ([], "the columns are age, sex"),
        (["--number", "height=0:3"], "height"),
        ([*ASK, "--trust", "server"], "local, central, or pairwise"),
        (["--number", "aeg=0:120"], "did you mean 'age'?"),
        ([*ASK, "--number", "age=0:100"], "is given twice"),
        ([*ASK, "--correlate"], "at least two numeric columns"),
        ([*ASK, "--epsilon", "0"], "--epsilon = 0.0: must be positive"),
    ],
)
def test_wrong_question_raises(files, words, text):
    shown = run(*files, *words)
    assert shown.exit_code != 0
    assert text in shown.output


def test_bad_picture_spends_nothing(files, tmp_path):
    """A result that cannot be drawn would be paid for and lost."""
    budget = tmp_path / "budget.jsonl"
    CliRunner().invoke(app, ["budget", str(budget), "--epsilon", "1", "--delta", "1e-5"])
    before = budget.read_bytes()
    for picture in ("look.xyz", "nowhere/look.png"):
        shown = run(*files, *ASK, "--budget", str(budget), "--picture", str(tmp_path / picture))
        assert shown.exit_code == 2 and "picture" in shown.output
    assert budget.read_bytes() == before


def test_semicolons_raise_with_remedy(tmp_path):
    path = tmp_path / "export.csv"
    path.write_text("age;sex\n50;f\n")
    for words in (ASK, []):
        shown = run(str(path), *words)
        assert shown.exit_code == 2 and "sep=';'" in shown.output


def test_configuration_gives_files_and_columns(files, tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text(
        f"data: {{name: csv, train: '{tmp_path}/owner*.csv', test: {files[0]}, label: sex, classes: [f, m], "
        "numbers: {age: [0, 120]}, categories: {}, partition: {kind: by_writer}}\n"
        "model: logistic_regression\nloss: logistic\nstrategy: {name: dp_gd, learning_rate: 1}\n"
        "privacy: {epsilon: 1, delta: 1.0e-5}\nrounds: 3\n"
    )
    shown = run(str(config), "--plan", "--json")
    assert json.loads(shown.output)["n_rows"] == [400, 400, 400]
    assert list(json.loads(shown.output)["half_widths"]) == ["age"]
    more = run(str(config), "--category", "sex=f,m", "--plan", "--json")
    assert list(json.loads(more.output)["half_widths"]) == ["sex"]
    assert "one configuration, or" in run(str(config), files[0]).output
