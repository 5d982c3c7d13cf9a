"""Runs an experiment of one of the five papers and prints our figures beside the paper's.

    python benchmarks/reproduce --list
    python benchmarks/reproduce admm-epsilon --quick
    python benchmarks/reproduce admm-epsilon --full --jobs 8

Data are read from $FEDPRIV_DATA. A run writes `table.md`, `result.json` and `picture.png` to `--out`/NAME. An
interrupted run continues when the same command is given again; `--again` starts it anew. `--page FILE` writes one
Markdown page from all results in `--out`, the largest size of each experiment.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shutil
from pathlib import Path

import matplotlib as mpl
from experiment import COLUMNS, Bench, Experiment, Row, Size, markdown
from experiments import EXPERIMENTS
from rich.console import Console
from rich.table import Table

mpl.use("Agg")


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/reproduce", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments; see --list")
    parser.add_argument("--list", action="store_true", help="list the experiments with their minutes and data")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_const", const="quick", dest="size", help="small sizes")
    sizes.add_argument("--full", action="store_const", const="full", dest="size", help="the paper's sizes")
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="number of processes (default: 2)"
    )
    parser.add_argument("--again", action="store_true", help="compute stored points of an interrupted run again")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"), help="folder of the results")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write a page of all results in --out")
    options = parser.parse_args()
    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    for name in options.names:
        if name not in known:
            close = difflib.get_close_matches(name, known, 3, 0.3)
            parser.error(
                f"there is no experiment {name!r}" + (f"; did you mean {' or '.join(close)}?" if close else "")
            )
    if options.list or not (options.names or options.page):
        Console().print(listed(EXPERIMENTS))
    for name in options.names:
        missing = missing_data(known[name])
        if missing:
            parser.error(f"{name} reads {missing} from the folder that the environment variable FEDPRIV_DATA names")
        run(known[name], options.size or "default", options.out / name, options.jobs, options.again)
    if options.page:
        options.page.write_text(page(options.out, known))


def missing_data(experiment: Experiment) -> str:
    """Returns the folders that an experiment needs and that do not exist."""
    place = Path(os.environ.get("FEDPRIV_DATA", "data"))
    return ", ".join(name for name in experiment.data if not (place / name).exists())


def run(experiment: Experiment, size: Size, folder: Path, jobs: int, again: bool) -> None:
    """Runs an experiment, prints its table and verdict, and writes its files."""
    folder = folder.with_name(f"{folder.name}-{size}") if size != "default" else folder
    if again:
        shutil.rmtree(folder, ignore_errors=True)
    console = Console()
    console.rule(f"{experiment.name}: {experiment.paper}, {experiment.part}")
    bench = Bench(size, folder, jobs)
    found = experiment.run(bench)
    bench.finish(experiment, found)
    table = Table(*COLUMNS, title=found.measure)
    for row in found.rows:
        table.add_row(*row.cells())
    console.print(table)
    console.print(found.verdict, style="bold", highlight=False)
    for note in found.notes:
        console.print(f"* {note}", highlight=False)
    console.print(f"{bench.seconds / 60:.1f} processor minutes; written to {folder}", highlight=False)


def listed(experiments: list[Experiment]) -> Table:
    """Returns the table of `--list`."""
    table = Table(box=None)
    table.add_column("name", no_wrap=True)
    table.add_column("experiment")
    table.add_column("processor minutes: quick, default, full", no_wrap=False, max_width=18)
    table.add_column("data")
    for one in experiments:
        minutes = ", ".join("?" if value is None else f"{value:g}" for value in one.minutes)
        what = f"{one.paper}, {one.part}: {one.question}"
        table.add_row(one.name, what, minutes, ", ".join(one.data) or "made up")
    return table


def page(folder: Path, known: dict[str, Experiment]) -> str:
    """Returns a page with the table, verdict and notes of each result in a folder, paper by paper.

    If an experiment has results of several sizes, the page has the largest.
    """
    parts = [
        "# Results of the papers' experiments",
        "",
        "Made by `python benchmarks/reproduce NAME` and `--page`; `--list` prints all names. *Ours* is the mean and\n"
        "the standard deviation over the seeds. *Paper* is the paper's figure, if its text states one. The *true\n"
        "epsilon* is an upper bound for the whole run, at the delta of the experiment; a line without an epsilon has\n"
        "no noise.",
    ]
    paper = ""
    for name, one in known.items():
        folders = [folder / f"{name}-full", folder / name, folder / f"{name}-quick"]
        stored = next((place for place in folders if (place / "result.json").exists()), None)
        if stored is None:
            continue
        if one.paper != paper:
            paper = one.paper
            parts += ["", f"## {paper}"]
        result = json.loads((stored / "result.json").read_text())
        size = "" if result["size"] == "default" else f", with `--{result['size']}`"
        minutes = f"{max(result['seconds'] / 60, 0.1):.1f} processor minutes{size}."
        parts += ["", f"### {name}", "", f"{one.part[0].upper()}{one.part[1:]}: {one.question}.", ""]
        rows = [Row(**row) for row in result["rows"]]
        parts += [markdown(result["measure"], rows, result["verdict"], result["notes"]), minutes]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
