"""The table of a run's rounds, where it is asked for what it does not have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedpriv as fp
from fedpriv.runs.history import History

ROWS = [{"round": 1, "epsilon": 0.5}, {"round": 2, "epsilon": 1.0, "test_accuracy": 0.9}]


def test_history_contains_columns_and_rows() -> None:
    table = History(ROWS)
    assert "test_accuracy" in table
    assert "test_loss" not in table
    assert ROWS[0] in table
    assert {"round": 3} not in table


def test_histories_with_same_rows_equal() -> None:
    assert History(ROWS) == History(list(History(ROWS)))
    assert History(ROWS) != History(ROWS[:1])
    assert History(ROWS) != History(ROWS)[["round"]]
    assert History(ROWS) != ROWS


def test_history_indexed_by_numpy_integer() -> None:
    assert History(ROWS)[np.int64(-1)] == ROWS[1]
    with pytest.raises(IndexError):
        History(ROWS)[2]


@pytest.mark.parametrize("key", [("round", "epsilon"), 1.0, None, np.array([True, False])])
def test_unsupported_history_key_raises_with_fix(key: Any) -> None:
    with pytest.raises(fp.ConfigError, match=re.escape('history[["round", "epsilon"]], history[-5:]')):
        History(ROWS)[key]


@pytest.mark.parametrize("table", [History([]), History(ROWS)[["round"]]])
def test_plot_without_columns_raises(table: History) -> None:
    with pytest.raises(fp.ConfigError, match="there are no metrics to draw"):
        table.plot()


def test_history_in_reference_page() -> None:
    assert "::: fedpriv.runs.history\n" in (Path(__file__).parents[2] / "docs" / "reference" / "train.md").read_text()
