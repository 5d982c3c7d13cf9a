from . import curves as curves
from .budget_reservation import data_digest
from .curves import column_of
from .described_settings import linked_graph
from .integrity import IntegrityProblem, against_plan, findings, refuse
from .line_files import METRICS, MetricsFile, RoundLines
from .options import TrainingOptions, TrainOptions
from .planned_releases import PlannedReleases
from .progress_display import ProgressDisplay
from .results import Result, RoundReport, read_metrics, software, why_no_more
from .run_accountant import CHARGED_WHOLE
from .run_files import (
    CONFIG_FILE,
    RESTORE,
    SETTINGS_FILE,
    RunFiles,
    config_file,
    config_in,
    fixed_data,
    not_a_run,
    settings_in,
    settings_path,
)
from .settings_text import difference, settings_in_words
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
    "against_plan",
    "column_of",
    "config_file",
    "config_in",
    "curves",
    "data_digest",
    "difference",
    "findings",
    "fixed_data",
    "linked_graph",
    "not_a_run",
    "read_metrics",
    "refuse",
    "settings_in",
    "settings_in_words",
    "settings_path",
    "software",
    "total",
    "train",
    "why_no_more",
]
