"""A copy of a model whose layers tell what they take and give, for `trial`."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fedpriv.clients.client import Loss
from fedpriv.clients.population import Population
from fedpriv.data.nested import Nested, T, each, first
from fedpriv.errors import ConfigError
from fedpriv.oracle.backends.functional import Functional
from fedpriv.randomness.streams import torch_generators

Event = tuple[str, list[Tensor]]
"""What a layer took or gave: the path of the layer that computed it, and the tensors."""


class TracedModel:
    """A copy of the model at one row of parameters, which makes the same random draws whenever it is called."""

    def __init__(self, population: Population, row: Tensor) -> None:
        self.model, self._row = copy.deepcopy(population.model), row
        self.functional = Functional(self.model, population.loss)
        self._events: list[Event] = []
        self._running: list[str] = []
        self._paths = {layer: path for path, layer in self.model.named_modules()}
        me = weakref.proxy(self)  # or the copy, which may be large, would live until garbage is collected
        for layer in self._paths:
            layer.register_forward_pre_hook(lambda layer, inputs: me._enter(layer, inputs))  # noqa: SLF001 - its own
            layer.register_forward_hook(lambda layer, inputs, outputs: me._leave(layer, inputs, outputs))  # noqa: SLF001

    def outputs(self, x: Nested) -> Any:  # noqa: ANN401 - whatever a model gives
        """Outputs of a batch, `[b, ...]`."""
        with torch.no_grad():
            return self._outputs(self._row, x)

    def events(self, x: Nested) -> list[Event]:
        """What every layer takes and gives, in order; the outputs last."""
        outputs = self.outputs(x)
        return [*self._events, ("", _tensors(outputs))]

    def gradient(self, x: Nested, y: Nested) -> Tensor:
        """Gradient of the loss of the batch's first example, `[dim]`; alone where outputs are not one tensor."""
        row = self._row.detach().clone().requires_grad_()
        outputs = self._outputs(row, x)
        if isinstance(outputs, Tensor):
            outputs = outputs[:1]
        else:
            outputs = self._outputs(row, at(x, [0]))
        loss = number(self.functional.loss, outputs, at(y, [0]))
        if not loss.requires_grad:
            fix = "no trainable parameter has a part in its loss; set requires_grad of those that have"
            raise ConfigError("model", type(self.model).__name__, fix)
        return torch.autograd.grad(loss, row)[0]

    def frozen(self) -> dict[str, Tensor]:
        """Frozen parameters of this copy."""
        return {name: p for name, p in self.model.named_parameters() if not p.requires_grad}

    def put_examples_first(self) -> bool:
        """Let recurrent and attention layers take examples in the first dimension; False if all do."""
        layers = [vars(layer) for layer in self.model.modules() if vars(layer).get("batch_first") is False]
        for settings in layers:
            settings["batch_first"] = True
        return bool(layers)

    def draws(self, x: Nested) -> bool:
        """Whether the model draws random numbers from torch."""
        self.outputs(x)
        after = [generator.get_state() for generator in torch_generators(first(x).device)]
        before = [generator.manual_seed(0).get_state() for generator in torch_generators(first(x).device)]
        return any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))

    def _outputs(self, row: Tensor, x: Nested) -> Any:  # noqa: ANN401
        self._events, self._running = [], []
        start_draws_anew(first(x).device)
        outputs = self.functional.outputs(self.functional.unflatten(row), x)
        if isinstance(outputs, Tensor) and outputs.shape[:1] != first(x).shape[:1]:
            fix = (
                f"gives {tuple(outputs.shape)} for {len(first(x))} examples; return a row for each "
                "(squeeze(-1) keeps the rows, where squeeze() does not)"
            )
            raise ConfigError("model", type(self.model).__name__, fix)
        return outputs

    def _enter(self, layer: nn.Module, inputs: object) -> None:
        self._events.append((self._running[-1] if self._running else "", _tensors(inputs)))
        self._running.append(self._paths[layer])

    def _leave(self, layer: nn.Module, inputs: object, outputs: object) -> None:
        self._events.append((self._running.pop(), _tensors(outputs)))


def at(tree: T, rows: Sequence[int]) -> T:
    """Some examples of a batch."""
    return each(lambda values: values[list(rows)], tree)


def number(loss: Loss, outputs: Any, targets: Nested) -> Tensor:  # noqa: ANN401
    """Loss of one example."""
    value = cast("object", loss(outputs, targets))
    if not isinstance(value, Tensor):
        fix = f"gives a {type(value).__name__} for one example; return a tensor with one number"
        raise ConfigError("loss", name_of(loss), fix)
    if value.numel() != 1:
        fix = f"gives {value.numel()} numbers for one example; use a reduction"
        raise ConfigError("loss", name_of(loss), fix)
    return value.reshape(())


def _tensors(values: object) -> list[Tensor]:
    return [leaf.detach() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def start_draws_anew(device: torch.device) -> None:
    """Let the next trial make the random draws of the last one."""
    for generator in torch_generators(device):
        generator.manual_seed(0)


def name_of(function: Loss) -> str:
    """A loss in error messages."""
    return getattr(function, "__name__", type(function).__name__)
