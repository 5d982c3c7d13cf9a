"""fedpriv: federated training with differential privacy that is true.

The names below are what most users need; everything else is in the modules they come from.
"""

from fedpriv.client import Client
from fedpriv.errors import BudgetExhausted, ConfigError, DataError, FedprivError, LedgerError, PrivacyError
from fedpriv.network.local import Everyone, FixedCohort, PoissonCohort, Star
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.mechanisms import Gaussian, Laplace
from fedpriv.privacy.schedules import Custom, Geometric, Uniform
from fedpriv.privacy.settings import FixedSize, FullBatch, Local, Poisson, Privacy, Published, SecureAggregation
from fedpriv.strategies.admm import Ball, Box, Decay, OutputNoise, Penalty, Prox, Trust, inexact_admm
from fedpriv.strategies.base import Averaged, Last, Strategy
from fedpriv.strategies.fedavg import fedavg
from fedpriv.training import Compute, Result, RoundReport, Training, make_clients, train

__version__ = "0.1.0"
__all__ = [
    "Averaged",
    "Ball",
    "Box",
    "BudgetExhausted",
    "Client",
    "Clip",
    "Compute",
    "ConfigError",
    "Custom",
    "DataError",
    "Decay",
    "Everyone",
    "FedprivError",
    "FixedCohort",
    "FixedSize",
    "FullBatch",
    "Gaussian",
    "Geometric",
    "Laplace",
    "Last",
    "LedgerError",
    "Local",
    "OutputNoise",
    "Penalty",
    "Poisson",
    "PoissonCohort",
    "Privacy",
    "PrivacyError",
    "Prox",
    "Published",
    "Result",
    "RoundReport",
    "SecureAggregation",
    "Star",
    "Strategy",
    "Training",
    "Trust",
    "Uniform",
    "fedavg",
    "inexact_admm",
    "make_clients",
    "train",
]
