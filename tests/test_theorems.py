"""docs/theorems.md is complete: what it names exists, and what the code can promise is named."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from fedpriv.privacy.accounting.bounds import BOUNDS
from fedpriv.privacy.pairwise import Pairwise
from fedpriv.privacy.record import MechanismName, Relation, SamplingName, Unit
from fedpriv.privacy.settings import Central, Local, SecureAggregation, Trust

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "theorems.md"
Row = tuple[str, str, str, str, str]
# of fedpriv/privacy and its price list: files that hold no statement, but settings, words, or what others use
WITHOUT_STATEMENT = {
    "privacy/unprotected_noise.py",  # noise without a promise
    "privacy/budget_shares.py",
    "privacy/chain.py",
    "privacy/matrices.py",  # how good a matrix is, never what it costs
    "privacy/pairwise.py",
    "privacy/schedules.py",
    "privacy/release/scheme.py",
}


def rows() -> list[Row]:
    found = list[Row]()
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != 5 or cells[0] == "statement" or set(cells[0]) <= {"-"}:
            assert not line.startswith("|") or len(cells) == 5, line
            continue
        found.append((cells[0], cells[1], cells[2], cells[3], cells[4]))
    return found


ROWS = rows()


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@cache
def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def missing(row: Row) -> list[str]:
    """What a row names and is not there, or does not name."""
    _, source, code, test, attack = row
    gaps = [f"no {name}" for name, cell in (("source", source), ("code", code)) if not cell]
    for cell, name in ((test, "test"), (attack, "attack")):
        identifiers = quoted(cell)
        if not identifiers:
            gaps.append(f"no {name}")
        for identifier in identifiers:
            path, _, function = identifier.partition("::")
            file = ROOT / "tests" / path
            if not (file.is_file() and function in functions_of(file)):
                gaps.append(identifier)
    gaps += [path for path in quoted(code) if not (ROOT / "fedpriv" / path).is_file()]
    paths = [path for path in quoted(source) if path.endswith(".py")]
    gaps += [path for path in paths if not ((ROOT / "fedpriv" / path).is_file() or (ROOT / path).is_file())]
    return gaps


def test_theorems_page_statements_unique():
    assert len(ROWS) > 40
    statements = [row[0] for row in ROWS]
    assert len({*statements}) == len(statements)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_theorem_row_references_exist(row: Row):
    assert not missing(row)


@pytest.mark.parametrize("column", [1, 2, 3, 4])
def test_theorem_row_gap_reported(column: int):
    for damaged in ("", "`privacy/nothing.py`", "`privacy/test_noise.py::test_nothing`"):
        row = list(ROWS[0])
        row[column] = damaged
        if column == 1 and "::" in damaged:
            continue  # a source may quote anything that is no path
        assert missing((row[0], row[1], row[2], row[3], row[4])), damaged


def words_of_the_code() -> set[str]:
    trusts: list[Any] = [Local(), SecureAggregation(2), Central(), Pairwise(colluders=1, ratio=3)]
    assert {type(trust) for trust in trusts} == {*get_args(Trust)}, "a trust is not here"
    names = {str(trust).partition("(")[0] for trust in trusts}
    for literal in (MechanismName, SamplingName, Relation, Unit):
        names |= {*get_args(literal)}
    return {name for word in names for name in (get_args(word) or (word,))}


def test_every_privacy_term_has_statement():
    words = words_of_the_code()
    assert {"gaussian", "laplace", "none", "poisson", "allocation", "local", "central", "pairwise", "client"} <= words
    named = {word for statement, *_ in ROWS for word in quoted(statement)}
    assert not words - named, f"docs/theorems.md has no statement about {words - named}"


def test_every_privacy_file_has_theorem_row():
    """A new file in fedpriv/privacy has a row, or is in the list above with a reason."""
    package = ROOT / "fedpriv"
    files = {path.relative_to(package).as_posix() for path in (package / "privacy").rglob("*.py")}
    files = {path for path in files if not path.endswith("__init__.py")}
    named = {path for row in ROWS for path in quoted(row[2])}
    assert not files - named - WITHOUT_STATEMENT, f"not in docs/theorems.md: {files - named - WITHOUT_STATEMENT}"
    assert files >= WITHOUT_STATEMENT and not WITHOUT_STATEMENT & named
    assert {*BOUNDS} == {"pure", "rdp", "gaussian", "pld"}  # another bound needs a row
