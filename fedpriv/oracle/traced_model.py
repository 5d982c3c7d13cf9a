"""A copy of a model that records the inputs and outputs of every layer, for `validation`."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves, tree_map

from fedpriv.clients.client import Loss
from fedpriv.clients.population import Population
from fedpriv.errors import ConfigError
from fedpriv.models.copies import copy_module
from fedpriv.models.nested import Nested, T, first_leaf, map_tree
from fedpriv.oracle.backends.functional import Functional
from fedpriv.randomness.streams import torch_generators

Event = tuple[str, list[Tensor]]
"""The inputs or outputs of a layer: the path of the layer that computed them, and the tensors."""


class TracedModel:
    """A copy of the model at one row of parameters, which draws the same random numbers in every call.

    Args:
        population: The clients, with their model and loss.
        row: Parameters, `[dim]`.
    """

    def __init__(self, population: Population, row: Tensor) -> None:
        self.model = copy_module(population.model)
        self._row = row
        self.functional = Functional(self.model, population.loss)
        self._events: list[Event] = []
        self._running: list[str] = []
        self._paths = {layer: path for path, layer in self.model.named_modules()}
        # a strong reference would keep the copy, which may be large, until garbage is collected
        proxy = weakref.proxy(self)
        for layer in self._paths:
            layer.register_forward_pre_hook(lambda layer, inputs: proxy._enter(layer, inputs))  # noqa: SLF001 - its own
            layer.register_forward_hook(lambda layer, inputs, outputs: proxy._leave(layer, inputs, outputs))  # noqa: SLF001

    def outputs(self, x: Nested) -> Any:  # noqa: ANN401 - whatever a model returns
        """Returns the outputs of a batch, `[b, ...]`, computed as in a run, with gradients on, and detached."""
        with torch.enable_grad():
            return tree_map(_detached, self._outputs(self._row, x))

    def constant_outputs(self, x: Nested) -> Any:  # noqa: ANN401
        """Returns outputs of any type, computed without gradients; None if their computation needs gradients."""
        try:
            with torch.no_grad():
                return self._outputs(self._row, x)
        except RuntimeError:  # `torch.autograd.grad` in a forward pass
            outputs = self.outputs(x)
        if all(isinstance(part, Tensor) for part in tree_leaves(outputs)):
            return outputs
        return None

    def loss_and_gradient(self, x: Nested, y: Nested) -> tuple[Tensor, Tensor]:
        """Returns the loss of a batch, and the gradient of its sum with respect to the parameters, `[dim]`."""
        row = self._row.detach().clone().requires_grad_()
        with torch.enable_grad():
            loss = self.functional.loss(self._outputs(row, x), y)
        if not loss.requires_grad:
            return loss, torch.zeros_like(row)
        (gradient,) = torch.autograd.grad(loss.sum(), row, materialize_grads=True)
        return loss.detach(), gradient

    def events(self, x: Nested) -> list[Event]:
        """Returns the inputs and outputs of every layer, in order of computation; the model's outputs come last."""
        outputs = self.outputs(x)
        return [*self._events, ("", _tensors(outputs))]

    def gradient(self, x: Nested, y: Nested) -> Tensor:
        """Returns the gradient of the loss of the batch's first example, `[dim]`.

        If the outputs are not one tensor, they cannot be sliced, so the first example is computed alone.
        """
        row = self._row.detach().clone().requires_grad_()
        outputs = self._outputs(row, x)
        if isinstance(outputs, Tensor):
            outputs = outputs[:1]
        else:
            outputs = self._outputs(row, select_examples(x, [0]))
        loss = example_loss(self.functional.loss, outputs, select_examples(y, [0]))
        if not loss.requires_grad:
            fix = "no trainable parameter affects the loss; set requires_grad=True for the parameters to train"
            raise ConfigError("model", type(self.model).__name__, fix)
        return torch.autograd.grad(loss, row)[0]

    def frozen(self) -> dict[str, Tensor]:
        """Returns the frozen parameters of this copy, by name."""
        return {name: p for name, p in self.model.named_parameters() if not p.requires_grad}

    def put_examples_first(self) -> bool:
        """Sets `batch_first` in recurrent and attention layers. Returns False if it was already set in all of them."""
        layers = [vars(layer) for layer in self.model.modules() if vars(layer).get("batch_first") is False]
        for settings in layers:
            settings["batch_first"] = True
        return bool(layers)

    def draws(self, x: Nested) -> bool:
        """Returns True if the model draws random numbers from torch."""
        self.outputs(x)
        after = [generator.get_state() for generator in torch_generators(first_leaf(x).device)]
        before = [generator.manual_seed(0).get_state() for generator in torch_generators(first_leaf(x).device)]
        return any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))

    def loss_draws(self, x: Nested, y: Nested) -> bool:
        """Returns True if the loss draws random numbers from torch."""
        outputs = self.outputs(x)
        generators = torch_generators(first_leaf(x).device)
        before = [generator.manual_seed(0).get_state() for generator in generators]
        self.functional.loss(outputs, y)
        after = [generator.get_state() for generator in generators]
        return any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))

    def _outputs(self, row: Tensor, x: Nested) -> Any:  # noqa: ANN401
        self._events = []
        self._running = []
        reset_torch_draws(first_leaf(x).device)
        # new objects with the same values: a forward pass may compute gradients with respect to its inputs
        x = map_tree(Tensor.detach, x)
        outputs = self.functional.outputs(self.functional.unflatten(row), x)
        if isinstance(outputs, Tensor) and outputs.shape[:1] != first_leaf(x).shape[:1]:
            fix = (
                f"returns {tuple(outputs.shape)} for {len(first_leaf(x))} examples; return one row per example "
                "(squeeze(-1) keeps the rows, unlike squeeze())"
            )
            raise ConfigError("model", type(self.model).__name__, fix)
        return outputs

    def _enter(self, layer: nn.Module, inputs: object) -> None:
        self._events.append((self._running[-1] if self._running else "", _tensors(inputs)))
        self._running.append(self._paths[layer])

    def _leave(self, layer: nn.Module, inputs: object, outputs: object) -> None:
        self._events.append((self._running.pop(), _tensors(outputs)))


