"""Private statistics of comma-separated files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape

from fedpriv.cli.printing import out, print_json, print_rows
from fedpriv.config import load_config
from fedpriv.data.csv_file import read_headings, read_table
from fedpriv.data.table_split import list_client_files
from fedpriv.errors import ConfigError, DataError
from fedpriv.planning import align_columns
from fedpriv.privacy import Central, Local, Pairwise, Privacy, Trust
from fedpriv.settings import suggest_nearest
from fedpriv.statistics import Correlations, Counts, Quantiles, Statistic, describe, plan_description
from fedpriv.statistics.numbers import USUAL_QUANTILES
from fedpriv.statistics.picture import check_picture

_COLLUDERS, _PAIR_RATIO = 1, 100.0
_TRUSTS = "local, central, or pairwise (noise that cancels between pairs of owners)"


@dataclass(frozen=True)
class Question:
    """The statistics to release, as typed on the command line.

    Attributes:
        files: A comma-separated file for each owner, or one configuration with `data: {name: csv, ...}`.
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
        bounds, categories = dict[str, tuple[float, float]](), dict[str, list[str]]()
        for column, limits in map(_bounds, self.numbers):
            _check_new(column, [*bounds])
            bounds[column] = limits
        for column, values in map(_values, self.categories):
            _check_new(column, [*bounds, *categories])
            categories[column] = values
        asked = list[Statistic]()
        asked.extend(Quantiles(column, limits, USUAL_QUANTILES) for column, limits in bounds.items())
        asked.extend(Counts(column, values) for column, values in categories.items())
        if not asked:
            headings = ", ".join(_headings(self.files[0]))
            fix = f"give at least one, e.g. --number age=0:120 or --category sex=f,m; the columns are {headings}"
            raise ConfigError("--number, --category", "(none)", fix)
        if self.correlate and len(bounds) < 2:
            raise ConfigError("--correlate", True, "needs at least two numeric columns: give --number twice or more")
        if self.correlate:
            asked.append(Correlations(bounds))
        return asked


def make_question(
    files: Sequence[Path], numbers: Sequence[str], categories: Sequence[str], correlate: bool, privacy: Privacy
) -> Question:
    """Returns the question; a configuration is replaced with its files, and with its columns if none is asked for.

    Raises:
        ConfigError: If the configuration has no comma-separated files.
    """
    configurations = [path for path in files if path.suffix in (".yaml", ".yml")]
    if not configurations:
        return Question(files, numbers, categories, correlate, privacy)
    if len(files) > 1:
        fix = "give one configuration, or comma-separated files, one for each owner"
        raise ConfigError("CSV", " ".join(map(str, files)), fix)
    data = load_config(configurations[0]).data
    if data.name != "csv":
        raise ConfigError("data.name", data.name, "must be csv: describe reads comma-separated files")
    settings = data.model_extra or {}
    if settings.get("client") is not None:
        raise ConfigError("data.client", settings["client"], "describe needs a file for each owner: split the file")
    owners = [Path(name) for name in list_client_files(settings["train"], ".csv") or [settings["train"]]]
    if not numbers and not categories:
        ranges, lists = settings.get("numbers") or {}, settings.get("categories") or {}
        numbers = [f"{column}={low}:{high}" for column, (low, high) in ranges.items()]
        categories = [f"{column}={','.join(map(str, values))}" for column, values in lists.items()]
    return Question(owners, numbers, categories, correlate, privacy)


def make_privacy(epsilon: float, delta: float, trust: str, budget: Path | None) -> Privacy:
    """Returns the privacy settings of options.

    Raises:
        ConfigError: If an option is out of range.
    """
    if not epsilon > 0:
        raise ConfigError("--epsilon", epsilon, "must be positive, e.g. 0.2: statistics always have noise")
    return Privacy(epsilon=epsilon, delta=delta, trust=make_trust(trust), budget=budget)


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
    if picture is not None:
        check_picture(picture)  # before anything is spent
    tables = [_read(path, columns) for path in question.files]
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


def _check_new(column: str, others: Sequence[str]) -> None:
    if column in others:
        raise ConfigError("--number, --category", column, "is given twice; leave one out, since each costs noise")


def _headings(path: Path) -> list[str]:
    """Returns the names of the columns.

    Raises:
        DataError: If the file cannot be read, or has another separator.
    """
    headings = read_headings(str(path))
    separator = next((mark for mark in ";\t|" if len(headings) == 1 and mark in headings[0]), None)
    if separator is not None:
        fix = f"save it with commas, or use fedpriv.describe(pandas.read_csv('{path}', sep={separator!r}), ...)"
        raise DataError(f"{path} separates its columns by {separator!r}, and not by commas: {fix}")
    return headings


def _read(path: Path, columns: Sequence[str]) -> Mapping[str, Sequence[str]]:
    try:
        return read_table(str(path), columns).columns
    except ConfigError:
        headings = _headings(path)
        lacking = next((column for column in columns if column not in headings), None)
        if lacking is None:
            raise
        fix = f"is not a column of {path}{suggest_nearest(lacking, headings)}"
        raise ConfigError("--number, --category", lacking, fix) from None


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
