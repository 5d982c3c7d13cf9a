"""What commands print, on real runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import DIGITS, FULL_LINE, SMALL, error_line, fedpriv, result_of, trained


def test_train_large_delta_warns_before_first_round(tmp_path: Path) -> None:
    done = fedpriv("train", DIGITS, "--out", str(tmp_path), *SMALL, "privacy.delta=0.001")
    assert "warning: delta=0.001 is not below 1/1437" in done.stderr.split("round 1/")[0]


def test_train_prints_results_and_writes_files(tmp_path: Path):
    folder = tmp_path / "run"
    done = fedpriv("train", DIGITS, "--out", str(folder), *SMALL, "log.tensorboard=true", "log.csv=true")
    assert done.exit_code == 0
    assert re.search(r"test accuracy +\d+\.\d\d%", done.stdout)
    assert re.search(rf"privacy +{FULL_LINE}", done.stdout)
    assert re.search(rf"TensorBoard +\S*tensorboard --logdir {folder / 'tb'}", done.stdout)
    assert str(folder / "report.png") in done.stdout
    assert "round 6/6 · loss" in done.stderr
    assert "of 3" in done.stderr
    expected = {"config.yaml", "ledger.jsonl", "metrics.jsonl", "metrics.csv", "result.json", "checkpoint.pt", "tb"}
    assert {path.name for path in folder.iterdir()} == expected | {"report.png", "model.pt"}


def test_result_file_has_all_fields(tmp_path: Path):
    result = json.loads((trained(tmp_path / "run") / "result.json").read_text())
    names = "strategy rounds test_accuracy test_loss epsilon delta unit relation trust accountant per_client_epsilon"
    assert set(f"{names} seconds params_l2".split()) <= set(result)
    assert (result["strategy"], result["rounds"], result["unit"]) == ("iadmm_prox", 6, "sample")
    assert 2.9 < result["epsilon"] <= 3
    assert len(result["per_client_epsilon"]) == 5


def test_json_option_prints_json_only(tmp_path: Path):
    folder = tmp_path / "run"
    done = fedpriv("train", DIGITS, "--json", "--out", str(folder), *SMALL)
    assert json.loads(done.stdout)["folder"] == str(folder)
    for words in (["plan", DIGITS, "--json"], ["show", str(folder), "--json"], ["list", "--json"]):
        done = fedpriv(*words)
        assert done.exit_code == 0
        assert json.loads(done.stdout)
    assert json.loads(fedpriv("show", str(folder), "--json").stdout)["finished"] is True


def test_train_without_out_creates_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        assert fedpriv("train", DIGITS, *SMALL, "rounds=1").exit_code == 0
        assert Path(f"runs/run-{number}/result.json").exists()


def test_show_several_runs_compares_them(tmp_path: Path):
    one, other = trained(tmp_path / "one"), trained(tmp_path / "other", "privacy.unit=client", "privacy.epsilon=20")
    shown = fedpriv("show", str(one), str(other))
    assert shown.exit_code == 0
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["run", str(one), str(other), "note:"]
    assert "the runs differ in unit" in shown.stdout
    facts = json.loads(fedpriv("show", str(one), str(other), "--json").stdout)
    assert [run["epsilon"] for run in facts["runs"]] == [result_of(one)["epsilon"], result_of(other)["epsilon"]]
    assert len(facts["notes"]) == 1


def test_list_name_shows_options():
    lines = fedpriv("list", "erdos_renyi").stdout.splitlines()
    assert lines[0] == "network.topology: erdos_renyi"
    rows = dict(line.split(maxsplit=1) for line in lines[1:])
    assert set(rows) == {"is", "p", "seed"}, "n_clients is not for the user to give"
    assert rows["p"].endswith("required")
    assert rows["seed"] == "a whole number; 0 by default"
    tracking = json.loads(fedpriv("list", "gradient_tracking", "--json").stdout)["strategy: gradient_tracking"]
    assert tracking["step_size"].endswith("{scale: 0.1, power: 0.0, ratio: 1.0} by default")
    assert tracking["step_size.scale"] == "a positive, finite number; 1.0 by default"
    assert tracking["gradient_at"] == "'sent' or 'mixed'; sent by default"
    assert "did you mean 'erdos_renyi'" in error_line("list", "erdos_reny")


def test_list_shows_one_line_per_name():
    listed = fedpriv("list").stdout
    for name in ("iadmm_trust", "femnist_cnn", "digits", "laplace", "cross_entropy"):
        assert re.search(rf"^  {name} +\S", listed, flags=re.MULTILINE), name


def test_plan_prints_privacy_cost_and_traffic():
    planned = fedpriv("plan", DIGITS).stdout
    assert re.search(rf"privacy +{FULL_LINE}", planned)
    assert re.search(rf"one round +{FULL_LINE}", planned)
    assert "640 numbers each; 12,800 numbers per round (51.2 kB), 1.54 MB in the whole run" in planned


def test_plan_published_variant_explains_infinite_epsilon():
    words = [
        "plan",
        DIGITS,
        "strategy={name: iadmm_prox, variant: published}",
        "privacy={epsilon_bar: .05}",
        "rounds=100",
    ]
    planned = fedpriv(*words).stdout
    assert "epsilon=inf (not private" in planned
    assert "epsilon_bar=0.05-DP in each round" in planned
    assert "5 by basic composition" in planned
    assert "the published variant is not private: Delta_t is the largest l1 norm" in planned


def test_published_variant_reported_as_not_private(tmp_path: Path):
    words = ["strategy={name: iadmm_trust, variant: published}", "privacy={epsilon_bar: .05}"]
    folder = trained(tmp_path / "run", *words)
    result = result_of(folder)
    assert (result["strategy"], result["epsilon"]) == ("iadmm_trust (published)", "inf")
    assert "measured on the client's own data" in fedpriv("show", str(folder)).stdout
    assert (folder / "report.png").stat().st_size > 10_000


def test_fix_model_replaces_batch_norm(tmp_path: Path):
    model = ["model=own_code:WithBatchNorm", "--allow-plugins"]
    assert "--fix-model" in error_line("train", DIGITS, "--out", str(tmp_path / "a"), *SMALL, *model)
    assert not (tmp_path / "a").exists(), "nothing was started, so nothing is left behind"
    done = fedpriv("train", DIGITS, "--out", str(tmp_path / "b"), "--fix-model", *SMALL, *model)
    assert done.exit_code == 0
    assert "fix: true" in (tmp_path / "b" / "config.yaml").read_text()
