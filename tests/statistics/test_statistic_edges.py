"""Edges of numbers, bins and categories: no value raises, and each counts where the page says."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

import fedpriv as fp
from fedpriv.statistics import Counts, Histogram, Mean, Quantiles
from fedpriv.statistics.numbers import bin_of
from fedpriv.statistics.query import numbers_of, positions_of

NAN = math.nan
NUMBERS = [
    ("nothing", None, NAN),
    ("NaN", NAN, NAN),
    ("minus zero", -0.0, 0.0),
    ("infinity", math.inf, math.inf),
    ("minus infinity", -math.inf, -math.inf),
    ("text of a number", " 7 ", 7.0),
    ("text of infinity", "inf", math.inf),
    ("text", "seven", NAN),
    ("empty text", "", NAN),
    ("comma", "7,5", NAN),
    ("date as text", "2024-02-29", NAN),
    ("date", datetime.date(2024, 2, 29), NAN),
    ("time of pandas", pd.Timestamp("2024-02-29"), NAN),
    ("missing in pandas", pd.NA, NAN),
    ("missing time", pd.NaT, NAN),
    ("true", True, 1.0),
    ("boolean of numpy", np.bool_(False), 0.0),
    ("decimal", Decimal("7.25"), 7.25),
    ("decimal NaN", Decimal("NaN"), NAN),
    ("fraction", Fraction(29, 4), 7.25),
    ("whole number that no float holds", 10**400, NAN),
    ("large whole number", 2**63, 2.0**63),
    ("complex", 1 + 2j, NAN),
    ("list", [7], NAN),
    ("bytes", b"7", 7.0),
]


@pytest.mark.parametrize(("value", "number"), [pytest.param(*case[1:], id=case[0]) for case in NUMBERS])
def test_number_of_value(value, number):
    (found,) = numbers_of({"x": [value]}, "x")
    assert found == number or (math.isnan(found) and math.isnan(number))
    column = pd.Series([value], dtype=object)
    (of_series,) = numbers_of(pd.DataFrame({"x": column}), "x")
    assert of_series == found or (math.isnan(of_series) and math.isnan(found))


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float32", "float16", "bool", "Int64", "Float64", "boolean"])
def test_numbers_of_typed_columns(dtype):
    assert numbers_of(pd.DataFrame({"x": pd.Series([0, 1], dtype=dtype)}), "x").tolist() == [0.0, 1.0]


def test_missing_entries_of_nullable_columns():
    column = pd.Series([1, None], dtype="Int64")
    assert np.isnan(numbers_of(pd.DataFrame({"x": column}), "x")).tolist() == [False, True]


def test_dates_are_missing_not_numbers():
    """A day is no number of nanoseconds since 1970."""
    table = pd.DataFrame({"x": pd.to_datetime(["2024-02-29", "2024-03-01"])})
    assert np.isnan(numbers_of(table, "x")).all()
    assert np.isnan(numbers_of({"x": np.array(["2024-02-29"], dtype="datetime64[D]")}, "x")).all()
    assert np.isnan(numbers_of({"x": np.array([3], dtype="timedelta64[s]")}, "x")).all()


@pytest.mark.parametrize("bins", [2, 3, 10, 1000])
def test_every_edge_belongs_to_bin_below(bins):
    bounds = (-1.0, 2.0)
    edges = np.linspace(*bounds, bins + 1)
    assert bin_of(edges, bounds, bins).tolist() == [0, *range(bins)]
    assert bin_of(np.nextafter(edges[:-1], np.inf), bounds, bins).tolist() == [*range(bins)]
    assert bin_of(np.array([-np.inf, -9e300, 9e300, np.inf]), bounds, bins).tolist() == [0, 0, bins - 1, bins - 1]


def test_bins_narrower_than_float_spacing():
    """Bounds so close that edges coincide: each value still has one bin."""
    low = 1e15
    bounds = (low, low + 1.0)
    bins = bin_of(np.array([low, low + 0.5, low + 1.0]), bounds, 1000)
    assert ((bins >= 0) & (bins < 1000)).all()


CATEGORIES = [
    ("as text", "1", 0),
    ("as number", 1, 0),
    ("as float", 1.0, 0),
    ("as numpy number", np.int64(1), 0),
    ("float of numpy", np.float64(1.0), 0),
    ("true", True, 2),
    ("half", 1.5, 2),
    ("other", "9", 2),
    ("space", " 1", 2),
    ("nothing", None, 3),
    ("empty", "", 3),
    ("NaN", NAN, 3),
    ("NA", pd.NA, 3),
    ("NaT", pd.NaT, 3),
    ("infinity", math.inf, 2),
    ("list", [1], 2),
    ("array", np.array([1, 2]), None),
    ("decimal", Decimal(1), 0),
]


@pytest.mark.parametrize(("value", "position"), [pytest.param(*case[1:], id=case[0]) for case in CATEGORIES])
def test_category_of_value(value, position):
    (found,) = positions_of({"c": [value]}, "c", ["1", "2"])
    assert found == position if position is not None else found in (2, 3)


class Rude:
    """A value that answers no question."""

    def __getattribute__(self, name: str):
        raise RuntimeError(name)

    def __float__(self):
        raise RuntimeError("float")

    def __str__(self):
        raise RuntimeError("str")

    def __eq__(self, other):
        raise RuntimeError("eq")

    __hash__ = None  # type: ignore[assignment]


def test_no_value_of_a_table_raises():
    odd = [case[1] for case in NUMBERS] + [case[1] for case in CATEGORIES] + [Rude()]
    table = {"x": odd, "c": odd[::-1]}
    asked = [Quantiles("x", (0, 10), bins=8), Counts("c", ["1", "2"])]
    found = fp.describe(table, [*asked, Histogram("x", (0, 9), bins=3)], fp.Privacy(epsilon=50.0, delta=1e-5))
    rows = sum(one.value for one in found["c"].values.values())
    assert rows == pytest.approx(len(odd), abs=6)


@pytest.mark.parametrize("bounds", [(0, NAN), (-math.inf, 1), (1, 1), (2, 1), (-1.7e308, 1.7e308)])
def test_bounds_without_a_finite_range_raise(bounds):
    for make in (Mean, Quantiles, Histogram):
        with pytest.raises(fp.ConfigError, match="public knowledge"):
            make("x", bounds)


def test_owner_without_rows_raises_where_numbers_of_rows_are_public():
    with pytest.raises(fp.DataError, match="owner 1 has no rows"):
        fp.describe([{"x": [1.0]}, {"x": []}], [Mean("x", (0, 10))], fp.Privacy(epsilon=50.0, delta=1e-5))


def test_bounds_bins_and_categories_are_declared():
    """No statistic can be asked without them, so none can come from data."""
    for make, options in ((Mean, {}), (Quantiles, {}), (Histogram, {"bins": 3}), (Counts, {})):
        with pytest.raises(fp.ConfigError):
            make("x", **options)
