"""Tests, before a run, that a loss is the mean or sum of its values for single examples and keeps no state.

A run computes the gradient of each example separately. If the value of a loss for a batch is not the mean or sum of its
values for single examples (for example because the loss divides by the weights of the batch), the run would therefore
train another objective than intended. The type of the model's outputs or the choice of synthetic targets must not hide
this: outputs may be any nesting of tensors or a user-defined object, and the loss is also tested on real examples,
among them those with the smallest and largest targets and one of each class. A loss is rejected before the first
release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from fedpriv.clients.client import Loss
from fedpriv.clients.reading import Pair
from fedpriv.errors import ConfigError
from fedpriv.models.example_losses import is_mean_of_losses
from fedpriv.models.known_code import is_known
from fedpriv.models.losses import IGNORED
from fedpriv.models.nested import Nested, first_leaf, list_leaves, map_tree
from fedpriv.oracle.backends.functional import is_finite
from fedpriv.oracle.differences import HALF_PRECISION, OTHER_REDUCTION, SAME_KERNEL, differ, rows_differ
from fedpriv.oracle.low_precision import LowestPrecision
from fedpriv.oracle.traced_model import (
    TracedModel,
    as_scalar,
    example_loss,
    format_loss_name,
    graph_nodes,
    reset_torch_draws,
    select_examples,
)
from fedpriv.randomness.streams import torch_generators

_LARGE = 257  # examples in the largest batch for which the loss is compared
_BYTES = 32 << 20  # of the batch's outputs and targets
_STEPS = 50  # optimisation steps towards smaller losses
Change = Callable[[Loss, Any, Nested], Any]
"""Maps the loss, the outputs and the targets to changed outputs."""


def validate_loss(trial: TracedModel, x: Nested, y: Nested, real: Callable[[], Pair]) -> list[str]:
    """Raises an error for a loss that mixes examples, keeps state from earlier examples, or for a batch is neither mean
    nor sum of its values for single examples.

    Args:
        trial: The model and its loss.
        x: Inputs of a few synthetic examples for which model and loss can be computed.
        y: Their targets.
        real: Returns real examples that may trigger a special case of the loss.

    Returns:
        Warnings for the user.

    Raises:
        ConfigError: If the loss is rejected; the message names the loss and the fix.
    """
    check_loss_parameters(trial.functional.loss)
    if is_mean_of_losses(trial.functional.loss, trial.outputs(x), y):
        return []
    _check_repeats(trial, x, y)
    _check_form(trial, x, y)
    _check_reads_outputs_only(trial, x, y)
    return _check_reduction(trial, x, y, real)


def check_loss_parameters(loss: Loss) -> None:
    """Raises an error for a loss with trainable parameters, since a run trains only the model's parameters.

    Raises:
        ConfigError: If there is such a parameter; the message names the first one.
    """
    if not isinstance(loss, nn.Module):
        return
    for name, parameter in loss.named_parameters():
        if parameter.requires_grad:
            fix = (
                f"has its own parameter {name}, which would not be trained, clipped or released. Make it part "
                "of the model (the model's forward applies it to its outputs), or freeze it: "
                "requires_grad_(False)"
            )
            raise ConfigError("loss", format_loss_name(loss), fix)


# --- a loss that remembers examples, or has a different per-example form
# ------------------------------------------------


def _check_repeats(trial: TracedModel, x: Nested, y: Nested) -> None:
    """Raises an error if the loss or gradient of an example changes after the loss was called for other examples."""
    loss = trial.functional.loss
    order = [0, 1, 2, 0]  # the first example comes first and last
    together = trial.outputs(x)
    if _is_split(together, len(first_leaf(x))):
        alone = [_select(together, [i]) for i in order]
    else:
        alone = [trial.outputs(select_examples(x, [i])) for i in order]
    values = [_with_gradient(loss, output, select_examples(y, [i])) for output, i in zip(alone, order, strict=True)]
    if differ(values[0], values[3], SAME_KERNEL):
        fix = (
            "returns different values for the same example in two calls; change the loss so that it keeps no state "
            "between calls"
        )
        raise ConfigError("loss", format_loss_name(loss), fix)


def _check_form(trial: TracedModel, x: Nested, y: Nested) -> None:
    """Raises an error if the per-example form of a loss differs from the loss of each example alone."""
    loss = trial.functional.loss
    outputs = trial.outputs(x)
    if trial.functional.form is None or not isinstance(outputs, Tensor):
        return
    form = trial.functional.form.losses
    outputs, y = outputs[:3], select_examples(y, range(3))
    alone = torch.cat([_with_gradient(loss, outputs[i : i + 1], select_examples(y, [i])) for i in range(3)])
    together = _with_gradient(form, outputs, y)
    if len(together) != len(outputs):
        fix = (
            f"its per-example form {format_loss_name(form)} returns {len(together)} losses for {len(outputs)} examples"
        )
        raise ConfigError("loss", format_loss_name(loss), f"{fix}; return one per example")
    # a form that differs from the loss on purpose comes with a warning
    is_same = not trial.functional.form.differs
    if is_same and any(differ(single, row, SAME_KERNEL) for single, row in zip(alone, together, strict=True)):
        fix = (
            "returns another loss or gradient for an example in a batch than for the example alone; use only each "
            "example's own output and target"
        )
        raise ConfigError("loss", format_loss_name(loss), f"its per-example form {format_loss_name(form)} {fix}")


def _with_gradient(loss: Loss, outputs: Any, targets: Nested) -> Tensor:  # noqa: ANN401 - whatever a model returns
    """Returns losses and their derivatives with respect to the outputs, `[b, 1 + output size]`; without derivatives if
    the outputs are not tensors.
    """
    reset_torch_draws(first_leaf(targets).device)
    if not _is_split(outputs, len(first_leaf(targets))):
        return loss(outputs, targets).detach().reshape(-1, 1)
    outputs, variables = _variables(outputs)
    values = loss(outputs, targets).reshape(-1, 1)
    # a different weight for each loss: a derivative in another example's output would have the wrong weight
    weights = 1 + torch.arange(len(values), device=values.device, dtype=values.dtype).unsqueeze(1)
    gradient = _gradient((weights * values).sum(), variables)
    if len(values) != len(first_leaf(targets)):
        return values.detach()
    columns = [part.reshape(len(values), -1).to(values) / weights for part in gradient]
    return torch.cat([values.detach(), *columns], 1)


# --- a loss that reads trained tensors other than the outputs
# -----------------------------------------------------------


def _check_reads_outputs_only(trial: TracedModel, x: Nested, y: Nested) -> None:
    """Raises an error for a loss with a gradient that bypasses the outputs, such as a penalty on parameters."""
    loss = trial.functional.loss
    outputs = trial.constant_outputs(select_examples(x, [0]))
    if outputs is None:
        return
    reset_torch_draws(first_leaf(x).device)
    value = loss(outputs, select_examples(y, [0]))
    if not value.requires_grad:
        return
    shapes = {tensor.shape for tensor in _gradient_leaves(value) if isinstance(tensor, nn.Parameter)}
    names = [name for name, parameter in trial.model.named_parameters() if parameter.shape in shapes]
    source = "a tensor with a gradient that is not an output of the model"
    if shapes and names:
        source = f"a parameter of the shape of the model's {names[0]}"
    elif shapes:
        source = f"a parameter of shape {tuple(next(iter(shapes)))}"
    fix = (
        f"reads {source}: its gradient would be dropped, since the loss of an example is differentiated only "
        "through the model's outputs. For a penalty on parameters, use the strategy's: weight_decay of the "
        "optimizer, or the regularizer (fedpriv.strategies.proximal.L2). For other uses, detach() the tensor"
    )
    raise ConfigError("loss", format_loss_name(loss), fix)


def _gradient_leaves(value: Tensor) -> list[Tensor]:
    """Returns the tensors to which a value's gradient flows."""
    variables = [getattr(node, "variable", None) for node in graph_nodes(value)]
    return [variable for variable in variables if variable is not None]


