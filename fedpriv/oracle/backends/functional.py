"""A model and a loss as pure functions of a flat row of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedpriv.clients.batch import Batch
from fedpriv.clients.client import Loss
from fedpriv.clients.layout import Layout
from fedpriv.clients.reading import Pair
from fedpriv.models.batching import vmap
from fedpriv.models.example_losses import example_form
from fedpriv.models.known_code import is_known
from fedpriv.models.nested import Nested, call_arguments, map_tree

ScoresOrLoss = tuple[Tensor, tuple[()]] | tuple[tuple[()], Tensor]
"""The outputs and the loss of one example. One of the two is empty.

The losses of many examples are computed faster together than one by one. This requires that the outputs leave vmap, and
only tensors can leave it; otherwise the loss is computed inside vmap.
"""


class Functional:
    """A model and a loss as pure functions of the trainable parameters.

    Frozen parameters and buffers are constants. Changes that a forward pass makes to buffers are discarded, because
    they would let data bypass the oracle.

    Args:
        model: Maps `[b, ...]` to `[b, ...]`, each example separately; see `Client`.
        loss: Maps the outputs and targets of a batch of one to a scalar.

    Attributes:
        layout: Positions of the parameters in a row.
        form: The known form of the loss for single examples. If it is None, each example's loss is computed as the loss
            of a batch of one.
        frozen: Parameters that are not trained.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model = model
        self.layout = Layout.of(model)
        self.form = example_form(loss)
        self.loss = loss
        if isinstance(loss, nn.Module) and not is_known(loss) and any(True for _ in loss.buffers()):
            self.loss = _WithFirstBuffers(loss, loss)
            self.form = example_form(self.loss)
        # a user-defined form gets one example at a time, since it might mix examples whatever a test before the run
        # showed
        self._knows_loss = is_known(loss)
        self._sees_batch = self.form is not None and self._knows_loss
        self.frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
        names = [id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False)]
        self._tied = len({*names}) < len(names)
        self._paths: dict[str, tuple[Sequence[str], str]] = {}

    def unflatten(self, rows: Tensor) -> dict[str, Tensor]:
        """Returns parameters by name, as views: `[..., dim] -> {name: [..., *shape]}`."""
        return self.layout.unflatten(rows)

    def outputs(self, params: Mapping[str, Tensor], inputs: Nested, buffers: dict[str, Tensor] | None = None) -> Any:  # noqa: ANN401 - whatever a model gives
        """Returns the outputs of the model: `[b, ...] -> [b, ...]`, or another object that the loss accepts.

        Args:
            params: Trainable parameters.
            inputs: The batch.
            buffers: Copies of the buffers, which the model may change; None creates them.
        """
        if buffers is None:
            buffers = self.buffers()
        values = {**params, **buffers}
        positional, named = call_arguments(inputs)
        if self._tied:
            return functional_call(self.model, values, positional, named, tie_weights=self._tied)
        replaced: list[tuple[dict[str, Any], str, Tensor | None]] = []
        try:
            for name, value in values.items():
                if name not in self._paths:
                    *owner, key = name.split(".")
                    self._paths[name] = (owner, key)
                path, key = self._paths[name]
                table = _table(self.model, path, key)
                replaced.append((table, key, table[key]))
                table[key] = value
            return self.model(*positional, **named)
        finally:
            for table, key, original in replaced:
                table[key] = original

    def buffers(self) -> dict[str, Tensor]:
        """Returns copies of the model's buffers, which a forward pass may change."""
        return {name: buffer.clone() for name, buffer in self.model.named_buffers()}

    def example_loss(self, params: Mapping[str, Tensor], x: Nested, y: Nested) -> Tensor:
        """Returns the loss of one example, passed as a batch of one: `[...], [...] -> []`."""
        return self.loss_alone(self.outputs(params, add_batch_dimension(x)), y)

    def mean_loss(self, params: Mapping[str, Tensor], x: Nested, y: Nested) -> Tensor:
        """Returns the mean loss of an example's views, each a batch of one: `[views, ...], [views, ...] -> []`."""
        return vmap(self.example_loss, in_dims=(None, 0, 0), randomness="different")(params, x, y).mean()

    def loss_alone(self, outputs: Any, y: Nested) -> Tensor:  # noqa: ANN401
        """Returns the loss of one example, from the outputs for a batch of one and its target `[...]`."""
        if self.form is not None and isinstance(outputs, Tensor):
            return self.form.losses(outputs, add_batch_dimension(y)).reshape(())
        return self.loss(outputs, add_batch_dimension(y)).reshape(())

    def scores_or_loss(self, params: Mapping[str, Tensor], x: Nested, y: Nested) -> ScoresOrLoss:
        """Returns the outputs of one example if they are one tensor, else its loss; for use in vmap."""
        outputs = self.outputs(params, add_batch_dimension(x))
        if isinstance(outputs, Tensor):
            return (outputs.squeeze(0), ())
        return ((), self.loss_alone(outputs, y))

    def losses(self, outputs: Tensor, targets: Nested) -> Tensor:
        """Returns the loss of each example, without the loss's reduction: `[b, ...], [b, ...] -> [b]`."""
        if outputs.shape[0] == 0:
            return outputs.flatten()  # vmap needs at least one example
        if self.form is not None and self._sees_batch:
            return self.form.losses(outputs, targets)
        losses = vmap(lambda o, y: self.loss_alone(o.unsqueeze(0), y), randomness="different", known=self._knows_loss)
        return losses(outputs, targets)

    def output_gradients(self, outputs: Tensor, targets: Nested) -> Tensor:
        """Returns the gradient of each example's loss in the outputs: `[b, ...], [b, ...] -> [b, ...]`."""
        gradients = self.closed_gradients(outputs, targets)
        if gradients is not None:
            return gradients
        with torch.enable_grad():
            outputs = outputs.detach().requires_grad_()
            return torch.autograd.grad(self.losses(outputs, targets).sum(), outputs)[0]

    def closed_gradients(self, outputs: Tensor, targets: Nested) -> Tensor | None:
        """Returns `output_gradients` from a faster formula; None if there is none for this loss or these targets."""
        if self.form is None or self.form.gradients is None or not self._sees_batch:
            return None
        is_simple = isinstance(targets, Tensor) and outputs.dim() == 2 and targets.dim() == 1
        if not is_simple or not is_on_cpu(outputs) or outputs.dtype not in (torch.float32, torch.float64):
            return None
        try:
            return self.form.gradients(outputs.detach(), targets)
        except RuntimeError:  # a target that is not a class: the loss itself reports the error
            return None

    def batch_losses(self, params: Mapping[str, Tensor], x: Nested, y: Nested) -> Tensor:
        """Returns the loss of each example, in one forward pass for tensors: `[b, ...], [b, ...] -> [b]`.

        Outputs that are not tensors, such as an object with a mean loss, are only meaningful for one example at a time.
        """
        outputs = self.outputs(params, x)
        if isinstance(outputs, Tensor):
            return self.losses(outputs, y)
        return self._losses_alone(params, x, y)

    def _losses_alone(self, params: Mapping[str, Tensor], x: Nested, y: Nested) -> Tensor:
        """Returns the loss of each example; the model receives each example as a batch of one."""
        return vmap(self.example_loss, in_dims=(None, 0, 0), randomness="different")(params, x, y)

    def gradients_of_clients(self, rows: Tensor, x: Nested, y: Nested, mask: Tensor) -> Tensor:
        """Returns the gradient of each client's summed loss, `[c, dim], [c, b, ...], [c, b, ...], [c, b] -> [c, dim]`.

        Autograd is called outside of vmap, because `torch.func.grad` would import `torch._dynamo` and `sympy`, which
        takes more than a second.
        """

        def scores_or_losses(params: dict[str, Tensor], x: Nested, y: Nested) -> ScoresOrLoss:
            outputs = self.outputs(params, x)
            if isinstance(outputs, Tensor):
                return (outputs, ())
            return ((), self._losses_alone(params, x, y))

        with torch.enable_grad():
            leaf = rows.detach().requires_grad_()
            results = vmap(scores_or_losses, randomness="different")(self.unflatten(leaf), x, y)
            scores, losses = cast("tuple[object, Tensor]", results)
            if isinstance(scores, Tensor):  # outside of vmap the loss uses torch's own kernels
                targets = map_tree(lambda values: values.flatten(0, 1), y)
                losses = self.losses(scores.flatten(0, 1), targets).view(mask.shape)
            return torch.autograd.grad((losses * mask).sum(), leaf)[0]


