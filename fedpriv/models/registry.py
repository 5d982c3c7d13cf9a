"""Models and losses by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.errors import ConfigError
from fedpriv.models.lora import Lora, add_lora
from fedpriv.models.losses import (
    Loss,
    PerExampleLoss,
    Reduction,
    cross_entropy,
    hinge,
    logistic,
    shifted_logistic,
    squared_error,
)
from fedpriv.models.lstm import CharLSTM
from fedpriv.models.networks import (
    FemnistCNN,
    LinearRegression,
    LinearSVM,
    LogisticRegression,
    MnistCNN,
    SoftmaxRegression,
)
from fedpriv.models.resnet import ResNet18
from fedpriv.models.transformer import CharTransformer, VisionTransformer
from fedpriv.models.tuning import train_only
from fedpriv.models.validation import fix_model, validate_model
from fedpriv.models.weights import Weights, load_weights
from fedpriv.randomness.streams import Randomness
from fedpriv.settings import plugins
from fedpriv.settings.checks import validate_arguments


@validate_arguments("model")
def resolve(name: str, *, input_shape: tuple[int, ...], n_classes: int | None, **options: object) -> nn.Module:
    """Builds a model.

    Args:
        name: A key of `MODELS`, or `package.module:Name`.
        input_shape: Shape of one example. `input_shape`, `n_features` (the product of the shape) and `n_classes` are
            passed to the model if it has parameters with these names.
        n_classes: Number of classes; None for regression, for which models with a parameter `n_classes` raise.
        **options: The options of the model.

    Returns:
        The model.

    Raises:
        ConfigError: If the name or an option is unknown, or the result is not a `torch.nn.Module`.
    """
    context = {"input_shape": tuple(input_shape), "n_features": prod(input_shape), "n_classes": n_classes}
    if n_classes is None and name in MODELS and "n_classes" in signature(MODELS[name].build).parameters:
        raise ConfigError(
            "model", name, "computes scores of classes, but the targets are numbers: use linear_regression"
        )
    return _as_module(plugins.build(name, MODELS, options, field="model", context=context), name, "model")


@validate_arguments("loss")
def resolve_loss(name: str, **options: object) -> nn.Module:
    """Builds a loss.

    Args:
        name: A key of `LOSSES`, or `package.module:Name`.
        **options: The options of the loss.

    Returns:
        The loss, a module that maps (outputs, targets) to a scalar.

    Raises:
        ConfigError: If the name or an option is unknown, or the result is not a `torch.nn.Module`.
    """
    return _as_module(plugins.build(name, LOSSES, options, field="loss"), name, "loss")


@validate_arguments("make")
def make(
    model: tuple[str, Mapping[str, Any]],
    loss: tuple[str, Mapping[str, Any]],
    example: Tensor,
    n_classes: int | None,
    *,
    fix: bool = False,
    weights: Weights | None = None,
    lora: Lora | None = None,
    train: Sequence[str] | None = None,
    seed: int = 0,
    target_shape: tuple[int, ...] = (),
) -> tuple[nn.Module, nn.Module]:
    """Builds a model and a loss by name, and tests them on one synthetic example.

    Args:
        model: Name and options, see `resolve`.
        loss: Name and options, see `resolve_loss`.
        example: A synthetic input `[1, ...]`.
        n_classes: Number of classes; None if targets are numbers.
        fix: True replaces layers that mix examples, see `fix_model`.
        weights: Initial weights, see `load_weights`; None draws them by the seed.
        lora: Adapters, which are trained, see `add_lora`; None adds none.
        train: The parameters to train, see `train_only`; None trains the parameters that the model marks as trainable.
        seed: Seed of the initial parameters, which are public.
        target_shape: Shape of one target: `()`, or `(length,)` where an example has a sequence of classes.

    Returns:
        The model and the loss.

    Raises:
        ConfigError: If a name or an option is unknown, a layer mixes examples, or the loss does not fit the model.
    """
    if abs(seed) < 2**32:
        torch.manual_seed(seed)
    else:
        # torch uses 32 bits of a seed: a larger one is hashed
        torch.manual_seed(Randomness(seed).torch_seed("init"))
    module = resolve(model[0], input_shape=tuple(example.shape[1:]), n_classes=n_classes, **model[1])
    if weights is not None:
        module = load_weights(module, weights.file, exclude=weights.exclude)
    if fix:
        module = fix_model(module)
    if lora is not None:
        module = add_lora(module, lora.layers, rank=lora.rank, alpha=lora.alpha, train=train or ())
    elif train is not None:
        module = train_only(module, train)
    validate_model(module)
    criterion = resolve_loss(loss[0], **loss[1])
    _try_out(module, criterion, example, n_classes, target_shape, names=(model[0], loss[0]))
    return module, criterion


@torch.no_grad()
def _try_out(
    model: nn.Module,
    loss: nn.Module,
    example: Tensor,
    n_classes: int | None,
    target_shape: tuple[int, ...],
    *,
    names: tuple[str, str],
) -> None:
    """Raises if a model and a loss do not fit each other or the data; `names` are their names in the configuration."""
    target = torch.zeros(1)
    kind = "a target that is a number"
    if n_classes is not None:
        target = torch.full((1, *target_shape), n_classes - 1)
        kind = f"label {n_classes - 1}, the last of {n_classes} classes"
    elif names[1] in LOSSES and not LOSSES[names[1]].of_numbers:
        raise ConfigError("loss", names[1], "is for classes, but the targets are numbers: use mse")
    with torch.random.fork_rng(devices=[]):  # dropout
        try:
            outputs: Tensor = model(example)
            shape = tuple(outputs.shape[1:])
        except Exception as error:  # a user's model can raise anything
            input_shape = tuple(example.shape[1:])
            fix = f"cannot process inputs of shape {input_shape} ({_first_line(error)}): change the model or the inputs"
            raise ConfigError("model", names[0], fix) from error
        try:
            loss(outputs, target)
        except Exception as error:  # a user's loss can raise anything
            operands = f"outputs of shape {shape} with {kind}"
            fix = (
                f"cannot compare {operands} ({_first_line(error)}): change the model, the loss or the number of classes"
            )
            raise ConfigError("loss", names[1], fix) from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _as_module(built: object, name: str, field: str) -> nn.Module:
    if not isinstance(built, nn.Module):
        raise ConfigError(
            field, name, f"must return a torch.nn.Module, but returns a {type(built).__name__}: correct the function"
        )
    return built


def _loss(per_example: PerExampleLoss) -> Callable[..., nn.Module]:
    def build(reduction: Reduction = "mean") -> nn.Module:
        return Loss(per_example, reduction)

    return build


ModelEntry = plugins.RegistryEntry[nn.Module]


@dataclass(frozen=True)
class LossEntry(plugins.RegistryEntry[nn.Module]):
    """An entry of the registry of losses.

    Args:
        build: Builds the loss.
        description: A description in one line.
        of_numbers: True if targets may be numbers instead of classes.
    """

    of_numbers: bool = False


_MODELS = {
    "softmax": ModelEntry(SoftmaxRegression, "softmax regression: one linear layer, zero at the start, no bias"),
    "linear_regression": ModelEntry(LinearRegression, "one linear prediction of a number, for the squared error"),
    "linear_svm": ModelEntry(LinearSVM, "linear scores for the hinge loss"),
    "logistic_regression": ModelEntry(LogisticRegression, "one linear score, for two classes and the logistic loss"),
    "mnist_cnn": ModelEntry(MnistCNN, "two 5x5 convolution blocks with GroupNorm and a linear layer"),
    "femnist_cnn": ModelEntry(FemnistCNN, "three 3x3 convolution blocks with GroupNorm and a linear layer"),
    "vit": ModelEntry(VisionTransformer, "a small vision transformer: patches, two blocks of attention, linear head"),
    "char_lstm": ModelEntry(CharLSTM, "an LSTM that predicts the next token at each position of a text"),
    "char_transformer": ModelEntry(CharTransformer, "a small causal transformer, for the same data as char_lstm"),
    "resnet18_gn": ModelEntry(ResNet18, "ResNet-18 with GroupNorm, to fine-tune weights with torchvision's names"),
}

_LOSSES = {
    "cross_entropy": LossEntry(_loss(cross_entropy), "softmax cross-entropy, any number of classes"),
    "hinge": LossEntry(_loss(hinge), "hinge: binary for one score, Weston-Watkins for more"),
    "logistic": LossEntry(_loss(logistic), "binary logistic loss of one score"),
    "shifted_logistic": LossEntry(_loss(shifted_logistic), "binary logistic loss of one score minus 1 (Wang, Ye, Xu)"),
    "mse": LossEntry(_loss(squared_error), "mean squared error, of numbers or of classes as 0/1", of_numbers=True),
}

MODELS = plugins.Registry(_MODELS, (nn.Module,), "fedpriv.models")
LOSSES = plugins.Registry(_LOSSES, (nn.Module,), row=LossEntry)
