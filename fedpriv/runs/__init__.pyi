from . import curves as curves
from .budget_reservation import digest_data
from .curves import get_column
from .described_settings import find_linked_graph
from .integrity import IntegrityProblem, compare_with_plan, find_problems, raise_problems
from .line_files import METRICS, MetricsFile, RoundLines
from .options import TrainingOptions, TrainOptions
from .planned_releases import PlannedReleases
from .progress_display import ProgressDisplay
from .results import Result, RoundReport, explain_fewer_rounds, get_software_versions, read_metrics
from .run_accountant import CHARGED_WHOLE
from .run_files import (
    CONFIG_FILE,
    RESTORE,
    SETTINGS_FILE,
    RunFiles,
    describe_fixed_data,
    find_config_file,
    find_settings_path,
    make_missing_run_error,
    read_config,
    read_settings,
)
from .settings_text import format_difference, format_settings
from .total import total
from .train import train
from .training import Training

__all__ = [
    "CHARGED_WHOLE",
    "CONFIG_FILE",
    "METRICS",
    "RESTORE",
    "SETTINGS_FILE",
    "IntegrityProblem",
    "MetricsFile",
    "PlannedReleases",
    "ProgressDisplay",
    "Result",
    "RoundLines",
    "RoundReport",
    "RunFiles",
    "TrainOptions",
    "Training",
    "TrainingOptions",
    "compare_with_plan",
    "curves",
    "describe_fixed_data",
    "digest_data",
    "explain_fewer_rounds",
    "find_config_file",
    "find_linked_graph",
    "find_problems",
    "find_settings_path",
    "format_difference",
    "format_settings",
    "get_column",
    "get_software_versions",
    "make_missing_run_error",
    "raise_problems",
    "read_config",
    "read_metrics",
    "read_settings",
    "total",
    "train",
]
