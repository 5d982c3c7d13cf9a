"""Metrics of binary predictions on public test data, for one or for several labels.

With the confusion table of true and false positives and negatives at a threshold of the probability:

    sensitivity = TP / (TP + FN)        specificity = TN / (TN + FP)
    AUC = P(score of a positive > score of a negative)             (Hanley and McNeil 1982)
    Brier score = mean (p - y)^2                                   (Brier 1950)
    calibration error = sum over bins of share * |mean p - mean y| (Naeini, Cooper, Hauskrecht 2015), 10 bins

Test data are public, so the metrics have no noise and cost no epsilon.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.settings.checks import Count, Ratio, validate_arguments

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class BinaryMetric(ABC):
    """A metric of probabilities and truth, averaged over labels.

    Args:
        probabilities: True if outputs are probabilities, as for `BCELoss`; by default they are scores (logits). Outputs
            `[n, 2]` with targets `[n]` are scores of two classes.
    """

    probabilities: bool = False

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        """Computes the metric from outputs `[n]`, `[n, 1]` or `[n, k]` and targets 0 or 1; NaN if undefined."""
        chances, truth = _columns(outputs, targets, probabilities=self.probabilities)
        if not np.isfinite(chances).all():
            return math.nan
        values = [self.score(chances[:, label], truth[:, label]) for label in range(chances.shape[1])]
        known = [value for value in values if not math.isnan(value)]
        if not known:
            return math.nan
        return math.fsum(known) / len(known)

    @abstractmethod
    def score(self, chances: Floats, truth: Flags) -> float:
        """Computes the metric for one label, from probabilities `[n]` and truth `[n]`; NaN where it is undefined."""


@validate_arguments("metrics")
@dataclass(frozen=True)
class Auc(BinaryMetric):
    """Area under the ROC curve: the probability that a positive example has a higher score than a negative one.

    Args:
        probabilities: True if outputs are probabilities, as for `BCELoss`; by default they are scores (logits).

    Examples:
        >>> import fedpriv, torch
        >>> scores, targets = torch.tensor([2.0, -1.0, 1.0, -2.0]), torch.tensor([1, 0, 0, 0])
        >>> fedpriv.Auc()(scores, targets)
        1.0
    """

    def score(self, chances: Floats, truth: Flags) -> float:
        """See `Auc`; NaN if all or no targets are positive."""
        from sklearn.metrics import roc_auc_score  # slow to import

        if truth.all() or not truth.any():
            return math.nan
        return float(roc_auc_score(truth, chances))


@validate_arguments("metrics")
@dataclass(frozen=True)
class Sensitivity(BinaryMetric):
    """Fraction of the positive examples that are predicted positive (true positive rate, recall).

    Args:
        probabilities: True if outputs are probabilities, as for `BCELoss`; by default they are scores (logits).
        threshold: Smallest probability that counts as positive, in (0, 1); 0.5 by default.

    Examples:
        >>> import fedpriv, torch
        >>> scores, targets = torch.tensor([2.0, -1.0, 1.0, -2.0]), torch.tensor([1, 0, 0, 0])
        >>> fedpriv.Sensitivity()(scores, targets)
        1.0
    """

    threshold: Ratio = 0.5

    def score(self, chances: Floats, truth: Flags) -> float:
        """See `Sensitivity`; NaN if no target is positive."""
        return _fraction(chances[truth] >= self.threshold)


@validate_arguments("metrics")
@dataclass(frozen=True)
class Specificity(BinaryMetric):
    """Fraction of the negative examples that are predicted negative (true negative rate).

    Args:
        probabilities: True if outputs are probabilities, as for `BCELoss`; by default they are scores (logits).
        threshold: Smallest probability that counts as positive, in (0, 1); 0.5 by default.

    Examples:
        >>> import fedpriv, torch
        >>> scores, targets = torch.tensor([2.0, -1.0, 1.0, -2.0]), torch.tensor([1, 0, 0, 0])
        >>> round(fedpriv.Specificity()(scores, targets), 3)
        0.667
    """

    threshold: Ratio = 0.5

    def score(self, chances: Floats, truth: Flags) -> float:
        """See `Specificity`; NaN if no target is negative."""
        return _fraction(chances[~truth] < self.threshold)


@validate_arguments("metrics")
@dataclass(frozen=True)
class Brier(BinaryMetric):
    """Mean squared difference of probability and truth (Brier score); 0.25 for the constant prediction 1/2.

    Args:
        probabilities: True if outputs are probabilities, as for `BCELoss`; by default they are scores (logits).

    Examples:
        >>> import fedpriv, torch
        >>> scores, targets = torch.tensor([2.0, -1.0, 1.0, -2.0]), torch.tensor([1, 0, 0, 0])
        >>> round(fedpriv.Brier()(scores, targets), 3)
        0.159
    """

    def score(self, chances: Floats, truth: Flags) -> float:
        """See `Brier`."""
        return float(np.square(chances - truth).mean())


@validate_arguments("metrics")
@dataclass(frozen=True)
class CalibrationError(BinaryMetric):
    """Expected calibration error: the mean difference between predicted probability and observed frequency.

    Predictions are grouped into bins of equal width.

    Args:
        probabilities: True if outputs are probabilities, as for `BCELoss`; by default they are scores (logits).
        bins: Number of bins; 10 by default.

    Examples:
        >>> import fedpriv, torch
        >>> scores, targets = torch.tensor([2.0, -1.0, 1.0, -2.0]), torch.tensor([1, 0, 0, 0])
        >>> 0 <= fedpriv.CalibrationError()(scores, targets) <= 1
        True
    """

    bins: Count = 10

    def score(self, chances: Floats, truth: Flags) -> float:
        """See `CalibrationError`."""
        bins = np.minimum((chances * self.bins).astype(int), self.bins - 1)
        excess = np.bincount(bins, chances - truth, self.bins)
        return float(np.abs(excess).sum() / len(chances))


BINARY: dict[str, Callable[[], BinaryMetric]] = {
    "auc": Auc,
    "sensitivity": Sensitivity,
    "specificity": Specificity,
    "brier": Brier,
    "calibration_error": CalibrationError,
}
"""Metrics by their name in configurations."""


@validate_arguments("binary_metrics")
def binary_metrics(*, probabilities: bool = False, threshold: Ratio = 0.5) -> dict[str, BinaryMetric]:
    """Returns metrics of binary predictions by name, for `train(..., metrics=fedpriv.binary_metrics())`.

    Args:
        probabilities: True if outputs are probabilities, as for `BCELoss`; by default they are scores (logits).
        threshold: Smallest probability that counts as positive, for sensitivity and specificity; 0.5 by default.

    Returns:
        The metrics.

    Examples:
        >>> import fedpriv
        >>> sorted(fedpriv.binary_metrics())
        ['auc', 'brier', 'calibration_error', 'sensitivity', 'specificity']
    """
    return {
        "auc": Auc(probabilities),
        "sensitivity": Sensitivity(probabilities, threshold),
        "specificity": Specificity(probabilities, threshold),
        "brier": Brier(probabilities),
        "calibration_error": CalibrationError(probabilities),
    }


def _columns(outputs: Tensor, targets: Tensor, *, probabilities: bool) -> tuple[Floats, Flags]:
    """Returns probabilities and truth with a column for each label, `[n, labels]`.

    Raises:
        ValueError: If the shapes do not fit, or a target is neither 0 nor 1.
    """
    scores = outputs.double()
    if scores.ndim == 2 and scores.shape[1] == 2 and targets.ndim == 1:
        # for two classes: the probability of the second
        if probabilities:
            scores = scores[:, 1]
        else:
            scores = scores[:, 1] - scores[:, 0]
    if scores.numel() != targets.numel():
        shapes = f"outputs of shape {tuple(outputs.shape)} for targets of shape {tuple(targets.shape)}"
        raise ValueError(
            f"binary metrics cannot compare {shapes}: the model must return one score, or scores of two classes, per "
            "label"
        )
    if not ((targets == 0) | (targets == 1)).all():
        raise ValueError(
            "a target is neither 0 nor 1, but binary metrics need targets 0 and 1: renumber the classes, or leave "
            "these metrics out"
        )
    if not probabilities:
        scores = torch.sigmoid(scores)
    n = len(targets)
    return scores.reshape(n, -1).cpu().numpy(), targets.reshape(n, -1).cpu().numpy() > 0.5


def _fraction(flags: Flags) -> float:
    if len(flags) == 0:
        return math.nan
    return float(flags.mean())
