"""Computes torch's recurrent layers and cells for the ghost backend, and records the factors of their weights'
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.nn import functional

from fedpriv.oracle.backends import recurrence
from fedpriv.oracle.backends.below_vmap import call_below_vmap
from fedpriv.oracle.backends.calls import Call, Cells, Value
from fedpriv.oracle.backends.factors import Dense, Gradients, OuterProducts
from fedpriv.oracle.backends.recurrence import Order, Steps, Weights

_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@dataclass(frozen=True)
class Layers:
    """Settings of a recurrent network, in the order of torch's own functions.

    Attributes:
        mode: `lstm`, `gru`, `rnn_tanh` or `rnn_relu`.
        biases: True if each layer and direction has two biases.
        count: Number of layers.
        dropout: Probability of dropping an output of all layers but the last.
        train: True if dropout is applied.
        bidirectional: True if each layer has two directions.
    """

    mode: str
    biases: bool
    count: int
    dropout: float
    train: bool
    bidirectional: bool

    @property
    def directions(self) -> int:
        """Number of directions of each layer."""
        return 1 + self.bidirectional

    @property
    def weights_per_direction(self) -> int:
        """Number of weights and biases of one layer in one direction."""
        return 2 + 2 * self.biases

    @property
    def n_weights(self) -> int:
        """Number of all weights and biases."""
        return self.count * self.directions * self.weights_per_direction


class RecurrentRecorder:
    """Computes recurrent layers under vmap and records their calls.

    Args:
        names: The names of the examples' copies of parameters, by `id`.
        shared: The parameters that recorded calls use instead, by name.
        calls: The list to which calls are appended.
        levels: Number of nested vmaps.
    """

    def __init__(self, names: Mapping[int, str], shared: Mapping[str, Tensor], calls: list[Call], levels: int) -> None:
        self._names = names
        self._shared = shared
        self._calls = calls
        self._levels = levels
        self._packed: dict[int, Tensor] = {}
        """Sizes of packed batches by `id`: for one example, 1 at each of its steps and 0 afterwards."""

    def functions(self) -> dict[object, Callable[..., object]]:
        """Returns the replacements of torch's functions; each returns None for a call that it cannot replace."""
        layers = {getattr(torch, mode): self._function(mode) for mode in _GATES}
        return {
            **layers,
            torch._pack_padded_sequence: self._pack,  # pyright: ignore[reportPrivateImportUsage]  # noqa: SLF001 - what torch.nn.utils.rnn calls
            torch._pad_packed_sequence: self._pad,  # pyright: ignore[reportPrivateImportUsage]  # noqa: SLF001
            Tensor.__getitem__: self._first_size,
        }

    def _function(self, mode: str) -> Callable[..., object]:
        def layer(*args: Any) -> object:  # noqa: ANN401 - torch's own
            return self._layer(mode, *args)

        return layer

    def _layer(self, mode: str, x: Tensor, *args: Any) -> tuple[Tensor, ...] | None:  # noqa: ANN401
        """Replaces `torch.lstm` and similar functions; their arguments differ for packed and padded sequences."""
        packed = isinstance(args[0], Tensor) and isinstance(args[2], list | tuple)
        if packed:
            sizes, state, weights, *options = args
            mask = self._packed.get(id(sizes))
            if mask is None:
                return None
            x = x.unsqueeze(0)
            batch_first = True
        else:
            state, weights, *options, batch_first = args
            mask = None
        settings = Layers(mode, *options)
        if mode == "lstm":
            hidden, cell = state
        else:
            hidden = state
            cell = torch.zeros_like(state)
        shared = self._weights(weights)
        if shared is None or len(weights) != settings.n_weights:
            return None
        sequences = x if batch_first else x.transpose(0, 1)
        examples = [sequences, hidden.transpose(0, 1), cell.transpose(0, 1)]
        if mask is not None:
            examples.append(mask.bool().unsqueeze(0))
        names = [self._names.get(id(weight), "") for weight in weights]
        output, last, last_cell = call_below_vmap(_Computation(settings, names, self._calls).run, examples, shared)
        if packed:
            output = output.squeeze(0)
        elif not batch_first:
            output = output.transpose(0, 1)
        states = (last.transpose(0, 1), last_cell.transpose(0, 1))
        if mode == "lstm":
            return output, *states
        return output, states[0]

    def _weights(self, weights: Sequence[Tensor]) -> list[Tensor] | None:
        """Returns each weight as one tensor for all examples; None if a weight was computed from parameters."""
        shared: list[Tensor] = []
        for weight in weights:
            name = self._names.get(id(weight))
            if name is None and is_batchedtensor(weight):
                return None
            if name is not None:
                weight = self._shared[name]
            shared.append(weight.detach())
        return shared

    def _pack(self, x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor] | None:
        """Packs one example: all its steps are kept, and sizes mark the steps that belong to it."""
        sequences = x if batch_first else x.transpose(0, 1)
        if len(sequences) != 1 or len(lengths) != 1:
            return None
        steps = torch.arange(sequences.shape[1], device=lengths.device)
        sizes = (steps < lengths).long()
        self._packed[id(sizes)] = sizes
        return sequences.squeeze(0), sizes

    def _pad(
        self, data: Tensor, sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
    ) -> tuple[Tensor, Tensor] | None:
        if id(sizes) not in self._packed:
            return None
        ended = (sizes == 0).to(data.device).view(-1, *(1,) * (data.dim() - 1))
        padded = data.masked_fill(ended, padding_value)
        missing = total_length - len(data)
        if missing > 0:
            padded = torch.cat([padded, padded.new_full((missing, *data.shape[1:]), padding_value)])
        return padded.unsqueeze(0 if batch_first else 1), sizes.sum().reshape(1)

    def _first_size(self, tensor: Tensor, index: Any) -> int | None:  # noqa: ANN401 - torch's own
        """Returns the largest batch size of a packed sequence, which is 1, a single example."""
        if id(tensor) in self._packed and isinstance(index, int) and index == 0:
            return 1
        return None


