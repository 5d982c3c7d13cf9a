"""Nothing changes what runs release, what that costs, or whether a stopped run can go on, unless it is meant to."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from make_golden import CASES, golden  # the script beside this file

sys.path.pop(0)
GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())


def test_golden_file_has_all_cases():
    assert {*GOLDEN} == {*CASES}


@pytest.mark.parametrize("name", CASES)
def test_resumed_run_equals_golden(name: str):
    result = golden(CASES[name], exact=False)
    expected = GOLDEN[name]
    params = result.pop("params")
    epsilon = result.pop("epsilon")
    assert params == pytest.approx(expected.pop("params"), rel=1e-3, abs=1e-4)
    assert epsilon == pytest.approx(expected.pop("epsilon"), rel=1e-6)
    assert result == expected
