"""The list of experiments, paper by paper."""

from __future__ import annotations

import erm_figures
from constrained_tables import CONSTRAINED
from experiment import Experiment
from tracking import TRACKING

EXPERIMENTS: list[Experiment] = [*TRACKING]
EXPERIMENTS: list[Experiment] = [*erm_figures.EXPERIMENTS]
EXPERIMENTS: list[Experiment] = [*CONSTRAINED]
