"""The rounds of a run as a table."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from fedpriv import runs
from fedpriv.errors import ConfigError, FedprivError

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_MOST = 20  # rows that are printed

Row = Mapping[str, Any]


class History(Sequence[Row]):
    """A table with a row for each round: the number of the round, epsilon, number of releases, and metrics.

    `print(history)` prints the table. `history["test_accuracy"]` is a column: a numpy array with NaN where the metric
    was not measured. `history[0]` is a row, as a dict; `history[-5:]` and `history[["round", "epsilon"]]` are smaller
    tables. A loop iterates over rows; `"test_accuracy" in history` tests for a column. `to_pandas()` returns a data
    frame.

    Args:
        rows: The rounds in order.
        columns: Names of the columns; by default all that a row has, in the order in which they first occur.
    """

    def __init__(self, rows: Sequence[Row], columns: Sequence[str] | None = None) -> None:
        names = dict.fromkeys(name for row in rows for name in row)
        if columns is None:
            self.columns: tuple[str, ...] = tuple(names)
        else:
            self.columns = tuple(columns)
        self._rows = [{name: row[name] for name in self.columns if name in row} for row in rows]

    def __len__(self) -> int:
        """Number of rounds."""
        return len(self._rows)

    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, key: slice) -> History: ...

    @overload
    def __getitem__(self, key: str) -> NDArray[Any]: ...

    @overload
    def __getitem__(self, key: list[str]) -> History: ...

    def __getitem__(self, key: int | slice | str | list[str]) -> dict[str, Any] | History | NDArray[Any]:
        """Returns a row, some rows, a column, or some columns.

        Raises:
            ConfigError: If there is no column of this name, or the key has another type.
            IndexError: If there is no such row.
        """
        if isinstance(key, str):
            self._check(key)
            return np.array([math.nan if row.get(key) is None else row[key] for row in self._rows])
        if isinstance(key, list):
            for name in key:
                self._check(name)
            return History(self._rows, key)
        if isinstance(key, slice):
            return History(self._rows[key], self.columns)
        try:
            row = operator.index(key)
        except TypeError:
            fix = 'give a name, a list of names, a number or a slice: history[["round", "epsilon"]], history[-5:]'
            raise ConfigError("history", key, fix) from None
        return dict(self._rows[row])

    def __contains__(self, value: object) -> bool:
        """True if there is a column with this name, or such a row."""
        if isinstance(value, str):
            return value in self.columns
        return value in self._rows

    def __eq__(self, other: object) -> bool:
        """True if both are tables with the same columns and rows."""
        return isinstance(other, History) and (self.columns, self._rows) == (other.columns, other._rows)

    def _check(self, name: str) -> None:
        if name not in self.columns:
            raise ConfigError(
                "history", name, f"the history has no such column; its columns are {', '.join(self.columns)}"
            )

    def head(self, rows: int = 5) -> History:
        """Returns the first rows."""
        return self[:rows]

    def tail(self, rows: int = 5) -> History:
        """Returns the last rows."""
        return self[max(len(self) - rows, 0) :]

    def dropna(self, subset: str | Sequence[str]) -> History:
        """Returns the rows in which these columns were measured."""
        if isinstance(subset, str):
            names = [subset]
        else:
            names = list(subset)
        for name in names:
            self._check(name)
        return History([row for row in self._rows if all(row.get(name) is not None for name in names)], self.columns)

    def to_pandas(self) -> pandas.DataFrame:
        """Returns the same table as a pandas DataFrame.

        Raises:
            FedprivError: If pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise FedprivError("history.to_pandas() needs pandas: pip install pandas") from error
        return pandas.DataFrame.from_records([dict(row) for row in self._rows], columns=list(self.columns))

    def plot(self, *columns: str, file: str | Path | None = None) -> Figure:
        """Draws columns against rounds, each in a separate panel; by default all but the number of releases.

        Args:
            *columns: Names of the columns.
            file: Picture to write, e.g. `rounds.png`; its path is printed. A script shows no figure by itself.

        Returns:
            A figure of matplotlib's pyplot, which notebooks show.

        Raises:
            ConfigError: If there is no such column or nothing to draw, or the file's extension is not a picture format.
            FedprivError: If the file cannot be written.
        """
        from matplotlib import pyplot

        for name in columns:
            self._check(name)
        drawn = columns or [name for name in self.columns if name not in ("round", "releases")]
        if not drawn:
            raise ConfigError(
                "history", list(self.columns), "there are no metrics to draw: train with test data, or name a column"
            )
        figure, panels = pyplot.subplots(
            len(drawn), 1, sharex=True, squeeze=False, figsize=(8, 1 + 1.8 * len(drawn)), layout="constrained"
        )
        for axes, name in zip(panels[:, 0], drawn, strict=True):
            points = [(number, row[name]) for number, row in enumerate(self._rows, 1) if row.get(name) is not None]
            rounds = [self._rows[number - 1].get("round", number) for number, _ in points]
            axes.plot(rounds, [value for _, value in points], marker="." if len(points) < 50 else "")
            axes.set_ylabel(name.replace("_", " "))
            axes.grid(axis="y", alpha=0.3)
        panels[-1, 0].set_xlabel("round")
        return runs.curves.save_figure(figure, file)

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([*lines, *self._note_on_length()])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        heading, *rows = self._cells()
        head = "".join(f"<th>{escape(name)}</th>" for name in heading)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        caption = "".join(f"<caption>{escape(line)}</caption>" for line in self._note_on_length())
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _cells(self) -> list[list[str]]:
        """Returns headings and rows as text; only the first and the last rows if there are many."""
        rows: list[Row] = [*self._rows]
        texts = [[_text(row.get(name)) for name in self.columns] for row in rows]
        if len(texts) > _MOST:
            texts = [*texts[: _MOST // 2], ["..."] * len(self.columns), *texts[-_MOST // 2 :]]
        return [list(self.columns), *texts]

    def _note_on_length(self) -> list[str]:
        """Returns a line with the number of rounds if not all of them are printed."""
        if len(self) > _MOST:
            return [f"({len(self)} rounds)"]
        return []


def _text(value: Any) -> str:  # noqa: ANN401 - whatever a metric is
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
