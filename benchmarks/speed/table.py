"""One table of the costs of fedpriv: each line is a ratio of contenders that alternated in one run.

    python benchmarks/speed/table.py [--only WORD ...] [--markdown FILE] [--seconds 5]

Costs are processor time of one thread, or peak memory; ratios are of medians over turns. A busy machine slows all
contenders of a line equally; absolute costs are listed next to the ratio and are not comparable between machines.
pfl-research 0.6.0 is installed into a separate environment (`--pfl`) the first time; if that fails, its lines are
omitted with a note. `--smoke` runs every line once, at tiny sizes: its numbers are meaningless.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

import architectures
import bookkeeping
import gradients
import pfl_environment
import rounds
import steps
import torch
from rows import OURS, PLAIN, SMOKE, Effort, Found, Row

ROWS: tuple[Row, ...] = (*gradients.ROWS, *architectures.ROWS, *steps.ROWS, *rounds.ROWS, *bookkeeping.ROWS)
HEADER = ("work", "over", "ratio", "peers", "aim", "fedpriv", "over is", "note")


def main() -> None:
    """Prints the table, line by line, and writes it if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="lines whose work has one of the words")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="where to write the table")
    parser.add_argument("--seconds", type=float, default=5.0, help="of processor time for each line that is quick")
    parser.add_argument("--pfl", type=Path, default=Path(".venv-pfl"), metavar="FOLDER", help="environment of pfl")
    parser.add_argument("--no-pfl", action="store_true", help="leave pfl out")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, everything in this process")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for row in ROWS if any(word in row.work for word in options.only)]
    pfl = None if options.no_pfl or options.smoke else pfl_environment.interpreter(options.pfl.absolute())
    effort = SMOKE if options.smoke else Effort(options.seconds, pfl=pfl)
    lines: list[str] = []
    for line in table(rows, effort):
        print(line, flush=True)
        lines.append(line)
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(rows: Sequence[Row], effort: Effort) -> Iterator[str]:
    """Yields lines of Markdown."""
    yield shown(HEADER)
    yield shown(["---"] * len(HEADER))
    for row in rows:
        found = row.measure(effort)
        yield shown(cells(row, found))
    yield ""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}"
    yield f"{versions}, one thread, load {os.getloadavg()[0]:.1f} at the end."


def cells(row: Row, found: Found) -> list[str]:
    """Returns the cells of one line."""
    ratios = found.ratios()
    peers = ", ".join(f"{name} {number(ratio)}" for name, ratio in ratios.items() if name != OURS)
    costs = (f"{number(found.costs[name])} {row.unit}" for name in (OURS, PLAIN))
    return [row.work, row.over, number(ratios[OURS]), peers, row.aim, *costs, found.note]


def number(value: float) -> str:
    """Formats a number with three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def shown(parts: Sequence[str]) -> str:
    """Returns a line of a Markdown table."""
    return "| " + " | ".join(parts) + " |"


if __name__ == "__main__":
    main()
