from .constraints import CONSTRAINTS, OBJECTIVES
from .lora import Lora, add_lora
from .losses import IGNORED, Loss, PerExampleLoss, cross_entropy, hinge, logistic, predict, squared_error
from .nested import Nested, Rows, first_leaf, list_leaves, map_tree
from .networks import FemnistCNN, LinearRegression, LinearSVM, LogisticRegression, MnistCNN, SoftmaxRegression
from .problem import Problem
from .registry import LOSSES, MODELS, make, resolve, resolve_loss
from .resnet import ResNet18
from .transformer import CharTransformer, VisionTransformer
from .tuning import train_only
from .validation import check_released_buffers, fix_model, validate_model
from .weights import Weights, load_weights

__all__ = [
    "CONSTRAINTS",
    "IGNORED",
    "LOSSES",
    "MODELS",
    "OBJECTIVES",
    "CharTransformer",
    "FemnistCNN",
    "LinearRegression",
    "LinearSVM",
    "LogisticRegression",
    "Lora",
    "Loss",
    "MnistCNN",
    "Nested",
    "PerExampleLoss",
    "Problem",
    "ResNet18",
    "Rows",
    "SoftmaxRegression",
    "VisionTransformer",
    "Weights",
    "add_lora",
    "check_released_buffers",
    "cross_entropy",
    "first_leaf",
    "fix_model",
    "hinge",
    "list_leaves",
    "load_weights",
    "logistic",
    "make",
    "map_tree",
    "predict",
    "resolve",
    "resolve_loss",
    "squared_error",
    "train_only",
    "validate_model",
]
