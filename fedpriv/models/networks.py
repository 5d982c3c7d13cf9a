"""Small models for private training, in which the output for an example does not depend on other examples."""

from __future__ import annotations

from math import gcd

from torch import Tensor, nn

from fedpriv.errors import ConfigError
from fedpriv.settings.checks import Count, validate_arguments


@validate_arguments("model")
class SoftmaxRegression(nn.Module):
    """One linear layer on the flattened input, zero at the start: `[n, ...] -> scores [n, n_classes]`.

    Args:
        n_features: Numbers in one input.
        n_classes: Scores per example.
        bias: True if the layer has a bias.

    Examples:
        >>> import torch
        >>> from fedpriv.models.networks import SoftmaxRegression
        >>> SoftmaxRegression(n_features=4, n_classes=3)(torch.ones(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(self, n_features: int, n_classes: int, bias: bool = False) -> None:
        super().__init__()
        self.linear = _zero_linear(n_features, n_classes, bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns scores of `inputs [n, ...]`."""
        return self.linear(inputs.flatten(1))  # [n, ...] -> [n, n_features]


@validate_arguments("model")
class LinearRegression(nn.Module):
    """One linear layer on the flattened input, zero at the start, for regression: `[n, ...] -> [n, 1]`.

    Args:
        n_features: Numbers in one input.
        bias: True if the layer has a bias; False by default.

    Examples:
        >>> import torch
        >>> from fedpriv.models.networks import LinearRegression
        >>> LinearRegression(n_features=4)(torch.ones(2, 4)).shape
        torch.Size([2, 1])
    """

    def __init__(self, n_features: int, bias: bool = False) -> None:
        super().__init__()
        self.linear = _zero_linear(n_features, 1, bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns predictions for `inputs [n, ...]`."""
        return self.linear(inputs.flatten(1))  # [n, ...] -> [n, n_features]


@validate_arguments("model")
class LinearSVM(nn.Module):
    """`SoftmaxRegression` for the hinge loss: for two classes it has one score `[n, 1]`, positive for class 1.

    Args:
        n_features: Numbers in one input.
        n_classes: Number of classes; 2 by default.
        bias: True if the layer has a bias; False by default.

    Examples:
        >>> import torch
        >>> from fedpriv.models.networks import LinearSVM
        >>> LinearSVM(n_features=4)(torch.ones(2, 4)).shape
        torch.Size([2, 1])
    """

    def __init__(self, n_features: int, n_classes: int = 2, bias: bool = False) -> None:
        super().__init__()
        if n_classes == 2:
            n_scores = 1
        else:
            n_scores = n_classes
        self.linear = _zero_linear(n_features, n_scores, bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns scores of `inputs [n, ...]`."""
        return self.linear(inputs.flatten(1))  # [n, ...] -> [n, n_features]


@validate_arguments("model")
class LogisticRegression(nn.Module):
    """`SoftmaxRegression` for two classes and the logistic loss: one score `[n, 1]`, positive for class 1.

    Args:
        n_features: Numbers in one input.
        n_classes: Must be 2.
        bias: True if the layer has a bias; False by default.

    Examples:
        >>> import torch
        >>> from fedpriv.models.networks import LogisticRegression
        >>> LogisticRegression(n_features=4)(torch.ones(2, 4)).shape
        torch.Size([2, 1])
    """

    def __init__(self, n_features: int, n_classes: int = 2, bias: bool = False) -> None:
        super().__init__()
        if n_classes != 2:
            raise ConfigError(
                "model.n_classes", n_classes, "must be 2 for logistic_regression: use softmax for more classes"
            )
        self.linear = _zero_linear(n_features, 1, bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns scores of `inputs [n, ...]`."""
        return self.linear(inputs.flatten(1))  # [n, ...] -> [n, n_features]


@validate_arguments("model")
class MnistCNN(nn.Module):
    """Blocks of (5x5 convolution, GroupNorm, ReLU, 2x2 max-pool), then a linear layer: `[n, c, h, w]` to scores.

    Args:
        input_shape: `(c, h, w)`; flat inputs are reshaped.
        n_classes: Scores per example.
        channels: Output channels of each block; two blocks by default.

    It has 29 034 parameters by default.

    Source: Xie, Liu, Chai, with GroupNorm instead of the paper's BatchNorm.

    Examples:
        >>> import torch
        >>> from fedpriv.models.networks import MnistCNN
        >>> MnistCNN()(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, input_shape: tuple[int, ...] = (1, 28, 28), n_classes: int = 10, channels: tuple[Count, ...] = (16, 32)
    ) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)
        self.layers = _conv_net(self.input_shape, n_classes, channels, kernel=5)

    def forward(self, images: Tensor) -> Tensor:
        """Returns scores of `images [n, c, h, w]` or `[n, c * h * w]`."""
        return self.layers(images.reshape(images.shape[0], *self.input_shape))  # -> [n, c, h, w]


@validate_arguments("model")
class FemnistCNN(nn.Module):
    """Three blocks of (3x3 convolution, GroupNorm, ReLU, 2x2 max-pool), then a linear layer: `[n, c, h, w]` to scores.

    It has 59 294 parameters by default; LEAF's model has 6.6 million, for which the noise vector would be longer.

    Args:
        input_shape: `(c, h, w)`; flat inputs are reshaped.
        n_classes: Scores per example; 62 by default.
        channels: Output channels of each block; three blocks by default.

    Examples:
        >>> import torch
        >>> from fedpriv.models.networks import FemnistCNN
        >>> FemnistCNN()(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 62])
    """

    def __init__(
        self,
        input_shape: tuple[int, ...] = (1, 28, 28),
        n_classes: int = 62,
        channels: tuple[Count, ...] = (16, 32, 64),
    ) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)
        self.layers = _conv_net(self.input_shape, n_classes, channels, kernel=3)

    def forward(self, images: Tensor) -> Tensor:
        """Returns scores of `images [n, c, h, w]` or `[n, c * h * w]`."""
        return self.layers(images.reshape(images.shape[0], *self.input_shape))  # -> [n, c, h, w]


def _zero_linear(n_features: int, n_outputs: int, bias: bool) -> nn.Linear:
    linear = nn.Linear(n_features, n_outputs, bias=bias)
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)
    return linear


def _conv_net(shape: tuple[int, ...], n_classes: int, channels: tuple[int, ...], kernel: int) -> nn.Sequential:
    if len(shape) != 3 or min(shape[1:]) < 2 ** len(channels):
        fix = (
            f"must be the shape (channels, height, width) of images with at least {2 ** len(channels)} pixels per "
            "side: leave out data.flat, or use another model"
        )
        raise ConfigError("model.input_shape", shape, fix)
    if not channels or min(channels) < 1:
        raise ConfigError("model.channels", channels, "must be one positive number per block, e.g. (16, 32)")
    blocks: list[nn.Module] = []
    in_channels, height, width = shape
    for out_channels in channels:
        convolution = nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2)
        # not in place, so that per-example gradients can be taken with vmap
        blocks += [convolution, nn.GroupNorm(gcd(8, out_channels), out_channels), nn.ReLU(), nn.MaxPool2d(2)]
        in_channels = out_channels
        height //= 2
        width //= 2
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(in_channels * height * width, n_classes))
