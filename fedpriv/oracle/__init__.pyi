from .backend_selection import select_backend
from .backends import BACKENDS
from .backends.base import Backend
from .clipped_sums import ClippedSums
from .data_query_engine import DataQueryEngine, data_oracle
from .dry_run import recording_oracle
from .low_precision import needs_full_precision
from .oracle import Oracle
from .sampler import BatchSampler
from .state_check import KEPT, StateCheck, copy_unused_backend, draw_check_rounds
from .validation import validate_per_example

__all__ = [
    "BACKENDS",
    "KEPT",
    "Backend",
    "BatchSampler",
    "ClippedSums",
    "DataQueryEngine",
    "Oracle",
    "StateCheck",
    "copy_unused_backend",
    "data_oracle",
    "draw_check_rounds",
    "needs_full_precision",
    "recording_oracle",
    "select_backend",
    "validate_per_example",
]
