"""Searches for good settings, with the cost of the search in its epsilon: a plan, then trials, then the best one."""

from fedpriv.tuning.search import Outcome, Search, Trial
from fedpriv.tuning.settings import Sampler, SearchSettings, TrialsDistribution
from fedpriv.tuning.space import Space

__all__ = ["Outcome", "Sampler", "Search", "SearchSettings", "Space", "Trial", "TrialsDistribution"]
