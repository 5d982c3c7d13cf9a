"""Recurrent cells in elementary operations, because torch's fused cells have no vmap rule, or do not expose their two
matrix products.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""`torch.nn.functional.linear` or a replacement."""


def cell_functions(linear: Linear) -> dict[object, Callable[..., object]]:
    """Returns replacements of torch's recurrent cells, with products computed by `linear`."""

    def products(
        x: Tensor, hidden: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return linear(x, w_ih, b_ih), linear(hidden, w_hh, b_hh)

    def lstm_cell(
        x: Tensor,
        state: tuple[Tensor, Tensor],
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        hidden, cell = state
        outer, inner = products(x, hidden, w_ih, w_hh, b_ih, b_hh)
        i, f, g, o = (outer + inner).chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell

    def gru_cell(
        x: Tensor,
        hidden: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
    ) -> Tensor:
        outer, inner = products(x, hidden, w_ih, w_hh, b_ih, b_hh)
        outer_r, outer_z, outer_n = outer.chunk(3, -1)
        inner_r, inner_z, inner_n = inner.chunk(3, -1)
        new = (outer_n + (outer_r + inner_r).sigmoid() * inner_n).tanh()
        return new + (outer_z + inner_z).sigmoid() * (hidden - new)

    def plain_cell(activate: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        def cell(x: Tensor, hidden: Tensor, *weights: Tensor) -> Tensor:
            w_ih, w_hh, *biases = weights
            outer, inner = products(x, hidden, w_ih, w_hh, *biases)
            return activate(outer + inner)

        return cell

    return {
        torch.lstm_cell: lstm_cell,
        torch.gru_cell: gru_cell,
        torch.rnn_tanh_cell: plain_cell(torch.tanh),
        torch.rnn_relu_cell: plain_cell(torch.relu),
    }
