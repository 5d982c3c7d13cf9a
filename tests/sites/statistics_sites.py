"""Four hospitals with a table each, and plans for statistics of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import fedpriv
from fedpriv.config.base import check
from fedpriv.config.statistics import StatisticsConfig, join_sections
from fedpriv.sites import FederationPlan, Site
from fedpriv.sites.federation_plan import propose_statistics

NAMES = ("north", "east", "south", "west")
SIZES = (300, 200, 120, 380)
ASKED = """
statistics:
  - {name: quantiles, column: age, bounds: [0, 120], bins: 60}
  - {name: mean, column: chol, bounds: [0, 640], weight: 2}
  - {name: counts, column: sex, categories: [f, m]}
privacy: {epsilon: 0.2, delta: 1.0e-5}
"""
PAIRWISE = "{pairwise: {colluders: 1, ratio: 100}}"
COLUMNS = ("age", "chol", "sex", "ill")
DATA = {
    "name": "csv",
    "label": "ill",
    "classes": [0, 1],
    "numbers": {"age": [0, 100], "chol": [0, 600]},
    "categories": {"sex": ["f", "m"]},
    "missing": {"chol": 240},
}
POLICY = {"statistics": {"columns": ["age", "chol", "sex"], "max_epsilon": 0.2}}


def asked(text: str = ASKED, **privacy: Any) -> StatisticsConfig:
    raw = yaml.safe_load(text)
    return check(StatisticsConfig, raw | {"privacy": raw["privacy"] | privacy})


def table(number: int, size: int) -> dict[str, list[str]]:
    """A hospital's rows, as text: some values of cholesterol are missing."""
    stream = np.random.default_rng(number)
    age = stream.integers(25 + 5 * number, 90, size)
    chol = [str(value) if value > 150 else "" for value in stream.integers(130, 420, size)]
    sex = stream.choice(["f", "m"], size)
    ill = stream.integers(0, 2, size)
    return {"age": [*map(str, age)], "chol": chol, "sex": [*map(str, sex)], "ill": [*map(str, ill)]}


def write(path: Path, columns: dict[str, list[str]]) -> None:
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *map(",".join, rows)]) + "\n")


def exact_mean() -> np.ndarray:
    """The mean of all hospitals' vectors, with almost no noise."""
    tables = [table(number, size) for number, size in enumerate(SIZES)]
    almost = fedpriv.Privacy(epsilon=1e5, delta=1e-5, trust=fedpriv.Central())
    found = fedpriv.describe(tables, join_sections(asked().statistics).statistics, almost)
    assert found.result is not None and found.deviation < 1e-4
    return -found.result.params.double().view(-1).numpy()


def make_site(folder: Path, number: int, *, data: dict[str, Any] | None = None, **settings: Any) -> Site:
    """A hospital's site; its file must be in the folder, or is made."""
    name = NAMES[number]
    file = folder / f"{name}.csv"
    if not file.exists():
        write(file, table(number, SIZES[number]))
    section = {**DATA, "train": str(file), "test": str(file), **(data or {})}
    told = {"name": name, "data": section, "budget": {"epsilon": 1.0, "delta": 1e-5}, "policy": POLICY, **settings}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(told))
    return Site.create(folder / name, folder / f"{name}.yaml")


def make_sites(folder: Path, **settings: Any) -> dict[int, Site]:
    return {number: make_site(folder, number, **settings) for number in range(len(NAMES))}


def plan_of(sites: dict[int, Site], config: StatisticsConfig | None = None) -> FederationPlan:
    return propose_statistics(config or asked(), [site.card for site in sites.values()])


def join(sites: Sequence[Site], plan: FederationPlan) -> None:
    for site in sites:
        site.join(plan.text, plan.fingerprint)