# --- a loss that differs between a batch and its examples
# ---------------------------------------------------------------


@dataclass(frozen=True)
class _Losses:
    """The loss of a batch of b examples and the losses of its examples alone, with their gradients.

    Attributes:
        batch: The result of the loss for the batch.
        alone: The losses of the examples alone, `[b]`.
        batch_gradient: Gradient of the batch's loss (of its sum, if it has several numbers), in each example's outputs,
            `[b, size]`, or, if outputs cannot be split into examples, in the model's parameters, `[1, dim]`.
        gradients: Gradients of the examples' losses in their own outputs, `[b, size]`, or in the parameters, `[b,
            dim]`.
        outputs: The outputs of the different examples; None if each was computed by the model.
        order: Index of the example at each position of the batch, `[b]`.
        tolerance: Largest relative difference that rounding explains.
    """

    batch: Tensor
    alone: Tensor
    batch_gradient: Tensor
    gradients: Tensor
    outputs: Any
    order: Sequence[int]
    tolerance: float

    def is_sum(self, weights: Tensor) -> bool:
        """Returns True if the batch's loss is the sum of its examples' losses times `weights [b]`, also in gradients.

        The tolerance is relative to the sum of the absolute values of the terms, because terms may cancel.
        """
        terms = weights * self.alone
        if self.batch.numel() != 1 or (self.batch.reshape(()) - terms.sum()).abs() > self.tolerance * terms.abs().sum():
            return False
        return self.has_gradient_of_sum(weights)

    def has_gradient_of_sum(self, weights: Tensor) -> bool:
        """Returns True if the gradient equals the gradient of the sum of examples' losses times `weights [b]`."""
        expected = weights.unsqueeze(1) * self.gradients
        scale = expected.norm(dim=1)
        if len(self.batch_gradient) == 1 != len(expected):
            return bool((self.batch_gradient[0] - expected.sum(0)).norm() <= self.tolerance * scale.sum())
        differences = (self.batch_gradient - expected).norm(dim=1)
        return bool((differences <= self.tolerance * (scale + 1e-3 * scale.max())).all())


