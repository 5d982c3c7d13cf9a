"""Residual networks with GroupNorm, in which no example's output depends on another example.

Source: He, Zhang, Ren, Sun (2016), Deep residual learning; Wu and He (2018), Group normalization.
"""

from __future__ import annotations

from math import gcd
from typing import Literal

from torch import Tensor, nn

from fedpriv.errors import ConfigError
from fedpriv.settings.checks import Count, validate_arguments

_GROUPS = 32  # as in Wu and He
Stem = Literal["imagenet", "cifar"]


@validate_arguments("model")
class ResNet18(nn.Module):
    """ResNet-18 with GroupNorm instead of BatchNorm: `[n, c, h, w]` to scores `[n, n_classes]`.

    For colour images and 10 classes it has 11 181 642 parameters, 5 130 of them in the head, `fc`. Parameters have the
    names and shapes of torchvision's `resnet18(norm_layer=...)`, so weights of such a model can be loaded.

    Args:
        input_shape: `(c, h, w)`; flat inputs are reshaped.
        n_classes: Scores per example.
        width: Channels of the first of the four stages; each further stage has twice as many.
        stem: `"imagenet"` starts with a 7x7 convolution and a pooling, which keep a sixteenth of the positions;
            `"cifar"` starts with a 3x3 convolution that keeps all positions, for small images.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...] = (3, 224, 224),
        n_classes: int = 10,
        width: Count = 64,
        stem: Stem = "imagenet",
    ) -> None:
        super().__init__()
        if len(input_shape) != 3:
            raise ConfigError(
                "model.input_shape",
                input_shape,
                "must be the shape (channels, height, width) of images: leave out data.flat, or use another model",
            )
        self.input_shape = tuple(input_shape)
        small = stem == "cifar"
        if small:
            kernel, stride = 3, 1
        else:
            kernel, stride = 7, 2
        self.conv1 = nn.Conv2d(input_shape[0], width, kernel, stride, padding=kernel // 2, bias=False)
        self.bn1 = _norm(width)  # a GroupNorm under the name that public weights have
        self.relu = nn.ReLU()
        if small:
            self.maxpool = nn.Identity()
        else:
            self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(width, width, stride=1)
        self.layer2 = _stage(width, 2 * width, stride=2)
        self.layer3 = _stage(2 * width, 4 * width, stride=2)
        self.layer4 = _stage(4 * width, 8 * width, stride=2)
        self.fc = nn.Linear(8 * width, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Returns scores of `images [n, c, h, w]` or `[n, c * h * w]`."""
        x = images.reshape(images.shape[0], *self.input_shape)  # -> [n, c, h, w]
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))  # [n, c, h, w] -> [n, c]


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = _norm(out_channels)
        self.relu = nn.ReLU()  # not in place, so that per-example gradients can be taken with vmap
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = _norm(out_channels)
        self.downsample = nn.Sequential()  # empty, it is the identity
        if stride > 1 or in_channels != out_channels:
            self.downsample.extend([nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), _norm(out_channels)])

    def forward(self, x: Tensor) -> Tensor:
        inside = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(inside + self.downsample(x))


def _stage(in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(_Block(in_channels, out_channels, stride), _Block(out_channels, out_channels, 1))


def _norm(channels: int) -> nn.GroupNorm:
    # at least two channels a group: the last stage of a small image has one position, and one number normalises to zero
    return nn.GroupNorm(gcd(_GROUPS, max(channels // 2, 1)), channels)
