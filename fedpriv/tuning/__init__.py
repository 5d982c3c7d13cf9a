"""Searches for good settings, with the cost of the search in its epsilon: a plan, then trials, then the best one."""

from fedpriv.tuning.search import Outcome, Search, Trial
from fedpriv.tuning.settings import Hidden, Sampler, SearchSettings
from fedpriv.tuning.space import Space

__all__ = ["Hidden", "Outcome", "Sampler", "Search", "SearchSettings", "Space", "Trial"]