def _check_reduction(trial: TracedModel, x: Nested, y: Nested, real: Callable[[], Pair]) -> list[str]:
    """Compares the loss of a batch with the losses of its examples alone; returns warnings for the user.

    Raises:
        ConfigError: If the loss is neither the mean nor the sum of its values for single examples, or has no gradient.
    """
    form = trial.functional.form
    notes: list[str] = []
    has_gradient = list[bool]()
    for points in (lambda: (x, y), real):
        inputs, targets = points()
        outputs = trial.outputs(inputs)
        if form is not None and (form.differs or is_known(trial.functional.loss)) and isinstance(outputs, Tensor):
            return [form.warning] if form.warning else []
        for losses in _try_losses(trial, inputs, outputs, targets):
            note = _compare(trial, inputs, targets, losses)
            if note:
                notes.append(note)
            has_gradient.append(bool(losses.gradients.any()))
    if has_gradient and not any(has_gradient):
        fix = (
            "has a gradient of 0 for each tested example, so only noise would be trained: return a value that "
            "changes with the outputs of each example"
        )
        raise ConfigError("loss", format_loss_name(trial.functional.loss), fix)
    return list(dict.fromkeys(notes))


def _try_losses(trial: TracedModel, x: Nested, outputs: Any, y: Nested) -> Iterator[_Losses]:  # noqa: ANN401
    """Yields a batch's loss and its examples' losses at the model's outputs and, if outputs split, at changed outputs.

    The outputs are changed to be larger, smaller, or of lower loss; one test uses a larger batch. Losses that draw
    random numbers are not compared, since draws for a batch differ from draws for its examples.
    """
    if not _is_split(outputs, len(first_leaf(x))):
        yield from _list_computable_losses([lambda: _losses_of_examples(trial, x, y)])
        return
    loss = trial.functional.loss
    # in double precision, where rounding hides little; a loss with tensors may accept single precision only
    in_double = _list_attempts(loss, _as_double(outputs), map_tree(_as_double, y), _CHANGES)
    computed = list(_list_computable_losses(in_double))
    if not computed:
        computed = list(_list_computable_losses(_list_attempts(loss, outputs, y, _CHANGES[:1])))
    yield from computed


