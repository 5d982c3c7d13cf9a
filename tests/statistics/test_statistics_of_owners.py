"""Unit client: each owner counts once, by the mean of its rows' vectors, and its number of rows stays private."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import fedpriv as fp
from fedpriv.statistics import Correlations, Counts, GroupMeans, Histogram, Mean, Quantiles
from fedpriv.statistics.description import JoinedStatistics

AGE = (0.0, 120.0)
ASKED = [
    Mean("age", AGE),
    Histogram("age", AGE, bins=6),
    Counts("sex", ["f", "m"]),
    GroupMeans("age", AGE, "sex", ["f", "m"]),
    Correlations({"age": AGE, "chol": (0, 640)}),
]
DRAWS = np.random.default_rng(2)


def owner(n: int) -> dict[str, list[object]]:
    return {
        "age": [*DRAWS.normal(50, 10, n).round()],
        "chol": [*DRAWS.normal(240, 40, n)],
        "sex": [*DRAWS.choice(["f", "m", "x"], n)],
    }


def described(tables, asked, *, seed: int = 3, **options):
    privacy = fp.Privacy(unit="client", trust=fp.Central(), **options)
    with pytest.warns(UserWarning, match="secret_seed"):
        return fp.describe(tables, asked, privacy, secret_seed=seed)


def test_answers_are_means_over_owners():
    tables = [owner(n) for n in (3, 500, 20, 1, 70)]
    found = described(tables, [*ASKED[:1], ASKED[2]], epsilon=1e4)
    means = [np.mean(table["age"]) for table in tables]
    assert found["age"]["mean"].value == pytest.approx(np.mean(means), abs=1.0)
    women = sum(np.mean(np.array(table["sex"]) == "f") for table in tables)
    assert found["sex"]["f"].value == pytest.approx(women, abs=0.05)
    assert found.spent.unit == "client" and "each owner counts once" in str(found)
    assert found.n_rows == (1,) * 5


def test_number_of_rows_stays_private():
    tables = [owner(n) for n in (3, 5, 2)] * 40
    longer = [{name: values * (1 + k % 3) for name, values in table.items()} for k, table in enumerate(tables)]
    first, second = (described(one, ASKED[:1], epsilon=5.0) for one in (tables, longer))
    assert first["age"]["mean"].value == pytest.approx(second["age"]["mean"].value, abs=1e-3)
    empty = [*tables[:-1], {"age": [], "chol": [], "sex": []}]
    missing = [*tables[:-1], {"age": [None], "chol": [None], "sex": [None]}]
    one, other = (described(each, ASKED[:1], epsilon=5.0) for each in (empty, missing))
    assert one["age"]["missing"].value == other["age"]["missing"].value


@pytest.mark.parametrize("asked", [*ASKED, Quantiles("age", AGE, bins=16)], ids=lambda one: type(one).__name__)
def test_replaced_owner_moves_sum_within_diameter(asked):
    joined = JoinedStatistics((asked,))
    ends = [{"age": [age] * 3, "chol": [chol], "sex": [sex]} for age in (-9, 0, 60, 120) for chol in (0, 640)
            for sex in "fmx"]  # fmt: skip
    tables = [*({name: values * 3 for name, values in table.items()} for table in ends), owner(9), owner(0)]
    for table in tables:
        size = max(len(values) for values in table.values())
        table.update({name: (values * size)[:size] for name, values in table.items()})
    rows = torch.from_numpy(np.concatenate([joined.mean_vector(table) for table in tables]))
    vectors = joined.clip.rows(rows)[0]
    assert float(torch.cdist(vectors, vectors).max()) <= 2 * (1 + 1e-9)
    assert float(vectors.norm(dim=1).max()) <= joined.clip.bound * (1 + 1e-9)


@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
@pytest.mark.parametrize("trust", [fp.Central(), fp.Local(), fp.Pairwise(1, 100)], ids=str)
def test_too_few_owners_raise_with_their_number(trust, relation):
    asked = [Quantiles("age", AGE)]
    privacy = fp.Privacy(epsilon=1.0, unit="client", trust=trust, relation=relation)
    with pytest.raises(fp.PrivacyError, match="there are 10: at this epsilon the noise would hide every") as raised:
        fp.describe([owner(20) for _ in range(10)], asked, privacy)
    (needed,) = map(int, re.findall(r"about (\d+) owners", str(raised.value)))
    assert fp.plan_description([20] * int(1.2 * needed), asked, privacy)["age"]["distribution function"] < 0.5
    with pytest.raises(fp.PrivacyError, match="owners"):
        fp.plan_description([20] * int(0.8 * needed), asked, privacy)


def test_error_of_distribution_function_by_number_of_owners():
    """11 points with 100 owners at epsilon 1, and 1.1 with 1000, as in the design."""
    privacy = fp.Privacy(epsilon=1.0, unit="client", trust=fp.Central())
    for n, error in ((100, 0.11), (1000, 0.011)):
        width = fp.plan_description([1] * n, [Quantiles("age", AGE)], privacy)["age"]["distribution function"]
        assert width / 1.96 == pytest.approx(error, rel=0.15)


def test_four_hospitals_are_too_few():
    with pytest.raises(fp.PrivacyError, match="owners or more"):
        fp.describe([owner(200) for _ in range(4)], ASKED, fp.Privacy(epsilon=1.0, unit="client"))


def test_single_rows_under_both_relations():
    """One row more or less moves a sum by less than another row does: less noise."""
    widths = [
        fp.plan_description([400, 500], ASKED[:1], fp.Privacy(epsilon=1.0, relation=relation))["age"]["mean"]
        for relation in ("add_remove", "replace_one")
    ]
    assert widths[1] == pytest.approx(2 * widths[0], rel=1e-3)
