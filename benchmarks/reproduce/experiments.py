"""The list of experiments, paper by paper."""

from __future__ import annotations

import erm_figures
from experiment import Experiment

EXPERIMENTS: list[Experiment] = [*erm_figures.EXPERIMENTS]
