"""A search for good settings whose price is in the epsilon: a plan first, then trials, then the best of them."""

from fedpriv.tuning.search import Outcome, Search, Trial
from fedpriv.tuning.settings import Hidden, Sampler, SearchSettings
from fedpriv.tuning.space import Space

__all__ = ["Hidden", "Outcome", "Sampler", "Search", "SearchSettings", "Space", "Trial"]
