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


def test_a_name_is_in_it_if_it_is_a_column_and_a_row_if_it_is_one() -> None:
    table = History(ROWS)
    assert "test_accuracy" in table
    assert "test_loss" not in table
    assert ROWS[0] in table
    assert {"round": 3} not in table


def test_tables_of_the_same_rows_are_equal() -> None:
    assert History(ROWS) == History(list(History(ROWS)))
    assert History(ROWS) != History(ROWS[:1])
    assert History(ROWS) != History(ROWS)[["round"]]
    assert History(ROWS) != ROWS


def test_a_row_may_be_asked_for_by_a_number_of_numpy() -> None:
    assert History(ROWS)[np.int64(-1)] == ROWS[1]
    with pytest.raises(IndexError):
        History(ROWS)[2]


@pytest.mark.parametrize("key", [("round", "epsilon"), 1.0, None, np.array([True, False])])
def test_another_kind_of_key_says_what_to_write(key: Any) -> None:
    with pytest.raises(fp.ConfigError, match=re.escape('history[["round", "epsilon"]], history[-5:]')):
        History(ROWS)[key]


@pytest.mark.parametrize("table", [History([]), History(ROWS)[["round"]]])
def test_nothing_to_draw_is_said(table: History) -> None:
    with pytest.raises(fp.ConfigError, match="no column to draw except round and releases"):
        table.plot()


def test_the_reference_has_it() -> None:
    assert "::: fedpriv.runs.history\n" in (Path(__file__).parents[2] / "docs" / "reference" / "train.md").read_text()
