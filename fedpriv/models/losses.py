"""Loss functions with a per-example form, and class predictions from scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.errors import ConfigError
from fedpriv.settings.checks import validate_arguments

Reduction = Literal["mean", "sum", "none"]
IGNORED = -100
"""The target of ignored positions in a sequence, such as padding; the same number as in torch."""
PerExampleLoss = Callable[[Tensor, Tensor], Tensor]


@validate_arguments("loss")
class Loss(nn.Module):
    """A loss module from a function `(outputs [n, k], targets [n]) -> [n]` that returns each example's loss.

    Args:
        per_example: The function.
        reduction: `"mean"` (default), `"sum"` or `"none"`.

    Raises:
        ConfigError: If the reduction is unknown.

    Examples:
        >>> import torch
        >>> from fedpriv.models.losses import Loss, squared_error
        >>> round(Loss(squared_error)(torch.tensor([[1.0], [3.0]]), torch.tensor([0.0, 0.0])).item(), 3)
        5.0
    """

    def __init__(self, per_example: PerExampleLoss, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.per_example = per_example
        self.reduction = reduction
        if reduction not in ("mean", "sum", "none"):
            raise ConfigError("loss.reduction", reduction, "is unknown; choose 'mean', 'sum' or 'none'")

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the loss of the batch: a scalar, or `[n]` for `reduction="none"`."""
        losses = self.per_example(outputs, targets)
        if self.reduction == "none":
            return losses
        if self.reduction == "mean":
            return losses.mean()
        return losses.sum()


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Returns `-log softmax(outputs)[label]` of each example: `[n, k], [n] -> [n]`.

    For sequences, `[n, k, length], [n, length] -> [n]`, it is the mean over an example's positions with a label other
    than `IGNORED`, or 0 if there are no such positions.
    """
    if outputs.ndim > 2:
        losses = functional.cross_entropy(outputs, labels, reduction="none", ignore_index=IGNORED).flatten(1)
        return losses.sum(1) / (labels != IGNORED).flatten(1).sum(1).clamp_min(1)
    # classes first: along a short last dimension the softmax takes twice as long
    return functional.cross_entropy(outputs.mT.unsqueeze(0), labels.unsqueeze(0), reduction="none").squeeze(0)


def cross_entropy_gradients(outputs: Tensor, labels: Tensor) -> Tensor:
    """Returns the gradient of each example's `cross_entropy` in its outputs: `[n, k], [n] -> [n, k]`.

    It is `softmax(outputs)` minus 1 at the label, which takes a quarter of the time of autograd. All bits are
    independent of the other examples of a batch, unlike with torch's softmax over dimensions other than the last. The
    loss of an ignored label is 0.

    Raises:
        RuntimeError: If a label is neither a class from 0 to k - 1 nor `IGNORED`.
    """
    exponentials = (outputs - outputs.amax(1, keepdim=True)).exp_()
    probabilities = exponentials.div_(exponentials.sum(1, keepdim=True))
    nothing = torch.zeros_like(probabilities)
    try:
        one_hot = nothing.scatter_(1, labels.unsqueeze(1), 1.0)
    except RuntimeError:  # a search for ignored labels each time would double the time
        is_counted = labels != IGNORED
        one_hot = nothing.zero_().scatter_(1, labels.where(is_counted, 0).unsqueeze(1), 1.0)
        return probabilities.sub_(one_hot).where(is_counted.unsqueeze(1), 0)
    return probabilities.sub_(one_hot)


def hinge(outputs: Tensor, labels: Tensor) -> Tensor:
    """Returns the hinge loss of each example: `[n, k], [n] -> [n]`.

    For k = 1 score the loss is `max(0, 1 - s score)`, with s = -1 for label 0 and 1 for label 1. For more scores it is
    `sum_{j != label} max(0, 1 + score_j - score_label) / k` (Weston and Watkins, 1999), as in
    `torch.nn.MultiMarginLoss`.

    Examples:
        >>> import torch
        >>> from fedpriv.models.losses import hinge
        >>> hinge(torch.tensor([[0.5], [-2.0]]), torch.tensor([1, 0])).tolist()
        [0.5, 0.0]
    """
    if outputs.shape[-1] == 1:
        return (1 - _signs(outputs, labels) * outputs[:, 0]).clamp_min(0)
    n_classes = outputs.shape[-1]
    margins = 1 + outputs - outputs.gather(1, labels[:, None])
    return margins.clamp_min(0).masked_fill(_one_hot(labels, n_classes), 0).sum(1) / n_classes


def logistic(outputs: Tensor, labels: Tensor) -> Tensor:
    """Returns `log(1 + exp(-s score))` of each example, s = -1 for label 0 and 1 for label 1: `[n, 1], [n] -> [n]`."""
    return functional.softplus(-_margins(outputs, labels, "logistic"))


def shifted_logistic(outputs: Tensor, labels: Tensor) -> Tensor:
    """Returns `log(1 + exp(1 - s score))` of each example, s = -1 for label 0 and 1 for label 1: `[n, 1], [n] -> [n]`.

    It is the loss in the experiments of Wang, Ye and Xu (2017), who print `1 + y score`, so their y is -s. Slope and
    smoothness have the bounds of `logistic`: 1 and 1/4.

    Examples:
        >>> import torch
        >>> from fedpriv.models.losses import shifted_logistic
        >>> round(shifted_logistic(torch.tensor([[1.0]]), torch.tensor([1])).item(), 4)  # log(2)
        0.6931
    """
    return functional.softplus(1 - _margins(outputs, labels, "shifted_logistic"))


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns each example's mean square of `outputs - targets`; for k > 1 outputs class numbers become one-hot."""
    if targets.dim() < outputs.dim() and outputs.shape[-1] > 1:
        targets = _one_hot(targets, outputs.shape[-1])
    errors = outputs - targets.reshape(outputs.shape).to(outputs.dtype)  # [n] -> [n, 1] where there is one output
    return errors.square().flatten(1).mean(1)


def predict(outputs: Tensor) -> Tensor:
    """Returns class numbers `[n]`: the index of the largest score of `[n, k]`; for `[n, 1]` and `[n]`, 1 if positive.

    For sequences, `[n, k, length] -> [n, length]`.

    Examples:
        >>> import torch
        >>> from fedpriv.models.losses import predict
        >>> predict(torch.tensor([[0.1, 0.9], [2.0, -1.0]])).tolist()
        [1, 0]
    """
    if outputs.ndim > 2:
        return outputs.argmax(1)
    if outputs.ndim == 1 or outputs.shape[-1] == 1:
        return (outputs.reshape(len(outputs)) > 0).long()
    return outputs.argmax(-1)


def _margins(outputs: Tensor, labels: Tensor, loss: str) -> Tensor:
    """Returns `s score` of each example, for a loss of one score."""
    if outputs.shape[-1] != 1:
        fix = "use such a model, e.g. logistic_regression, or the loss cross_entropy"
        raise ConfigError(
            "loss", loss, f"needs a model with one score, but this model returns {outputs.shape[-1]}: {fix}"
        )
    return _signs(outputs, labels) * outputs[:, 0]


def _signs(outputs: Tensor, labels: Tensor) -> Tensor:
    return 2 * labels.to(outputs.dtype) - 1  # {0, 1} -> {-1, 1}


def _one_hot(labels: Tensor, n_classes: int) -> Tensor:
    """Returns flags `[n, n_classes]`; torch's `one_hot` reads the labels' values, which vmap forbids."""
    return labels[:, None] == torch.arange(n_classes, device=labels.device)
