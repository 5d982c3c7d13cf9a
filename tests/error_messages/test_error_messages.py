"""Fifty errors and warnings have the texts in messages.txt, which is a file to read in one sitting."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from provoke import MESSAGES, messages

sys.path.pop(0)


def test_messages_match_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDPRIV_ALLOW_PLUGINS", raising=False)
    expected = MESSAGES.read_text(encoding="utf-8")
    difference = [*difflib.unified_diff(expected.splitlines(), messages().splitlines(), "messages.txt", "now", n=1)]
    assert not difference, "\n".join(
        ["texts changed; if they are better now, renew the file: python tests/error_messages/provoke.py", *difference]
    )


def test_fifty_messages_are_listed() -> None:
    entries = [line for line in MESSAGES.read_text(encoding="utf-8").splitlines() if line.startswith((">>> ", "$ "))]
    assert len(entries) == 50
    assert len({*entries}) == 50
