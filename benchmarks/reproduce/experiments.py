"""The list of experiments, paper by paper."""

from __future__ import annotations

from admm import ADMM
from experiment import Experiment

EXPERIMENTS: list[Experiment] = [
    *ADMM,
]
