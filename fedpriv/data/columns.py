"""The valid values of each column of a published table. Any other value means that the file is damaged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv.errors import DataError, format_value, truncate

MISSING = "?"
_DIGITS = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True)
class Column:
    """A column of whole numbers from `low` to `high`, or of words.

    Args:
        name: Its name in error messages.
        words: All valid words; empty for numbers.
        low: Smallest number.
        high: Largest number.
        gaps: True if `?` may represent a missing value.
    """

    name: str
    words: tuple[str, ...] = ()
    low: int = 0
    high: int = 0
    gaps: bool = False

    def holds(self, text: str) -> bool:
        """True if the value is valid for the column."""
        if text == MISSING:
            return self.gaps
        if self.words:
            return text in self.words
        return _DIGITS.fullmatch(text) is not None and self.low <= int(text) <= self.high

    def __str__(self) -> str:
        if self.words:
            return f"one of {truncate(', '.join(self.words))}"
        return f"a whole number from {self.low} to {self.high}"


def check_rows(path: Path, rows: Sequence[Sequence[str]], columns: Sequence[Column]) -> None:
    """Raises an error for an invalid value in a column.

    Raises:
        DataError: If there is no row, a row has another length, or a value is invalid; the message contains file, row
            and column.
    """
    if not rows:
        raise DataError(f"{path} has no rows: fetch it again")
    # most columns have few distinct values, so each value is checked once; an invalid one is then searched for by row
    if all(len(row) == len(columns) for row in rows):
        by_column = zip(columns, zip(*rows, strict=True), strict=True)
        if all(column.holds(value) for column, values in by_column for value in {*values}):
            return
    for number, row in enumerate(rows, start=1):
        if len(row) != len(columns):
            raise DataError(f"{path}: row {number} has {len(row)} fields instead of {len(columns)}: fetch it again")
        for column, value in zip(columns, row, strict=True):
            if not column.holds(value):
                raise DataError(
                    f"{path}: row {number}: {column.name} = {format_value(value)} is not {column}: fetch it again"
                )


ADULT = (
    Column("age", low=1, high=120),
    Column(
        "workclass",
        (
            *("Federal-gov", "Local-gov", "Never-worked", "Private", "Self-emp-inc", "Self-emp-not-inc", "State-gov"),
            "Without-pay",
        ),
        gaps=True,
    ),
    Column("fnlwgt", low=1, high=10**7),
    Column(
        "education",
        (
            *("10th", "11th", "12th", "1st-4th", "5th-6th", "7th-8th", "9th", "Assoc-acdm", "Assoc-voc", "Bachelors"),
            *("Doctorate", "HS-grad", "Masters", "Preschool", "Prof-school", "Some-college"),
        ),
    ),
    Column("education-num", low=1, high=16),
    Column(
        "marital-status",
        (
            *("Divorced", "Married-AF-spouse", "Married-civ-spouse", "Married-spouse-absent", "Never-married"),
            *("Separated", "Widowed"),
        ),
    ),
    Column(
        "occupation",
        (
            *("Adm-clerical", "Armed-Forces", "Craft-repair", "Exec-managerial", "Farming-fishing"),
            *("Handlers-cleaners", "Machine-op-inspct", "Other-service", "Priv-house-serv", "Prof-specialty"),
            *("Protective-serv", "Sales", "Tech-support", "Transport-moving"),
        ),
        gaps=True,
    ),
    Column("relationship", ("Husband", "Not-in-family", "Other-relative", "Own-child", "Unmarried", "Wife")),
    Column("race", ("Amer-Indian-Eskimo", "Asian-Pac-Islander", "Black", "Other", "White")),
    Column("sex", ("Female", "Male")),
    Column("capital-gain", low=0, high=99999),
    Column("capital-loss", low=0, high=99999),
    Column("hours-per-week", low=1, high=99),
    Column(
        "native-country",
        (
            *("Cambodia", "Canada", "China", "Columbia", "Cuba", "Dominican-Republic", "Ecuador", "El-Salvador"),
            *("England", "France", "Germany", "Greece", "Guatemala", "Haiti", "Holand-Netherlands", "Honduras"),
            *("Hong", "Hungary", "India", "Iran", "Ireland", "Italy", "Jamaica", "Japan", "Laos", "Mexico"),
            *("Nicaragua", "Outlying-US(Guam-USVI-etc)", "Peru", "Philippines", "Poland", "Portugal", "Puerto-Rico"),
            *("Scotland", "South", "Taiwan", "Thailand", "Trinadad&Tobago", "United-States", "Vietnam", "Yugoslavia"),
        ),
        gaps=True,
    ),
    Column("income", ("<=50K", ">50K", "<=50K.", ">50K.")),  # in the test file they end in a point
)
_GRADES = ("thickness", "cell size", "cell shape", "adhesion", "epithelial size", "nuclei", "chromatin", "nucleoli")
BREAST_CANCER = (
    Column("id", low=1, high=10**12),
    *(Column(name, low=1, high=10, gaps=name == "nuclei") for name in (*_GRADES, "mitoses")),
    Column("class", ("2", "4")),
)
MONKS = (
    Column("class", ("0", "1")),
    *(Column(f"a{number}", low=1, high=count) for number, count in enumerate((3, 3, 2, 3, 4, 2), start=1)),
)
