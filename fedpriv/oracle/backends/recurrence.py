"""Computes one layer and direction of a recurrent network, and the gradients of the pre-activations at all time steps.

Torch's own kernels do not expose single steps. Norms of per-example gradients need, at each step, the gradient of the
pre-activations and the factors that the weights were multiplied by: the input and the previous state. Steps are
therefore computed in a loop. Parts that do not depend on the previous step are computed in one operation for all steps:
the product with the input, the derivatives of gates and, in the backward pass, the gradient of the input.

The equations are taken from `torch.nn.LSTM`, `GRU` and `RNN`. Shapes are `[..., t, n, width]` for n sequences of t
steps. Without a leading dimension, all sequences have the same weights; a leading dimension is over clients with
separate weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import Function

Gradients = tuple[Tensor | None, ...]


class Weights(NamedTuple):
    """Weights of one layer and direction: `[..., gates, inputs]`, `[..., gates, hidden]`, and biases `[..., gates]`."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None
    hidden_bias: Tensor | None


class Steps(NamedTuple):
    """The results of a layer in one direction.

    Attributes:
        output: Hidden state after each step, `[..., t, n, hidden]`; shares memory with `before`.
        last: Hidden state after the last step, `[..., n, hidden]`.
        last_cell: Cell state after the last step for an LSTM, else zeros.
        before: Hidden state before each step.
        reset: Reset gate of each step for a GRU, else empty.
    """

    output: Tensor
    last: Tensor
    last_cell: Tensor
    before: Tensor
    reset: Tensor


@dataclass(frozen=True)
class Order:
    """The order of steps.

    Attributes:
        count: Number of steps.
        reverse: True if the last step comes first.
        mask: `[..., t, n, 1]`, False where a sequence has ended and its state no longer changes. None if all sequences
            have the same length.
    """

    count: int
    reverse: bool
    mask: Tensor | None

    def steps(self) -> list[tuple[int, int, int]]:
        """Returns each step, and the indices of the states before and after it among `count + 1` states."""
        if self.reverse:
            return [(step, step + 1, step) for step in reversed(range(self.count))]
        return [(step, step, step + 1) for step in range(self.count)]

    def backwards(self) -> list[int]:
        """Returns the steps, last first."""
        return [step for step, _, _ in reversed(self.steps())]

    @property
    def before(self) -> slice:
        """Indices of the states before the steps."""
        return slice(1, None) if self.reverse else slice(0, -1)

    @property
    def after(self) -> slice:
        """Indices of the states after the steps."""
        return slice(0, -1) if self.reverse else slice(1, None)

    @property
    def first(self) -> int:
        """Index of the state before the first step."""
        return -1 if self.reverse else 0

    def masks(self) -> list[Tensor] | None:
        """Returns the mask of each step, `[..., n, 1]`."""
        if self.mask is None:
            return None
        return list(self.mask.unbind(-3))


def run(mode: str, x: Tensor, state: tuple[Tensor, Tensor], tap: Tensor, weights: Weights, order: Order) -> Steps:
    """Computes a layer in one direction.

    Args:
        mode: `lstm`, `gru`, `rnn_tanh` or `rnn_relu`.
        x: Inputs, `[..., t, n, inputs]`.
        state: First hidden and cell state, `[..., n, hidden]`.
        tap: Any tensor of shape `[..., t, n, gates]`. Its values are not used; autograd returns the gradient of the
            pre-activations as its gradient.
        weights: The weights; autograd computes no gradient for them.
        order: Order of steps.
    """
    functions: dict[str, type[Function]] = {"lstm": _Lstm, "gru": _Gru, "rnn_tanh": _Rnn, "rnn_relu": _Rnn}
    with torch.autocast(x.device.type, enabled=False):
        return Steps(*cast("Any", functions[mode]).apply(x, *state, tap, weights, order, mode))


