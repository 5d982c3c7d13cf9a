from .counts import Counts, CrossTable, GroupMeans, Histogram
from .description import Description, describe, plan_description
from .estimates import Answer, Estimate
from .numbers import Correlations, Mean, Quantiles
from .query import Statistic

__all__ = [
    "Answer",
    "Correlations",
    "Counts",
    "CrossTable",
    "Description",
    "Estimate",
    "GroupMeans",
    "Histogram",
    "Mean",
    "Quantiles",
    "Statistic",
    "describe",
    "plan_description",
]
