"""Test, before a run, that model and loss treat each example independently of the others.

Clipping bounds an example's influence only if no other example's output, loss or gradient depends on it. A few made-up
examples are computed alone, among others, among yet others, and once more after them; a layer that gives different
results is refused by name. This finds mistakes, but proves nothing for other examples.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.clients.client import Loss
from fedpriv.clients.population import Population
from fedpriv.data.nested import Nested, arguments, each, first, leaves
from fedpriv.errors import ConfigError, DataError, FedprivError, cut, in_short
from fedpriv.oracle.backends.functional import is_finite
from fedpriv.oracle.traced_model import Event, TracedModel, at, name_of, number, start_draws_anew
from fedpriv.randomness.streams import torch_generators

Point = tuple[Tensor, Nested, Nested]
"""Parameters `[dim]`, inputs and targets."""
_SAME = 1e-4  # relative difference of one kernel on inputs of one shape
_ROUNDED = 1e-2  # of two kernels: one for a batch, one for a batch of one
_REDUCED = 1e-3  # of a batch's loss and the mean of single ones
_ONE, _OTHER = [0, 1, 2], [0, 3, 4]  # two batches that share their first example
_EXAMPLES = 5
_PASSED_OVER = -100  # what torch's losses ignore


def validate_per_example(population: Population) -> list[str]:
    """Refuse a model or loss that mixes or remembers examples, or a loss that is another one for single examples.

    The examples are random numbers of the real shapes and types or, where model and loss fail on those, the first real
    ones. The trial uses a copy of the model. Torch's random draws, as in dropout, are the same in each trial; a model
    that makes any is in eval mode where batches are compared with single examples.

    Returns:
        Warnings for the user.

    Raises:
        ConfigError: names the layer or the function.
    """
    device = population.device
    if not len(population):  # other processes have the examples
        return []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        row, x, y = _usable(population)
        trial = TracedModel(population, row)
        notes = _changes_in_forward(population.model, at(x, _ONE))
        _check_memory(trial, TracedModel(population, row), x)
        _check_neighbours(trial, x)
        check_loss_parameters(trial.functional.loss)
        _check_loss(trial, at(x, _ONE), at(y, _ONE))
        _check_reads_outputs_only(trial, population, at(x, _ONE), at(y, _ONE))
        notes += _check_loss_of_batch(trial, x, y)
        _check_gradients(trial, x, y)
        _check_alone(trial, x, y)
        _check_labels(trial, population)
    return notes


def _usable(population: Population) -> Point:
    """Parameters `[dim]` and examples at which the loss and its gradient are finite, if there are such."""
    *tries, last = _candidates(population)
    for row, x, y in tries:
        try:
            trial = TracedModel(population, row)
            if all(map(is_finite, (*leaves(trial.outputs(x)), trial.gradient(x, y)))):
                return row, x, y
        except Exception:  # whatever a user's model or loss raises for numbers that are made up
            continue
    try:
        TracedModel(population, last[0]).gradient(*last[1:])
    except FedprivError:
        raise
    except Exception as error:  # the same for real ones
        shape, model = _shapes(last[1]), type(population.model).__name__
        y = first(last[2])
        if y.dtype != torch.long and _is_computed(population, last[0], last[1], each(Tensor.long, last[2])):
            told = f"client 0 has targets of type {y.dtype}, such as {cut(str(y[0].tolist()))}"
            raise DataError(f"{told}, and the loss takes class numbers: give whole ones (.long())") from error
        fix = f"it and the loss cannot be computed on examples of shape {shape} ({in_short(error)}); change"
        several = (
            " (of more than two tensors all but the last are arguments of the model: where one is none, leave it out "
            "in a collate_fn that returns (inputs, target))"
        )
        if isinstance(last[1], tuple) and isinstance(error, TypeError):
            hint = several
        else:
            hint = ""
        raise ConfigError("model", model, f"{fix} them, or the data{hint}") from error
    return last


def _shapes(x: Nested) -> str:
    found = [str(tuple(values.shape[1:])) for values in leaves(x)]
    return ", ".join(found)


def _is_computed(population: Population, row: Tensor, x: Nested, y: Nested) -> bool:
    try:
        TracedModel(population, row).gradient(x, y)
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


def _check_memory(trial: TracedModel, fresh: TracedModel, x: Nested) -> None:
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


def _check_neighbours(trial: TracedModel, x: Nested) -> None:
    why = "what it gives for an example depends on the other examples of the batch; "
    these, those = trial.events(at(x, _ONE)), trial.events(at(x, _OTHER))
    if _differ_in(these[-1], those[-1], 0, 0, _SAME):
        why += _way_out(trial, x) or "use GroupNorm or the like"
    _compare(trial, these, those, [(0, 0)], _SAME, why)


def _way_out(trial: TracedModel, x: Nested) -> str | None:
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


def _check_gradients(trial: TracedModel, x: Nested, y: Nested) -> None:
    of_one, of_other = (trial.gradient(at(x, batch), at(y, batch)) for batch in (_ONE, _OTHER))
    if _differ(of_one, of_other, _SAME):
        fix = "an example's gradient depends on the other examples of the batch: a backward pass of its own mixes them"
        raise ConfigError("model", type(trial.model).__name__, fix)


def _check_alone(trial: TracedModel, x: Nested, y: Nested) -> None:
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


def _check_labels(trial: TracedModel, population: Population) -> None:
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


def _check_loss(trial: TracedModel, x: Nested, y: Nested) -> None:
    loss, outputs = trial.functional.loss, trial.outputs(x)
    if trial.functional.form is None:
        form = None
    else:
        form = trial.functional.form.losses
    memory = "answers the same example differently when it is asked again; keep nothing between calls"
    order = [0, 1, 2, 0]
    if isinstance(outputs, Tensor):
        ones = outputs[order].split(1)
    else:
        ones = [trial.outputs(at(x, [i])) for i in order]
    alone = torch.cat([_with_gradient(loss, one, at(y, [i])) for one, i in zip(ones, order, strict=True)])
    if _differ(alone[0], alone[3], _SAME):
        raise ConfigError("loss", name_of(loss), memory)
    if form is None or not isinstance(outputs, Tensor):
        return
    together = _with_gradient(form, outputs, y)
    if len(together) != len(outputs):
        fix = f"its per-example form {name_of(form)} gives {len(together)} losses for {len(outputs)} examples"
        raise ConfigError("loss", name_of(loss), f"{fix}; return one for each")
    differs = trial.functional.form is not None and trial.functional.form.differs  # on purpose, which a warning says
    if not differs and any(_differ(one, row, _SAME) for one, row in zip(alone[:3], together, strict=True)):
        fix = "gives an example another loss or gradient in a batch than alone; use its own output and target only"
        raise ConfigError("loss", name_of(loss), f"its per-example form {name_of(form)} {fix}")
    _with_gradient(form, outputs.flip(0), at(y, [2, 1, 0]))
    if _differ(together, _with_gradient(form, outputs, y), _SAME):
        raise ConfigError("loss", name_of(loss), f"its per-example form {name_of(form)} {memory}")


def check_loss_parameters(loss: Loss) -> None:
    """Refuse a loss with parameters of its own: a run trains those of the model alone.

    Raises:
        ConfigError: names the first of them.
    """
    if not isinstance(loss, nn.Module):
        return
    for name, parameter in loss.named_parameters():
        if parameter.requires_grad:
            fix = (
                f"has a parameter {name} of its own, which would not be trained, clipped or released. Make it a part "
                "of the model (let the model's forward apply it to its outputs), or freeze it: requires_grad_(False)"
            )
            raise ConfigError("loss", name_of(loss), fix)


def _check_reads_outputs_only(trial: TracedModel, population: Population, x: Nested, y: Nested) -> None:
    """Refuse a loss with a gradient that does not come through the outputs, such as a penalty on parameters."""
    outputs = trial.outputs(x)
    if not isinstance(outputs, Tensor):
        return
    start_draws_anew(first(x).device)
    with torch.enable_grad():
        value = trial.functional.loss(outputs[:1].detach(), at(y, [0]))
    if not value.requires_grad:
        return
    shapes = {tensor.shape for tensor in _leaves_of(value) if isinstance(tensor, nn.Parameter)}
    names = [name for name, parameter in population.model.named_parameters() if parameter.shape in shapes]
    what = "a tensor with a gradient that is no output of the model"
    if shapes and names:
        what = f"a parameter of the shape of the model's {names[0]}"
    elif shapes:
        what = f"a parameter of shape {tuple(next(iter(shapes)))}"
    fix = (
        f"reads {what}: its gradient would be dropped, since an example's loss is differentiated through its outputs "
        "alone. For a penalty on parameters take the strategy's own: weight_decay of the optimizer, or the regularizer "
        "(fedpriv.strategies.proximal.L2); else detach() what it reads"
    )
    raise ConfigError("loss", name_of(trial.functional.loss), fix)


def _leaves_of(value: Tensor) -> list[Tensor]:
    """The tensors that a value's gradient flows to."""
    found: list[Tensor] = []
    pending = [value.grad_fn]
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.append(variable)
        pending += [following for following, _ in node.next_functions]
    return found


