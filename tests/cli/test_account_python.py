"""`fedpriv account` on the folders of runs that a Python program began: it charges what `train` charged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import error_line, fedpriv
from edits import with_plan_of
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import SoftmaxRegression

ROUNDS = 12
SAMPLINGS = {
    "full": fp.FullBatch(),
    "allocation": fp.Allocation(4),
    "poisson": fp.Poisson(0.2),
    "cyclic": fp.Cyclic(4),
}


def begun(folder: Path, privacy: fp.Privacy, rounds: int = ROUNDS, **options: Any) -> fp.Training:
    draw = torch.Generator().manual_seed(0)
    data = [TensorDataset(torch.randn(60, 3, generator=draw), torch.arange(60) % 2) for _ in range(2)]
    clients = fp.make_clients(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), data)
    return fp.Training(clients, fp.fedavg(0.5), privacy, rounds=rounds, folder=folder, **options)


def charged(training: fp.Training, rounds: int = ROUNDS) -> fp.Result:
    """Trains for a number of rounds, and returns the result."""
    for report in training:
        if report.round == rounds:
            break
    result = training.result()
    assert training.folder is not None
    training.folder.close()
    return result


def accounted(*folders: Path) -> dict[str, Any]:
    done = fedpriv("account", *map(str, folders), "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def notes_on(facts: dict[str, Any]) -> Sequence[str]:
    return [note for note in facts["notes"] if "is not finished" in note]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_account_python_run_left_early_charges_plan(sampling: str, tmp_path: Path) -> None:
    """The person who stops a run may have inspected its models, so the two completed rounds do not suffice."""
    result = charged(begun(tmp_path / "run", fp.Privacy(epsilon=3, sampling=SAMPLINGS[sampling])), 2)
    assert (result.ended, result.rounds) == ("left", 2)
    facts = accounted(tmp_path / "run")
    assert facts["epsilon"] == pytest.approx(result.spent.epsilon, rel=1e-9) == pytest.approx(3, rel=1e-3)
    assert "whole plan is charged" in notes_on(facts)[0]


@pytest.mark.parametrize("stop", [ROUNDS, ROUNDS + 1], ids=["left after the last round", "iterated to the end"])
def test_account_finished_python_run_has_no_note(stop: int, tmp_path: Path) -> None:
    result = charged(begun(tmp_path / "run", fp.Privacy(epsilon=3), checkpoint_every=5), stop)
    facts = accounted(tmp_path / "run")
    assert facts["epsilon"] == pytest.approx(result.spent.epsilon, rel=1e-9)
    assert not notes_on(facts)


def test_account_python_run_ended_by_budget(tmp_path: Path) -> None:
    result = charged(begun(tmp_path / "run", fp.Privacy(epsilon=3, noise_multiplier=3.0)), 100)
    assert (result.ended, result.rounds < ROUNDS) == ("budget", True)
    facts = accounted(tmp_path / "run")
    assert facts["epsilon"] == pytest.approx(result.spent.epsilon, rel=1e-9)
    assert facts["epsilon"] < 3
    assert not notes_on(facts)


@pytest.mark.parametrize("sampling", ["full", "allocation", "poisson"])
def test_account_python_run_resumed_then_left(sampling: str, tmp_path: Path) -> None:
    """The answers after the checkpoint are lost, and no release is charged twice."""
    privacy = fp.Privacy(epsilon=3, sampling=SAMPLINGS[sampling])
    charged(begun(tmp_path / "run", privacy, checkpoint_every=5), 5)
    checkpoint = (tmp_path / "run" / "checkpoint.pt").read_bytes()
    charged(begun(tmp_path / "run", privacy, checkpoint_every=5, resume=True), 7)
    (tmp_path / "run" / "checkpoint.pt").write_bytes(checkpoint)  # as after a kill in round 8
    result = charged(begun(tmp_path / "run", privacy, checkpoint_every=5, resume=True), 9)
    facts = accounted(tmp_path / "run")
    assert facts["epsilon"] == pytest.approx(result.spent.epsilon, rel=1e-9) == pytest.approx(3, rel=1e-3)
    assert facts["epsilon"] <= 3
    assert notes_on(facts)


def test_account_python_run_stopped_by_metric(tmp_path: Path) -> None:
    test = TensorDataset(torch.randn(20, 3), torch.arange(20) % 2)
    stop = fp.Stop("accuracy", patience=1, min_delta=1.0)
    result = charged(begun(tmp_path / "run", fp.Privacy(epsilon=3), test=test, stop=stop), 100)
    assert result.ended == "metric"
    assert accounted(tmp_path / "run")["epsilon"] == pytest.approx(result.spent.epsilon, rel=1e-9)


def test_account_several_runs_match_total(tmp_path: Path) -> None:
    results = [charged(begun(tmp_path / f"{stop}", fp.Privacy(epsilon=3)), stop) for stop in (2, 100)]
    facts = accounted(tmp_path / "2", tmp_path / "100")
    assert facts["epsilon"] == pytest.approx(fp.total(results).epsilon, rel=1e-9)


def test_account_unknown_plan_raises(tmp_path: Path) -> None:
    """A checkpoint of an earlier version has no plan."""
    charged(begun(tmp_path / "run", fp.Privacy(epsilon=3)), 2)
    with_plan_of(tmp_path / "run", None)
    assert "is not finished, so its whole plan is charged" in error_line("account", str(tmp_path / "run"))


def test_account_plan_of_other_run_raises(tmp_path: Path) -> None:
    """A plan with more noise than the ledger has would charge too little for the rest."""
    for name, noise in (("run", 4.0), ("other", 40.0)):
        charged(begun(tmp_path / name, fp.Privacy(noise_multiplier=noise)), 2)
    with_plan_of(tmp_path / "run", tmp_path / "other")
    assert "is not finished, so its whole plan is charged" in error_line("account", str(tmp_path / "run"))
