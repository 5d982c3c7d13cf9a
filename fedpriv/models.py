"""Models and losses that suit differential privacy: small, and no example's output depends on another example."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from math import gcd, prod
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv import plugins
from fedpriv.errors import ConfigError

# torch's own layers that treat each example alone and keep nothing
_PLAIN: tuple[type[nn.Module], ...] = (
    nn.Sequential,
    nn.ModuleList,
    nn.Identity,
    nn.Flatten,
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.Dropout,
    nn.Embedding,
)
Reduction = Literal["mean", "sum", "none"]
PerExampleLoss = Callable[[Tensor, Tensor], Tensor]

# the private bases, since they cover the synchronised and lazy variants too
_BATCH_NORM = nn.modules.batchnorm._BatchNorm  # noqa: SLF001
_INSTANCE_NORM = nn.modules.instancenorm._InstanceNorm  # noqa: SLF001


class SoftmaxRegression(nn.Module):
    """One linear layer on the flattened input, zero at the start: `[n, ...] -> scores [n, n_classes]`.

    Args:
        n_features: Numbers in one input.
        n_classes: Scores per example.
        bias: Whether the layer has a bias; the ADMM paper's has none.
    """

    def __init__(self, n_features: int, n_classes: int, bias: bool = False) -> None:
        super().__init__()
        self.linear = _zero_linear(n_features, n_classes, bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores of `inputs [n, ...]`."""
        return self.linear(inputs.flatten(1))  # [n, ...] -> [n, n_features]


class LinearSVM(nn.Module):
    """As `SoftmaxRegression`, for the hinge loss: with two classes it has one score `[n, 1]`, positive for class 1."""

    def __init__(self, n_features: int, n_classes: int = 2, bias: bool = False) -> None:
        super().__init__()
        self.linear = _zero_linear(n_features, 1 if n_classes == 2 else n_classes, bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores of `inputs [n, ...]`."""
        return self.linear(inputs.flatten(1))  # [n, ...] -> [n, n_features]


class LogisticRegression(nn.Module):
    """As `SoftmaxRegression`, for two classes and the logistic loss: one score `[n, 1]`, positive for class 1."""

    def __init__(self, n_features: int, n_classes: int = 2, bias: bool = False) -> None:
        super().__init__()
        if n_classes != 2:
            raise ConfigError("model.n_classes", n_classes, "logistic_regression has two classes: use softmax")
        self.linear = _zero_linear(n_features, 1, bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores of `inputs [n, ...]`."""
        return self.linear(inputs.flatten(1))  # [n, ...] -> [n, n_features]


class MnistCNN(nn.Module):
    """Blocks of (5x5 convolution, GroupNorm, ReLU, 2x2 max-pool), then a linear layer: `[n, c, h, w]` to scores.

    Args:
        input_shape: `(c, h, w)`; flat inputs are brought to this shape.
        n_classes: Scores per example.
        channels: Of each block; two blocks by default.

    29 034 parameters by default. Source: Xie, Liu, Chai, with GroupNorm where the paper has BatchNorm.
    """

    def __init__(
        self, input_shape: tuple[int, ...] = (1, 28, 28), n_classes: int = 10, channels: tuple[int, ...] = (16, 32)
    ) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)
        self.layers = _conv_net(self.input_shape, n_classes, channels, kernel=5)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of `images [n, c, h, w]` or `[n, c * h * w]`."""
        return self.layers(images.reshape(len(images), *self.input_shape))  # -> [n, c, h, w]


class FemnistCNN(nn.Module):
    """Three blocks of (3x3 convolution, GroupNorm, ReLU, 2x2 max-pool), then a linear layer; else as `MnistCNN`.

    59 294 parameters by default, against 6.6 million in LEAF's: noise grows with the number of parameters.
    """

    def __init__(
        self, input_shape: tuple[int, ...] = (1, 28, 28), n_classes: int = 62, channels: tuple[int, ...] = (16, 32, 64)
    ) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)
        self.layers = _conv_net(self.input_shape, n_classes, channels, kernel=3)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of `images [n, c, h, w]` or `[n, c * h * w]`."""
        return self.layers(images.reshape(len(images), *self.input_shape))  # -> [n, c, h, w]


