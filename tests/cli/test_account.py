"""`fedpriv account` on the folders of real runs."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from commands import error_line, fedpriv, result_of, trained
from edits import with_plan_of

import fedpriv as fp
from fedpriv.config import build, load_config, to_yaml
from fedpriv.privacy.accounting.spent import round_up
from fedpriv.storage.folder import RunFolder

DIGITS = Path(__file__).parents[1] / "run.yaml"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three runs of epsilon 1 on the same data."""
    folder = tmp_path_factory.mktemp("runs")
    return [trained(folder / name, "privacy.epsilon=1") for name in ("1", "2", "3")]


def accounted(*words: object) -> dict[str, object]:
    done = fedpriv("account", *map(str, words), "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_account_one_run_equals_result(runs: list[Path]):
    facts, result = accounted(runs[0]), result_of(runs[0])
    assert facts["epsilon"] == pytest.approx(result["epsilon"], rel=1e-9)
    assert facts["per_client_epsilon"] == pytest.approx(result["per_client_epsilon"])
    assert {facts[name] for name in ("unit", "relation", "trust")} == {"sample", "replace_one", "local"}
    assert len(facts["matrix"]) == 15 and not facts["notes"]
    assert facts["matrix"][0]["epsilon"] == facts["epsilon"]


def test_account_three_runs_below_sum(runs: list[Path]):
    facts = accounted(*runs)
    assert facts["epsilon"] == pytest.approx(1.835, abs=1e-3) == max(facts["per_client_epsilon"])
    assert facts["basic"] == {"epsilon": pytest.approx(3, rel=1e-4), "delta": pytest.approx(3e-5)}
    assert [run["epsilon"] for run in facts["runs"]] == pytest.approx([1.0] * 3, rel=1e-4)
    text = fedpriv("account", *map(str, runs)).stdout
    assert "together" in text and "epsilon=1.835 (delta=1e-5, unit=sample" in text
    assert "epsilon=3 at delta=3e-5" in text
    assert "no smaller one is known" in text
    shown = fedpriv("show", *map(str, runs)).stdout
    assert "they cost up to epsilon=1.835 at delta=1e-5 together" in shown and "epsilon=3 at delta=3e-05 if" in shown


def test_account_other_delta_and_accountant(runs: list[Path]):
    assert accounted(runs[0], "--delta", "1e-7")["epsilon"] > 1.1
    facts = accounted(runs[0], "--accountant", "rdp")
    assert facts["epsilon"] > 1.01 and facts["accountant"] == "rdp"
    assert accounted(runs[0], "--accountant", "pure")["epsilon"] == "inf"
    assert accounted(runs[0], "--group", "3")["matrix"][2]["unit"] == "group of 3 samples"
    assert "must be pure, rdp, gaussian, pld, or be left out" in error_line(
        "account", str(runs[0]), "--accountant", "clt"
    )
    assert "delta" in error_line("account", str(runs[0]), "--delta", "2")


def test_account_copied_run_counts_twice(runs: list[Path], tmp_path: Path):
    """A copy may have resumed with other noise, so its releases are charged separately."""
    shutil.copytree(runs[0], tmp_path / "copy")
    two = accounted(runs[0], tmp_path / "copy")
    assert two["epsilon"] == pytest.approx(accounted(*runs[:2])["epsilon"], rel=1e-9)


def test_account_altered_ledger_raises(runs: list[Path], tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(runs[0], copy)
    (copy / "ledger.jsonl").write_text("".join((copy / "ledger.jsonl").read_text().splitlines(keepends=True)[:-1]))
    assert "incomplete" in error_line("account", str(copy))
    assert "is not the header of a ledger" in error_line("account", str(_broken(runs[1], tmp_path)))
    assert "does not exist" in error_line("account", str(tmp_path))


def _broken(run: Path, folder: Path) -> Path:
    shutil.copytree(run, folder / "broken")
    (folder / "broken/ledger.jsonl").write_text("{}\n")
    return folder / "broken"


def test_account_different_data_composed_per_unit(runs: list[Path], tmp_path: Path):
    other = trained(tmp_path / "other", "data.partition.n_clients=4", "privacy.epsilon=1")
    facts = accounted(runs[0], other)
    assert 1.4 < facts["epsilon"] < 1.5
    assert any("data differ" in note for note in facts["notes"])
    whole = [
        trained(tmp_path / name, "privacy.unit=client", f"data.partition.n_clients={count}")
        for name, count in (("four", 4), ("five", 5))
    ]
    assert "whole clients, but different ones" in error_line("account", *map(str, whole))
    assert accounted(runs[0], whole[0])["unit"] == "sample"


def left(folder: Path, *overrides: str, again: bool = False) -> Path:
    """A run that was killed after four rounds; or that went on for one more, and was killed again."""
    config = load_config(DIGITS, ["data.partition.n_clients=3", "rounds=9", *overrides])
    checkpoint = b""
    with RunFolder.new(folder) as run:
        run.write("config.yaml", to_yaml(config).encode())
        for report in build(config, run):
            if report.round == 4:
                checkpoint = (folder / "checkpoint.pt").read_bytes()
                break
    (folder / "checkpoint.pt").write_bytes(checkpoint)
    if again:
        with RunFolder(folder) as run:
            for report in build(config, run, resume=True):
                if report.round == 5:
                    break
        (folder / "checkpoint.pt").write_bytes(checkpoint)
    return folder


@pytest.mark.parametrize("sampling", ["privacy.sampling=full", "privacy.sampling={allocation: {batches: 3}}"])
def test_account_unfinished_run_charges_whole_plan(tmp_path: Path, sampling: str):
    """The person who stopped the run may have inspected its models, so the cost of fewer rounds does not hold."""
    run = left(tmp_path / "run", sampling)
    facts = accounted(run)
    assert 2.9 < facts["epsilon"] <= 3.0
    assert any("is not finished: its whole plan is charged" in note for note in facts["notes"])
    page = fedpriv("statement", str(run)).stdout
    assert f"at most epsilon={round_up(facts['epsilon'])}" in page
    assert "5 more were planned and are charged" in page
    other = trained(tmp_path / "other", "data.partition.n_clients=3")
    together = accounted(run, other)
    shown = " ".join(fedpriv("show", str(run), str(other)).stdout.split())
    assert f"up to epsilon={round_up(together['epsilon'])}" in shown
    assert f"epsilon={round_up(together['basic']['epsilon'])} at delta=2e-05 if results" in shown


def test_account_resumed_run_charges_release_once(tmp_path: Path):
    noise = "privacy={noise_multiplier: 20}"
    unbroken = accounted(trained(tmp_path / "whole", "rounds=9", noise, "data.partition.n_clients=3"))
    again = accounted(left(tmp_path / "run", noise, "log.checkpoint_every=100", again=True))
    assert again["epsilon"] == pytest.approx(unbroken["epsilon"])


def test_account_unfinished_run_bounded_by_target(tmp_path: Path):
    limit = "privacy={noise_multiplier: 20, epsilon: 1}"
    ended = accounted(trained(tmp_path / "ended", "rounds=200", limit, "data.partition.n_clients=3"))
    assert accounted(left(tmp_path / "run", "rounds=200", limit))["epsilon"] == ended["epsilon"] <= 1


def test_account_metric_stopped_run_charges_whole_plan(tmp_path: Path):
    early = [
        "rounds=9",
        "log.stop={metric: accuracy, patience: 1, min_delta: 0.9}",
        "privacy.sampling={poisson: {rate: 0.3}}",
    ]
    run = trained(tmp_path / "run", *early)
    result = result_of(run)
    assert result["ended"] == "metric" and result["rounds"] < 9
    assert accounted(run)["epsilon"] == pytest.approx(result["epsilon"], rel=1e-6)
    with_plan_of(run, None)
    assert accounted(run)["epsilon"] == pytest.approx(result["epsilon"], rel=1e-6)
    (run / "config.yaml").unlink()
    assert "ended early, so its whole plan is charged" in error_line("account", str(run))


def test_account_run_without_guarantee_is_infinite(tmp_path: Path):
    facts = accounted(trained(tmp_path / "run", "privacy={noise_on: none}"))
    assert facts["epsilon"] == "inf" and facts["non_private"] == ["exact query results, no noise"]


def test_total_matches_account():
    def result(stop: fp.Stop | None = None) -> fp.Result:
        training = build(load_config(DIGITS, ["rounds=6", "privacy.epsilon=1", "data.partition.n_clients=3"]))
        for report in training:
            if stop is not None and report.round == 2:
                break
        return training.result()

    whole, left = result(), result(fp.Stop("accuracy"))
    assert left.rounds == 2 and len(left.charged) == len(whole.charged) == 6
    found = fp.total([whole, result(), left])
    assert found.epsilon == pytest.approx(1.835, abs=1e-3)
    assert fp.total([whole], delta=1e-6).epsilon > 1
    assert math.isinf(fp.total([whole], accountant="pure").epsilon)
    with pytest.raises(fp.ConfigError, match="results"):
        fp.total([])
