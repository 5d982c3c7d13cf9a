"""README, documentation, changelog and docstrings use plain English: few phrases that readers have to decode.

Rewrite a sentence that this test lists. Replacing the word alone rarely makes the sentence clearer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIMIT = 1.5  # phrases per 1 000 words
SHOWN = 20  # sentences of a failure

PHRASES = re.compile(
    r"\b(says?|said|tells?|told|of which|whose|(?:that|those) of|(?:go|goes|going|went) on|beside|nobody|whoever|"
    r"who (?:has|sees)|in place of|hears?|heard|sees|knows|of (?:its|one's|your) own)\b",
    re.IGNORECASE,
)
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n\s*\n|\n(?=\s*(?:[-*#|>]|\d+\.) ?)")


@dataclass(frozen=True)
class Sentence:
    path: Path
    line: int
    text: str

    @property
    def words(self) -> int:
        return len(re.findall(r"\w+", self.text))

    @property
    def phrases(self) -> list[str]:
        return PHRASES.findall(re.sub(r"`[^`]*`", "", self.text))  # names of code do not count

    def __str__(self) -> str:
        place = self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path
        return f"{place}:{self.line}: {', '.join(self.phrases)}: {' '.join(self.text.split())[:200]}"


def without_code(markdown: str) -> str:
    """Replaces fenced and indented code blocks with empty lines, so that line numbers stay."""
    fenced = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
    text = fenced.sub(lambda block: "\n" * block[0].count("\n"), markdown)
    return re.sub(r"(?<=\n\n)(?: {4}.*\n)+", lambda block: "\n" * block[0].count("\n"), text)


def sentences(path: Path, text: str, first_line: int = 1) -> Iterator[Sentence]:
    start = 0
    for end in [*SENTENCE_END.finditer(text), None]:
        piece = text[start : end.start() if end else len(text)]
        leading = len(piece) - len(piece.lstrip())
        if piece.strip():
            yield Sentence(path, first_line + text.count("\n", 0, start + leading), piece.strip())
        start = end.end() if end else len(text)


def of_markdown(*paths: Path) -> list[Sentence]:
    return [sentence for path in paths for sentence in sentences(path, without_code(path.read_text()))]


def of_docstrings(*paths: Path) -> list[Sentence]:
    found: list[Sentence] = []
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node, clean=False)
                if docstring is not None:
                    prose = re.sub(r"^ *(>>>|\.\.\. ).*$", "", docstring, flags=re.MULTILINE)
                    found += sentences(path, prose, node.body[0].lineno)
    return found


def rate(found: list[Sentence]) -> float:
    return 1000 * sum(len(sentence.phrases) for sentence in found) / sum(sentence.words for sentence in found)


def worst(found: list[Sentence]) -> list[Sentence]:
    marked = [sentence for sentence in found if sentence.phrases]
    return sorted(marked, key=lambda sentence: (-len(sentence.phrases), sentence.words))[:SHOWN]


def texts(name: str) -> list[Sentence]:
    if name == "docstrings":
        return of_docstrings(*sorted((ROOT / "fedpriv").rglob("*.py")))
    if name == "docs":
        return of_markdown(*sorted((ROOT / "docs").rglob("*.md")))
    return of_markdown(ROOT / name)


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "docs", "docstrings"])
def test_prose_phrase_rate_below_limit(name: str) -> None:
    found = texts(name)
    if rate(found) > LIMIT:
        lines = "\n".join(str(sentence) for sentence in worst(found))
        message = f"{name}: {rate(found):.1f} phrases per 1 000 words, limit {LIMIT}. Rewrite:\n{lines}"
        pytest.fail(message, pytrace=False)


def test_markdown_counts_prose_only(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    code = "```text\nit says\n```\n\n    it says\n"
    page.write_text(f"# Title\n\nIt works.\n\n{code}\n- The file, of which `beside` is\n  told.\n")
    marked = [sentence for sentence in of_markdown(page) if sentence.phrases]
    assert [(sentence.line, sentence.phrases) for sentence in marked] == [(11, ["of which", "told"])]


def test_docstring_phrase_has_file_and_line(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Plain."""\n\n\ndef f():\n    """Computes.\n\n    >>> told\n\n    Nobody knows.\n    """\n')
    (marked,) = worst(of_docstrings(module))
    assert str(marked) == f"{module}:9: Nobody, knows: Nobody knows."
    assert rate(of_docstrings(module)) == 500