class Loss(nn.Module):
    """A loss from its per-example form `(outputs [n, k], targets [n]) -> [n]`."""

    def __init__(self, per_example: PerExampleLoss, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.per_example, self.reduction = per_example, reduction
        if reduction not in ("mean", "sum", "none"):
            raise ConfigError("loss.reduction", reduction, "choose 'mean', 'sum' or 'none'")

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of the batch; `[n]` if nothing is reduced."""
        losses = self.per_example(outputs, targets)
        if self.reduction == "none":
            return losses
        return losses.mean() if self.reduction == "mean" else losses.sum()


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Per example `-log softmax(outputs)[label]`."""
    return functional.cross_entropy(outputs, labels, reduction="none")


def hinge(outputs: Tensor, labels: Tensor) -> Tensor:
    """Margin loss per example.

    One score: `max(0, 1 - s score)`, s = -1 for label 0 and 1 for label 1. More: `sum_{j != label} max(0, 1 + s_j -
    s_label) / k` (Weston & Watkins, 1999), which is `torch.nn.MultiMarginLoss` in a form that vmap can batch.
    """
    if outputs.shape[-1] == 1:
        return (1 - _signs(outputs, labels) * outputs[:, 0]).clamp_min(0)
    n_classes = outputs.shape[-1]
    margins = 1 + outputs - outputs.gather(1, labels[:, None])
    return margins.clamp_min(0).masked_fill(_one_hot(labels, n_classes), 0).sum(1) / n_classes


def logistic(outputs: Tensor, labels: Tensor) -> Tensor:
    """Per example `log(1 + exp(-s score))`, s = -1 for label 0 and 1 for label 1; outputs `[n, 1]`."""
    if outputs.shape[-1] != 1:
        fix = "needs a model with one score, such as logistic_regression; else use cross_entropy"
        raise ConfigError("loss", "logistic", f"{fix} (found {outputs.shape[-1]} scores)")
    return functional.softplus(-_signs(outputs, labels) * outputs[:, 0])


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Per example the mean square of `outputs - targets`; class numbers become one-hot if there are k > 1 outputs."""
    if targets.dim() < outputs.dim() and outputs.shape[-1] > 1:
        targets = _one_hot(targets, outputs.shape[-1])
    errors = outputs - targets.reshape(outputs.shape).to(outputs.dtype)  # [n] -> [n, 1] where there is one output
    return errors.square().flatten(1).mean(1)


def predict(outputs: Tensor) -> Tensor:
    """Class numbers `[n]` from scores `[n, k]`; one score means class 1 where it is positive."""
    return (outputs[:, 0] > 0).long() if outputs.shape[-1] == 1 else outputs.argmax(-1)


def resolve(name: str, *, input_shape: tuple[int, ...], n_classes: int, **options: object) -> nn.Module:
    """Build a model.

    Args:
        name: A key of `MODELS`, or `package.module:Name`.
        input_shape: Of one example. The model is given it, `n_features` (its product) and `n_classes`, as far as it
            has parameters of these names.
        n_classes: Number of classes.
        **options: The model's own options.

    Raises:
        ConfigError: unknown name or option, or not a `torch.nn.Module`.
    """
    context = {"input_shape": tuple(input_shape), "n_features": prod(input_shape), "n_classes": n_classes}
    return _as_module(plugins.build(name, MODELS, options, field="model", context=context), name, "model")


def resolve_loss(name: str, **options: object) -> nn.Module:
    """Build a loss `(outputs, targets) -> scalar`: a key of `LOSSES`, or `package.module:Name`.

    Raises:
        ConfigError: unknown name or option, or not a `torch.nn.Module`.
    """
    return _as_module(plugins.build(name, LOSSES, options, field="loss"), name, "loss")


def validate_model(model: nn.Module) -> None:
    """Refuse layers that mix examples or keep running statistics, and those that opacus refuses.

    Frozen and parameterless layers count too: they leak as much.

    Raises:
        ConfigError: names the first such layer by its path, and the fix.
    """
    for path, layer in model.named_modules():
        if reason := _why_unfit(layer):
            fix = f"{reason}; replace it, or call fedpriv.models.fix_model(model) (command line: --fix-model)"
            raise ConfigError(f"model.{path}" if path else "model", type(layer).__name__, fix)


def fix_model(model: nn.Module) -> nn.Module:
    """A copy of `model` that passes `validate_model`: BatchNorm becomes a fresh GroupNorm, LSTM opacus's DPLSTM, etc.

    Raises:
        ConfigError: opacus knows no replacement for a layer.
    """
    fixed = copy.deepcopy(model)
    unfit = [(path, layer) for path, layer in fixed.named_modules() if _why_unfit(layer)]
    for path, layer in unfit:
        replacement = _replacement(layer, path)
        if not path:
            return replacement
        parent, _, name = path.rpartition(".")
        fixed.get_submodule(parent).register_module(name, replacement)
    return fixed


def _zero_linear(n_features: int, n_outputs: int, bias: bool) -> nn.Linear:
    linear = nn.Linear(n_features, n_outputs, bias=bias)
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)
    return linear


def _conv_net(shape: tuple[int, ...], n_classes: int, channels: tuple[int, ...], kernel: int) -> nn.Sequential:
    if len(shape) != 3 or min(shape[1:]) < 2 ** len(channels):
        fix = f"give images (channels, height, width) of at least {2 ** len(channels)} pixels a side (data.flat off)"
        raise ConfigError("model.input_shape", shape, fix)
    if not channels or min(channels) < 1:
        raise ConfigError("model.channels", channels, "give a positive number for each block, e.g. (16, 32)")
    blocks: list[nn.Module] = []
    before, height, width = shape
    for after in channels:
        convolution = nn.Conv2d(before, after, kernel, padding=kernel // 2)
        # not in place, so that per-example gradients can be taken with vmap
        blocks += [convolution, nn.GroupNorm(gcd(8, after), after), nn.ReLU(), nn.MaxPool2d(2)]
        before, height, width = after, height // 2, width // 2
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(before * height * width, n_classes))


def _signs(outputs: Tensor, labels: Tensor) -> Tensor:
    return 2 * labels.to(outputs.dtype) - 1  # {0, 1} -> {-1, 1}


def _one_hot(labels: Tensor, n_classes: int) -> Tensor:
    """Boolean `[n, n_classes]`; torch's own reads the labels' values, which vmap forbids."""
    return labels[:, None] == torch.arange(n_classes, device=labels.device)


def _as_module(built: object, name: str, field: str) -> nn.Module:
    if not isinstance(built, nn.Module):
        raise ConfigError(field, name, f"gives a {type(built).__name__}: give a torch.nn.Module class")
    return built


def _opacus() -> Any:  # noqa: ANN401 - opacus has no types
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.validators import ModuleValidator  # seconds to import
    return ModuleValidator


def _why_unfit(layer: nn.Module) -> str | None:
    if isinstance(layer, _BATCH_NORM):
        return "it normalises over the batch, so examples mix; use GroupNorm"
    if isinstance(layer, _INSTANCE_NORM):
        running = layer.track_running_stats or layer.running_mean is not None
        return "it keeps running statistics of the data; set track_running_stats=False" if running else None
    if type(layer) in _PLAIN or not type(layer).__module__.startswith("torch."):
        return None  # not on opacus's list, which takes seconds and 80 MB to import
    validators = _opacus().VALIDATORS
    if type(layer) in validators and validators[type(layer)](layer):
        return f"opacus does not support it; use opacus.layers.DP{type(layer).__name__}"
    return None


def _replacement(layer: nn.Module, path: str) -> nn.Module:
    fixer = _opacus().FIXERS.get(type(layer))
    if fixer is None:
        raise ConfigError(f"model.{path}", type(layer).__name__, "opacus knows no replacement: replace it by hand")
    # groups of one number are all zero after normalising, so a layer that may see [n, features] gets one group
    options = {"num_groups": 1} if isinstance(layer, nn.BatchNorm1d) else {}
    replacement: nn.Module = fixer(layer, **options)
    if isinstance(replacement, _INSTANCE_NORM):
        # opacus leaves the buffers, and torch goes on updating them
        replacement.register_buffer("running_mean", None)
        replacement.register_buffer("running_var", None)
    some = next((t for t in (*layer.parameters(), *layer.buffers()) if t.is_floating_point()), torch.empty(0))
    return replacement.to(some.device, some.dtype).train(layer.training)


def _loss(per_example: PerExampleLoss) -> Callable[..., nn.Module]:
    def build(reduction: Reduction = "mean") -> nn.Module:
        return Loss(per_example, reduction)

    return build


ModelEntry = plugins.Entry[nn.Module]
LossEntry = plugins.Entry[nn.Module]

MODELS: dict[str, ModelEntry] = {
    "softmax": ModelEntry(SoftmaxRegression, "softmax regression: one linear layer, zero at the start, no bias"),
    "linear_svm": ModelEntry(LinearSVM, "linear scores for the hinge loss"),
    "logistic_regression": ModelEntry(LogisticRegression, "one linear score, for two classes and the logistic loss"),
    "mnist_cnn": ModelEntry(MnistCNN, "two 5x5 convolution blocks with GroupNorm and a linear layer"),
    "femnist_cnn": ModelEntry(FemnistCNN, "three 3x3 convolution blocks with GroupNorm and a linear layer"),
}

LOSSES: dict[str, LossEntry] = {
    "cross_entropy": LossEntry(_loss(cross_entropy), "softmax cross-entropy, any number of classes"),
    "hinge": LossEntry(_loss(hinge), "hinge: binary for one score, Weston-Watkins for more"),
    "logistic": LossEntry(_loss(logistic), "binary logistic loss of one score"),
    "mse": LossEntry(_loss(squared_error), "mean squared error"),
}
