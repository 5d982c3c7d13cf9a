"""The list of experiments, paper by paper."""

from __future__ import annotations

from constrained_tables import CONSTRAINED
from experiment import Experiment

EXPERIMENTS: list[Experiment] = [*CONSTRAINED]
