"""Models of the gradient lines."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn


def mlp(dim: int) -> nn.Module:
    """Returns three layers on images of MNIST, with about `dim` parameters."""
    ends = 784 + 10
    width = round(((ends**2 + 4 * dim) ** 0.5 - ends) / 2)
    first, second, last = (nn.Linear(a, b) for a, b in pairwise((784, width, width, 10)))
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), last)


def group_norm_resnet(width: int = 64) -> nn.Module:
    """Returns a ResNet-18 for CIFAR, by default with 11 million parameters, with GroupNorm instead of BatchNorm."""
    widths = (width, width, 2 * width, 4 * width, 8 * width)
    blocks = [
        block
        for before, after in pairwise(widths)
        for block in (Block(before, after, after // before), Block(after, after, 1))
    ]
    stem = _convolution(3, width, 3, 1)
    return nn.Sequential(*stem, nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))


class Block(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(*_convolution(before, after, 3, stride), nn.ReLU(), *_convolution(after, after, 3, 1))
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(before, after, 1, stride))
        self.relu = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        """Maps `[n, before, h, w]` to `[n, after, h / stride, w / stride]`."""
        return self.relu(self.path(images) + self.shortcut(images))


def _convolution(before: int, after: int, kernel: int, stride: int) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
    return convolution, nn.GroupNorm(16, after)
