from . import bounds as bounds
from . import gaussian as gaussian
from . import search as search
from .accountant import Accountant, account
from .bounds import make_dominating_history
from .calibration import estimate_sufficient_factor
from .epochs import count_costs
from .events import Event, History, group_histories
from .gaussian import compute_epsilon, compute_ratio
from .pairwise import (
    MOST_WORK,
    compute_complete_exposure,
    compute_exposure,
    estimate_work,
    make_adjacency,
    make_covariance,
)
from .plan_filter import PlanFilter, UnplannedRelease, count_within_limit
from .pld import rare_large
from .search import NegativeBinomial, NumberOfTrials, PoissonTrials, compute_hidden_epsilon
from .spent import PrivacySpent, round_up

__all__ = [
    "MOST_WORK",
    "Accountant",
    "Event",
    "History",
    "NegativeBinomial",
    "NumberOfTrials",
    "PlanFilter",
    "PoissonTrials",
    "PrivacySpent",
    "UnplannedRelease",
    "account",
    "bounds",
    "compute_complete_exposure",
    "compute_epsilon",
    "compute_exposure",
    "compute_hidden_epsilon",
    "compute_ratio",
    "count_costs",
    "count_within_limit",
    "estimate_sufficient_factor",
    "estimate_work",
    "gaussian",
    "group_histories",
    "make_adjacency",
    "make_covariance",
    "make_dominating_history",
    "rare_large",
    "round_up",
    "search",
]
