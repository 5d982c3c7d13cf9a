"""Random images of overlapping leaves, drawn without data: edges and colours of all sizes, as in photographs.

They replace public photographs for computing filters and statistics of features, and contain no information about any
client.

Source: Lee, Mumford and Huang (2001), occlusion models for natural images; Baradad, Wulff, Wang, Isola and Torralba
(2021), learning to see by looking at noise, which trains networks on such images.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LEAVES = 80  # leaves per image; later ones cover earlier ones
_SMALLEST = 2.0  # pixels from a leaf's middle to its edge
_LARGEST = 0.6  # of the image's height
_COLOUR = 0.3  # difference between channels, in addition to brightness in [0, 1]
_SHADE = 0.15  # change of brightness from a leaf's middle to its edge, at most


def dead_leaves(n: int, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Draws images in [0, 1], `[n, channels, height, width]`.

    Ellipses and rectangles in random directions are laid on one another. Sizes have density `r^-3`, so that the
    picture looks the same at all scales. A leaf has a random brightness, a weak colour and a weak shade.

    Args:
        n: Number of images.
        shape: `(channels, height, width)`.
        generator: Source of randomness; a seeded one reproduces the images.
    """
    channels, height, width = shape
    rows = torch.arange(height)[:, None] + 0.5
    columns = torch.arange(width) + 0.5

    def uniform(*extra: int) -> Tensor:
        return torch.rand(n, *extra, generator=generator)

    def colour() -> Tensor:
        return (uniform(1) + _COLOUR * (uniform(channels) - 0.5))[:, :, None, None]

    images = colour().expand(n, *shape)
    # radius^-2 is uniform between these if radii have density r^-3
    inverse_of_small = _SMALLEST**-2
    inverse_of_large = max(_LARGEST * height, _SMALLEST) ** -2
    for _ in range(_LEAVES):
        radius = (inverse_of_small + uniform(1, 1) * (inverse_of_large - inverse_of_small)) ** -0.5
        flatness = 0.4 + 0.6 * uniform(1, 1)
        angle = math.pi * uniform(1, 1)
        across = columns - width * uniform(1, 1)  # [n, 1, w]
        down = rows - height * uniform(1, 1)  # [n, h, 1]
        along_axis = (across * angle.cos() + down * angle.sin()) / radius  # [n, h, w], in radii
        off_axis = (down * angle.cos() - across * angle.sin()) / (radius * flatness)
        ellipse = torch.hypot(along_axis, off_axis)
        rectangle = torch.maximum(along_axis.abs(), off_axis.abs())
        distance = torch.where(uniform(1, 1) < 0.5, rectangle, ellipse)
        # an edge that crosses a pixel covers a share of it
        cover = ((1 - distance) * radius * flatness + 0.5).clamp(0, 1)[:, None]
        shade = _SHADE * (2 * uniform(1, 1) - 1) * along_axis
        images = torch.lerp(images, colour() + shade[:, None], cover)
    return images.clamp(0, 1)
