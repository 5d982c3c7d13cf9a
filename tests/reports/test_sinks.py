"""Sinks take rounds and forget nothing, and a resumed run leaves the files of an unbroken one."""

from __future__ import annotations

import csv
import json
import math
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from round_reports import report, terminal_output
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedpriv.errors import FedprivError
from fedpriv.reports.sinks import Csv, Jsonl, TensorBoard
from fedpriv.runs.results import Sink


def write(sink: Sink, numbers: range) -> None:
    for number in numbers:
        sink.write(report(number, measured=number % 2 == 0))
    sink.close()


@pytest.mark.parametrize("kind", [Jsonl, Csv])
def test_sink_files_one_line_per_round_without_time(kind: type[Jsonl] | type[Csv], tmp_path: Path):
    write(kind(tmp_path / "one"), range(1, 6))
    lines = (tmp_path / "one").read_text().splitlines()
    assert len(lines) == 5 + (kind is Csv)
    if kind is Jsonl:
        assert json.loads(lines[1]) == {
            "round": 2,
            "epsilon": 0.2,
            "releases": 4,
            "test_loss": 0.5,
            "test_accuracy": 0.05,
        }
    else:
        rows = list(csv.DictReader(lines))
        assert rows[1] == {"round": "2", "epsilon": "0.2", "test_loss": "0.5", "test_accuracy": "0.05"}
        assert rows[0]["test_loss"] == "", "not measured"


@pytest.mark.parametrize("kind", [Jsonl, Csv])
@pytest.mark.parametrize("keep", [math.inf, 4])
def test_resumed_sink_file_equals_unbroken(kind: type[Jsonl] | type[Csv], keep: float, tmp_path: Path):
    """A checkpoint at round 4, a crash in the middle of the line of round 7; rounds 5 and on are repeated."""
    write(kind(tmp_path / "whole"), range(1, 10))
    write(kind(tmp_path / "broken"), range(1, 7))
    with (tmp_path / "broken").open("a") as file:
        file.write('{"round": 7, "eps' if kind is Jsonl else "7,0.")
    write(kind(tmp_path / "broken", keep), range(5, 10))
    assert (tmp_path / "broken").read_bytes() == (tmp_path / "whole").read_bytes()


def test_csv_sink_keeps_existing_columns(tmp_path: Path):
    """Values stand below their own names, and what the table has no column for is in metrics.jsonl."""
    path = tmp_path / "metrics.csv"
    path.write_text("round,test_accuracy,test_brier,epsilon\n1,0.5,0.25,0.1\n2,0.6,")
    write(Csv(path, 1), range(2, 5))
    assert path.read_text().startswith("round,test_accuracy,test_brier,epsilon\n1,0.5,0.25,0.1\n")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["epsilon"] for row in rows] == ["0.1", "0.2", "0.3", "0.4"]
    assert [row["test_accuracy"] for row in rows] == ["0.5", "0.05", "", "0.1"]
    assert [row["test_brier"] for row in rows] == ["0.25", "", "", ""]
    write(Csv(path), range(1, 3))
    assert path.read_text().startswith("round,epsilon,test_loss,test_accuracy\n"), "a new table"


def test_jsonl_sink_writes_infinity_as_text(tmp_path: Path):
    Jsonl(tmp_path / "metrics.jsonl").write(report(1, epsilon=math.inf))
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["epsilon"] == "inf"


def test_unwritable_sink_file_raises(tmp_path: Path):
    with pytest.raises(FedprivError, match=r"metrics\.jsonl could not be written"):
        Jsonl(tmp_path / "gone" / "metrics.jsonl")


def points(folder: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, round(event.value, 6)) for event in events.Scalars(tag)]


def test_tensorboard_resumed_run_has_each_round_once(tmp_path: Path):
    board = TensorBoard(tmp_path)
    board.text("privacy", "epsilon=0.6 (delta=1e-5)")
    write(board, range(1, 7))
    # TensorBoard reads files in the order of their names, where of one second and process the tenth is before the ninth
    time.sleep(1 - time.time() % 1)
    write(TensorBoard(tmp_path, done=4), range(5, 10))
    assert points(tmp_path, "privacy/epsilon") == [(number, number / 10) for number in range(1, 10)]
    assert points(tmp_path, "privacy/epsilon_of_target")[-1] == (9, 0.225)
    assert [step for step, _ in points(tmp_path, "test/accuracy")] == [2, 4, 6, 8]
    assert [step for step, _ in points(tmp_path, "test/loss")] == [2, 4, 6, 8]


def test_tensorboard_omits_infinite_epsilon(tmp_path: Path):
    board = TensorBoard(tmp_path)
    board.write(report(1, epsilon=math.inf))
    board.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Tags()["scalars"] == ["test/loss", "test/accuracy", "at_a_glance/test_accuracy"]


def test_progress_without_terminal_prints_lines():
    lines = terminal_output(terminal=False).splitlines()
    assert len(lines) == 20
    assert lines[0] == "round 2/40 · epsilon spent <= 0.2 of 4 · 2 rounds/s"
    assert lines[-1] == "round 40/40 · loss 0.0250 · accuracy 100.00% · epsilon spent <= 4 of 4 · 2 rounds/s"
    assert "round 3/3" in terminal_output(terminal=False, rounds=3)
    assert "not private" in terminal_output(terminal=False, epsilon=math.inf)


def test_progress_on_terminal_shows_bar():
    text = terminal_output(terminal=True)
    assert "round 40/40" in text
    assert "left · accuracy 100.00% · epsilon spent <= 4 of 4 · loss 0.0250 · 2 rounds/s" in text


def test_progress_on_narrow_terminal_keeps_epsilon():
    text = terminal_output(terminal=True, width=80)
    last = [line for line in text.replace("\r", "\n").splitlines() if "round 40/40" in line][-1]
    assert re.search(r"round 40/40 ━+ \S+ left · accuracy 100.00% · epsilon spent <= 4 ", last)


def test_tensorboard_accuracy_is_first_tag(tmp_path: Path) -> None:
    """TensorBoard sorts groups by name and opens the first ones: of all tags, the accuracy comes first."""
    sink = TensorBoard(tmp_path)
    names = (
        "test_loss",
        "test_accuracy",
        "client_test_accuracy_min",
        "node_test_accuracy_min",
        "violation",
        "bytes_sent",
    )
    sink.write(replace(report(1), metrics=dict.fromkeys(names, 0.5)))
    sink.close()
    tags = EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"]
    assert min(tags, key=lambda tag: tag.partition("/")) == "at_a_glance/test_accuracy"
