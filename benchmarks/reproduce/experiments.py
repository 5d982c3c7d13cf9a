"""The list of experiments, paper by paper."""

from __future__ import annotations

from experiment import Experiment
from tracking import TRACKING

EXPERIMENTS: list[Experiment] = [*TRACKING]
