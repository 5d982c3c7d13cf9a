"""Computes the ChaCha20 keystream by integer operations on tensors, for many streams at once and on the device where
the numbers are needed.

The bits are the same as in `fedpriv.randomness.keystream` (RFC 8439, from block 0 on, nonce zero). Sums wrap around at
32 bits, as in torch's `int32`. On a CPU, the library that `keystream` uses is faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORDS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"
_TURNS = (16, 12, 8, 7)
_PER_BLOCK = 8  # 64-bit words


def compute_words(keys: Tensor, size: int) -> Tensor:
    """Returns the first words of some streams, `[k, 8] -> [k, size]`, `int32` to signed `int64`.

    Args:
        keys: 32 bytes each, as little-endian numbers.
        size: Number of words. The cipher counts blocks of 8 words with a 32-bit counter, which limits this number.
    """
    start = _make_start_rows(keys, -(-size // _PER_BLOCK))
    state = [row.clone() for row in start]
    for _ in range(10):
        state = _round(state)  # columns
        state = _round([state[0], *(row.roll(-turn, 0) for turn, row in enumerate(state[1:], 1))])  # diagonals
        state = [state[0], *(row.roll(turn, 0) for turn, row in enumerate(state[1:], 1))]
    blocks = torch.cat([row.add_(first) for row, first in zip(state, start, strict=True)])  # [16, k, blocks]
    in_order = blocks.permute(1, 2, 0).clone(memory_format=torch.contiguous_format)
    return in_order.view(torch.int64).flatten(1)[:, :size]


def _make_start_rows(keys: Tensor, blocks: int) -> list[Tensor]:
    """Returns the four rows of four numbers with which the computation of a block starts, for all blocks and streams:
    `[4, k, blocks]` each.
    """
    like = keys.new_zeros(4, len(keys), blocks)
    constants, counter = like.clone(), like
    for row, value in zip(constants, _WORDS, strict=True):
        row.fill_(value)
    counter[0] += torch.arange(blocks, dtype=keys.dtype, device=keys.device)
    halves = keys.T.unsqueeze(2).expand(-1, -1, blocks)
    return [constants, halves[:4], halves[4:], counter]


def _round(state: list[Tensor]) -> list[Tensor]:
    """Computes four quarter rounds at the same time."""
    a, b, c, d = state
    for pair in (_TURNS[:2], _TURNS[2:]):
        a = a.add_(b)
        d = _rotate_left(d.bitwise_xor_(a), pair[0])
        c = c.add_(d)
        b = _rotate_left(b.bitwise_xor_(c), pair[1])
    return [a, b, c, d]


def _rotate_left(row: Tensor, bits: int) -> Tensor:
    """Rotates the bits of each number to the left. Sign bits that a signed shift inserts are removed."""
    low = (row >> (32 - bits)).bitwise_and_((1 << bits) - 1)
    return (row << bits).bitwise_or_(low)
