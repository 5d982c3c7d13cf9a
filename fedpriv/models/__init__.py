"""Models and losses that suit differential privacy."""

from fedpriv.models.lora import Lora, add_lora
from fedpriv.models.losses import IGNORED, Loss, cross_entropy, hinge, logistic, predict, squared_error
from fedpriv.models.networks import FemnistCNN, LinearSVM, LogisticRegression, MnistCNN, SoftmaxRegression
from fedpriv.models.registry import LOSSES, MODELS, make, resolve, resolve_loss
from fedpriv.models.resnet import ResNet18
from fedpriv.models.transformer import CharTransformer, VisionTransformer
from fedpriv.models.tuning import train_only
from fedpriv.models.validation import fix_model, shipped, validate_model
from fedpriv.models.weights import Weights, load_weights

__all__ = [
    "IGNORED",
    "LOSSES",
    "MODELS",
    "CharTransformer",
    "FemnistCNN",
    "LinearSVM",
    "LogisticRegression",
    "Lora",
    "Loss",
    "MnistCNN",
    "ResNet18",
    "SoftmaxRegression",
    "VisionTransformer",
    "Weights",
    "add_lora",
    "cross_entropy",
    "fix_model",
    "hinge",
    "load_weights",
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
