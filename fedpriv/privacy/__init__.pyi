from .adversaries import COLLUDERS, MESSAGES, MODEL, NEIGHBOUR, SERVER
from .budget import AT_WORK, Budget, Entry
from .budget_shares import VOIDED
from .clipping import ROUNDING, Clip
from .composition import RunCost, basic, compose
from .correlated import INDEPENDENT, CorrelatedNoise, inverse
from .exact_rounding import add_and_round
from .ledger import VOID, Ledger, PrivacyFilter, Release
from .ledger_file import LedgerFile, facts_of_pairs
from .matrices import BLT, BSR, Banded
from .matrix import Cell, matrix
from .mechanisms import MECHANISMS, NOISE_DISTRIBUTIONS, Gaussian, Laplace, Mechanism
from .opacus_history import from_opacus
from .pairwise import Complete, KeyAgreedPairwise, Pairs, Pairwise, RandomRegular, Secrets, Topology, variance_inflation
from .real_noise import GaussianRows
from .record import NoiseDistributionName, PerClient, Record, Relation, SamplingName
from .record_table import RecordTable
from .release import release_scheme
from .release.pairwise import pairs_of
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
    "Budget",
    "Cell",
    "Central",
    "Clip",
    "Complete",
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
    "basic",
    "compose",
    "facts_of_pairs",
    "from_opacus",
    "inverse",
    "matrix",
    "pairs_of",
    "release_scheme",
    "variance_inflation",
]
