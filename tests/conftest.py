"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# tests run in parallel processes: more threads than that only get in each other's way
torch.set_num_threads(1)
# nothing is timed: a busy machine is no failure
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture
def allow_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names outside the catalogue are imported, here and in commands that a test starts."""
    monkeypatch.setenv("FEDPRIV_ALLOW_PLUGINS", "1")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of larger data sets; the test is skipped when there is none."""
    root = os.environ.get("FEDPRIV_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("set FEDPRIV_DATA to a folder with mnist/, femnist/ and so on")
    return Path(root)
