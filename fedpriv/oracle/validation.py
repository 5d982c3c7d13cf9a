"""Tests, before a run, that model and loss treat each example independently of the others.

A run computes each example separately, by construction (docs/design/0019-examples-apart.md). A model that mixes the
examples of a batch would therefore silently become a different model. To prevent this, a few synthetic examples are
computed alone, in one batch, in another batch, and in the first batch again. If the results of a layer differ, an error
names the layer. A model is not tested if all its operations are known to keep examples apart; known losses are not
tested either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fedpriv.clients.extremes import extreme_examples
from fedpriv.clients.population import Population
from fedpriv.errors import ConfigError, DataError, FedprivError, summarize_error
from fedpriv.models.copies import copy_module
from fedpriv.models.known_code import is_known
from fedpriv.models.nested import Nested, call_arguments, first_leaf, list_leaves, map_tree
from fedpriv.oracle.backends.functional import Functional, is_finite
from fedpriv.oracle.backends.row_layers import keeps_rows_apart
from fedpriv.oracle.differences import OTHER_KERNEL, SAME_KERNEL, differ
from fedpriv.oracle.loss_validation import validate_loss
from fedpriv.oracle.low_precision import check_precision
from fedpriv.oracle.traced_model import (
    Event,
    TracedModel,
    reset_torch_draws,
    select_examples,
)
from fedpriv.privacy.settings import Privacy

Point = tuple[Tensor, Nested, Nested]
"""Parameters `[dim]`, inputs and targets."""
# indices of two batches that share their first example
_FIRST_BATCH = [0, 1, 2]
_SECOND_BATCH = [0, 3, 4]
_EXAMPLES = 5
_IGNORE_INDEX = -100  # label that torch's losses ignore by default


def validate_per_example(population: Population, privacy: Privacy | None = None) -> list[str]:
    """Raises an error if a model or loss mixes examples or keeps state from earlier ones, or if a loss is not mean or
    sum over single examples.

    The examples are random numbers with the real shapes and types or, if model and loss fail on those, the first real
    examples. A copy of the model is used. Torch's random draws, as in dropout, are the same in each test; a model that
    draws random numbers is set to eval mode when batches are compared with single examples.

    Args:
        population: The clients, at their initial parameters.
        privacy: The run's settings, which determine if half precision is allowed; None if there is no run.

    Returns:
        Warnings for the user.

    Raises:
        ConfigError: If the model or loss is rejected; the message names the layer or the function.
    """
    device = population.device
    if not len(population):  # the examples are in other processes
        return []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        row, x, y = _find_usable_point(population)
        trial = TracedModel(population, row)
        notes: list[str] = []
        if not is_known(population.model):
            notes = _changes_in_forward(population.model, select_examples(x, _FIRST_BATCH))
            _check_memory(trial, TracedModel(population, row), x)
        if not keeps_rows_apart(Functional(copy_module(population.model), population.loss), row, x):
            _check_neighbours(trial, x)
            _check_alone(trial, x)
        notes += validate_loss(trial, x, y, lambda: extreme_examples(population))
        _check_labels(trial, population)
        if privacy is not None:
            check_precision(population, privacy, row, x, y)
    return notes


def _find_usable_point(population: Population) -> Point:
    """Returns parameters `[dim]` and examples at which the loss and its gradient are finite, or else real examples."""
    *attempts, last = _candidates(population)
    for row, x, y in attempts:
        try:
            trial = TracedModel(population, row)
            if all(map(is_finite, (*list_leaves(trial.outputs(x)), trial.gradient(x, y)))):
                return row, x, y
        except Exception:  # whatever a user's model or loss raises for synthetic numbers
            continue
    # only the real examples are left: without a usable point a run could not train, and the error contains the reason
    row, inputs, targets = last
    try:
        TracedModel(population, row).gradient(inputs, targets)
    except FedprivError:
        raise
    except Exception as error:  # whatever a user's model or loss raises for real examples
        labels = first_leaf(targets)
        if labels.dtype != torch.long and _is_computed(population, row, inputs, map_tree(Tensor.long, targets)):
            fix = "the loss needs class numbers: use integers (.long())"
            raise DataError(f"client 0 has targets of type {labels.dtype}, and {fix}") from error
        hint = ""
        if isinstance(inputs, tuple) and isinstance(error, TypeError):
            hint = (
                " (of more than two tensors, all but the last are arguments of the model: leave others out in "
                "a collate_fn that returns (inputs, target))"
            )
        problem = (
            f"the model and the loss cannot be computed on examples of shape {_shapes(inputs)} "
            f"({summarize_error(error)})"
        )
        fix = f"{problem}; change the model, the loss or the data{hint}"
        raise ConfigError("model", type(population.model).__name__, fix) from error
    return last


def _shapes(x: Nested) -> str:
    """Returns the shapes of an example's tensors, for errors."""
    return ", ".join(str(tuple(values.shape[1:])) for values in list_leaves(x))


