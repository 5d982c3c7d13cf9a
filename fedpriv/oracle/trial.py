"""Test, before a run, that model and loss treat each example independently of the others.

Clipping bounds an example's influence only if no other example's output, loss or gradient depends on it. A few made-up
examples are computed alone, among others, among yet others, and once more after them; a layer that gives different
results is refused by name. This finds mistakes, but proves nothing for other examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from fedpriv.clients.client import Loss
from fedpriv.clients.population import Population
from fedpriv.errors import ConfigError, DataError, FedprivError, cut, in_short
from fedpriv.oracle.backends.functional import Functional
from fedpriv.oracle.watched import Event, Trial, name_of, start_draws_anew

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
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        row, x, y = _usable(population)
        trial = Trial(population, row)
        _check_memory(trial, Trial(population, row), x)
        _check_neighbours(trial, x)
        _check_loss(trial.functional, trial.outputs(x[_ONE]), y[_ONE])
        _check_gradients(trial, x, y)
        _check_alone(trial, x, y)
        _check_labels(trial, population)


def _usable(population: Population) -> tuple[Tensor, Tensor, Tensor]:
    """Parameters `[dim]` and examples at which the loss and its gradient are finite, if there are such."""
    *tries, last = _candidates(population)
    for row, x, y in tries:
        try:
            trial = Trial(population, row)
            if torch.isfinite(trial.outputs(x)).all() and torch.isfinite(trial.gradient(x, y)).all():
                return row, x, y
        except Exception:  # whatever a user's model or loss raises for numbers that are made up
            continue
    try:
        Trial(population, last[0]).gradient(*last[1:])
    except FedprivError:
        raise
    except Exception as error:  # the same for real ones
        shape, model = tuple(last[1].shape[1:]), type(population.model).__name__
        if last[2].dtype != torch.long and _is_computed(population, last[0], last[1], last[2].long()):
            told = f"client 0 has targets of type {last[2].dtype}, such as {cut(str(last[2][0].tolist()))}"
            raise DataError(f"{told}, and the loss takes class numbers: give whole ones (.long())") from error
        fix = f"it and the loss cannot be computed on examples of shape {shape} ({in_short(error)}); change"
        raise ConfigError("model", model, f"{fix} them, or the data") from error
    return last


def _is_computed(population: Population, row: Tensor, x: Tensor, y: Tensor) -> bool:
    try:
        Trial(population, row).gradient(x, y)
    except Exception:  # whatever a user's model or loss raises
        return False
    return True


def _candidates(population: Population) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows, inputs and targets, best first: initial parameters may be zeros, which hide what a layer does."""
    generator = torch.Generator().manual_seed(0)
    start = population.params[0]
    moved = start + 0.05 * torch.randn(start.shape, generator=generator).to(start)
    real = population.first_examples(_EXAMPLES)
    made_up = _made_up(real[0], -1.0, generator), _made_up(real[1], 0.0, generator)
    for row, (x, y) in product((moved, start), (made_up, real)):
        yield row, x, y


def _made_up(like: Tensor, least: float, generator: torch.Generator) -> Tensor:
    """Five numbers, or arrays, of the same type: in [least, 1), or 0 and 1, which are categories nearly everywhere."""
    drawn = torch.rand(_EXAMPLES, *like.shape[1:], generator=generator)
    return (least + (1 - least) * drawn if like.is_floating_point() else drawn.round()).to(like)


def _check_memory(trial: Trial, fresh: Trial, x: Tensor) -> None:
    why = (
        "answers the same batch differently when it is asked again: it keeps something of earlier batches, or draws "
        "random numbers that are not torch's; keep nothing between calls"
    )
    rows = [(i, i) for i in range(len(_ONE))]
    before, between, after = (trial.events(x[batch]) for batch in (_ONE, _OTHER, _ONE))
    _compare(trial, before, after, rows, _SAME, why)
    _compare(trial, between, fresh.events(x[_OTHER]), rows, _SAME, why)


def _check_neighbours(trial: Trial, x: Tensor) -> None:
    why = "what it gives for an example depends on the other examples of the batch; use GroupNorm or the like"
    _compare(trial, trial.events(x[_ONE]), trial.events(x[_OTHER]), [(0, 0)], _SAME, why)


