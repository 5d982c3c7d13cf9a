"""The loss of each example, from a loss that is written for batches.

A private gradient is a sum of clipped gradients of single examples, so the objective is the mean of the losses of
single examples. A loss whose value for a batch is this mean is the same in fedpriv and in torch. Some other losses have
a natural form for single examples, which this module defines; all others raise an error before a run
(`fedpriv.oracle.validation`).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.models.batching import vmap
from fedpriv.models.known_code import is_known
from fedpriv.models.losses import IGNORED, Loss, cross_entropy, cross_entropy_gradients
from fedpriv.models.nested import Nested, first_leaf, map_tree

BatchLoss = Callable[[Any, Any], Tensor]
"""Maps outputs and targets of a batch to a number, or to one number for each example."""
_WEIGHTED = (nn.CrossEntropyLoss, nn.NLLLoss)
_FUNCTIONS: dict[object, type[nn.Module]] = {
    functional.cross_entropy: nn.CrossEntropyLoss,
    functional.nll_loss: nn.NLLLoss,
}
_OF_CLASSES = (functional.cross_entropy, functional.nll_loss, nn.CrossEntropyLoss, nn.NLLLoss)
_OF_NUMBERS = (
    *(functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss),
    *(functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits, functional.soft_margin_loss),
    *(nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss, nn.SoftMarginLoss),
)


@dataclass(frozen=True)
class ExampleForm:
    """A loss as a function that returns each example's loss.

    Attributes:
        losses: `(outputs [b, ...], targets [b, ...]) -> [b]`.
        gradients: `(outputs [b, k], targets [b]) -> [b, k]`, the gradient of each loss in its outputs, for outputs and
            targets of these shapes on a CPU; None if autograd is to compute it. The function raises RuntimeError for
            targets that it does not support.
        differs: True if the mean of these losses differs from the original loss of a batch.
        warning: Warning for the user about this difference; empty if there is none.
    """

    losses: BatchLoss
    gradients: BatchLoss | None = None
    differs: bool = False
    warning: str = ""


def example_form(loss: BatchLoss) -> ExampleForm | None:
    """Returns the form of a loss for single examples; None if no form is known.

    A form is known for losses with a method `per_example`, such as `fedpriv.models.Loss`, and for torch's
    `CrossEntropyLoss`, `NLLLoss` (and `functools.partial` of their functions) and `MultiMarginLoss`.
    """
    per_example: BatchLoss | None = getattr(loss, "per_example", None)
    if per_example is cross_entropy:
        return ExampleForm(cross_entropy, cross_entropy_gradients)
    if per_example is not None:
        return ExampleForm(per_example)
    if isinstance(loss, functools.partial) and loss.func in _FUNCTIONS and not loss.args:
        loss = cast("BatchLoss", _FUNCTIONS[loss.func](**loss.keywords))
    if type(loss) is nn.MultiMarginLoss:
        return ExampleForm(_reduced(cast("nn.MultiMarginLoss", loss)))
    if type(loss) in _WEIGHTED:
        return _weighted(cast("nn.CrossEntropyLoss", loss))
    return None


def is_mean_of_losses(loss: BatchLoss, outputs: object, targets: Nested) -> bool:
    """Returns True if a loss is known to be the mean of its values for single examples.

    These are torch's own losses without weights, for one class an example or for targets of the outputs' shape, and
    fedpriv's.

    Args:
        loss: The loss.
        outputs: Outputs of a batch; only shape and type are used.
        targets: Targets of the batch; only shape and type are used.
    """
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or not is_known(loss):
        return False
    if isinstance(loss, nn.Module):
        ignored = getattr(loss, "ignore_index", IGNORED)
        if getattr(loss, "reduction", "") != "mean" or ignored != IGNORED or any(True for _ in loss.buffers()):
            return False
        if type(loss) is Loss:
            return True
        kind = type(loss)
    else:
        kind = loss
    if outputs.dim() == 2 and targets.dim() == 1 and targets.dtype == torch.long:
        return kind in _OF_CLASSES
    return outputs.shape == targets.shape and kind in _OF_NUMBERS


def example_losses(loss: BatchLoss, outputs: Tensor, targets: Nested) -> Tensor:
    """Returns the loss of each example: `[b, ...], [b, ...] -> [b]`.

    The value of `loss` for a batch is not used: it may be a sum, or torch may broadcast `[b, 1]` against `[b]`.
    """
    if len(outputs) == 0:
        return outputs.flatten()
    form = example_form(loss)
    if form is not None:
        return form.losses(outputs, targets)

    def alone(output: Tensor, target: Nested) -> Tensor:
        return loss(output.unsqueeze(0), map_tree(lambda values: values.unsqueeze(0), target)).reshape(())

    try:
        return vmap(alone, randomness="different")(outputs, targets)
    except Exception:  # torch can raise anything if it cannot batch a user's loss
        rows = [map_tree(lambda values, row=row: values[row], targets) for row in range(len(first_leaf(targets)))]
        return torch.stack([alone(output, target) for output, target in zip(outputs, rows, strict=True)])


def _reduced(loss: nn.MultiMarginLoss) -> BatchLoss:
    """Returns the per-example form of MultiMarginLoss; its mean over a batch does not divide by weights."""
    plain = copy.copy(loss)
    if loss.reduction == "sum":
        reduce = torch.sum
    else:
        reduce = torch.mean
    plain.reduction = "none"
    return lambda outputs, targets: reduce(plain(outputs, targets).reshape(len(outputs), -1), 1)


def _weighted(loss: nn.CrossEntropyLoss) -> ExampleForm:
    """Returns the per-example form of cross entropy, with class weights, for one or several targets an example.

    Torch divides a batch's sum by the sum of its weights. So for a single example the weight of its class would cancel,
    and in a batch an example's gradient would depend on the other examples. Here an example's loss is the mean of
    `weight[target] * loss` over its targets that are not ignored. Targets are class numbers or probabilities.
    """
    plain = copy.copy(loss)
    plain.reduction = "none"
    reduction = loss.reduction
    ignored = loss.ignore_index

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        values = plain(outputs, targets)
        if values.dim() == 1:
            return values  # of one target each, and zero if it is ignored
        values = values.reshape(len(outputs), -1)
        if reduction == "sum":
            return values.sum(1)
        if targets.is_floating_point():
            return values.mean(1)
        counted = (targets != ignored).reshape(len(outputs), -1).sum(1)
        return values.sum(1) / counted.clamp_min(1)

    is_plain = type(loss) is nn.CrossEntropyLoss and loss.weight is None and loss.label_smoothing == 0
    if is_plain and loss.ignore_index == IGNORED:
        return ExampleForm(losses, cross_entropy_gradients)
    # with a sum torch does not divide by weights
    if loss.weight is None or reduction == "sum":
        return ExampleForm(losses)
    name = type(loss).__name__
    if getattr(loss, "label_smoothing", 0.0) > 0:
        smoothed = " and label_smoothing"
    else:
        smoothed = ""
    warning = (
        f"{name}(weight=...){smoothed} differs from torch: an example's loss is weight[target] times its unweighted "
        "loss, and fedpriv divides the sum of the losses by the number of examples. torch divides by the sum of the "
        "weights in a batch, so that its result is not a mean over single examples. If the mean weight of the "
        "examples is 1, both results have the same scale"
    )
    return ExampleForm(losses, differs=True, warning=warning)
