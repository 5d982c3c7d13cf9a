"""`fedpriv compare`: real runs in folders, one table, and the price of all before and after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import DIGITS, fedpriv, refused

import fedpriv as library

SHORT = ("data.partition.n_clients=3", "rounds=4", "log.tensorboard=false")
FEDAVG = "strategy={name: fedavg, learning_rate: 0.5}"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("compare") / "all"
    words = (DIGITS, *SHORT, "--with", FEDAVG, "--with", "rounds=6", "--seeds", "2", "--out", str(folder))
    return folder, fedpriv("compare", *words)


def test_every_run_has_a_ledger_and_all_are_priced_as_account_prices_them(compared):
    folder, done = compared
    assert done.exit_code == 0, done.output
    runs = [str(folder / name) for name in ("1-0", "1-1", "2-0", "2-1")]
    account = fedpriv("account", *runs).stdout
    together = json.loads((folder / "comparison.json").read_text())["together"]["epsilon"]
    assert f"epsilon={together:.4g}"[:11] in account.replace("together                     ", "")
    assert done.output.count("epsilon=") >= 2, "the price stands before the first run, too"
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert [json.loads((Path(run) / "result.json").read_text())["rounds"] for run in runs] == [4, 4, 6, 6]


def test_the_table_has_a_line_for_each_setting_with_all_its_seeds(compared):
    folder, done = compared
    lines = done.stdout.splitlines()
    assert lines[0].startswith("setting") and lines[1].startswith(FEDAVG) and lines[2].startswith("rounds=6")
    saved = json.loads((folder / "comparison.json").read_text())["settings"]
    assert [*saved] == [FEDAVG, "rounds=6"]
    assert all(len(facts["test_accuracy"]) == 2 for facts in saved.values())
    assert len({*saved["rounds=6"]["test_loss"]}) == 2, "seeds have noise of their own"


def test_the_plan_alone_trains_nothing_and_knows_the_price(compared):
    folder, _ = compared
    done = fedpriv("compare", DIGITS, *SHORT, "--with", FEDAVG, "--with", "rounds=6", "--seeds", "2", "--plan")
    together = json.loads((folder / "comparison.json").read_text())["together"]["epsilon"]
    assert done.exit_code == 0 and f"{together:.3f}"[:4] in done.output


def test_the_plan_says_what_runs_reveal_besides_epsilon():
    done = fedpriv("compare", DIGITS, *SHORT, "log.optimum=0.1", "--seeds", "2", "--plan")
    assert "not covered: the optimality gap, exact" in " ".join(done.output.split())


def test_what_does_not_compare_is_refused_before_a_run(tmp_path: Path):
    out = ("--out", str(tmp_path / "all"))
    other = tmp_path / "other.yaml"
    other.write_text(Path(DIGITS).read_text().replace("digits", "mnist"))
    assert "differs from that of" in refused("compare", DIGITS, str(other), *out)
    assert "share their noise" in refused("compare", DIGITS, "secret_seed=1", *out)
    assert "named twice" in refused("compare", DIGITS, "--with", "rounds=2", "--with", "rounds=2", *out)
    assert "prove what was spent" in refused("compare", DIGITS)
    assert "name at least one" in refused("compare", "rounds=3", *out)
    assert not (tmp_path / "all").exists()
    (tmp_path / "all").mkdir()
    (tmp_path / "all/x").touch()
    assert "name a new folder" in refused("compare", DIGITS, *SHORT, *out)


def test_a_lifetime_budget_ends_a_comparison_before_it_is_passed(tmp_path: Path):
    library.Budget.create(tmp_path / "clinic.jsonl", epsilon=4.0, delta=1e-5)
    budget = f"privacy.budget={tmp_path / 'clinic.jsonl'}"
    assert "still fits" in refused("compare", DIGITS, *SHORT, budget, "--out", str(tmp_path / "all"))
    finished = [run for run in (tmp_path / "all").iterdir() if (run / "result.json").exists()]
    assert len(finished) == 1, "one run of epsilon 3 fits into 4, two do not"
