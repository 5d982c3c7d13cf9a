"""Whitening of features by the statistics they have on drawn images, which belong to nobody.

A release is noised alike in all directions, and an example's bound is shared by the directions in which its features
lie. Features of images lie mostly in a few directions that say little of the class, and these use up the bound.
Whitening shares the bound evenly. The covariance of private features would cost privacy; that of the same features of
drawn images (`fedpriv.data.dead_leaves`) costs none.

Source: Mehta, Krichene, Thakurta, Kurakin and Cutkosky (2022), differentially private image classification from
features, who release the private covariance instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.errors import ConfigError

DRAWN = 10_000
"""Drawn images whose features give the statistics."""

_RIDGE = 2.0  # mean variances, added to each: directions of little variance would fill the bound with what noise hides
_LARGEST = 8192  # numbers an image: the eigenvectors of so many take some minutes


@dataclass(frozen=True)
class Whitening:
    """A public affine map of features.

    Attributes:
        mean: Of the features of drawn images, `[d]`.
        matrix: Symmetric, `(C + r I)^(-1/2)` of their covariance C, `[d, d]`; r is twice the mean variance.
    """

    mean: Tensor
    matrix: Tensor

    @classmethod
    def of(cls, features: Tensor) -> Whitening:
        """Computes the map from features of drawn images, `[n, ...]`.

        Raises:
            ConfigError: an image has more than 8192 features.
        """
        flat = features.flatten(1)
        size = flat.shape[1]
        if size > _LARGEST:
            fix = (
                f"needs at most {_LARGEST} numbers per image, but images have {size}: put a transform with "
                "fewer outputs before it"
            )
            raise ConfigError("data.transforms", "whiten", fix)
        mean = flat.mean(0)
        centred = flat - mean
        variances, axes = torch.linalg.eigh(centred.T @ centred / len(flat))
        variances = variances.clamp_min(0)
        ridge = (_RIDGE * variances.mean()).clamp_min(torch.finfo(flat.dtype).tiny)
        return cls(mean, (axes * (variances + ridge).rsqrt()) @ axes.T)

    def __call__(self, features: Tensor) -> Tensor:
        """Whitens each row, `[n, ...] -> [n, ...]`."""
        flat = (features.flatten(1) - self.mean) @ self.matrix
        return flat.reshape(features.shape)