def _project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Maps `x [..., t, n, i], weight [..., o, i], bias [..., o]` to `[..., t, n, o]`, in new memory."""
    rows = x.flatten(-3, -2)
    if weight.dim() == 2:
        product = torch.nn.functional.linear(rows, weight, bias)
    elif bias is None:
        product = torch.bmm(rows, weight.mT)
    else:
        product = torch.baddbmm(bias.unsqueeze(-2), rows, weight.mT)
    return product.unflatten(-2, x.shape[-3:-1])


def _back_project(gates: Tensor, weight: Tensor) -> Tensor:
    """Maps `gates [..., t, n, o], weight [..., o, i]` to `[..., t, n, i]`."""
    return (gates.flatten(-3, -2) @ weight).unflatten(-2, gates.shape[-3:-1])


def _add_product_(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Adds a product to a total in place, `[..., n, o] += [..., n, i] @ [..., i, o]`."""
    if total.dim() == 2:
        return total.addmm_(left, right)
    return total.baddbmm_(left, right)


def _states(first: Tensor, order: Order) -> tuple[Tensor, list[Tensor]]:
    """Returns memory for the states before and after all steps, `[..., t + 1, n, hidden]`, and a view of each."""
    states = first.new_empty(*first.shape[:-2], order.count + 1, *first.shape[-2:])
    views = list(states.unbind(-3))
    views[order.first].copy_(first)
    return states, views


def _keep(mask: Tensor | None, after: Tensor, before: Tensor) -> None:
    """Undoes a step of the sequences that have ended, in place."""
    if mask is not None:
        torch.where(mask, after, before, out=after)


def _times_sigmoid_slope(factor: Tensor, sigmoid: Tensor, out: Tensor) -> Tensor:
    """Returns `factor * sigmoid * (1 - sigmoid)` in one operation."""
    return torch.ops.aten.sigmoid_backward.grad_input(factor, sigmoid, grad_input=out)


def _times_tanh_slope(factor: Tensor, tanh: Tensor, out: Tensor) -> Tensor:
    """Returns `factor * (1 - tanh ** 2)` in one operation."""
    return torch.ops.aten.tanh_backward.grad_input(factor, tanh, grad_input=out)


