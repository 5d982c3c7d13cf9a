from . import clients as clients
from . import config as config
from . import data as data
from . import errors as errors
from . import evaluation as evaluation
from . import models as models
from . import network as network
from . import oracle as oracle
from . import privacy as privacy
from . import randomness as randomness
from . import reports as reports
from . import runs as runs
from . import sites as sites
from . import statistics as statistics
from . import storage as storage
from . import strategies as strategies
from .algorithms.admm import BallSet, BoxSet, OutputNoise, Prox, Trust, inexact_admm
from .algorithms.augmented_lagrangian import proximal_al
from .algorithms.dpsgd import decentralized_sgd
from .algorithms.dual_averaging import dual_averaging
from .algorithms.mirror_descent import EuclideanBall, L1Ball, accelerated_mirror_descent
from .algorithms.private_augmented_lagrangian import private_al
from .algorithms.scaffold import scaffold
from .algorithms.svrg import AnchorBudget, Epochs, svrg
from .algorithms.tracking import gradient_tracking, gradient_tracking_pair
from .clients.augmentation import Affine, Augmentation, Crop, Flip
from .clients.client import Client, make_clients
from .clients.counting import count_examples
from .clients.coupled import make_coupled_clients
from .clients.lazy import lazy_clients
from .errors import BudgetExhausted, ConfigError, DataError, FedprivError, LedgerError, PrivacyError
from .estimators.logistic_regression import PrivateLogisticRegression
from .estimators.private_scaler import PrivateScaler
from .estimators.public_encoder import PublicEncoder, check_pipeline
from .evaluation.binary import Auc, Brier, CalibrationError, Sensitivity, Specificity, binary_metrics
from .evaluation.early_stopping import Stop
from .evaluation.regression import Mae, Rmse
from .forecast.compare import compare
from .forecast.forecasting import Forecast, plan
from .models.constraints import (
    ClassLossAtMost,
    Function,
    GroupLossGap,
    LinearEquality,
    LossAtMost,
    SubsetLossAtMost,
    class_loss,
)
from .models.problem import Problem
from .network.activity import (
    ExactNodes,
    LinkFunction,
    OnePeerExponential,
    Outage,
    RandomEdges,
    RandomLinks,
    RandomNodes,
)
from .network.graph import Graph
from .network.local import CyclicCohort, Everyone, FixedCohort, PoissonCohort, Star
from .papers.published import Published
from .planning.compute import Compute
from .privacy.budget import Budget
from .privacy.clipping import Clip
from .privacy.matrices import BLT, BSR, Banded
from .privacy.mechanisms import Gaussian, Laplace
from .privacy.opacus_history import from_opacus, to_opacus
from .privacy.pairwise import Pairwise
from .privacy.schedules import Custom, Geometric, Uniform
from .privacy.settings import (
    Allocation,
    Central,
    Cyclic,
    FixedSize,
    FullBatch,
    Independent,
    Local,
    Poisson,
    Privacy,
    SecureAggregation,
    Statistics,
)
from .reports import sinks as sinks
from .runs.fit import fit
from .runs.results import Result, RoundReport
from .runs.total import total
from .runs.train import train
from .runs.training import Training
from .settings.plugins import allow_plugins
from .statistics.description import Description, describe, plan_description
from .strategies.adaptive_clipping import adaptive_clipping
from .strategies.base import Strategy
from .strategies.erm import gradient_descent
from .strategies.fedavg import fedavg, fedopt, fedprox
from .strategies.lagrangian import Outer
from .strategies.optimizers import Adam, AdamW, Momentum, Sgd
from .strategies.outputs import Averaged, Ema, Last
from .strategies.schedules import Cosine, Decay, Penalty, Steps, StepSize, Warmup

__version__: str
__all__ = [
    "BLT",
    "BSR",
    "Adam",
    "AdamW",
    "Affine",
    "Allocation",
    "AnchorBudget",
    "Auc",
    "Augmentation",
    "Averaged",
    "BallSet",
    "Banded",
    "BoxSet",
    "Brier",
    "Budget",
    "BudgetExhausted",
    "CalibrationError",
    "Central",
    "ClassLossAtMost",
    "Client",
    "Clip",
    "Compute",
    "ConfigError",
    "Cosine",
    "Crop",
    "Custom",
    "Cyclic",
    "CyclicCohort",
    "DataError",
    "Decay",
    "Description",
    "Ema",
    "Epochs",
    "EuclideanBall",
    "Everyone",
    "ExactNodes",
    "FedprivError",
    "FixedCohort",
    "FixedSize",
    "Flip",
    "Forecast",
    "FullBatch",
    "Function",
    "Gaussian",
    "Geometric",
    "Graph",
    "GroupLossGap",
    "Independent",
    "L1Ball",
    "Laplace",
    "Last",
    "LedgerError",
    "LinearEquality",
    "LinkFunction",
    "Local",
    "LossAtMost",
    "Mae",
    "Momentum",
    "OnePeerExponential",
    "Outage",
    "Outer",
    "OutputNoise",
    "Pairwise",
    "Penalty",
    "Poisson",
    "PoissonCohort",
    "Privacy",
    "PrivacyError",
    "PrivateLogisticRegression",
    "PrivateScaler",
    "Problem",
    "Prox",
    "PublicEncoder",
    "Published",
    "RandomEdges",
    "RandomLinks",
    "RandomNodes",
    "Result",
    "Rmse",
    "RoundReport",
    "SecureAggregation",
    "Sensitivity",
    "Sgd",
    "Specificity",
    "Star",
    "Statistics",
    "StepSize",
    "Steps",
    "Stop",
    "Strategy",
    "SubsetLossAtMost",
    "Training",
    "Trust",
    "Uniform",
    "Warmup",
    "accelerated_mirror_descent",
    "adaptive_clipping",
    "allow_plugins",
    "binary_metrics",
    "check_pipeline",
    "class_loss",
    "compare",
    "count_examples",
    "decentralized_sgd",
    "describe",
    "dual_averaging",
    "fedavg",
    "fedopt",
    "fedprox",
    "fit",
    "from_opacus",
    "gradient_descent",
    "gradient_tracking",
    "gradient_tracking_pair",
    "inexact_admm",
    "lazy_clients",
    "make_clients",
    "make_coupled_clients",
    "plan",
    "plan_description",
    "private_al",
    "proximal_al",
    "scaffold",
    "sinks",
    "svrg",
    "to_opacus",
    "total",
    "train",
]
