"""Infers the task of a model from its outputs and test targets. The task decides which metrics have a meaning."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.models.losses import IGNORED, cross_entropy
from fedpriv.models.nested import Nested

_LOGITS = (nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss)
_LOGIT_FUNCTIONS = (functional.binary_cross_entropy_with_logits, functional.multilabel_soft_margin_loss)
_PROBABILITIES = (nn.BCELoss,)
_PROBABILITY_FUNCTIONS = (functional.binary_cross_entropy,)
_ERRORS = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
_ERROR_FUNCTIONS = (functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss)
_SCORES = (nn.CrossEntropyLoss, nn.NLLLoss)
_SCORE_FUNCTIONS = (functional.cross_entropy, functional.nll_loss, cross_entropy)


@dataclass(frozen=True)
class Task:
    """The task of a model: its kind of prediction.

    Attributes:
        kind: `"classes"`, a score for each class and a whole number as target; `"tokens"`, such scores `[n, k, length]`
            and targets `[n, length]` at each position of a sequence; `"binary"`, one number and a target of 0 or 1;
            `"multilabel"`, several such numbers; `"numbers"`, predictions of numbers; `"other"`.
        threshold: Outputs above it predict 1; None if that is unknown, as for a custom loss.
        ignored: The target value that the loss ignores; None if it is unknown, as for a custom loss.
    """

    kind: Literal["classes", "tokens", "binary", "multilabel", "numbers", "other"]
    threshold: float | None = None
    ignored: int | None = None


def infer_task(loss: object, outputs: object, targets: Nested) -> Task:
    """Returns the task.

    Args:
        loss: The loss. For torch's losses it is known if they accept logits, probabilities or numbers, and which target
            they ignore.
        outputs: The model's outputs for some examples.
        targets: All test targets.
    """
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return Task("other")
    one_output = outputs.ndim == 1 or (outputs.ndim == 2 and outputs.shape[1] == 1)
    if not targets.is_floating_point():
        if targets.ndim == 1 and outputs.ndim == 2:
            return Task("classes", ignored=_ignored(loss))
        if targets.ndim == 1 and outputs.ndim == 1 and _are_zero_or_one(targets):
            return Task("binary", _threshold(loss))
        if targets.ndim > 1 and outputs.shape[2:] == targets.shape[1:]:
            return Task("tokens", ignored=_ignored(loss))
        return Task("other")
    if outputs[0].numel() != targets[0].numel():
        return Task("other")
    if _is_one_of(loss, _ERRORS, _ERROR_FUNCTIONS) or not _are_zero_or_one(targets):
        is_binary = _threshold(loss) is not None  # targets between 0 and 1 are no labels
        if is_binary:
            return Task("other")
        return Task("numbers")
    if one_output:
        return Task("binary", _threshold(loss))
    if targets.ndim == 2:
        return Task("multilabel", _threshold(loss))
    return Task("other")


def _ignored(loss: object) -> int | None:
    """Returns the target that a loss ignores; None where that cannot be known, as in a custom function."""
    if isinstance(loss, functools.partial):
        if loss.args:
            return None
        within = _ignored(loss.func)
        if within is None:
            return None
        return loss.keywords.get("ignore_index", within)
    if isinstance(loss, _SCORES):
        return loss.ignore_index
    if any(loss is function for function in _SCORE_FUNCTIONS) or getattr(loss, "per_example", None) is cross_entropy:
        return IGNORED
    return None


def _threshold(loss: object) -> float | None:
    if _is_one_of(loss, _LOGITS, _LOGIT_FUNCTIONS):
        return 0.0
    if _is_one_of(loss, _PROBABILITIES, _PROBABILITY_FUNCTIONS):
        return 0.5
    return None


def _is_one_of(loss: object, classes: tuple[type[nn.Module], ...], functions: tuple[object, ...]) -> bool:
    if isinstance(loss, functools.partial):
        return loss.func in functions
    return isinstance(loss, classes) or any(loss is function for function in functions)


def _are_zero_or_one(targets: Tensor) -> bool:
    return bool(((targets == 0) | (targets == 1)).all()) and targets.dtype != torch.bool
