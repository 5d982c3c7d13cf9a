from .adversaries import COLLUDERS, MESSAGES, MODEL, NEIGHBOUR, SERVER
from .budget import AT_WORK, Budget, Entry
from .budget_shares import VOIDED
from .clipping import ROUNDING, Clip
from .composition import RunCost, basic_composition, compose
from .correlated import INDEPENDENT, CorrelatedNoise, invert_column
from .exact_rounding import add_and_round
from .hulls import BlockClip, ConvexHull
from .ledger import VOID, Ledger, PrivacyFilter, Release
from .ledger_file import LedgerFile, make_pairwise_facts
from .matrices import BLT, BSR, Banded
from .matrix import Cell, compute_bound_matrix
from .mechanisms import MECHANISMS, NOISE_DISTRIBUTIONS, Gaussian, Laplace, Mechanism
from .opacus_history import from_opacus
from .pairwise import Complete, KeyAgreedPairwise, Pairs, Pairwise, RandomRegular, Secrets, Topology, variance_inflation
from .real_noise import GaussianRows
from .record import NoiseDistributionName, PerClient, Record, Relation, SamplingName
from .record_table import RecordTable
from .release import release_scheme
from .release.pairwise import make_pairs
from .schedules import Custom, Geometric, Schedule, Uniform
from .settings import (
    Allocation,
    Central,
    Cyclic,
    FixedSize,
    FullBatch,
    Independent,
    Local,
    Noise,
    Poisson,
    Privacy,
    Sampling,
    SecureAggregation,
    Trust,
)
from .unprotected_noise import UnprotectedNoise

__all__ = [
    "AT_WORK",
    "BLT",
    "BSR",
    "COLLUDERS",
    "INDEPENDENT",
    "MECHANISMS",
    "MESSAGES",
    "MODEL",
    "NEIGHBOUR",
    "NOISE_DISTRIBUTIONS",
    "ROUNDING",
    "SERVER",
    "VOID",
    "VOIDED",
    "Allocation",
    "Banded",
    "BlockClip",
    "Budget",
    "Cell",
    "Central",
    "Clip",
    "Complete",
    "ConvexHull",
    "CorrelatedNoise",
    "Custom",
    "Cyclic",
    "Entry",
    "FixedSize",
    "FullBatch",
    "Gaussian",
    "GaussianRows",
    "Geometric",
    "Independent",
    "KeyAgreedPairwise",
    "Laplace",
    "Ledger",
    "LedgerFile",
    "Local",
    "Mechanism",
    "Noise",
    "NoiseDistributionName",
    "Pairs",
    "Pairwise",
    "PerClient",
    "Poisson",
    "Privacy",
    "PrivacyFilter",
    "RandomRegular",
    "Record",
    "RecordTable",
    "Relation",
    "Release",
    "RunCost",
    "Sampling",
    "SamplingName",
    "Schedule",
    "Secrets",
    "SecureAggregation",
    "Topology",
    "Trust",
    "Uniform",
    "UnprotectedNoise",
    "add_and_round",
    "basic_composition",
    "compose",
    "compute_bound_matrix",
    "from_opacus",
    "invert_column",
    "make_pairs",
    "make_pairwise_facts",
    "release_scheme",
    "variance_inflation",
]