def _is_computed(population: Population, row: Tensor, x: Nested, y: Nested) -> bool:
    """Returns True if the loss and its gradient can be computed on these examples."""
    try:
        TracedModel(population, row).gradient(x, y)
    except Exception:  # whatever a user's model or loss raises
        return False
    return True


def _candidates(population: Population) -> Iterator[Point]:
    """Yields parameters, inputs and targets in order of preference: synthetic examples, then the first real ones."""
    inputs, targets = population.first_examples(_EXAMPLES)
    for point in synthetic_points(population):
        yield point
        yield point[0], inputs, targets


def synthetic_points(population: Population, seed: int = 0) -> list[Point]:
    """Returns public test points in order of preference: parameters `[dim]`, and random examples with the data's shapes
    and types.

    Initial parameters may be zeros, which hide the effect of a layer. The first points are therefore near the initial
    parameters but differ from them.

    Args:
        population: The clients, at their initial parameters.
        seed: Seed of the random numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    start = population.params[0]
    moved = start + 0.05 * torch.randn(start.shape, generator=generator).to(start)
    inputs, targets = population.first_examples(_EXAMPLES)
    x = map_tree(lambda like: _draw_like(like, -1.0, generator), inputs)
    y = map_tree(lambda like: _draw_like(like, 0.0, generator), targets)
    # some models with lengths as inputs raise an error for a length of 0
    positive = map_tree(_at_least_one, x)
    return [(moved, x, y), (moved, positive, y), (start, x, y)]


def _at_least_one(values: Tensor) -> Tensor:
    """Adds one to integers; returns other values unchanged."""
    if values.is_floating_point() or values.dtype == torch.bool:
        return values
    return values + 1


def _draw_like(like: Tensor, least: float, generator: torch.Generator) -> Tensor:
    """Draws `_EXAMPLES` numbers or arrays of the same type: floats in [least, 1), or integers 0 and 1.

    The integers 0 and 1 are almost always valid categories.
    """
    uniform = torch.rand(_EXAMPLES, *like.shape[1:], generator=generator)
    if like.is_floating_point():
        return (least + (1 - least) * uniform).to(like)
    return uniform.round().to(like)


def _check_memory(trial: TracedModel, fresh: TracedModel, x: Nested) -> None:
    """Raises an error if a model's result changes after another batch, or if it changes frozen parameters."""
    why = (
        "returns different outputs for the same batch in two calls: it keeps state of earlier batches, or its "
        "random numbers are not torch's; remove that state"
    )
    rows = [(i, i) for i in range(len(_FIRST_BATCH))]
    untouched = fresh.frozen()
    frozen = {name: value._version for name, value in trial.frozen().items()}  # noqa: SLF001 - writes in place
    before, between, after = (
        trial.events(select_examples(x, batch)) for batch in (_FIRST_BATCH, _SECOND_BATCH, _FIRST_BATCH)
    )
    for name, value in trial.frozen().items():
        if value._version != frozen[name] or not torch.equal(value, untouched[name]):  # noqa: SLF001
            fix = (
                "a forward pass changes this tensor, although it is frozen and is released without noise; let the "
                "model change a copy"
            )
            raise ConfigError(f"model.{name}", "frozen", fix)
    _compare(trial, before, after, rows, SAME_KERNEL, why)
    _compare(trial, between, fresh.events(select_examples(x, _SECOND_BATCH)), rows, SAME_KERNEL, why)


def _check_neighbours(trial: TracedModel, x: Nested) -> None:
    """Raises an error if the outputs for an example depend on the other examples of its batch."""
    why = "its output for an example depends on the other examples of the batch; "
    first_events = trial.events(select_examples(x, _FIRST_BATCH))
    second_events = trial.events(select_examples(x, _SECOND_BATCH))
    if _differ_in(first_events[-1], second_events[-1], 0, 0, SAME_KERNEL):
        why += _suggest_batch_first(trial, x) or "use a layer such as GroupNorm"
    _compare(trial, first_events, second_events, [(0, 0)], SAME_KERNEL, why)


def _suggest_batch_first(trial: TracedModel, x: Nested) -> str | None:
    """Returns advice if `batch_first=True` keeps examples apart, else None. Changes the copy of the model."""
    if not trial.put_examples_first():
        return None
    try:
        first_batch = trial.events(select_examples(x, _FIRST_BATCH))[-1]
        second_batch = trial.events(select_examples(x, _SECOND_BATCH))[-1]
        alone = [trial.events(select_examples(x, [i]))[-1] for i in _FIRST_BATCH]
    except Exception:  # whatever a user's model raises
        return None
    if _differ_in(first_batch, second_batch, 0, 0, SAME_KERNEL):
        return None
    if any(_differ_in(first_batch, single, i, 0, OTHER_KERNEL) for i, single in enumerate(alone)):
        return None
    return "set batch_first=True, which was tested and keeps examples apart (same weights, other outputs)"