def _check_gradients(trial: Trial, x: Tensor, y: Tensor) -> None:
    if _differ(trial.gradient(x[_ONE], y[_ONE]), trial.gradient(x[_OTHER], y[_OTHER]), _SAME):
        fix = "an example's gradient depends on the other examples of the batch: a backward pass of its own mixes them"
        raise ConfigError("model", type(trial.model).__name__, fix)


def _check_alone(trial: Trial, x: Tensor, y: Tensor) -> None:
    """Puts the trial's model in eval mode where it draws random numbers: those of a batch are not those of one."""
    if trial.draws(x):
        trial.model.eval()
    if trial.draws(x):
        return
    why = "what it gives for an example alone is not what it gives in a batch; make it independent of the batch's size"
    batch = trial.events(x[_ONE])
    for i in range(len(_ONE)):
        _compare(trial, batch, trial.events(x[i : i + 1]), [(i, 0)], _ROUNDED, why)
    if _differ(trial.gradient(x[_ONE], y[_ONE]), trial.gradient(x[:1], y[:1]), _ROUNDED):
        fix = "an example's gradient alone is not that in a batch: a backward pass of its own depends on the batch"
        raise ConfigError("model", type(trial.model).__name__, fix)


def _check_labels(trial: Trial, population: Population) -> None:
    """The real examples with the least and the largest label: one that is no class would fail, or count as nothing."""
    clients, (_, sample) = population.looked_at, population.first_examples(1)
    if sample.is_floating_point() or sample.dim() != 1:
        return
    labels = {client: population.examples_of(client)[1] for client in clients}
    least, most = min(clients, key=lambda i: int(labels[i].min())), max(clients, key=lambda i: int(labels[i].max()))
    for client, at in {(least, int(labels[least].argmin())), (most, int(labels[most].argmax()))}:
        label = int(labels[client][at])
        x, y = (part[at : at + 1] for part in population.examples_of(client))
        try:
            loss = trial.functional.loss(trial.outputs(x), y)
        except FedprivError:
            raise
        except Exception as error:  # whatever a user's model or loss raises
            fix = "number the classes from 0, or change the model's number of outputs"
            told = f"client {client} has label {label}, which model and loss do not take"
            raise DataError(f"{told} ({in_short(error)}): {fix}") from error
        if label < 0 and ((label == _PASSED_OVER and not loss.any()) or not torch.isfinite(loss).all()):
            told = f"client {client} has label {label}, which the loss passes over"
            raise DataError(f"{told}: number the classes from 0, drop what has none")


def _check_loss(functional: Functional, outputs: Tensor, y: Tensor) -> None:
    loss, form = functional.loss, functional.per_example
    memory = "answers the same example differently when it is asked again; keep nothing between calls"
    alone = torch.cat([_with_gradient(loss, outputs[i : i + 1], y[i : i + 1]) for i in (0, 1, 2, 0)])
    if _differ(alone[0], alone[3], _SAME):
        raise ConfigError("loss", name_of(loss), memory)
    if form is None:
        return
    together = _with_gradient(form, outputs, y)
    if len(together) != len(y):
        fix = f"its per-example form {name_of(form)} gives {len(together)} losses for {len(y)} examples"
        raise ConfigError("loss", name_of(loss), f"{fix}; return one for each")
    if any(_differ(one, row, _SAME) for one, row in zip(alone[:3], together, strict=True)):
        fix = "gives an example another loss or gradient in a batch than alone; use its own output and target only"
        raise ConfigError("loss", name_of(loss), f"its per-example form {name_of(form)} {fix}")
    _with_gradient(form, outputs.flip(0), y.flip(0))
    if _differ(together, _with_gradient(form, outputs, y), _SAME):
        raise ConfigError("loss", name_of(loss), f"its per-example form {name_of(form)} {memory}")


def _with_gradient(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """Losses and their derivatives in the outputs, side by side: `[b, 1 + numbers of an output]`."""
    start_draws_anew(outputs.device)
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
