"""Whitening of features by their statistics on drawn images, which contain no private data.

Noise is equal in all directions, and the directions of an example's features share one clip bound. Features of images
lie mostly in a few directions with little information about the class, which use up the bound. Whitening divides the
bound evenly. The covariance of private features would have a privacy cost; the covariance of the same
features on drawn images (`fedpriv.data.dead_leaves`) has none.

Source: Mehta, Krichene, Thakurta, Kurakin and Cutkosky (2022), differentially private image classification from
features, which releases the private covariance instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.errors import ConfigError

DRAWN = 10_000
"""Number of drawn images from which the statistics are computed."""

_RIDGE = 2.0  # mean variances, added to each: small variances would fill the bound with values below the noise
_LARGEST = 8192  # numbers per image: the eigenvectors of this many take some minutes


@dataclass(frozen=True)
class Whitening:
    """A public affine map of features.

    Attributes:
        mean: Mean of the features of drawn images, `[d]`.
        matrix: Symmetric, `(C + r I)^(-1/2)` of their covariance C, `[d, d]`; r is twice the mean variance.
    """

    mean: Tensor
    matrix: Tensor

    @classmethod
    def of(cls, features: Tensor) -> Whitening:
        """Computes the map from features of drawn images, `[n, ...]`.

        Raises:
            ConfigError: If an image has more than 8192 features.
        """
        flat = features.flatten(1)
        size = flat.shape[1]
        if size > _LARGEST:
            fix = (
                f"accepts at most {_LARGEST} numbers per image, but images have {size} numbers: put a transform with "
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
