from . import notebook_display as notebook_display
from .advice import as_graph, warn_of_missing_network
from .arguments import suggest_argument
from .compatibility import check_compute, check_problem, choose_network
from .compute import Compute
from .impulses import compute_responses
from .notebook_display import align_columns
from .plan import FirstPart, Plan, RunSketch, make_plan, with_neighbours
from .privacy_warnings import GAP, not_covered, warn
from .reach import reach_warnings

__all__ = [
    "GAP",
    "Compute",
    "FirstPart",
    "Plan",
    "RunSketch",
    "align_columns",
    "as_graph",
    "check_compute",
    "check_problem",
    "choose_network",
    "compute_responses",
    "make_plan",
    "not_covered",
    "notebook_display",
    "reach_warnings",
    "suggest_argument",
    "warn",
    "warn_of_missing_network",
    "with_neighbours",
]
