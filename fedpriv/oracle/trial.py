"""Test, before a run, that model and loss treat each example independently of the others.

Clipping bounds an example's influence only if no other example's output, loss or gradient depends on it. A few made-up
examples are computed alone, among others, among yet others, and once more after them; a layer that gives different
results is refused by name. This finds mistakes, but proves nothing for other examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fedpriv.clients.client import Loss
from fedpriv.clients.population import Population
from fedpriv.errors import ConfigError, DataError, FedprivError, cut, in_short
from fedpriv.nested import Nested, each, first, leaves
from fedpriv.oracle.backends.functional import is_finite
from fedpriv.oracle.watched import Event, Trial, at, name_of, start_draws_anew

Point = tuple[Tensor, Nested, Nested]
"""Parameters `[dim]`, inputs and targets."""
_SAME = 1e-4  # relative difference of one kernel on inputs of one shape
_ROUNDED = 1e-2  # of two kernels: one for a batch, one for a batch of one
_ONE, _OTHER = [0, 1, 2], [0, 3, 4]  # two batches that share their first example
_EXAMPLES = 5
_PASSED_OVER = -100  # what torch's losses ignore


def try_out(population: Population) -> None:
    """Refuse a model or a loss that mixes examples or remembers them.

    The examples are random numbers of the real shapes and types or, where model and loss fail on those, the first real
    ones. The trial uses a copy of the model. Torch's random draws, as in dropout, are the same in each trial; a model
    that makes any is in eval mode where batches are compared with single examples.

    Raises:
        ConfigError: names the layer or the function.
    """
    device = population.device
    if not len(population):  # other processes have the examples
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        row, x, y = _usable(population)
        trial = Trial(population, row)
        _check_memory(trial, Trial(population, row), x)
        _check_neighbours(trial, x)
        _check_loss(trial, at(x, _ONE), at(y, _ONE))
        _check_gradients(trial, x, y)
        _check_alone(trial, x, y)
        _check_labels(trial, population)


def _usable(population: Population) -> Point:
    """Parameters `[dim]` and examples at which the loss and its gradient are finite, if there are such."""
    *tries, last = _candidates(population)
    for row, x, y in tries:
        try:
            trial = Trial(population, row)
            if all(map(is_finite, (*leaves(trial.outputs(x)), trial.gradient(x, y)))):
                return row, x, y
        except Exception:  # whatever a user's model or loss raises for numbers that are made up
            continue
    try:
        Trial(population, last[0]).gradient(*last[1:])
    except FedprivError:
        raise
    except Exception as error:  # the same for real ones
        shape, model = _shapes(last[1]), type(population.model).__name__
        y = first(last[2])
        if y.dtype != torch.long and _is_computed(population, last[0], last[1], each(Tensor.long, last[2])):
            told = f"client 0 has targets of type {y.dtype}, such as {cut(str(y[0].tolist()))}"
            raise DataError(f"{told}, and the loss takes class numbers: give whole ones (.long())") from error
        fix = f"it and the loss cannot be computed on examples of shape {shape} ({in_short(error)}); change"
        raise ConfigError("model", model, f"{fix} them, or the data") from error
    return last


def _shapes(x: Nested) -> str:
    found = [str(tuple(values.shape[1:])) for values in leaves(x)]
    return ", ".join(found)


def _is_computed(population: Population, row: Tensor, x: Nested, y: Nested) -> bool:
    try:
        Trial(population, row).gradient(x, y)
    except Exception:  # whatever a user's model or loss raises
        return False
    return True


def _candidates(population: Population) -> Iterator[Point]:
    """Rows, inputs and targets, best first."""
    inputs, targets = population.first_examples(_EXAMPLES)
    for point in made_up(population):
        yield point
        yield point[0], inputs, targets


def made_up(population: Population) -> list[Point]:
    """Public points, best first: rows `[dim]`, and inputs and targets of which only shapes and types are the data's.

    Initial parameters may be zeros, which hide what a layer does, so that they are moved a little first.
    """
    generator = torch.Generator().manual_seed(0)
    start = population.params[0]
    moved = start + 0.05 * torch.randn(start.shape, generator=generator).to(start)
    inputs, targets = population.first_examples(_EXAMPLES)
    x = each(lambda like: _drawn(like, -1.0, generator), inputs)
    y = each(lambda like: _drawn(like, 0.0, generator), targets)
    return [(moved, x, y), (start, x, y)]


def _drawn(like: Tensor, least: float, generator: torch.Generator) -> Tensor:
    """Five numbers, or arrays, of the same type: in [least, 1), or 0 and 1, which are categories nearly everywhere."""
    drawn = torch.rand(_EXAMPLES, *like.shape[1:], generator=generator)
    return (least + (1 - least) * drawn if like.is_floating_point() else drawn.round()).to(like)


def _check_memory(trial: Trial, fresh: Trial, x: Nested) -> None:
    why = (
        "answers the same batch differently when it is asked again: it keeps something of earlier batches, or draws "
        "random numbers that are not torch's; keep nothing between calls"
    )
    rows, untouched = [(i, i) for i in range(len(_ONE))], fresh.frozen()
    frozen = {name: value._version for name, value in trial.frozen().items()}  # noqa: SLF001 - writes in place
    before, between, after = (trial.events(at(x, batch)) for batch in (_ONE, _OTHER, _ONE))
    for name, value in trial.frozen().items():
        if value._version != frozen[name] or not torch.equal(value, untouched[name]):  # noqa: SLF001
            fix = "a forward pass changes it, though it is frozen and released as it is; change a copy"
            raise ConfigError(f"model.{name}", "frozen", fix)
    _compare(trial, before, after, rows, _SAME, why)
    _compare(trial, between, fresh.events(at(x, _OTHER)), rows, _SAME, why)


def _check_neighbours(trial: Trial, x: Nested) -> None:
    why = "what it gives for an example depends on the other examples of the batch; "
    these, those = trial.events(at(x, _ONE)), trial.events(at(x, _OTHER))
    if _differ_in(these[-1], those[-1], 0, 0, _SAME):
        why += _way_out(trial, x) or "use GroupNorm or the like"
    _compare(trial, these, those, [(0, 0)], _SAME, why)


def _way_out(trial: Trial, x: Nested) -> str | None:
    """What to do about a model that mixes examples, if it is known. Tries it on the trial's copy, which is changed."""
    if not trial.put_examples_first():
        return None
    try:
        one, other, *alone = (trial.events(at(x, rows))[-1] for rows in (_ONE, _OTHER, [0], [1], [2]))
    except Exception:  # whatever a user's model raises
        return None
    if _differ_in(one, other, 0, 0, _SAME) or any(_differ_in(one, a, i, 0, _ROUNDED) for i, a in enumerate(alone)):
        return None
    return "with batch_first=True that is not so: this was tried. Weights stay, and outputs become other ones"