def _check_alone(trial: TracedModel, x: Nested) -> None:
    """Raises an error if the outputs for an example alone differ from its outputs in a batch.

    If the model draws random numbers, it is put in eval mode first: draws for a batch differ from draws for one.
    """
    if trial.draws(x):
        trial.model.eval()
    if trial.draws(x):
        return
    why = "its output for an example alone differs from that in a batch; "
    batch = trial.events(select_examples(x, _FIRST_BATCH))
    alone = [trial.events(select_examples(x, [i])) for i in range(len(_FIRST_BATCH))]
    if any(_differ_in(batch[-1], single[-1], i, 0, OTHER_KERNEL) for i, single in enumerate(alone)):
        why += _suggest_batch_first(trial, x) or "change the layer so that its outputs do not depend on the batch size"
    for i, single in enumerate(alone):
        _compare(trial, batch, single, [(i, 0)], OTHER_KERNEL, why)


def _check_labels(trial: TracedModel, population: Population) -> None:
    """Tests the real examples with the smallest and the largest label.

    A label outside the classes would raise an error in the middle of a run, or would be ignored by the loss.
    """
    clients = population.validated_clients
    numbers = population.shard.numbers
    _, sample = population.first_examples(1)
    if not isinstance(sample, Tensor) or sample.is_floating_point() or sample.dim() != 1 or sample.dtype == torch.bool:
        return
    labels = {client: first_leaf(population.examples_of(client)[1]) for client in clients}
    least = min(clients, key=lambda i: int(labels[i].min()))
    greatest = max(clients, key=lambda i: int(labels[i].max()))
    for client, index in {(least, int(labels[least].argmin())), (greatest, int(labels[greatest].argmax()))}:
        label = int(labels[client][index])
        inputs, targets = population.examples_of(client)
        x, y = select_examples(inputs, [index]), select_examples(targets, [index])
        try:
            loss = trial.functional.loss(trial.outputs(x), y)
        except FedprivError:
            raise
        except Exception as error:  # whatever a user's model or loss raises
            fix = "number the classes from 0, or change the model's number of outputs"
            problem = f"client {numbers[client]} has label {label}, which model and loss do not accept"
            raise DataError(f"{problem} ({summarize_error(error)}): {fix}") from error
        if label < 0 and ((label == _IGNORE_INDEX and not loss.any()) or not torch.isfinite(loss).all()):
            problem = f"client {numbers[client]} has label {label}, which the loss ignores"
            raise DataError(f"{problem}: number the classes from 0, and drop examples without a class")


def _changes_in_forward(model: nn.Module, x: Nested) -> list[str]:
    """Returns warnings about buffers and attributes that a forward pass changes: runs discard these changes."""
    model = copy_module(model)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    attributes = _public_attributes(model)
    args, named = call_arguments(map_tree(Tensor.detach, x))
    reset_torch_draws(first_leaf(x).device)
    with torch.enable_grad():
        model(*args, **named)
    buffers_after = dict(model.named_buffers())
    changed = [name for name, value in buffers.items() if not torch.equal(buffers_after[name], value)]
    counts = [name for name, value in _public_attributes(model).items() if attributes.get(name, _NOTHING) != value]
    warnings: list[str] = []
    if changed:
        warnings.append(
            f"a forward pass changes the buffers {', '.join(changed[:3])}: every forward pass of a run starts from "
            "the initial values of the buffers, and the result contains these initial values"
        )
    if counts:
        warnings.append(
            f"a forward pass changes the attributes {', '.join(counts[:3])}: the changes stay in a copy of the "
            "model and are not in the result"
        )
    return warnings


_NOTHING = object()


def _public_attributes(model: nn.Module) -> dict[str, object]:
    """Returns numbers and strings in public attributes of the modules, by their path."""
    return {
        f"{path}.{name}".removeprefix("."): value
        for path, layer in model.named_modules()
        for name, value in vars(layer).items()
        if not name.startswith("_") and isinstance(value, bool | int | float | str)
    }


def _compare(
    trial: TracedModel,
    actual: Sequence[Event],
    expected: Sequence[Event],
    rows: Sequence[tuple[int, int]],
    tolerance: float,
    why: str,
) -> None:
    """Raises an error if outputs differ in these pairs of rows, and names the first layer with a difference."""
    for i, j in rows:
        if not _differ_in(actual[-1], expected[-1], i, j, tolerance):
            continue
        # not strict: a model with different outputs may have called other layers
        pairs = zip(actual, expected, strict=False)
        path = next((event[0] for event, other in pairs if _differ_in(event, other, i, j, tolerance)), "")
        layer = type(trial.model.get_submodule(path)).__name__
        raise ConfigError(f"model.{path}" if path else "model", layer, why)


def _differ_in(first_event: Event, second_event: Event, i: int, j: int, tolerance: float) -> bool:
    """Returns True if row i of a tensor of the first event differs from row j of that tensor in the second event."""
    pairs = [(a, b) for a, b in zip(first_event[1], second_event[1], strict=False) if a.dim() and b.dim()]
    return any(differ(a[i], b[j], tolerance) for a, b in pairs if len(a) > i and len(b) > j)
