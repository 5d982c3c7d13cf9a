"""fedpriv: federated training with differential privacy that is true.

The names below are what most users need; everything else is in the modules they come from.
"""

from fedpriv.clients.client import Client, make_clients
from fedpriv.errors import BudgetExhausted, ConfigError, DataError, FedprivError, LedgerError, PrivacyError
from fedpriv.network.activity import OnePeerExponential, Outage, RandomEdges, RandomLinks, RandomNodes
from fedpriv.network.graph import Graph
from fedpriv.network.local import Everyone, FixedCohort, PoissonCohort, Star
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.mechanisms import Gaussian, Laplace
from fedpriv.privacy.schedules import Custom, Geometric, Uniform
from fedpriv.privacy.settings import (
    Central,
    FixedSize,
    FullBatch,
    Local,
    Poisson,
    Privacy,
    Published,
    SecureAggregation,
    Statistics,
)
from fedpriv.problems.constraints import ClassLossAtMost, Function, GroupLossGap, LinearEquality, LossAtMost, class_loss
from fedpriv.problems.problem import Problem
from fedpriv.reports import sinks
from fedpriv.runs.compute import Compute
from fedpriv.runs.results import Result, RoundReport
from fedpriv.runs.training import Training, train
from fedpriv.strategies.adaptive_clipping import adaptive_clipping
from fedpriv.strategies.admm import Ball, Box, Decay, OutputNoise, Penalty, Prox, Trust, inexact_admm
from fedpriv.strategies.augmented_lagrangian import proximal_al
from fedpriv.strategies.base import Averaged, Last, Strategy
from fedpriv.strategies.dpsgd import decentralized_sgd
from fedpriv.strategies.dual_averaging import dual_averaging
from fedpriv.strategies.erm import gradient_descent
from fedpriv.strategies.fedavg import fedavg, fedopt, fedprox
from fedpriv.strategies.gossip import StepSize
from fedpriv.strategies.lagrangian import Outer
from fedpriv.strategies.mirror_descent import EuclideanBall, L1Ball, accelerated_mirror_descent
from fedpriv.strategies.private_augmented_lagrangian import private_al
from fedpriv.strategies.scaffold import scaffold
from fedpriv.strategies.svrg import AnchorBudget, Epochs, svrg
from fedpriv.strategies.tracking import gradient_tracking, gradient_tracking_pair

__version__ = "0.1.0"
__all__ = [
    "AnchorBudget",
    "Averaged",
    "Ball",
    "Box",
    "BudgetExhausted",
    "Central",
    "ClassLossAtMost",
    "Client",
    "Clip",
    "Compute",
    "ConfigError",
    "Custom",
    "DataError",
    "Decay",
    "Epochs",
    "EuclideanBall",
    "Everyone",
    "FedprivError",
    "FixedCohort",
    "FixedSize",
    "FullBatch",
    "Function",
    "Gaussian",
    "Geometric",
    "Graph",
    "GroupLossGap",
    "L1Ball",
    "Laplace",
    "Last",
    "LedgerError",
    "LinearEquality",
    "Local",
    "LossAtMost",
    "OnePeerExponential",
    "Outage",
    "Outer",
    "OutputNoise",
    "Penalty",
    "Poisson",
    "PoissonCohort",
    "Privacy",
    "PrivacyError",
    "Problem",
    "Prox",
    "Published",
    "RandomEdges",
    "RandomLinks",
    "RandomNodes",
    "Result",
    "RoundReport",
    "SecureAggregation",
    "Star",
    "Statistics",
    "StepSize",
    "Strategy",
    "Training",
    "Trust",
    "Uniform",
    "accelerated_mirror_descent",
    "adaptive_clipping",
    "class_loss",
    "decentralized_sgd",
    "dual_averaging",
    "fedavg",
    "fedopt",
    "fedprox",
    "gradient_descent",
    "gradient_tracking",
    "gradient_tracking_pair",
    "inexact_admm",
    "make_clients",
    "private_al",
    "proximal_al",
    "scaffold",
    "sinks",
    "svrg",
    "train",
]
