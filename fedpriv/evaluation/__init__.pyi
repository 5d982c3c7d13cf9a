from . import metrics as metrics
from .best_model import describe_choice
from .binary import BINARY
from .client_tests import list_reported_names
from .custom_metrics import CustomMetric, MetricSet
from .evaluator import Evaluator
from .finite_check import format_first_rounds
from .metrics import list_headline_metrics
from .regression import ERRORS
from .verdict import format_constraint_verdict

__all__ = [
    "BINARY",
    "ERRORS",
    "CustomMetric",
    "Evaluator",
    "MetricSet",
    "describe_choice",
    "format_constraint_verdict",
    "format_first_rounds",
    "list_headline_metrics",
    "list_reported_names",
    "metrics",
]