def _list_attempts(
    loss: Loss,
    outputs: Any,  # noqa: ANN401 - outputs of any model
    y: Nested,
    changes: Sequence[Change],
) -> list[Callable[[], _Losses | None]]:
    """Returns functions that compute a batch's loss and its examples' losses: at changed outputs, in a large batch."""
    attempts: list[Callable[[], _Losses | None]] = []
    for change in changes:
        attempts.append(lambda change=change: _losses_of_outputs(loss, change(loss, outputs, y), y))
    count = len(first_leaf(y))
    tensors = [leaf for leaf in (*tree_leaves(outputs), *list_leaves(y)) if isinstance(leaf, Tensor)]
    memory = sum(tensor.numel() * tensor.element_size() for tensor in tensors) // count
    indices = [index % count for index in range(max(min(_LARGE, _BYTES // max(memory, 1)), 2))]
    attempts.append(lambda: _losses_of_outputs(loss, outputs, y, indices))
    return attempts


def _list_computable_losses(attempts: Sequence[Callable[[], _Losses | None]]) -> Iterator[_Losses]:
    """Yields the losses that can be computed and compared."""
    for attempt in attempts:
        try:
            losses = attempt()
        except ConfigError:
            raise
        except Exception:  # whatever a user's loss raises for such outputs or targets, or for a batch
            continue
        if losses is not None and is_finite(losses.batch) and is_finite(losses.batch_gradient):
            yield losses


def _losses_of_outputs(loss: Loss, outputs: Any, y: Nested, indices: Sequence[int] | None = None) -> _Losses | None:  # noqa: ANN401
    """Returns the loss of a batch and its examples' losses, from outputs that can be split into examples.

    Args:
        loss: The loss.
        outputs: The outputs of distinct examples.
        y: Their targets.
        indices: Indices of the examples in the batch; None for each once.

    Returns:
        None if the loss draws random numbers.

    Raises:
        ConfigError: If the loss draws random numbers and mixes examples.
    """
    count = len(first_leaf(y))
    order = list(indices or range(count))
    alone = list[Tensor]()
    gradients = list[Tensor]()
    for i in range(count):
        single, variables = _variables(_select(outputs, [i]))
        value = example_loss(loss, single, select_examples(y, [i]))
        alone.append(value.detach())
        gradients.append(_rows_of(_gradient(value, variables), 1))
    lowest = LowestPrecision()
    with lowest:
        batch, batch_gradient, draws = _batch_loss(loss, _select(outputs, order), select_examples(y, order))
    if draws:
        _check_random(loss, _select(outputs, order), select_examples(y, order), batch_gradient)
        return None
    of_each = torch.stack(alone).double()[order], torch.cat(gradients)[order]
    return _Losses(batch.double(), of_each[0], batch_gradient, of_each[1], outputs, order, _tolerance(lowest))


def _tolerance(lowest: LowestPrecision) -> float:
    if lowest.is_half:
        return HALF_PRECISION
    return OTHER_REDUCTION


def _batch_loss(loss: Loss, outputs: Any, y: Nested) -> tuple[Tensor, Tensor, bool]:  # noqa: ANN401
    """Returns a batch's loss, the gradient of its sum with respect to each example's outputs `[b, size]`, and True if
    the loss draws random numbers.
    """
    together, variables = _variables(outputs)
    batch, draws = _call(loss, together, y)
    return batch.detach(), _rows_of(_gradient(batch.sum(), variables), len(first_leaf(y))), draws


def _check_random(loss: Loss, outputs: Any, y: Nested, gradient: Tensor) -> None:  # noqa: ANN401
    """Raises an error if the gradient of an example under a random loss depends on other examples when the random draws
    are the same.
    """
    count = len(first_leaf(y))
    if count < 3:
        return
    changed = [1, *range(1, count)]  # a copy of the second example instead of the first
    _, other, _ = _batch_loss(loss, _select(outputs, changed), select_examples(y, changed))
    if rows_differ(gradient[1:], other[1:], OTHER_REDUCTION).any():
        fix = (
            "draws random numbers, and the gradient of an example depends on other examples of the batch; use "
            "only each example's own output and target"
        )
        raise ConfigError("loss", format_loss_name(loss), fix)


def _losses_of_examples(trial: TracedModel, x: Nested, y: Nested) -> _Losses | None:
    """Returns the losses of a batch and of its examples, each computed with the model; None if the model draws random
    numbers.
    """
    if trial.draws(x):
        return None
    loss = trial.functional.loss
    lowest = LowestPrecision()
    with lowest:
        batch, batch_gradient = trial.loss_and_gradient(x, y)
    alone = list[Tensor]()
    gradients = list[Tensor]()
    for i in range(len(first_leaf(x))):
        value, gradient = trial.loss_and_gradient(select_examples(x, [i]), select_examples(y, [i]))
        alone.append(as_scalar(loss, value))
        gradients.append(gradient)
    double = [values.double() for values in (batch, torch.stack(alone), batch_gradient.unsqueeze(0))]
    return _Losses(
        double[0],
        double[1],
        double[2],
        torch.stack(gradients).double(),
        None,
        range(len(first_leaf(x))),
        _tolerance(lowest),
    )


def _keep_outputs(loss: Loss, outputs: Any, y: Nested) -> Any:  # noqa: ANN401
    return outputs


def _scaled(factor: float) -> Change:
    def change(loss: Loss, outputs: Any, y: Nested) -> Any:  # noqa: ANN401
        return tree_map(lambda part: part * factor if _is_float(part) else part, outputs)

    return change


def _lower_losses(loss: Loss, outputs: Any, y: Nested) -> Any:  # noqa: ANN401
    """Returns outputs with smaller losses. They are tested because some losses have a different form near their
    minimum.
    """
    for _ in range(_STEPS):
        outputs, variables = _variables(outputs)
        gradient = _gradient(loss(outputs, y).sum(), variables)
        scale = sum(float(part.abs().max()) for part in gradient) or 1.0
        for variable, part in zip(variables, gradient, strict=True):
            variable.detach().sub_(part, alpha=1 / scale)
    return _variables(outputs)[0]


_CHANGES: tuple[Change, ...] = (_keep_outputs, _scaled(10.0), _scaled(0.1), _lower_losses)


def _compare(trial: TracedModel, x: Nested, y: Nested, losses: _Losses) -> str:
    """Returns a warning if a batch's loss is not the mean of its examples' losses; empty if it is.

    Raises:
        ConfigError: If it is neither the mean nor the sum.
    """
    loss = trial.functional.loss
    name = format_loss_name(loss)
    count = len(losses.alone)
    ones = torch.ones_like(losses.alone)
    mean = ones / count
    if losses.is_sum(mean):
        return ""
    is_of_each = losses.batch.numel() == count and not differ(losses.batch.flatten(), losses.alone, losses.tolerance)
    if is_of_each and losses.has_gradient_of_sum(ones):
        return ""
    if losses.batch.numel() != 1:
        fix = f"returns {losses.batch.numel()} numbers for {count} examples; return their mean, or one per example"
        raise ConfigError("loss", name, fix)
    if losses.is_sum(ones):
        return (
            f"the loss {name} sums over a batch, but fedpriv trains on and reports the mean over examples: "
            "multiply a learning rate that was chosen for the sum by the batch size"
        )
    value = losses.batch.reshape(())
    x, y = (select_examples(tree, losses.order) for tree in (x, y))
    if isinstance(losses.outputs, Tensor):
        outputs = losses.outputs[list(losses.order)]
        matched = _without_broadcasting(loss, outputs, map_tree(lambda t: _with_dtype(t, outputs), y), value)
        if matched is not value and not differ(matched, losses.alone.mean(), losses.tolerance):
            shapes = (
                f"outputs {tuple(outputs.shape[1:])} against targets {tuple(first_leaf(y).shape[1:])} of each example"
            )
            return (
                f"the loss {name} compares {shapes}: torch would compare every output of a batch with every "
                "target; fedpriv compares each example with its own target. Give both the same shape, e.g. "
                "with model(x).squeeze(-1)"
            )
    for weights in _shares_of_labels((x, y)):
        if losses.is_sum(weights.to(losses.alone)):
            return (
                f"the loss {name} is the mean over all labels of a batch that it does not ignore; fedpriv uses "
                "the mean over the labels of each example, so that each example counts the same"
            )
    fix = (
        f"returns {float(value):.4g} for a batch of {count} examples, which is neither the mean "
        f"({float(losses.alone.mean()):.4g}) nor the sum ({float(losses.alone.sum()):.4g}) of its values for "
        "each example alone"
    )
    if not differ(value, losses.alone.mean(), losses.tolerance):
        fix = f"returns the mean of its examples' values for a batch of {count}, but not the mean of their gradients"
    if not losses.alone.isfinite().all():
        fix = f"returns NaN or infinity for an example alone, and {float(value):.4g} for a batch of {count} examples"
    elif not losses.gradients.any():
        fix += " (alone, each example has a gradient of 0)"
    fix += (
        ". Gradients are computed for single examples, so another loss would be trained. Write the loss of "
        "each example: fedpriv.models.Loss(lambda outputs, targets: ...), which returns a tensor [b] "
        "(reduction='none' for torch's losses), with weights divided by a public number and without terms that "
        "depend on the batch"
    )
    raise ConfigError("loss", name, fix)


def _without_broadcasting(loss: Loss, outputs: Tensor, targets: Nested, otherwise: Tensor) -> Tensor:
    """Returns the loss of the batch with the outputs reshaped to the targets' shape, or `otherwise` if this is
    impossible.
    """
    if not isinstance(targets, Tensor):
        return otherwise
    try:
        if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] == 1:
            return loss(outputs.squeeze(-1), targets).detach().double().reshape(())
        if outputs.dim() + 1 == targets.dim() and targets.shape[-1] == 1:
            return loss(outputs.unsqueeze(-1), targets).detach().double().reshape(())
    except Exception:  # whatever a user's loss raises
        return otherwise
    return otherwise


def _shares_of_labels(trees: tuple[Nested, Nested]) -> Iterator[Tensor]:
    """Yields each example's share of the labels in a batch that are not ignored, `[b]`, for all candidate labels.

    Labels may be in the targets or in the inputs. As in the prediction of next words, they may be compared from the
    second label on.
    """
    for leaf in list_leaves(trees):
        if leaf.is_floating_point() or leaf.dtype == torch.bool or leaf.dim() < 2:
            continue
        ignored = {IGNORED, int(leaf.min()), int(leaf.max())}
        for number, start in product(sorted(ignored), (0, 1)):
            counted = (leaf[:, start:] != number).flatten(1).sum(1).double()
            if counted.min() < counted.max():
                yield counted / counted.sum()


# --- outputs of any nesting -------------------------------------------------------------------------------------------


def _is_split(outputs: Any, count: int) -> bool:  # noqa: ANN401 - whatever a model returns
    """Returns True if outputs are a nesting of tensors with one row for each example, which can be sliced."""
    parts = tree_leaves(outputs)
    tensors = [part for part in parts if isinstance(part, Tensor)]
    plain = all(isinstance(part, Tensor | int | float | str | None) for part in parts)
    return plain and len(tensors) > 0 and all(tensor.shape[:1] == (count,) for tensor in tensors)


def _select(outputs: Any, indices: Sequence[int]) -> Any:  # noqa: ANN401
    """Returns the outputs of some examples."""
    return tree_map(lambda part: part[list(indices)] if isinstance(part, Tensor) else part, outputs)


def _is_float(part: object) -> bool:
    return isinstance(part, Tensor) and part.is_floating_point()


def _with_dtype(values: Tensor, like: Tensor) -> Tensor:
    if values.is_floating_point():
        return values.to(like)
    return values


def _as_double(outputs: Any) -> Any:  # noqa: ANN401
    """Returns outputs with floating-point tensors in double precision."""
    return tree_map(lambda part: part.double() if _is_float(part) else part, outputs)


def _variables(outputs: Any) -> tuple[Any, list[Tensor]]:  # noqa: ANN401
    """Returns copies of outputs, and the copied tensors with respect to which a loss can be differentiated."""
    parts, structure = tree_flatten(outputs)
    copies = [part.detach().clone() if isinstance(part, Tensor) else part for part in parts]
    variables = [part for part in copies if isinstance(part, Tensor) and part.is_floating_point()]
    for variable in variables:
        variable.requires_grad_()
    return structure.unflatten(copies), variables


def _gradient(value: Tensor, variables: Sequence[Tensor]) -> list[Tensor]:
    """Returns the derivatives of a value in each variable; zeros if there is none."""
    if not value.requires_grad:
        return [torch.zeros_like(variable) for variable in variables]
    return list(torch.autograd.grad(value, variables, materialize_grads=True))


def _rows_of(parts: Sequence[Tensor], count: int) -> Tensor:
    """Returns derivatives with respect to outputs as one row for each example, `[b, size]`."""
    return torch.cat([part.reshape(count, -1).double() for part in parts], 1)


def _call(loss: Loss, outputs: Any, targets: Nested) -> tuple[Tensor, bool]:  # noqa: ANN401
    """Returns the loss, and True if it draws random numbers from torch."""
    device = first_leaf(targets).device
    reset_torch_draws(device)
    before = [generator.get_state() for generator in torch_generators(device)]
    value = loss(outputs, targets)
    after = [generator.get_state() for generator in torch_generators(device)]
    return value, any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
