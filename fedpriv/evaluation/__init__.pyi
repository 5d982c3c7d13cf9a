from . import metrics as metrics
from .best_model import choice_in_words
from .binary import BINARY
from .client_tests import reported_names
from .custom_metrics import CustomMetric, MetricSet
from .evaluator import Evaluator
from .finite_check import first_rounds_in_words
from .metrics import headlines
from .regression import ERRORS
from .verdict import constraint_verdict

__all__ = [
    "BINARY",
    "ERRORS",
    "CustomMetric",
    "Evaluator",
    "MetricSet",
    "choice_in_words",
    "constraint_verdict",
    "first_rounds_in_words",
    "headlines",
    "metrics",
    "reported_names",
]
