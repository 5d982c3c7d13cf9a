"""Recurrent layers of the ghost backend: torch's own results, of every kind, and warnings where they are not served."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedpriv.clients.batch import Batch
from fedpriv.clients.layout import Layout
from fedpriv.oracle.backends import BACKENDS
from fedpriv.oracle.backends.recurrence import Order, Weights, run
from fedpriv.privacy.clipping import Clip

N, T, WIDTH, INPUTS = 3, 4, 5, 2
MODES = {
    "lstm": lambda **options: nn.LSTM(INPUTS, WIDTH, **options),
    "gru": lambda **options: nn.GRU(INPUTS, WIDTH, **options),
    "rnn_tanh": lambda **options: nn.RNN(INPUTS, WIDTH, **options),
    "rnn_relu": lambda **options: nn.RNN(INPUTS, WIDTH, nonlinearity="relu", **options),
}


def weights_of(layer: nn.Module, bias: bool, suffix: str = "") -> Weights:
    names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    values = [getattr(layer, name + suffix).detach() for name in (names if bias else names[:2])]
    return Weights(*values, *([None] * (4 - len(values))))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
def test_recurrent_layer_matches_torch(mode: str, bias: bool, reverse: bool) -> None:
    torch.manual_seed(0)
    layer = MODES[mode](bias=bias, bidirectional=reverse).double()
    x = torch.randn(T, N, INPUTS, dtype=torch.float64, requires_grad=True)
    first = torch.randn(2, N, WIDTH, dtype=torch.float64, requires_grad=True)
    weights = weights_of(layer, bias, "_reverse" if reverse else "")
    tap = torch.zeros(T, N, len(weights.hidden), dtype=torch.float64, requires_grad=True)
    steps = run(mode, x, (first[0], first[1]), tap, weights, Order(T, reverse, None))

    start = first[:1].expand(2, -1, -1) if reverse else first[:1]
    cells = first[1:].expand(2, -1, -1) if reverse else first[1:]
    expected, last = layer(x, (start, cells) if mode == "lstm" else start)
    hidden, cell = last if mode == "lstm" else (last, torch.zeros_like(last))
    expected = expected[..., -WIDTH:]
    for actual, wanted in ((steps.output, expected), (steps.last, hidden[-1])):
        torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-12)
    if mode == "lstm":
        torch.testing.assert_close(steps.last_cell, cell[-1], rtol=1e-12, atol=1e-12)

    seed = torch.randn_like(expected)
    value = (steps.output * seed).sum() + steps.last.sin().sum()
    wanted = (expected * seed).sum() + hidden[-1].sin().sum()
    if mode == "lstm":
        value = value + steps.last_cell.square().sum()
        wanted = wanted + cell[-1].square().sum()
    pairs = zip(torch.autograd.grad(value, (x, first)), torch.autograd.grad(wanted, (x, first)), strict=True)
    for actual, expectation in pairs:
        torch.testing.assert_close(actual, expectation, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_ended_sequence_keeps_state(mode: str) -> None:
    torch.manual_seed(1)
    layer = MODES[mode]().double()
    weights = weights_of(layer, bias=True)
    x = torch.randn(T, N, INPUTS, dtype=torch.float64)
    lengths = torch.tensor([4, 2, 1])
    mask = (torch.arange(T).unsqueeze(1) < lengths).unsqueeze(2)
    zeros = torch.zeros(N, WIDTH, dtype=torch.float64)
    tap = torch.zeros(T, N, len(weights.hidden), dtype=torch.float64, requires_grad=True)
    for reverse in (False, True):
        steps = run(mode, x, (zeros, zeros), tap, weights, Order(T, reverse, mask))
        for index, length in enumerate(lengths.tolist()):
            alone = x[:length, index : index + 1]
            expected = layer(alone.flip(0) if reverse else alone)[0][-1, 0]
            torch.testing.assert_close(steps.last[index], expected, rtol=1e-12, atol=1e-12)
        gradient = torch.autograd.grad(steps.last.sum(), tap)[0]
        assert not gradient[~mask.expand_as(gradient)].any()
        assert gradient[mask.expand_as(gradient)].any()


@pytest.mark.parametrize("mode", MODES)
def test_distinct_client_weights_batched(mode: str) -> None:
    torch.manual_seed(2)
    layers = [MODES[mode]().double() for _ in range(2)]
    both = Weights(
        *(torch.stack(pair) for pair in zip(*(weights_of(layer, bias=True) for layer in layers), strict=True))
    )
    x = torch.randn(2, T, N, INPUTS, dtype=torch.float64)
    zeros = torch.zeros(2, N, WIDTH, dtype=torch.float64)
    tap = torch.zeros(2, T, N, both.hidden.shape[1], dtype=torch.float64, requires_grad=True)
    steps = run(mode, x, (zeros, zeros), tap, both, Order(T, False, None))
    wanted: Tensor = torch.stack([layer(values)[0] for layer, values in zip(layers, x, strict=True)])
    torch.testing.assert_close(steps.output, wanted, rtol=1e-12, atol=1e-12)


class OutputChangedInPlace(nn.Module):
    """Changes what a recurrent layer returned."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.layer = MODES[mode](batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0].mul_(3).flatten(1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("examples", "steps"), [(3, 4), (3, 1), (1, 4)])
def test_recurrent_output_changed_in_place_matches_loop(mode: str, examples: int, steps: int) -> None:
    torch.manual_seed(3)
    model = OutputChangedInPlace(mode).double()
    params = Layout.of(model).row_of(model).unsqueeze(0)
    mask = torch.ones(1, examples, dtype=torch.bool)
    x = torch.randn(1, examples, steps, INPUTS, dtype=torch.float64)
    batch = Batch(torch.zeros(1, dtype=torch.long), x, torch.zeros(1, examples, steps * WIDTH).double(), mask)
    sums = {}
    for name in ("ghost", "loop"):
        sums[name], _ = BACKENDS[name](model, nn.MSELoss()).clipped_sum(params, batch, Clip(0.1))
    torch.testing.assert_close(sums["ghost"], sums["loop"], rtol=1e-10, atol=1e-12)
