"""Budgets, runs that draw on them, and closed forms of what Gaussian noise costs."""

from __future__ import annotations

import atexit
import math
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from scipy import optimize, stats

from fedpriv.privacy.budget import Budget
from fedpriv.privacy.composition import RunCost
from fedpriv.privacy.record import Record

DELTA = 1e-5


def delta_of(mu: float, epsilon: float) -> float:
    return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)


def mu_of(epsilon: float) -> float:
    return optimize.brentq(lambda mu: delta_of(mu, epsilon) - DELTA, 1e-3, 60)


def run(noise: float, name: str, rounds: int = 1, n_clients: int = 3, **changes: object) -> RunCost:
    base = replace(Record(0, "gradient", 0, "gaussian", noise, "sample", "replace_one"), **changes)
    return RunCost(name, [replace(base, round=t) for t in range(rounds)], n_clients, run_name=name)


def budget(folder: Path, epsilon: float = 2.0, **terms: object) -> Budget:
    return Budget.create(folder / "b.jsonl", **{"epsilon": epsilon, "delta": DELTA, **terms})


def in_new_folder(epsilon: float, **terms: object) -> Budget:
    """Pytest has no folder for each example of a property."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    return budget(Path(folder), epsilon, **terms)