def _check_loss_of_batch(trial: TracedModel, x: Nested, y: Nested) -> list[str]:
    """Compare what the loss gives for a batch with what it gives each of its examples alone.

    Gradients are those of single examples. So a loss whose value for a batch is not the mean or the sum of its values
    for single examples, as with a penalty on a batch's mean, would train something else here than its author wrote.
    """
    loss, form = trial.functional.loss, trial.functional.form
    if form is not None:
        if form.warning:
            return [form.warning]
        return []
    outputs = trial.outputs(x)
    if not isinstance(outputs, Tensor):
        return []  # an object with a loss of its own has a meaning for one example at a time
    notes: list[str] = []
    for targets in _other_targets(outputs, y):
        try:
            batch, alone, draws = _values(loss, outputs, targets)
        except Exception:  # whatever a user's loss raises for targets that are made up
            continue
        if draws or not (is_finite(batch) and is_finite(alone)):
            continue
        note = _compare_reductions(loss, outputs, targets, batch, alone)
        if note and note not in notes:
            notes.append(note)
    return notes


def _other_targets(outputs: Tensor, y: Nested) -> Iterator[Nested]:
    """Targets of the same kind: those that were made up and, for class numbers, others among as many as there are."""
    yield y
    if isinstance(y, Tensor) and not y.is_floating_point() and outputs.dim() > y.dim():
        classes = outputs.shape[1]
        for step in (1, 2):
            numbers = torch.arange(y.numel(), device=y.device).reshape(y.shape)
            yield ((numbers * step + step - 1) % max(classes, 1)).to(y.dtype)


