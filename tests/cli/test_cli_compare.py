"""`fedpriv compare`: real runs in folders, one table, and the price of all before and after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import DIGITS, error_line, fedpriv

import fedpriv as library

SHORT = ("data.partition.n_clients=3", "rounds=4", "log.tensorboard=false")
FEDAVG = "strategy={name: fedavg, learning_rate: 0.5}"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("compare") / "all"
    words = (DIGITS, *SHORT, "--variant", FEDAVG, "--variant", "rounds=6", "--seeds", "2", "--out", str(folder))
    return folder, fedpriv("compare", *words)


def test_compare_total_matches_account(compared):
    folder, done = compared
    assert done.exit_code == 0, done.output
    runs = [str(folder / name) for name in ("1-0", "1-1", "2-0", "2-1")]
    account = fedpriv("account", *runs).stdout
    together = json.loads((folder / "comparison.json").read_text())["together"]["epsilon"]
    assert f"epsilon={together:.4g}"[:11] in account.replace("together                     ", "")
    assert done.output.count("epsilon=") >= 2, "the price stands before the first run, too"
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert [json.loads((Path(run) / "result.json").read_text())["rounds"] for run in runs] == [4, 4, 6, 6]


def test_compare_table_lists_settings_with_seeds(compared):
    folder, done = compared
    lines = done.stdout.splitlines()
    assert lines[0].startswith("setting") and lines[1].startswith(FEDAVG) and lines[2].startswith("rounds=6")
    saved = json.loads((folder / "comparison.json").read_text())["settings"]
    assert [*saved] == [FEDAVG, "rounds=6"]
    assert all(len(facts["test_accuracy"]) == 2 for facts in saved.values())
    assert len({*saved["rounds=6"]["test_loss"]}) == 2, "seeds have noise of their own"


def test_compare_plan_prints_cost_without_training(compared):
    folder, _ = compared
    done = fedpriv("compare", DIGITS, *SHORT, "--variant", FEDAVG, "--variant", "rounds=6", "--seeds", "2", "--plan")
    together = json.loads((folder / "comparison.json").read_text())["together"]["epsilon"]
    assert done.exit_code == 0 and f"{together:.3f}"[:4] in done.output


def test_compare_plan_lists_uncovered_values():
    done = fedpriv("compare", DIGITS, *SHORT, "log.optimum=0.1", "--seeds", "2", "--plan")
    assert "not covered: the optimality gap, exact" in " ".join(done.output.split())


def test_compare_invalid_input_raises_before_run(tmp_path: Path):
    out = ("--out", str(tmp_path / "all"))
    other = tmp_path / "other.yaml"
    other.write_text(Path(DIGITS).read_text().replace("digits", "mnist"))
    assert "differs from the data of" in error_line("compare", DIGITS, str(other), *out)
    assert "share their noise" in error_line("compare", DIGITS, "secret_seed=1", *out)
    assert "would be the name of two rows" in error_line(
        "compare", DIGITS, "--variant", "rounds=2", "--variant", "rounds=2", *out
    )
    assert "required for the runs and their ledgers" in error_line("compare", DIGITS)
    assert "name at least one" in error_line("compare", "rounds=3", *out)
    assert not (tmp_path / "all").exists()
    (tmp_path / "all").mkdir()
    (tmp_path / "all/x").touch()
    assert "name a new folder" in error_line("compare", DIGITS, *SHORT, *out)


def test_compare_stops_within_lifetime_budget(tmp_path: Path):
    library.Budget.create(tmp_path / "clinic.jsonl", epsilon=4.0, delta=1e-5)
    budget = f"privacy.budget={tmp_path / 'clinic.jsonl'}"
    assert "still fits" in error_line("compare", DIGITS, *SHORT, budget, "--out", str(tmp_path / "all"))
    finished = [run for run in (tmp_path / "all").iterdir() if (run / "result.json").exists()]
    assert len(finished) == 1, "one run of epsilon 3 fits into 4, two do not"
