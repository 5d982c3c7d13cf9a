from .cores import usable_cores
from .modes import Modes
from .process_group import is_first_to_report

__all__ = [
    "Modes",
    "is_first_to_report",
    "usable_cores",
]