def select_examples(tree: T, rows: Sequence[int]) -> T:
    """Returns some examples of a batch."""
    return map_tree(lambda values: values[list(rows)], tree)


def example_loss(loss: Loss, outputs: Any, targets: Nested) -> Tensor:  # noqa: ANN401
    """Returns the loss of one example as a scalar; raises an error for any other result."""
    return as_scalar(loss, loss(outputs, targets))


def as_scalar(loss: Loss, value: object) -> Tensor:
    """Converts the loss of one example to a scalar.

    Raises:
        ConfigError: If it is not a tensor with one number.
    """
    if not isinstance(value, Tensor):
        fix = f"returns a {type(value).__name__} for one example; return a tensor with one number"
        raise ConfigError("loss", format_loss_name(loss), fix)
    if value.numel() != 1:
        fix = f"returns {value.numel()} numbers for one example; return one number, e.g. their mean"
        raise ConfigError("loss", format_loss_name(loss), fix)
    return value.reshape(())


def _detached(part: object) -> object:
    if isinstance(part, Tensor):
        return part.detach()
    return part


def _tensors(values: object) -> list[Tensor]:
    return [leaf.detach() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def reset_torch_draws(device: torch.device) -> None:
    """Resets torch's generators, so that the next call of the model repeats the random draws of the last one."""
    for generator in torch_generators(device):
        generator.manual_seed(0)


def format_loss_name(function: Loss) -> str:
    """Returns the name of a loss for error messages."""
    return getattr(function, "__name__", type(function).__name__)


def graph_nodes(value: Tensor) -> list[Node]:
    """Returns the steps of a value's backward pass."""
    nodes: list[Node] = []
    pending = [value.grad_fn]
    visited = set[Node]()
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        nodes.append(node)
        pending += [following for following, _ in node.next_functions]
    return nodes
