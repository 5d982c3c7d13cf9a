"""Private statistics of comma-separated files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape

from fedpriv.cli.printing import out, print_json, print_rows
from fedpriv.data.csv_file import read_headings, read_table
from fedpriv.errors import ConfigError
from fedpriv.planning import align_columns
from fedpriv.privacy import Central, Local, Pairwise, Privacy, Trust
from fedpriv.statistics import Correlations, Counts, Quantiles, Statistic, describe, plan_description

_COLLUDERS, _PAIR_RATIO = 1, 100.0
_TRUSTS = "local, central, or pairwise (noise that cancels between pairs of owners)"


@dataclass(frozen=True)
class Question:
    """The statistics to release, as typed on the command line.

    Attributes:
        files: A comma-separated file for each owner.
        numbers: `column=low:high` for each numeric column.
        categories: `column=value,value` for each categorical column.
        correlate: True to include the correlations of all numeric columns.
        privacy: The privacy settings.
    """

    files: Sequence[Path]
    numbers: Sequence[str]
    categories: Sequence[str]
    correlate: bool
    privacy: Privacy

    def statistics(self) -> list[Statistic]:
        """Returns the statistics.

        Raises:
            ConfigError: If an option has the wrong form, or no statistic is named.
        """
        bounds = dict(_bounds(text) for text in self.numbers)
        asked = list[Statistic]()
        asked.extend(Quantiles(column, limits) for column, limits in bounds.items())
        asked.extend(Counts(*_values(text)) for text in self.categories)
        if self.correlate:
            asked.append(Correlations(bounds))
        if not asked:
            headings = ", ".join(read_headings(str(self.files[0])))
            fix = f"give at least one, e.g. --number age=0:120; the columns are {headings}"
            raise ConfigError("--number, --category", "(none)", fix)
        return asked


def run(question: Question, folder: Path | None, picture: Path | None, *, plan_only: bool, as_json: bool) -> None:
    """Prints the statistics, or only the expected width of their intervals.

    Args:
        question: The statistics to release.
        folder: New folder for the ledger; None keeps it in memory.
        picture: File of the picture; None draws nothing.
        plan_only: Print only the width of each interval; only the number of rows is read.
        as_json: Print one JSON object.
    """
    asked = question.statistics()
    columns = list(dict.fromkeys(column for one in asked for column in one.columns))
    tables = [read_table(str(path), columns).columns for path in question.files]
    sizes = [len(table[columns[0]]) for table in tables]
    if plan_only:
        widths = plan_description(sizes, asked, question.privacy)
        if as_json:
            print_json({"half_widths": widths, "n_rows": sizes})
            return
        rows = [(name, label, f"± {width:.3g}") for name, labels in widths.items() for label, width in labels.items()]
        for line in align_columns([("statistic", "of", "95 % interval, about"), *rows]):
            out.print(escape(line))
        print_rows({"rows": ", ".join(map(str, sizes)), "spent": "nothing: this is the plan"})
        return
    description = describe(tables, asked, question.privacy, folder=folder)
    if picture is not None:
        description.plot(picture)
    if as_json:
        print_json(description.to_json())
        return
    out.print(escape(str(description)))
    if picture is not None:
        print_rows({"picture": str(picture)})
    if folder is not None:
        print_rows(
            {
                "ledger": str(folder),
                "next": f"fedpriv account {folder} RUN   (the joint cost of statistics and training)",
            }
        )


def make_trust(name: str) -> Trust:
    """Returns the trust of an option.

    Raises:
        ConfigError: If there is no such trust.
    """
    if name == "local":
        return Local()
    if name == "central":
        return Central()
    if name == "pairwise":
        return Pairwise(_COLLUDERS, _PAIR_RATIO)
    raise ConfigError("--trust", name, f"is unknown; choose {_TRUSTS}")


def _bounds(text: str) -> tuple[str, tuple[float, float]]:
    column, _, limits = text.rpartition("=")
    low, _, high = limits.partition(":")
    try:
        return column, (float(low), float(high))
    except ValueError:
        fix = "must be COLUMN=LOW:HIGH with a range from public knowledge, e.g. age=0:120"
        raise ConfigError("--number", text, fix) from None


def _values(text: str) -> tuple[str, list[str]]:
    column, equals, values = text.partition("=")
    if not (column and equals and values):
        fix = "must be COLUMN=VALUE,VALUE with all values from public knowledge, e.g. sex=f,m"
        raise ConfigError("--category", text, fix)
    return column, values.split(",")
