"""The changes that mutation testing makes are changes, and the ones that matter are among them."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest
from mutations import mutants_of

ROOT = Path(__file__).parents[2]

SOURCE = '''
"""What it is for."""
import math
from typing import Literal

Word = Literal["a", "b"]
MOST = 3


def f(x, y, *, key=b""):
    """What it does: not touched."""
    if x < y and not key:
        raise ValueError(f"{x} + {y}")
    total = [0.0]
    total[0] = max(x, y) / 2 if key else -y
    total[0] += float(x)
    for item in sorted(total, key=abs):
        continue
    return g(y, key, key=key)
'''
EXPECTED = {
    ("x < y and (not key)", "x <= y and (not key)"),
    ("x < y and (not key)", "x >= y and (not key)"),
    ("x < y and (not key)", "x < y or not key"),
    ("x < y and (not key)", "x < y"),
    ("x < y and (not key)", "not (x < y and (not key))"),
    ("raise ValueError(f'{x} + {y}')", "pass"),
    ("MOST = 3", "MOST = 4"),
    ("total[0] = max(x, y) / 2 if key else -y", "pass"),
    ("total[0] = max(x, y) / 2 if key else -y", "total[0] = -y if key else max(x, y) / 2"),
    ("total[0] = max(x, y) / 2 if key else -y", "total[0] = max(x, y) * 2 if key else -y"),
    ("total[0] = max(x, y) / 2 if key else -y", "total[0] = min(x, y) / 2 if key else -y"),
    ("return g(y, key, key=key)", "return g(key, y, key=key)"),
    ("total[0] += float(x)", "total[0] -= float(x)"),
    ("total[0] += float(x)", "pass"),
    ("continue", "break"),
    ("return g(y, key, key=key)", "return g(y, key)"),
    ("return g(y, key, key=key)", "return None"),
}


def _plain(text: str) -> str:
    return ast.unparse(ast.parse(text))


def test_mutant_is_one_parsable_change() -> None:
    source = SOURCE.encode()
    found = mutants_of("f.py", source)
    for mutant in found:
        changed = mutant.applied(source)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
        assert SOURCE.splitlines()[mutant.line - 1].strip().startswith(mutant.old.splitlines()[0].strip()[:5]) or (
            mutant.old in SOURCE.splitlines()[mutant.line - 1]
        )
    assert {(_plain(m.old), _plain(m.new)) for m in found} >= {(_plain(a), _plain(b)) for a, b in EXPECTED}
    assert len({m.key for m in found}) == len(found)
    untouched = [m for m in found if "What it" in m.old or "Literal" in m.old or m.old.startswith("import")]
    assert not untouched


def test_mutant_rank_unchanged_by_other_lines() -> None:
    before = sorted(mutants_of("f.py", SOURCE.encode()), key=lambda m: m.rank(7))
    after = sorted(mutants_of("f.py", SOURCE.replace("MOST = 3", "MORE = 30").encode()), key=lambda m: m.rank(7))
    common = {m.key for m in before} & {m.key for m in after}
    assert [m.key for m in before if m.key in common] == [m.key for m in after if m.key in common]
    assert len(common) == len(before) - 1


@pytest.mark.parametrize("seed", [0, 1])
def test_mutant_rank_depends_on_seed(seed: int) -> None:
    found = mutants_of("f.py", SOURCE.encode())
    ranks = [m.rank(seed) for m in found]
    assert ranks == [m.rank(seed) for m in found]
    assert ranks != [m.rank(1 - seed) for m in found]


def test_equivalent_mutants_match_current_code() -> None:
    """A rewritten line has other mutants, so the reasons of its equivalent mutants must be checked again."""
    rows = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text())["equivalent"]
    changes = {(row["file"], _flat(row["old"]), _flat(row["new"])) for row in rows}
    assert len(changes) == len(rows)
    for file in {row["file"] for row in rows}:
        changes -= {(file, _flat(m.old), _flat(m.new)) for m in mutants_of(file, (ROOT / file).read_bytes())}
    assert not changes, f"equivalent.toml names changes that mutation testing does not make: {changes}"


def _flat(text: str) -> str:
    return " ".join(text.split())
