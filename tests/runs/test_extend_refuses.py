"""What is not extended: a run with other settings, unfinished or altered, or with noise that belongs together."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from extended import ROUNDS, run, training

import fedpriv as fp


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    run(tmp_path / "a", ROUNDS)
    return tmp_path / "a"


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "step": ({"strategy": fp.fedavg(0.25)}, r"learning_rate: 0.5 then, 0.25 now"),
    "clip": (
        {"privacy": fp.Privacy(epsilon=3.0, clip=fp.Clip(2.0), sampling=fp.Poisson(0.2))},
        r"privacy.clip.bound: 1.0 then, 2.0 now",
    ),
    "sampling": ({"sampling": fp.Poisson(0.1)}, r"rate: 0.2 then, 0.1 now"),
    "delta": ({"privacy": fp.Privacy(epsilon=3.0, delta=1e-4, sampling=fp.Poisson(0.2))}, "privacy.delta: 1e-05 then"),
    "seed": ({"seed": 5}, "seed: None then, 5 now"),
    "no more rounds": ({"rounds": ROUNDS}, r"rounds = 4: .*already has 4 rounds: use a larger number"),
    "resume": ({"resume": True}, "set resume, and leave extend out"),
}


@pytest.mark.filterwarnings("ignore:a secret_seed is given")
@pytest.mark.parametrize("name", CHANGES)
def test_extension_with_changed_setting_raises(name: str, finished: Path) -> None:
    changed, message = CHANGES[name]
    folder = finished.with_name("b")
    with pytest.raises(fp.FedprivError, match=message):
        run(folder, **{"rounds": 8, "epsilon": 3.0, "extend": finished, **changed})
    assert not (folder / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    "privacy",
    [
        fp.Privacy(epsilon=2.0, sampling=fp.Cyclic(2)),
        fp.Privacy(epsilon=2.0, sampling=fp.Cyclic(2), noise=fp.BSR(2)),
        fp.Privacy(epsilon=2.0, noise=fp.BSR(2)),
    ],
    ids=["cyclic batches", "correlated noise, cyclic batches", "correlated noise"],
)
def test_extension_with_correlated_noise_raises(privacy: fp.Privacy, tmp_path: Path) -> None:
    run(tmp_path / "a", 4, privacy=privacy)
    with pytest.raises(fp.ConfigError, match="start a new run"):
        run(tmp_path / "b", 8, privacy=privacy, extend=tmp_path / "a")


def test_extension_with_fixed_length_strategy_raises(tmp_path: Path) -> None:
    made: dict[str, Any] = {"strategy": fp.private_al(), "sampling": fp.FullBatch()}
    made["problem"] = fp.Problem(constraints=(fp.LossAtMost(0.5),))
    run(tmp_path / "a", 4, **made)
    with pytest.raises(fp.FedprivError, match="rounds: 4 then, 8 now"):
        run(tmp_path / "b", 8, epsilon=3.0, extend=tmp_path / "a", **made)


def test_extension_of_unfinished_run_raises(tmp_path: Path) -> None:
    first = training(tmp_path / "a", 6)
    for report in first:
        if report.round == 3:
            break
    first.save()
    del first
    gc.collect()
    with pytest.raises(fp.FedprivError, match="has finished 3 of 6 rounds: finish this run first"):
        run(tmp_path / "b", 9, epsilon=3.0, extend=tmp_path / "a")


@pytest.mark.parametrize("edit", ["less", "shorter"])
def test_extension_of_altered_run_raises(edit: str, finished: Path) -> None:
    path = finished / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    if edit == "less":
        record = json.loads(lines[2])
        lines[2] = lines[2].replace(str(record["noise_multiplier"]), str(9 * record["noise_multiplier"]))
    else:
        lines.pop()
    path.write_text("".join(lines))
    with pytest.raises(fp.LedgerError, match=r"altered|incomplete"):
        run(finished.with_name("b"), 8, epsilon=3.0, extend=finished)


def test_header_without_extended_field_raises(finished: Path) -> None:
    folder = finished.with_name("b")
    first = training(folder, 8, epsilon=3.0, extend=finished)
    next(iter(first))
    del first
    gc.collect()
    path = folder / "ledger.jsonl"
    path.write_text(path.read_text().replace('"extended"', '"extendid"'))
    with pytest.raises(fp.LedgerError):
        training(folder, 8, epsilon=3.0, resume=True)


def test_extension_in_same_folder_raises(finished: Path) -> None:
    with pytest.raises(fp.ConfigError, match="which must stay as it is"):
        run(finished, 8, epsilon=3.0, extend=finished)


def test_extension_under_new_budget_raises(finished: Path) -> None:
    path = finished.with_name("budget.jsonl")
    fp.Budget.create(path, epsilon=5.0, delta=1e-5)
    with pytest.raises(fp.LedgerError, match="was not charged to"):
        privacy = fp.Privacy(epsilon=3.0, sampling=fp.Poisson(0.2), budget=path)
        run(finished.with_name("b"), 8, privacy=privacy, extend=finished)