class _Computation:
    """Computes all layers and directions below vmap, and records a call for each.

    Args:
        settings: The settings of the layers.
        names: Names of the weights; empty for weights that get no gradient.
        calls: The list to which calls are appended.
    """

    def __init__(self, settings: Layers, names: list[str], calls: list[Call]) -> None:
        self._settings = settings
        self._names = names
        self._calls = calls

    def run(self, examples: list[Tensor], shared: list[Tensor]) -> tuple[Tensor, ...]:
        """Returns outputs, last hidden and last cell states.

        Args:
            examples: `[..., m, t, inputs]`, initial states `[..., m, layers, width]` and, for packed sequences, the
                mask `[..., m, t]`; m sequences for each example.
            shared: Weights, with a first dimension of clients if clients have separate weights.
        """
        sequences, hidden, cell, *masks = examples
        clients = 1 if shared[0].dim() == 3 else 0
        front = sequences.shape[:-2]
        x = _steps_first(sequences.to(shared[0].dtype), clients)
        mask = _steps_first(masks[0].unsqueeze(-1), clients) if masks else None
        states = [_flat(state.to(x.dtype), clients, 2) for state in (hidden, cell)]
        settings = self._settings
        per_direction = settings.weights_per_direction
        lasts: list[Tensor] = []
        last_cells: list[Tensor] = []
        index = 0
        for layer in range(settings.count):
            outputs: list[Tensor] = []
            for direction in range(settings.directions):
                which = slice(index * per_direction, (index + 1) * per_direction)
                weights = Weights(*shared[which], *([None] * (4 - per_direction)))
                start = states[0][..., index, :], states[1][..., index, :]
                steps = self._direction(x, start, weights, self._names[which], Order(x.shape[-3], direction == 1, mask))
                outputs.append(steps.output)
                lasts.append(steps.last)
                last_cells.append(steps.last_cell)
                index += 1
            if settings.bidirectional:
                x = torch.cat(outputs, -1)
            else:
                (x,) = outputs
            if settings.train and settings.dropout and layer + 1 < settings.count:
                x = functional.dropout(x, settings.dropout)
        # in new memory, since a model may change it in place, and the states before each step are kept
        output = x.transpose(-3, -2).clone(memory_format=torch.contiguous_format)
        output = output.view(*front, *x.shape[-3:-2], x.shape[-1])
        last, last_cell = (torch.stack(each, -2).reshape(*front, index, -1) for each in (lasts, last_cells))
        return output, last, last_cell

    def _direction(
        self, x: Tensor, start: tuple[Tensor, Tensor], weights: Weights, names: list[str], order: Order
    ) -> Steps:
        mode = self._settings.mode
        gates = weights.hidden.shape[-2]
        # nothing is stored for the tap: one number, expanded
        tap = x.new_zeros(()).expand(*x.shape[:-1], gates).requires_grad_()
        steps = recurrence.run(mode, x, start, tap, weights, order)
        inputs = x.detach()
        before = steps.before.detach()
        reset = steps.reset.detach()

        def terms(_: Tensor, gradient: Tensor, cells: Cells) -> list[Gradients]:
            left = _example_rows(gradient, cells).contiguous()  # two products read it
            bias = Dense(left.sum(2))
            inner = left
            inner_bias = bias
            if mode == "gru":
                # the product with the state is multiplied by the reset gate before it is added
                width = left.shape[-1] // 3
                new = left[..., 2 * width :] * _example_rows(reset, cells)
                inner = torch.cat([left[..., : 2 * width], new], -1)
                inner_bias = Dense(inner.sum(2))
            outer = [
                OuterProducts(left, _example_rows(inputs, cells)),
                OuterProducts(inner, _example_rows(before, cells)),
            ]
            return [*outer, bias, inner_bias]

        if any(names):
            self._calls.append(Call(tuple(names), Value.of(inputs), Value.of(tap), terms))
        return steps


def _flat(values: Tensor, clients: int, width: int) -> Tensor:
    """Joins all dimensions of examples, `[(k), ..., *rest]` to `[(k), n, *rest]`; the rest has `width` dimensions."""
    return values.flatten(clients, values.dim() - width - 1)


def _steps_first(sequences: Tensor, clients: int) -> Tensor:
    """`[(k), ..., t, width]` to `[(k), t, n, width]`, in new memory."""
    return _flat(sequences, clients, 2).transpose(-3, -2).contiguous()


def _example_rows(values: Tensor, cells: Cells) -> Tensor:
    """`[(k), t, n, width]` to `[k, b, positions, width]`."""
    return values.transpose(-3, -2).reshape(*cells, -1, values.shape[-1])
