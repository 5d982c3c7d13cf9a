"""`data.standardize`: a release before the first round, in the run's plan, ledger, epsilon and statement."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import error_line, fedpriv

import fedpriv as fp
from fedpriv.config import build, load_config
from fedpriv.config.building import forecast, load_data, load_plan
from fedpriv.config.standardizing import read_scales
from fedpriv.privacy.accounting import gaussian
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.runs.integrity import find_problems
from fedpriv.runs.run_files import RunFiles
from fedpriv.sites.unsupported import check_settings
from fedpriv.tuning import Search, SearchSettings, Space

ROWS = 400
STANDARDIZE = "data.standardize={columns: [age], share: 0.2}"


def table(path: Path, seed: int) -> Path:
    """Age has missing values; nobody is older than 90, although its range ends at 1000."""
    stream = np.random.default_rng(seed)
    lines = ["age,income,smoker,outcome"]
    for index in range(ROWS):
        age = int(stream.integers(20, 90))
        ill = stream.random() < 1 / (1 + math.exp(-(age - 55) / 8))
        known = "" if index % 8 == 0 else str(age)
        lines.append(f"{known},{stream.integers(0, 100)},{stream.choice(['no', 'yes'])},{'ill' if ill else 'well'}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    train, test = table(tmp_path / "train.csv", 1), table(tmp_path / "test.csv", 2)
    config = tmp_path / "run.yaml"
    config.write_text(
        f"data: {{name: csv, train: {train}, test: {test}, label: outcome, classes: [well, ill], "
        'numbers: {age: [0, 1000], income: [0, 100]}, categories: {smoker: ["no", "yes"]}, '
        "partition: {kind: iid, n_clients: 2}}\n"
        "model: logistic_regression\nloss: logistic\nstrategy: {name: fedavg, learning_rate: 1}\n"
        "privacy: {epsilon: 20, trust: central}\nrounds: 4\nlog: {tensorboard: false}\n"
    )
    return config


def rounds_of(folder: Path) -> list[int]:
    return [record.round for record in LedgerFile.read(folder / "ledger.jsonl").records]


def test_release_is_in_plan_and_ledger_and_target(path: Path, tmp_path: Path):
    config = load_config(path, [STANDARDIZE])
    planned = forecast(config)
    result = _run(config, tmp_path / "run")
    assert planned.releases == result.releases == 5 and "1 release" in planned.rows()["before round 1"]
    assert rounds_of(tmp_path / "run") == [-1, 0, 1, 2, 3]
    assert 19.9 < result.spent.epsilon <= 20 and planned.spent.epsilon <= 20
    first, *others = LedgerFile.read(tmp_path / "run" / "ledger.jsonl").records
    assert first == load_plan(config, 0).records[0], "the release costs what was planned"
    # its share is of the squared ratio of sensitivity to noise
    squares = [record.noise_multiplier**-2 for record in (first, *others)]
    assert squares[0] / gaussian.compute_ratio(20, 1e-5) ** 2 == pytest.approx(0.2, rel=0.01)
    assert sum(squares) / gaussian.compute_ratio(20, 1e-5) ** 2 == pytest.approx(1, rel=0.01)
    assert find_problems(RunFiles.read(tmp_path / "run")) == []


def _run(config, folder: Path | None, **options) -> fp.Result:
    training = build(config, folder, **options)
    for _ in training:
        pass
    return training.result()


@pytest.mark.filterwarnings("ignore:secret_seed is set")
def test_scales_match_data_and_missing_values_become_the_mean(path: Path, tmp_path: Path):
    config = load_config(path, [STANDARDIZE, "privacy.epsilon=5000", "secret_seed=3"])
    training = build(config, tmp_path / "run")
    scales, notes = read_scales(tmp_path / "run")
    with (tmp_path / "train.csv").open() as file:
        ages = np.array([float(row["age"]) for row in csv.DictReader(file) if row["age"]])
    assert [*scales] == ["age"] and notes == ()
    assert scales["age"] == (pytest.approx(ages.mean(), abs=1), pytest.approx(ages.std(), rel=0.1))
    inputs = torch.cat(
        [client.loader.dataset[index][0][None] for client in training.population.clients for index in range(200)]
    )
    assert (inputs[:, 0] == 0).sum() == ROWS // 8
    assert float(inputs[:, 0].std()) == pytest.approx((7 / 8) ** 0.5, rel=0.1)
    assert float(inputs[:, 1].abs().max()) <= 1, "other columns keep their public range"


@pytest.mark.parametrize("rounds_done", [0, 2])
def test_resume_releases_nothing_twice(path: Path, tmp_path: Path, rounds_done: int):
    config = load_config(path, [STANDARDIZE, "log.checkpoint_every=1"])
    first = build(config, tmp_path / "run")
    for _, _ in zip(range(rounds_done), first, strict=False):
        pass
    first._directory.folder.close()
    before = read_scales(tmp_path / "run")
    result = _run(config, tmp_path / "run", resume=True)
    assert rounds_of(tmp_path / "run") == [-1, 0, 1, 2, 3]
    assert read_scales(tmp_path / "run") == before
    assert result.spent.epsilon <= 20


def test_killed_between_release_and_training_resumes_with_it(path: Path, tmp_path: Path):
    config = load_config(path, [STANDARDIZE])
    first = build(config, tmp_path / "run")
    first._directory.folder.close()
    for name in ("checkpoint.pt", "ledger.jsonl"):
        (tmp_path / "run" / name).unlink()
    before = read_scales(tmp_path / "run")
    result = _run(config, tmp_path / "run", resume=True)
    assert read_scales(tmp_path / "run") == before and rounds_of(tmp_path / "run") == [-1, 0, 1, 2, 3]
    assert result.spent.epsilon <= 20


def test_lost_release_is_not_made_again(path: Path, tmp_path: Path):
    config = load_config(path, [STANDARDIZE])
    first = build(config, tmp_path / "run")
    first._directory.folder.close()
    (tmp_path / "run" / "standardize" / "scales.json").unlink()
    with pytest.raises(fp.LedgerError, match="restore the file from a copy, or start a new run"):
        build(config, tmp_path / "run", resume=True)
    shutil.rmtree(tmp_path / "run" / "standardize")
    with pytest.raises(fp.LedgerError, match="restore the file from a copy, or start a new run"):
        build(config, tmp_path / "run", resume=True)


def test_release_killed_before_its_record_is_made_once(path: Path, tmp_path: Path):
    config = load_config(path, [STANDARDIZE])
    place = tmp_path / "run" / "standardize"
    place.mkdir(parents=True)
    (place / "settings.json").write_text("{}")
    assert _run(config, tmp_path / "run").releases == 5


def test_extended_run_keeps_the_scales(path: Path, tmp_path: Path):
    _run(load_config(path, [STANDARDIZE]), tmp_path / "run")
    longer = load_config(path, [STANDARDIZE, "rounds=6", "privacy.epsilon=30"])
    result = _run(longer, tmp_path / "longer", extend=tmp_path / "run")
    assert result.releases == 7 and result.spent.epsilon <= 30
    assert read_scales(tmp_path / "longer") == read_scales(tmp_path / "run")


def test_run_in_memory_counts_it(path: Path):
    result = _run(load_config(path, [STANDARDIZE]), None)
    assert result.releases == 5 and 19.9 < result.spent.epsilon <= 20


def test_budget_charged_for_release_and_rounds(path: Path, tmp_path: Path):
    budget = fp.Budget.create(tmp_path / "b.jsonl", epsilon=20, delta=1e-5)
    config = load_config(path, [STANDARDIZE, f"privacy.budget={budget.path}"])
    _run(config, tmp_path / "run")
    assert 19.9 < budget.balance().spent.epsilon <= 20
    small = fp.Budget.create(tmp_path / "small.jsonl", epsilon=10, delta=1e-5)
    with pytest.raises(fp.BudgetExhausted):
        build(load_config(path, [STANDARDIZE, f"privacy.budget={small.path}"]), tmp_path / "other")
    assert small.balance().spent.epsilon == 0, "the release is not made if the run cannot follow"


def test_commands_predict_account_and_state_it(path: Path, tmp_path: Path):
    done = fedpriv("train", str(path), STANDARDIZE, "--out", str(tmp_path / "run"))
    assert done.exit_code == 0, done.stderr
    done = fedpriv("predict", str(tmp_path / "run"), str(tmp_path / "test.csv"), "--json")
    predicted = [float(row["p(ill)"]) for row in json.loads(done.stdout)["rows"]]
    scales, _ = read_scales(tmp_path / "run")
    config = load_config(path)
    given = config.data.model_copy(update={"scales": scales})
    inputs, _ = load_data(config.model_copy(update={"data": given})).test.tensors
    weights = torch.load(tmp_path / "run" / "model.pt", weights_only=True)["linear.weight"]
    np.testing.assert_allclose(predicted, torch.sigmoid(inputs @ weights[0]), atol=1e-3)
    statement = fedpriv("statement", str(tmp_path / "run")).stdout
    assert "release of the means and deviations of age" in " ".join(statement.split())
    assert "counts the releases of an earlier one" in " ".join(statement.split())
    assert fedpriv("account", str(tmp_path / "run")).exit_code == 0
    assert "before round 1" in fedpriv("plan", str(path), STANDARDIZE).stdout
    (tmp_path / "run" / "standardize" / "scales.json").unlink()
    assert "restore the file" in error_line("predict", str(tmp_path / "run"), str(tmp_path / "test.csv"))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (["data.standardize={columns: [agee]}"], "did you mean .age"),
        (["data.standardize={columns: [outcome]}"], "besides the label"),
        (["data.standardize={columns: []}"], "at least 1 item"),
        (["data.standardize={share: 1}"], "less than 1"),
        ([STANDARDIZE, "data.scales={age: [50, 10]}"], "also in data.scales"),
        ([STANDARDIZE, "privacy={noise_multiplier: 2}"], "must be set for data.standardize"),
        ([STANDARDIZE, "privacy={noise_on: none}"], "must be set for data.standardize"),
        ([STANDARDIZE, "privacy={epsilon: 1, mechanism: laplace, delta: 0}"], "must be gaussian"),
        ([STANDARDIZE, "privacy={epsilon: 1, unit: client}"], "single rows"),
        ([STANDARDIZE, "privacy={epsilon: 1, noise: {correlated: {bsr: {band: 2}}}}"], "cannot count releases"),
        ([STANDARDIZE, "compute.parallelism=clients"], "one process"),
    ],
)
def test_impossible_settings_raise_before_any_release(path: Path, tmp_path: Path, settings: list[str], text: str):
    with pytest.raises(fp.FedprivError, match=text):
        build(load_config(path, settings), tmp_path / "run")
    assert not (tmp_path / "run" / "standardize").exists()


def test_data_that_are_no_table_raise():
    config = load_config(Path("tests/run.yaml"), ["data.standardize={share: 0.1}"])
    with pytest.raises(fp.ConfigError, match="is for tables"):
        forecast(config)


def test_commands_without_a_release_refuse(path: Path):
    """Where the release would be left out, or repeated, nothing runs."""
    config = load_config(path, [STANDARDIZE])
    with pytest.raises(fp.ConfigError, match="train, resume, plan and predict only"):
        load_data(config)
    with pytest.raises(fp.ConfigError, match="leave it out; each site"):
        check_settings(load_config(path, [STANDARDIZE, "privacy={epsilon: 1}"]), 2)
    with pytest.raises(fp.ConfigError, match="each trial would release it again"):
        Search(config, Space.of({"strategy.learning_rate": [0.1, 1.0]}), SearchSettings(trials=2))


def test_configurations_without_it_keep_their_fingerprint(path: Path):
    from fedpriv.config import fingerprint

    plain, standardized = load_config(path), load_config(path, [STANDARDIZE])
    assert fingerprint(plain) != fingerprint(standardized)
    assert fingerprint(load_config(path, ["data.scales={age: [50, 10]}"])) != fingerprint(plain)
