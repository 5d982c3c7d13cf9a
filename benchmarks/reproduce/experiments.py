"""The list of experiments, paper by paper."""

from __future__ import annotations

import erm_figures
from admm import ADMM
from constrained_tables import CONSTRAINED
from dual_averaging import DUAL_AVERAGING
from experiment import Experiment
from tracking import TRACKING

EXPERIMENTS: list[Experiment] = [*ADMM, *DUAL_AVERAGING, *CONSTRAINED, *erm_figures.EXPERIMENTS, *TRACKING]
