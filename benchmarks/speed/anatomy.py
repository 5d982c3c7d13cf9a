"""Splits a step into its parts: the kernels of fedpriv's and of the plain step, as shares of the plain one.

    python benchmarks/speed/anatomy.py [--only WORD ...] [--markdown FILE]

For lines of the table (`table.py`) with contenders in this process. Each number is time over the time of the whole
plain step, so a line's parts add up to its ratio: kernels as counted by torch's profiler, and `between`, which is
everything else: Python, numpy and the cipher. The difference from the plain step is the cost of privacy. The profiler
makes every kernel some microseconds longer, so for small models this shows the composition and not the duration.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import gradients
import steps
import torch
from rows import OURS, PLAIN, SMOKE, Effort, Row
from table import shown
from torch.profiler import ProfilerActivity, profile

KINDS = {
    "convolutions": ("convolution", "max_pool", "avg_pool", "native_group_norm"),
    "products": ("mm", "dot", "linear"),
    "unfolding, copies": ("im2col", "col2im", "copy_", "cat", "index", "gather", "fill_", "zero_", "clone", "pad"),
    "norms, weights, sums": (
        "norm",
        "sum",
        "mul",
        "add",
        "sqrt",
        "div",
        "sub",
        "where",
        "isfinite",
        "clamp",
        "min",
        "max",
    ),
}
OTHER, BETWEEN = "other kernels", "between"
PARTS = (*KINDS, OTHER, BETWEEN)
TURNS = 10


def parts(run: Callable[[], object]) -> dict[str, float]:
    """Returns milliseconds of one call by kind, and `between` them."""
    run()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        start = perf_counter()
        for _ in range(TURNS):
            run()
        whole = 1e3 * (perf_counter() - start) / TURNS
    spent = dict.fromkeys(PARTS, 0.0)
    for event in found.key_averages():
        if event.key.startswith("aten::"):
            spent[kind(event.key.removeprefix("aten::"))] += 1e-3 * event.self_cpu_time_total / TURNS
    spent[BETWEEN] = whole - sum(spent.values())
    return spent


def kind(kernel: str) -> str:
    """Returns the part to which a kernel belongs."""
    return next((name for name, words in KINDS.items() if any(word in kernel for word in words)), OTHER)


def anatomy(row: Row, effort: Effort) -> Iterator[str]:
    """Yields two lines of Markdown, fedpriv's and the plain step's."""
    found: dict[str, dict[str, float]] = {}

    def look(name: str, run: Callable[[], object]) -> None:
        if name in (OURS, PLAIN):
            found[name] = parts(run)

    row.measure(replace(effort, look=look))
    if found:
        whole = sum(found[PLAIN].values())
        for name in (OURS, PLAIN):
            shares = [spent / whole for spent in found[name].values()]
            yield shown([row.work, name, *(f"{share:.2f}" for share in (*shares, sum(shares)))])


def main() -> None:
    """Prints the lines, and writes them if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="lines whose work has one of the words")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="where to write the table")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: the numbers mean nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [shown(("work", "of", *PARTS, "all")), shown(["---"] * (len(PARTS) + 3))]
    for row in (*gradients.ROWS, *steps.ROWS):
        if any(word in row.work for word in options.only):
            lines += anatomy(row, SMOKE if options.smoke else Effort(seconds=1.0))
    print("\n".join(lines), flush=True)
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
