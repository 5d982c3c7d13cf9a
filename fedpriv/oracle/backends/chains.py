"""Computes gradient factors of models that are linear layers and activations in sequence, without recording layer
calls.

The forward and backward pass of such a model consists of a few matrix products. For a small model these take less time
than recording the model's operations. Each layer and activation maps each row of a batch separately, so examples do not
influence each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from fedpriv.models.copies import copy_module
from fedpriv.oracle.backends.factors import Gradients, OuterProducts
from fedpriv.oracle.backends.summation import add_products
from fedpriv.privacy.clipping import Clip

_SAME = 1e-5  # largest relative difference from autograd's gradients; a model in bfloat16 differs by more
_EXAMPLES = 3  # number of examples in the comparison


@dataclass(frozen=True)
class Activation:
    """An elementwise function.

    Attributes:
        forward: The function.
        backward: Maps the gradient of the function's output, and the output, to the gradient of its input.
    """

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]


_RELU = Activation(torch.relu, lambda gradient, output: torch.ops.aten.threshold_backward(gradient, output, 0))
_TANH = Activation(torch.tanh, torch.ops.aten.tanh_backward)
_SIGMOID = Activation(torch.sigmoid, torch.ops.aten.sigmoid_backward)
_ACTIVATIONS: Mapping[object, Activation] = {
    nn.ReLU: _RELU,
    functional.relu: _RELU,
    torch.relu: _RELU,
    "relu": _RELU,
    nn.Tanh: _TANH,
    torch.tanh: _TANH,
    "tanh": _TANH,
    nn.Sigmoid: _SIGMOID,
    torch.sigmoid: _SIGMOID,
    "sigmoid": _SIGMOID,
}


@dataclass(frozen=True)
class Linear:
    """A linear layer.

    Attributes:
        weight: Name of its weight.
        bias: Name of its bias; empty if it has none.
    """

    weight: str
    bias: str


@dataclass(frozen=True)
class Factors:
    """Factors from which the gradients of a linear layer's parameters are computed.

    Attributes:
        layer: The layer.
        input: Its input, `[b, i]`.
        delta: Gradient of its output, `[b, o]`. It is also the gradient of the bias; the gradient of the weight is
            `delta input^T`.
    """

    layer: Linear
    input: Tensor
    delta: Tensor


@dataclass(frozen=True)
class WithBias(Gradients):
    """Gradients of a linear layer's weight and bias; the bias follows the weight in the row.

    The gradients of weight and bias both have the gradient of the layer's output as a factor, so the norms and the
    weighted copy of this factor are computed once.

    Attributes:
        weight: Gradients of the weight, from one position.
    """

    weight: OuterProducts

    @property
    def size(self) -> int:
        """See `Gradients`."""
        return self.weight.size + self.weight.left.shape[3]

    @property
    def numbers(self) -> int:
        """See `Gradients`."""
        return self.weight.numbers

    def whole(self) -> Tensor:
        """See `Gradients`."""
        return torch.cat([self.weight.whole(), self.weight.left.squeeze(2)], 2)

    def norms(self, clip: Clip) -> Tensor:
        """See `Gradients`."""
        norms = self._norms(clip, clip.norms)
        return self.weight.or_infinite(norms, lambda: clip.norms(self.whole()))

    def unchecked_norms(self, clip: Clip) -> Tensor:
        """See `Gradients`."""
        return self._norms(clip, clip.unchecked_norms)

    def _norms(self, clip: Clip, norms_of: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns the norm of the output's gradient times the norm of the input with a 1 appended, `[k, b]`."""
        return clip.with_one(norms_of(self.weight.right)).mul_(norms_of(self.weight.left)).squeeze(2)

    def add_to(self, sums: Tensor, weights: Tensor) -> None:
        """See `Gradients`."""
        *_, outputs = self.weight.left.shape
        weight_sums = sums[:, :-outputs].unflatten(1, (outputs, -1))
        bias_sums = sums[:, -outputs:]
        for cells, piece in self.weight.pieces():
            left = piece.weighted_left(weights[:, cells])
            add_products(weight_sums, left.mT, piece.right.squeeze(2))
            bias_sums.add_(left.sum(1))

    def masked(self, cells: Tensor) -> Gradients:
        """See `Gradients`."""
        return WithBias(self.weight.masked(cells))

    def times(self, weights: Tensor) -> Gradients:
        """See `Gradients`."""
        return WithBias(self.weight.times(weights))


@dataclass(frozen=True)
class Chain:
    """Linear layers and activations in sequence.

    Attributes:
        steps: The layers and activations; the first is a layer.
        flattens: True if inputs of any shape are flattened to `[b, features]` before the first layer.
    """

    steps: Sequence[Linear | Activation]
    flattens: bool

    def takes(self, x: Tensor) -> bool:
        """Returns True if the chain computes the model for examples `[k, b, ...]`, one row of features for each."""
        return self.flattens or x.dim() == 3

    def factors(
        self, params: Mapping[str, Tensor], x: Tensor, gradient_of: Callable[[Tensor], Tensor]
    ) -> list[Factors]:
        """Returns the factors of each layer, last layer first.

        Args:
            params: The parameters by name.
            x: Examples, `[b, features]`.
            gradient_of: Maps the model's outputs to the gradient of the examples' losses in these outputs, both `[b,
                n_outputs]`.
        """
        with torch.no_grad():
            values = [x]
            for step in self.steps:
                if isinstance(step, Linear):
                    bias = params[step.bias] if step.bias else None
                    values.append(functional.linear(values[-1], params[step.weight], bias))
                else:
                    values.append(step.forward(values[-1]))
        delta = gradient_of(values[-1])
        factors: list[Factors] = []
        with torch.no_grad():
            for index in range(len(self.steps) - 1, -1, -1):
                step = self.steps[index]
                if isinstance(step, Activation):
                    delta = step.backward(delta, values[index + 1])
                    continue
                factors.append(Factors(step, values[index], delta))
                if index > 0:  # the gradient with respect to the inputs is not needed
                    delta = delta @ params[step.weight]
        return factors


