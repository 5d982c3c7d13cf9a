from . import bounds as bounds
from . import gaussian as gaussian
from . import search as search
from .accountant import Accountant, account
from .bounds import ceiling
from .calibration import enough
from .epochs import count_costs
from .events import Event, History, histories
from .gaussian import epsilon_of, ratio_of
from .pairwise import MOST_WORK, adjacency, complete, covariance, exposure, work
from .plan_filter import PlanFilter, UnplannedRelease, n_within
from .pld import rare_large
from .search import NegativeBinomial, NumberOfTrials, PoissonTrials, hidden
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
    "adjacency",
    "bounds",
    "ceiling",
    "complete",
    "count_costs",
    "covariance",
    "enough",
    "epsilon_of",
    "exposure",
    "gaussian",
    "hidden",
    "histories",
    "n_within",
    "rare_large",
    "ratio_of",
    "round_up",
    "search",
    "work",
]
