"""Trackers get the rounds of a run and nothing else; what they write on this machine is read back."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

import pytest
from round_reports import report
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.errors import ConfigError
from fedpriv.reports.sinks import MLflow, WandB

ADDRESS = "MLFLOW_TRACKING_URI"


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("mlflow")
    monkeypatch.setenv(ADDRESS, (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written_by_wandb(folder: Path) -> bytes:
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return file.read_bytes()


def runs_of_mlflow(experiment: str):
    import mlflow

    client = mlflow.MlflowClient()
    return client, client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


def test_mlflow_has_each_round_once_without_times(offline: Path) -> None:
    sink = MLflow("trial", "first", settings={"rounds": 40, "privacy.epsilon": 4})
    for number in (1, 2, 3, 3):  # a resumed run repeats rounds
        sink.write(report(number, measured=number != 2, epsilon=math.inf if number == 1 else None))
    client, (run,) = runs_of_mlflow("trial")
    assert not run.data.metrics, "nothing is sent before the end"
    sink.close()
    _, (run,) = runs_of_mlflow("trial")
    assert run.info.run_name == "first"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"rounds": "40", "privacy.epsilon": "4"}
    assert set(run.data.metrics) == {"test/loss", "test/accuracy", "privacy/epsilon", "privacy/epsilon_of_target"}
    history = client.get_metric_history(run.info.run_id, "privacy/epsilon")
    assert [(point.step, point.value) for point in history] == [(2, 0.2), (3, 0.3)]
    accuracy = client.get_metric_history(run.info.run_id, "test/accuracy")
    assert [(point.step, point.value) for point in accuracy] == [(1, 1 / 40), (3, 3 / 40)]
    assert {point.timestamp for point in history + accuracy} == {run.info.start_time}
    # no user's name, no script, no commit: only the tag that holds the run's name
    assert set(run.data.tags) == {"mlflow.runName"}


def test_live_sends_each_round(offline: Path) -> None:
    sink = MLflow("trial", live=True)
    sink.write(report(1))
    _, (run,) = runs_of_mlflow("trial")
    assert run.data.metrics["test/loss"] == 1
    sink.close()
    MLflow("trial").close()
    assert len(runs_of_mlflow("trial")[1]) == 2, "the experiment is found again"


def test_wandb_has_rounds_without_machine_data(offline: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sink = WandB("project", "first", settings={"rounds": 40}, folder=offline)
    print("a line on the console that is nobody else's")
    for number in (1, 2):
        sink.write(report(number))
    assert b"test/accuracy" not in written_by_wandb(offline), "nothing is sent before the end"
    sink.close()
    deadline = time.monotonic() + 30  # W&B's own process writes the file
    while b"_of_target" not in written_by_wandb(offline) and time.monotonic() < deadline:
        time.sleep(0.05)
    content = written_by_wandb(offline)
    for expected in (b"project", b"first", b"rounds", b"test/accuracy", b"0.025", b"privacy/epsilon_of_target"):
        assert expected in content
    unwanted = (sys.executable.encode(), b"that is nobody else's", b"git", b"requirements.txt", b"system.cpu")
    assert not [text for text in unwanted if text in content]
    assert not list(offline.glob("wandb/offline-run-*/files/*"))


def test_track_sends_finished_run(offline: Path) -> None:
    command = CliRunner()
    trained = command.invoke(app, ["train", "digits_iadmm", "rounds=3", "log.tensorboard=false", "--out", "runs/a"])
    assert trained.exit_code == 0, trained.output
    sent = command.invoke(app, ["track", "runs/a", "--mlflow", "trial"])
    assert sent.exit_code == 0, sent.output
    client, (run,) = runs_of_mlflow("trial")
    assert run.info.run_name == "a"
    assert run.data.params["privacy.epsilon"] == "3.0"
    assert run.data.metrics["privacy/epsilon"] == pytest.approx(3, abs=0.01)
    assert [point.step for point in client.get_metric_history(run.info.run_id, "test/accuracy")] == [1, 2, 3]
    for options in ([], ["--mlflow", "a", "--wandb", "b"]):
        refused = command.invoke(app, ["track", "runs/a", *options])
        assert refused.exit_code == 2
        assert "exactly one of them is required: --wandb PROJECT or --mlflow EXPERIMENT" in refused.output


def test_wandb_missing_library_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedpriv\[wandb\]'"):
        WandB("project")
