"""What the tests of runs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpriv.privacy.budget import Budget


@pytest.fixture
def budget(tmp_path: Path) -> Budget:
    return Budget.create(tmp_path / "b.jsonl", epsilon=1.9, delta=1e-5)