def find_chain(model: nn.Module) -> Chain | None:
    """Returns the chain that equals a model; None if there is none, or if the model has frozen parameters, shared
    parameters or hooks.

    The layers and activations are found in a trace of the model. The trace does not contain surrounding code such as
    `torch.no_grad` or autocast, so the chain's gradients of synthetic examples are compared with autograd's.
    """
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    if not all(parameter.requires_grad for parameter in model.parameters()) or _has_hooks(model):
        return None
    steps, flattens = _traced_steps(model)
    layers = [step for step in steps if isinstance(step, Linear)]
    used = [name for layer in layers for name in (layer.weight, layer.bias) if name]
    if not layers or sorted(used) != sorted(names) or len({*map(id, model.parameters())}) < len(names):
        return None
    if any((layer.weight, layer.bias) not in pairwise(names) for layer in layers if layer.bias):
        return None
    chain = Chain(steps, flattens)
    if _is_same(chain, model, layers[0]):
        return chain
    return None


def traced_nodes(model: nn.Module) -> tuple[fx.GraphModule, list[fx.Node]] | None:
    """Returns the operations of a model with one input if each acts on the result of the previous one, else None.

    The model is called `0` in the trace. Its input is the first node, and its output the last.
    """
    model = copy_module(model)  # tracing runs the forward pass, which may change the model
    try:
        # inside another module, so that a bare nn.Linear is traced as a layer too
        traced = fx.symbolic_trace(nn.Sequential(model))
    except Exception:  # whatever a user's forward raises when it gets a symbol instead of a tensor
        return None
    nodes = list(traced.graph.nodes)
    if len(nodes) < 3 or any(after.args[:1] != (before,) for before, after in pairwise(nodes)):
        return None
    return traced, nodes


def is_flatten(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Returns True if an operation flattens a batch to `[b, features]` or does nothing."""
    if node.op == "call_module":
        module = traced.get_submodule(str(node.target))
        whole = isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) == (1, -1)
        return whole or isinstance(module, nn.Identity)
    dims = {**dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False)), **node.kwargs}
    return node.target in ("flatten", torch.flatten) and dims in ({"start_dim": 1}, {"start_dim": 1, "end_dim": -1})


def _traced_steps(model: nn.Module) -> tuple[list[Linear | Activation], bool]:
    """Returns the layers and activations of a model, and True if inputs are flattened first. The list is empty if the
    model contains any other operation.
    """
    trace = traced_nodes(model)
    if trace is None:
        return [], False
    traced, nodes = trace
    steps: list[Linear | Activation] = []
    flattens = False
    for node in nodes[1:-1]:
        if not steps and is_flatten(traced, node):
            is_nothing = node.op == "call_module" and isinstance(traced.get_submodule(str(node.target)), nn.Identity)
            flattens = flattens or not is_nothing
            continue
        step = _step(traced, node)
        if step is None or (not steps and isinstance(step, Activation)):
            return [], False
        steps.append(step)
    return steps, flattens


def _step(traced: fx.GraphModule, node: fx.Node) -> Linear | Activation | None:
    if node.op != "call_module":
        if len(node.args) > 1 or {*node.kwargs} - {"inplace"}:
            return None
        return _ACTIVATIONS.get(node.target)
    module = traced.get_submodule(str(node.target))
    if type(module) is not nn.Linear:
        return _ACTIVATIONS.get(type(module))
    path = str(node.target).partition(".")[2]
    prefix = f"{path}." if path else ""
    has_bias = len([*module.parameters()]) == 2
    return Linear(f"{prefix}weight", f"{prefix}bias" if has_bias else "")


def _has_hooks(model: nn.Module) -> bool:
    if nn.modules.module._has_any_global_hook():  # noqa: SLF001 - hooks on all modules are on no object
        return True
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(vars(module).get(kind) for module in model.modules() for kind in kinds)


def _is_same(chain: Chain, model: nn.Module, first: Linear) -> bool:
    """True if the gradients of synthetic examples equal autograd's, in the model's own precision."""
    model = copy_module(model)
    params = dict(model.named_parameters())
    weight = params[first.weight]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_EXAMPLES, weight.shape[1], generator=generator).to(weight)
    try:
        with torch.enable_grad():
            outputs = model(x)
            expected = torch.autograd.grad(outputs.square().sum(), [*params.values()])
    except Exception:  # whatever a user's forward raises, also if a parameter does not affect the outputs
        return False
    gradients = dict[str, Tensor]()
    for layer in chain.factors({name: p.detach() for name, p in params.items()}, x, lambda outputs: 2 * outputs):
        gradients[layer.layer.weight] = layer.delta.T @ layer.input
        if layer.layer.bias:
            gradients[layer.layer.bias] = layer.delta.sum(0)
    return all(
        bool((gradients[name] - gradient).norm() <= _SAME * gradient.norm())
        for name, gradient in zip(params, expected, strict=True)
    )
