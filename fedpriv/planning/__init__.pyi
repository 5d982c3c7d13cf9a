from . import notebook_display as notebook_display
from .advice import graph_of, warnings_of_no_network
from .arguments import explain
from .compatibility import check_compute, check_problem, network_for
from .compute import Compute
from .impulses import responses
from .notebook_display import aligned
from .plan import FirstPart, Plan, RunSketch, make_plan, with_neighbours
from .privacy_warnings import GAP, not_covered, warn
from .reach import reach_warnings

__all__ = [
    "GAP",
    "Compute",
    "FirstPart",
    "Plan",
    "RunSketch",
    "aligned",
    "check_compute",
    "check_problem",
    "explain",
    "graph_of",
    "make_plan",
    "network_for",
    "not_covered",
    "notebook_display",
    "reach_warnings",
    "responses",
    "warn",
    "warnings_of_no_network",
    "with_neighbours",
]
