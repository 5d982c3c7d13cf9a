"""The example of four hospitals runs from four files: it describes, trains and states, with one budget."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "hospitals" / "describe_then_train.py"
HEADING = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


@pytest.fixture
def heart(tmp_path: Path) -> Path:
    """A folder with files of made-up patients."""
    folder = tmp_path / "heart"
    folder.mkdir()
    stream = np.random.default_rng(0)
    for name in HOSPITALS:
        rows = [
            f"{stream.integers(30, 80)},{stream.integers(0, 2)},{stream.integers(1, 5)},130,240,0,0,"
            f"{stream.integers(90, 190)},0,1,2,0,3,{int(index % 2)}"
            for index in range(300)
        ]
        (folder / f"{name}.csv").write_text("\n".join([HEADING, *rows]) + "\n")
    return folder


def run(*words: object) -> str:
    made = subprocess.run([sys.executable, str(EXAMPLE), *map(str, words)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def test_example_in_one_process(heart: Path, tmp_path: Path) -> None:
    printed = run(heart, tmp_path / "out")
    assert "50 %" in printed and "left: a run of up to epsilon=0.967" in printed
    statement = (tmp_path / "out" / "statement.md").read_text()
    assert "reveals at most epsilon=0.8378 (delta=0.0001)" in statement
    assert "statistics, asked once: mean, deviation and quantiles (25 %, 50 %, 75 %) of age" in statement
    assert "epsilon=0.8378 of 1 at delta=0.0001 is spent so far" in statement


@pytest.mark.slow
def test_example_between_sites(heart: Path, tmp_path: Path) -> None:
    """One site is late for the statistics; one site and the server are killed while they train."""
    printed = run(heart, tmp_path / "out", "--sites")
    assert "absent: va (no_reply)" in printed and "50 %" in printed
    out = tmp_path / "out"
    assert json.loads((out / "look" / "result.json").read_text())["ended"] == "rounds"
    result = json.loads((out / "train" / "result.json").read_text())
    assert (result["ended"], result["rounds"]) == ("rounds", 30)
    for name in HOSPITALS:
        statement = (out / f"{name}.statement.md").read_text()
        assert "reveals at most epsilon=0.8378 (delta=0.0001)" in statement
        # a statement lists plans in the order of their names, which are random
        assert "numbers of rows by sex (0, 1), with other sites" in statement
        assert "training a model of type logistic_regression" in statement
        assert "1 x mean vector of all statistics" in statement