class _WithFirstBuffers:
    """A function that changes a module's buffers. Each call starts from the initial values of the buffers.

    Args:
        module: Module with the buffers.
        function: Function that reads and changes them.
    """

    def __init__(self, module: nn.Module, function: Loss) -> None:
        self.module = module
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        per_example = getattr(module, "per_example", None)
        if per_example is not None and function is module:  # as `example_form` calls it
            self.per_example = _WithFirstBuffers(module, per_example)
        self._first = {name: buffer.clone() for name, buffer in module.named_buffers()}

    def __call__(self, outputs: Any, targets: Any) -> Tensor:  # noqa: ANN401
        """Calls the function."""
        tables = list[tuple[dict[str, Any], str, Tensor | None]]()
        try:
            for name, value in self._first.items():
                *path, key = name.split(".")
                table = _table(self.module, path, key)
                tables.append((table, key, table[key]))
                table[key] = value.clone()
            return self.function(outputs, targets)
        finally:
            for table, key, original in tables:
                table[key] = original


def _table(module: nn.Module | None, path: Sequence[str], key: str) -> dict[str, Any]:
    """Returns the table that holds a parameter or buffer in a module or in one of its submodules.

    `functional_call` finds the table as well, but takes three times as long as the computation of a small layer.
    """
    for name in path:
        assert module is not None
        module = module._modules[name]  # noqa: SLF001
    assert module is not None
    if key in module._parameters:  # noqa: SLF001
        return module._parameters  # noqa: SLF001
    return module._buffers  # noqa: SLF001


