"""The list of experiments, paper by paper."""

from __future__ import annotations

from dual_averaging import DUAL_AVERAGING
from experiment import Experiment

EXPERIMENTS: list[Experiment] = [*DUAL_AVERAGING]