def _check_gradients(trial: Trial, x: Nested, y: Nested) -> None:
    of_one, of_other = (trial.gradient(at(x, batch), at(y, batch)) for batch in (_ONE, _OTHER))
    if _differ(of_one, of_other, _SAME):
        fix = "an example's gradient depends on the other examples of the batch: a backward pass of its own mixes them"
        raise ConfigError("model", type(trial.model).__name__, fix)


def _check_alone(trial: Trial, x: Nested, y: Nested) -> None:
    """Puts the trial's model in eval mode where it draws random numbers: those of a batch are not those of one."""
    if trial.draws(x):
        trial.model.eval()
    if trial.draws(x):
        return
    why = "what it gives for an example alone is not what it gives in a batch; "
    batch, alone = trial.events(at(x, _ONE)), [trial.events(at(x, [i])) for i in range(len(_ONE))]
    if any(_differ_in(batch[-1], one[-1], i, 0, _ROUNDED) for i, one in enumerate(alone)):
        why += _way_out(trial, x) or "make it independent of the batch's size"
    for i, one in enumerate(alone):
        _compare(trial, batch, one, [(i, 0)], _ROUNDED, why)
    if _differ(trial.gradient(at(x, _ONE), at(y, _ONE)), trial.gradient(at(x, [0]), at(y, [0])), _ROUNDED):
        fix = "an example's gradient alone is not that in a batch: a backward pass of its own depends on the batch"
        raise ConfigError("model", type(trial.model).__name__, fix)


