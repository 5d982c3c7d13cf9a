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
__all__ = [name for name in dir() if not name.startswith("_")]
