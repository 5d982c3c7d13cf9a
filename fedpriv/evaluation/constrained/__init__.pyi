from .centralised import centralised_al
from .optimality import exact_report, private_report, round_metrics

__all__ = ["centralised_al", "exact_report", "private_report", "round_metrics"]
