"""The list of experiments, paper by paper."""

from __future__ import annotations

from experiment import Experiment

EXPERIMENTS: list[Experiment] = []