def _check_labels(trial: Trial, population: Population) -> None:
    """The real examples with the least and the largest label: one that is no class would fail, or count as nothing."""
    clients, (_, sample), numbers = population.looked_at, population.first_examples(1), population.part.numbers
    if not isinstance(sample, Tensor) or sample.is_floating_point() or sample.dim() != 1:
        return
    labels = {client: first(population.examples_of(client)[1]) for client in clients}
    least, most = min(clients, key=lambda i: int(labels[i].min())), max(clients, key=lambda i: int(labels[i].max()))
    for client, place in {(least, int(labels[least].argmin())), (most, int(labels[most].argmax()))}:
        label = int(labels[client][place])
        inputs, targets = population.examples_of(client)
        x, y = at(inputs, [place]), at(targets, [place])
        try:
            loss = trial.functional.loss(trial.outputs(x), y)
        except FedprivError:
            raise
        except Exception as error:  # whatever a user's model or loss raises
            fix = "number the classes from 0, or change the model's number of outputs"
            told = f"client {numbers[client]} has label {label}, which model and loss do not take"
            raise DataError(f"{told} ({in_short(error)}): {fix}") from error
        if label < 0 and ((label == _PASSED_OVER and not loss.any()) or not torch.isfinite(loss).all()):
            told = f"client {numbers[client]} has label {label}, which the loss passes over"
            raise DataError(f"{told}: number the classes from 0, drop what has none")


def _check_loss(trial: Trial, x: Nested, y: Nested) -> None:
    loss, form, outputs = trial.functional.loss, trial.functional.per_example, trial.outputs(x)
    memory = "answers the same example differently when it is asked again; keep nothing between calls"
    order = [0, 1, 2, 0]
    ones = outputs[order].split(1) if isinstance(outputs, Tensor) else [trial.outputs(at(x, [i])) for i in order]
    alone = torch.cat([_with_gradient(loss, one, at(y, [i])) for one, i in zip(ones, order, strict=True)])
    if _differ(alone[0], alone[3], _SAME):
        raise ConfigError("loss", name_of(loss), memory)
    if form is None or not isinstance(outputs, Tensor):
        return
    together = _with_gradient(form, outputs, y)
    if len(together) != len(outputs):
        fix = f"its per-example form {name_of(form)} gives {len(together)} losses for {len(outputs)} examples"
        raise ConfigError("loss", name_of(loss), f"{fix}; return one for each")
    if any(_differ(one, row, _SAME) for one, row in zip(alone[:3], together, strict=True)):
        fix = "gives an example another loss or gradient in a batch than alone; use its own output and target only"
        raise ConfigError("loss", name_of(loss), f"its per-example form {name_of(form)} {fix}")
    _with_gradient(form, outputs.flip(0), at(y, [2, 1, 0]))
    if _differ(together, _with_gradient(form, outputs, y), _SAME):
        raise ConfigError("loss", name_of(loss), f"its per-example form {name_of(form)} {memory}")


def _with_gradient(loss: Loss, outputs: Any, targets: Nested) -> Tensor:  # noqa: ANN401
    """Losses and, where outputs are a tensor, their derivatives in these: `[b, 1 + numbers of an output]`."""
    start_draws_anew(first(targets).device)
    if not isinstance(outputs, Tensor):
        return loss(outputs, targets).detach().reshape(-1, 1)
    outputs = outputs.detach().clone().requires_grad_()
    values = loss(outputs, targets).reshape(-1, 1)
    # weights tell whose loss a derivative is of
    weights = 1 + torch.arange(len(values), device=values.device, dtype=values.dtype).unsqueeze(1)
    gradient = torch.autograd.grad((weights * values).sum(), outputs)[0]
    if len(values) != len(outputs):
        return values.detach()
    return torch.cat([values.detach(), gradient.flatten(1) / weights], 1)


def _compare(
    trial: Trial,
    these: Sequence[Event],
    those: Sequence[Event],
    rows: Sequence[tuple[int, int]],
    tolerance: float,
    why: str,
) -> None:
    """Refuse outputs that differ in these rows, in the name of the first layer that gives or hands on what differs."""
    for i, j in rows:
        if not _differ_in(these[-1], those[-1], i, j, tolerance):
            continue
        both = zip(these, those, strict=False)  # what differs may have called other layers
        path = next((one[0] for one, other in both if _differ_in(one, other, i, j, tolerance)), "")
        layer = type(trial.model.get_submodule(path)).__name__
        raise ConfigError(f"model.{path}" if path else "model", layer, why)


def _differ_in(one: Event, other: Event, i: int, j: int, tolerance: float) -> bool:
    """Whether a tensor of the one event differs in row i from that of the other event in row j."""
    pairs = [(a, b) for a, b in zip(one[1], other[1], strict=False) if a.dim() and b.dim()]
    return any(_differ(a[i], b[j], tolerance) for a, b in pairs if len(a) > i and len(b) > j)


def _differ(a: Tensor, b: Tensor, tolerance: float) -> bool:
    if a.shape != b.shape:
        return True
    a, b = a.detach().double().nan_to_num(), b.detach().double().nan_to_num()
    return bool((a - b).norm() > tolerance * torch.maximum(a.norm(), b.norm()))
