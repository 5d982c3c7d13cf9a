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
    ],
)
def test_wrong_question_raises(files, words, text):
    shown = run(*files, *words)
    assert shown.exit_code != 0
    assert text in shown.output
