"""Errors of predicted numbers in the units of the target, on public test data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.settings.checks import Positive, validate_arguments


@validate_arguments("metrics")
@dataclass(frozen=True)
class Rmse:
    """Root mean squared error, for `metrics={"rmse": Rmse(encoder.target_scale)}`.

    Args:
        scale: Size of one unit of the model's output, in units of the target; 1 by default. For targets that
            `TableEncoder` has mapped to [-1, 1], use the encoder's `target_scale`.

    Examples:
        >>> import fedpriv, torch
        >>> outputs, targets = torch.tensor([0.1, 0.3]), torch.tensor([0.1, 0.1])
        >>> round(fedpriv.Rmse(scale=10.0)(outputs, targets).item(), 3)
        1.414
    """

    scale: Positive = 1.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Computes the error of outputs `[n]` or `[n, 1]` and targets `[n]`; NaN if the error is infinite."""
        return _finite(_errors(outputs, targets).square().mean().sqrt() * self.scale)


@validate_arguments("metrics")
@dataclass(frozen=True)
class Mae:
    """Mean absolute error.

    Args:
        scale: Size of one unit of the model's output, in units of the target, as for `Rmse`; 1 by default.

    Examples:
        >>> import fedpriv, torch
        >>> outputs, targets = torch.tensor([0.1, 0.3]), torch.tensor([0.1, 0.1])
        >>> round(fedpriv.Mae(scale=10.0)(outputs, targets).item(), 3)
        1.0
    """

    scale: Positive = 1.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Computes the error of outputs `[n]` or `[n, 1]` and targets `[n]`; NaN if the error is infinite."""
        return _finite(_errors(outputs, targets).abs().mean() * self.scale)


ERRORS = {"rmse": Rmse, "mae": Mae}
"""Metrics by their name in configurations."""


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    if outputs.numel() != targets.numel():
        shapes = f"outputs of shape {tuple(outputs.shape)} for targets of shape {tuple(targets.shape)}"
        raise ValueError(f"regression metrics cannot compare {shapes}: the model must predict one number per example")
    return outputs.double().reshape(targets.shape) - targets.double()


def _finite(error: Tensor) -> Tensor:
    """Returns NaN instead of an infinite error, which would end the run of a model that diverged."""
    return torch.where(torch.isfinite(error), error, torch.nan)