class _Lstm(Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - as torch types it
        x: Tensor,
        hidden: Tensor,
        cell: Tensor,
        tap: Tensor,
        weights: Weights,
        order: Order,
        mode: str,
    ) -> tuple[Tensor, ...]:
        # torch's tanh takes up to ten times as long as its sigmoid, and tanh(x) = 2 sigmoid(2 x) - 1: the rows of the
        # new values are doubled (exactly), and one sigmoid computes all four gates
        width = hidden.shape[-1]
        doubled = hidden.new_ones(4 * width)
        doubled[2 * width : 3 * width] = 2
        minus_one = hidden.new_full((), -1)
        bias = weights.input_bias
        if bias is not None and weights.hidden_bias is not None:
            bias = (bias + weights.hidden_bias) * doubled
        gates = _project(x, weights.input * doubled.unsqueeze(-1), bias)
        rows = gates.unbind(-3)
        inputs, forgets, news, outputs = (gate.unbind(-3) for gate in gates.split(width, -1))
        hiddens, hidden_rows = _states(hidden, order)
        cells, cell_rows = _states(cell, order)
        tanhs = torch.empty_like(cells[..., 1:, :, :])
        tanh_rows = tanhs.unbind(-3)
        masks = order.masks()
        weight = (weights.hidden * doubled.unsqueeze(-1)).mT
        for step, before, after in order.steps():
            _add_product_(rows[step], hidden_rows[before], weight).sigmoid_()
            torch.add(minus_one, news[step], alpha=2, out=news[step])
            torch.mul(forgets[step], cell_rows[before], out=cell_rows[after]).addcmul_(inputs[step], news[step])
            tanh = torch.add(cell_rows[after], cell_rows[after], out=tanh_rows[step]).sigmoid_()
            torch.add(minus_one, tanh, alpha=2, out=tanh)
            torch.mul(outputs[step], tanh_rows[step], out=hidden_rows[after])
            if masks is not None:
                _keep(masks[step], hidden_rows[after], hidden_rows[before])
                _keep(masks[step], cell_rows[after], cell_rows[before])
        ctx.order, ctx.weights = order, weights
        ctx.save_for_backward(gates, cells, tanhs)
        last = 0 if order.reverse else -1
        before = hiddens[..., order.before, :, :]
        ctx.mark_non_differentiable(before)
        return (
            hiddens[..., order.after, :, :],
            hidden_rows[last].clone(),
            cell_rows[last].clone(),
            before,
            x.new_empty(0),
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:  # noqa: ANN401 - as torch types it
        order: Order = ctx.order
        weights: Weights = ctx.weights
        gates, cells, tanhs = ctx.saved_tensors
        i, f, g, o = gates.chunk(4, -1)
        width = i.shape[-1]
        derivatives = torch.empty_like(gates)
        di, df, dg, do = derivatives.chunk(4, -1)
        # derivatives of the gates, to be multiplied by the gradient of cell or output
        _times_sigmoid_slope(g, i, out=di)
        _times_sigmoid_slope(cells[..., order.before, :, :], f, out=df)
        _times_tanh_slope(i, g, out=dg)
        _times_sigmoid_slope(tanhs, o, out=do)
        into_cell = _times_tanh_slope(o, tanhs, out=torch.empty_like(tanhs)).unbind(-3)
        rows = derivatives.unbind(-3)
        triples = derivatives[..., : 3 * width].unflatten(-1, (3, width)).unbind(-4)
        outs = do.unbind(-3)
        forgets = f.unbind(-3)
        totals = gradients[0].unbind(-3)
        masks = order.masks()
        carry = gradients[1]
        cell_carry = gradients[2]
        for step in order.backwards():
            hidden = carry + totals[step]
            cell = torch.addcmul(cell_carry, hidden, into_cell[step])
            triples[step].mul_(cell.unsqueeze(-2))
            outs[step].mul_(hidden)
            if masks is None:
                carry = rows[step] @ weights.hidden
                cell_carry = cell.mul_(forgets[step])
            else:
                rows[step].mul_(masks[step])
                carry = torch.where(masks[step], rows[step] @ weights.hidden, hidden)
                cell_carry = torch.where(masks[step], cell.mul_(forgets[step]), cell_carry)
        dx = _back_project(derivatives, weights.input) if ctx.needs_input_grad[0] else None
        return dx, carry, cell_carry, derivatives, None, None, None


class _Gru(Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - as torch types it
        x: Tensor,
        hidden: Tensor,
        cell: Tensor,
        tap: Tensor,
        weights: Weights,
        order: Order,
        mode: str,
    ) -> tuple[Tensor, ...]:
        gates = _project(x, weights.input, weights.input_bias)
        width = hidden.shape[-1]
        pairs = gates[..., : 2 * width].unbind(-3)
        resets, updates, news = (gate.unbind(-3) for gate in gates.split(width, -1))
        inner = torch.empty_like(gates)  # the products with the state
        inner_rows = inner.unbind(-3)
        inner_pairs = inner[..., : 2 * width].unbind(-3)
        inner_news = inner[..., 2 * width :].unbind(-3)
        if weights.hidden_bias is None:
            inner.zero_()
        else:
            inner.copy_(weights.hidden_bias[..., None, None, :])
        hiddens, hidden_rows = _states(hidden, order)
        masks = order.masks()
        weight = weights.hidden.mT
        for step, before, after in order.steps():
            _add_product_(inner_rows[step], hidden_rows[before], weight)
            pairs[step].add_(inner_pairs[step]).sigmoid_()
            news[step].addcmul_(resets[step], inner_news[step]).tanh_()
            torch.lerp(news[step], hidden_rows[before], updates[step], out=hidden_rows[after])
            if masks is not None:
                _keep(masks[step], hidden_rows[after], hidden_rows[before])
        ctx.order, ctx.weights = order, weights
        before = hiddens[..., order.before, :, :]
        reset = gates[..., :width]
        ctx.save_for_backward(gates, hiddens, inner)
        ctx.mark_non_differentiable(before, reset)
        last = hidden_rows[0 if order.reverse else -1].clone()
        return hiddens[..., order.after, :, :], last, cell.clone(), before, reset

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:  # noqa: ANN401 - as torch types it
        order: Order = ctx.order
        weights: Weights = ctx.weights
        gates, hiddens, inner = ctx.saved_tensors
        r, z, n = gates.chunk(3, -1)
        width = r.shape[-1]
        of_new = (1 - z) * (1 - n * n)
        derivatives = torch.empty_like(gates)  # with respect to the products with the state
        dr, dz, dn = derivatives.chunk(3, -1)
        torch.mul(of_new, r, out=dn)
        torch.mul(dn, 1 - r, out=dr).mul_(inner[..., 2 * width :])
        torch.mul(z, 1 - z, out=dz).mul_(hiddens[..., order.before, :, :] - n)
        rows = derivatives.unbind(-3)
        triples = derivatives.unflatten(-1, (3, width)).unbind(-4)
        updates = z.unbind(-3)
        totals = gradients[0].clone()
        total_rows = totals.unbind(-3)
        masks = order.masks()
        carry = gradients[1]
        for step in order.backwards():
            hidden = total_rows[step].add_(carry)
            triples[step].mul_(hidden.unsqueeze(-2))
            if masks is None:
                carry = _add_product_(hidden * updates[step], rows[step], weights.hidden)
            else:
                rows[step].mul_(masks[step])
                moved = _add_product_(hidden * updates[step], rows[step], weights.hidden)
                carry = torch.where(masks[step], moved, hidden)
        of_new.mul_(totals)
        if order.mask is not None:
            of_new.mul_(order.mask)
        outer = torch.cat([derivatives[..., : 2 * width], of_new], -1)
        dx = _back_project(outer, weights.input) if ctx.needs_input_grad[0] else None
        return dx, carry, None, outer, None, None, None


class _Rnn(Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - as torch types it
        x: Tensor,
        hidden: Tensor,
        cell: Tensor,
        tap: Tensor,
        weights: Weights,
        order: Order,
        mode: str,
    ) -> tuple[Tensor, ...]:
        bias = weights.input_bias
        if bias is not None and weights.hidden_bias is not None:
            bias = bias + weights.hidden_bias
        rows = _project(x, weights.input, bias).unbind(-3)
        hiddens, hidden_rows = _states(hidden, order)
        activate: Callable[..., Tensor] = torch.tanh
        if mode == "rnn_relu":
            activate = partial(torch.clamp_min, min=0)
        masks = order.masks()
        weight = weights.hidden.mT
        for step, before, after in order.steps():
            activate(_add_product_(rows[step], hidden_rows[before], weight), out=hidden_rows[after])
            if masks is not None:
                _keep(masks[step], hidden_rows[after], hidden_rows[before])
        ctx.order, ctx.weights, ctx.mode = order, weights, mode
        ctx.save_for_backward(hiddens)
        before = hiddens[..., order.before, :, :]
        ctx.mark_non_differentiable(before)
        last = hidden_rows[0 if order.reverse else -1].clone()
        return hiddens[..., order.after, :, :], last, cell.clone(), before, x.new_empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:  # noqa: ANN401 - as torch types it
        order: Order = ctx.order
        weights: Weights = ctx.weights
        (hiddens,) = ctx.saved_tensors
        h = hiddens[..., order.after, :, :]
        if ctx.mode == "rnn_tanh":
            derivatives = 1 - h * h
        else:
            derivatives = (h > 0).to(h)
        rows = derivatives.unbind(-3)
        totals = gradients[0].clone().unbind(-3)
        masks = order.masks()
        carry = gradients[1]
        for step in order.backwards():
            hidden = totals[step].add_(carry)
            rows[step].mul_(hidden)
            if masks is None:
                carry = rows[step] @ weights.hidden
            else:
                rows[step].mul_(masks[step])
                carry = torch.where(masks[step], rows[step] @ weights.hidden, hidden)
        dx = _back_project(derivatives, weights.input) if ctx.needs_input_grad[0] else None
        return dx, carry, None, derivatives, None, None, None