def _values(loss: Loss, outputs: Tensor, y: Nested) -> tuple[Tensor, Tensor, bool]:
    """The loss of a batch, those of its examples alone `[b]`, and whether it draws random numbers."""
    device = first(y).device
    start_draws_anew(device)
    before = [generator.get_state() for generator in torch_generators(device)]
    batch = loss(outputs, y)
    draws = any(
        not torch.equal(state, generator.get_state())
        for state, generator in zip(before, torch_generators(device), strict=True)
    )
    alone = [number(loss, outputs[i : i + 1], at(y, [i])) for i in range(len(outputs))]
    return batch.detach().double(), torch.stack(alone).detach().double(), draws


def _compare_reductions(loss: Loss, outputs: Tensor, targets: Nested, batch: Tensor, alone: Tensor) -> str:
    """Returns a warning, if there is something to say."""
    name = name_of(loss)
    if batch.numel() == len(alone) and not _differ(batch.flatten(), alone, _REDUCED):
        return ""
    if batch.numel() != 1:
        fix = f"gives {batch.numel()} numbers for {len(alone)} examples; return their mean, or one for each example"
        raise ConfigError("loss", name, fix)
    value = batch.reshape(())
    if not _differ(value, alone.mean(), _REDUCED):
        return ""
    if not _differ(value, alone.sum(), _REDUCED):
        return (
            f"the loss {name} sums over a batch: here the mean over examples is trained and shown, so a learning rate "
            "for the sum is to be multiplied by the batch's size"
        )
    if not _differ(_without_broadcasting(loss, outputs, targets, value), alone.mean(), _REDUCED):
        told = f"outputs {tuple(outputs.shape[1:])} against targets {tuple(first(targets).shape[1:])} of each example"
        return (
            f"the loss {name} compares {told}: in a batch torch would compare every output with every target; here "
            "each example is compared with its own. Give both one shape, e.g. by model(x).squeeze(-1)"
        )
    fix = (
        f"gives a batch of {len(alone)} examples {float(value):.4g}, which is neither the mean "
        f"({float(alone.mean()):.4g}) nor the sum ({float(alone.sum()):.4g}) of what it gives each alone. "
        "Gradients are those of single examples, so another loss would be trained. Write what it gives each example: "
        "fedpriv.models.Loss(lambda outputs, targets: ...), which returns a tensor [b] (in torch's own losses "
        "reduction='none'), with weights divided by a public number and without terms about the batch"
    )
    raise ConfigError("loss", name, fix)


def _without_broadcasting(loss: Loss, outputs: Tensor, targets: Nested, otherwise: Tensor) -> Tensor:
    """The loss of the batch with outputs in the targets' shape; `otherwise` if that is not how they differ."""
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


def _changes_in_forward(model: nn.Module, x: Nested) -> list[str]:
    """Warnings about buffers and attributes that a forward pass changes: these changes have no effect on a run."""
    model = copy.deepcopy(model)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    attributes = _attributes_of(model)
    args, named = arguments(x)
    start_draws_anew(first(x).device)
    with torch.no_grad():
        model(*args, **named)
    now = dict(model.named_buffers())
    changed = [name for name, before in buffers.items() if not torch.equal(now[name], before)]
    counts = [name for name, value in _attributes_of(model).items() if attributes.get(name, _NOTHING) != value]
    found: list[str] = []
    if changed:
        found.append(
            f"a forward pass changes the buffers {', '.join(changed[:3])}: every pass of a run starts from their first "
            "values again, and the result has these"
        )
    if counts:
        found.append(
            f"a forward pass changes the attributes {', '.join(counts[:3])}: what it keeps there stays in a copy of "
            "the model and is not in the result"
        )
    return found


_NOTHING = object()


def _attributes_of(model: nn.Module) -> dict[str, object]:
    """Numbers and words that modules keep in public attributes, by their path."""
    return {
        f"{path}.{name}".removeprefix("."): value
        for path, layer in model.named_modules()
        for name, value in vars(layer).items()
        if not name.startswith("_") and isinstance(value, bool | int | float | str)
    }


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
    return torch.cat([values.detach(), gradient.reshape(len(gradient), -1) / weights], 1)


def _compare(
    trial: TracedModel,
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