def add_batch_dimension(example: Nested) -> Nested:
    """Returns one example as a batch of one: `[...] -> [1, ...]`."""
    return map_tree(lambda values: values.unsqueeze(0), example)


def is_one_row(params: Tensor) -> bool:
    """Returns True if `params [k, dim]` are one expanded row; values are not compared."""
    return params.shape[0] == 1 or params.stride(0) == 0


def is_on_cpu(values: Tensor) -> bool:
    """Returns True if the tensor is on the CPU, where values can be read without delay. On an accelerator, reading a
    value first waits for all pending operations.
    """
    return values.device.type == "cpu"


def without_nan(plain: Callable[[], Tensor], masked: Callable[[], Tensor], weights: Tensor) -> Tensor:
    """Returns a weighted sum in which terms of weight 0 add nothing, even if they are not finite (plain multiplication
    gives 0 * inf = nan).

    Args:
        plain: Computes the sum.
        masked: Computes the sum of copies in which terms of weight 0 are 0. This costs more, so it is called only if
            the plain sum is not finite, or if reading that sum would cost even more.
        weights: The weights.
    """
    if is_on_cpu(weights):
        sums = plain()
        if is_finite(sums):
            return sums
    return masked()


def is_finite(values: Tensor) -> bool:
    """Returns True if the sum of all values is finite. Returns False if a value is NaN or infinite, or if the sum of
    finite values overflows.
    """
    return math.isfinite(values.sum().item())


def are_finite(norms: Tensor) -> bool:
    """Returns True if all norms are finite. Norms must not be negative."""
    return not norms.numel() or math.isfinite(float(norms.max()))


def count(flags: Tensor) -> Tensor:
    """Returns the number of True in each row: `[k, b] -> [k]`."""
    return flags.sum(1, dtype=torch.long)


def unpad(batch: Batch) -> Pair:
    """Returns inputs and targets with padding replaced by the first example of the same client.

    Padding may contain examples of other clients. Multiplying padding by zero is not enough, because 0 * inf is NaN: an
    example of one client with an infinite gradient would change another client's sum.
    """
    if is_on_cpu(batch.mask) and bool(batch.mask.all()):
        return batch.inputs, batch.targets
    first = batch.mask.int().argmax(1, keepdim=True)
    cell = torch.arange(batch.mask.shape[1], device=first.device).where(batch.mask, first)
    client = torch.arange(len(cell), device=cell.device).unsqueeze(1)
    return map_tree(lambda values: values[client, cell], (batch.inputs, batch.targets))
