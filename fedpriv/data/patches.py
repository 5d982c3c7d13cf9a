"""Random filters of small patches: the strength of each of 256 patterns in nine regions of an image.

The filters are patches of drawn images (`fedpriv.data.dead_leaves`), whitened by the statistics of such patches. They
are the same in all runs. Nothing is fitted to data.

Source: Coates, Ng and Lee (2011), an analysis of single-layer networks in unsupervised feature learning, which uses
patches, whitening and both signs from the training images.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.data.dead_leaves import dead_leaves
from fedpriv.errors import ConfigError

_SIDE = 6  # of a patch, in pixels
_STRIDE = 2
_PAIRS = 256  # of a filter and its mirror image
_REGIONS = 3  # a side
_THRESHOLD = 0.5
_PIXEL_NOISE = 0.003  # added to a patch's variance: flat patches stay flat
_RIDGE = 0.05  # added to the variances of whitened patches
_DRAWN, _SEEN = 500, 40_000  # images, and patches of them
_BLOCK = 16  # images for which the responses fit in a cache


def patches(images: Tensor) -> Tensor:
    """Computes the strength of patterns: `[n, c, h, w] -> [n, 512, 3, 3]`, from pixels in [0, 1].

    Each patch of 6 x 6 pixels is scaled to mean 0 and variance 1 and multiplied by 256 filters and their mirror images.
    The excess of a response over .5, in either direction, is averaged over a region; a filter and its mirror image in
    the mirrored region are averaged; then the square root is taken. An image of even width and its mirror image
    therefore have the same result. Use `whiten` and `unit` after it.

    Raises:
        ConfigError: If an image is smaller than a patch.
    """
    if min(images.shape[-2:]) < _SIDE:
        fix = f"needs at least {_SIDE} pixels per side, but images are {images.shape[-2]} x {images.shape[-1]}"
        raise ConfigError("data.transforms", "patches", fix)
    filters = _filters(images.shape[1]).to(images)
    return torch.cat([_responses(block, filters) for block in images.split(_BLOCK)])


def _responses(images: Tensor, filters: Tensor) -> Tensor:
    """Computes `patches` of a block with `filters [512, c, 6, 6]`, the second half mirror images of the first."""
    mean = functional.avg_pool2d(images, _SIDE, _STRIDE).mean(1, keepdim=True)
    square = functional.avg_pool2d(images**2, _SIDE, _STRIDE).mean(1, keepdim=True)
    variance = (square - mean**2).clamp_min(0)
    # the filters have mean 0, so the patch's mean need not be subtracted
    response = functional.conv2d(images, filters, stride=_STRIDE) * (variance + _PIXEL_NOISE).rsqrt()
    signs = [functional.relu(sign * response - _THRESHOLD) for sign in (1, -1)]
    regions = torch.stack([functional.adaptive_avg_pool2d(sign, _REGIONS) for sign in signs], 1)
    plain, mirrored = regions.unflatten(2, (2, _PAIRS)).unbind(2)  # [n, 2, 256, 3, 3] each
    return ((plain + mirrored.flip(-1)) / 2).sqrt().flatten(1, 2)


@lru_cache(maxsize=4)
def _filters(channels: int) -> Tensor:
    """Returns filters of mean 0, `[512, channels, 6, 6]`; each whitens a patch and compares it with a drawn patch."""
    generator = torch.Generator().manual_seed(0)
    images = dead_leaves(_DRAWN, (channels, 32, 32), generator)
    windows = images.unfold(2, _SIDE, 1).unfold(3, _SIDE, 1)  # -> [images, channels, 27, 27, 6, 6]
    image, row, column = (torch.randint(windows.shape[dim], (_SEEN,), generator=generator) for dim in (0, 2, 3))
    drawn = windows[image, :, row, column].flatten(1)
    drawn = drawn - drawn.mean(1, keepdim=True)
    drawn = drawn[drawn.var(1) > _PIXEL_NOISE]
    drawn = drawn / (drawn.var(1, keepdim=True) + _PIXEL_NOISE).sqrt()
    mirrored = drawn.unflatten(1, (channels, _SIDE, _SIDE)).flip(-1).flatten(1)
    covariance = (drawn.T @ drawn + mirrored.T @ mirrored) / (2 * len(drawn))
    variances, axes = torch.linalg.eigh(covariance)
    whiten = (axes * (variances.clamp_min(0) + _RIDGE).rsqrt()) @ axes.T
    patterns = drawn[:_PAIRS] @ whiten
    patterns = patterns / patterns.norm(dim=1, keepdim=True)
    filters = patterns @ whiten
    filters = filters - filters.mean(1, keepdim=True)
    filters = filters.unflatten(1, (channels, _SIDE, _SIDE))
    return torch.cat([filters, filters.flip(-1)])
