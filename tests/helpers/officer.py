"""The ten questions that a page for a data-protection officer must answer, as the documentation lists them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

VERIFIER = Path(__file__).parents[2] / "tools" / "fedpriv_verify.py"
_DOCS = Path(__file__).parents[2] / "docs" / "howto" / "statement.md"
PARTS = {
    int(number): tuple(int(part) for part in re.findall(r"\b[0-7](?=:)", where))
    for number, where in re.findall(r"^\| (\d+)\. .*? \| (.*) \|$", _DOCS.read_text(), flags=re.MULTILINE)
}
"""In which parts of the page each question has its answer; 0 is the sentence before them."""


def epsilon_by_verifier(page: str) -> float:
    """The epsilon that the small verifier prints for the ledger that a page names, by the page's own command."""
    (ledger,) = re.findall(r"python -m fedpriv_verify (\S+): ", parts_of(page)[7])
    counted = subprocess.run([sys.executable, VERIFIER, ledger], capture_output=True, text=True, check=True)
    return float(re.findall(r"^epsilon <= (\S+) ", counted.stdout)[0])


def parts_of(page: str) -> list[str]:
    """The first sentence, and the seven parts, of a page in Markdown."""
    found = re.split(r"^## (\d)\. ", page, flags=re.MULTILINE)
    assert found[1::2] == list("1234567"), found[1::2]
    return found[::2]


def check_answers(page: str, answers: Mapping[int, Sequence[str]]) -> None:
    """Each question has its answers in one of the parts that the documentation names."""
    parts = parts_of(page)
    assert set(answers) == set(PARTS) == set(range(1, 11))
    for question, phrases in answers.items():
        where = "".join(parts[number] for number in PARTS[question])
        for phrase in phrases:
            assert phrase in where, f"question {question}: {phrase!r} is not in {where}"
