"""Models and losses that suit differential privacy."""

from fedpriv.models.losses import Loss, cross_entropy, hinge, logistic, predict, squared_error
from fedpriv.models.networks import FemnistCNN, LinearSVM, LogisticRegression, MnistCNN, SoftmaxRegression
from fedpriv.models.registry import LOSSES, MODELS, make, resolve, resolve_loss
from fedpriv.models.tuning import train_only
from fedpriv.models.validation import fix_model, shipped, validate_model

__all__ = [
    "LOSSES",
    "MODELS",
    "FemnistCNN",
    "LinearSVM",
    "LogisticRegression",
    "Loss",
    "MnistCNN",
    "SoftmaxRegression",
    "cross_entropy",
    "fix_model",
    "hinge",
    "logistic",
    "make",
    "predict",
    "resolve",
    "resolve_loss",
    "shipped",
    "squared_error",
    "train_only",
    "validate_model",
]
