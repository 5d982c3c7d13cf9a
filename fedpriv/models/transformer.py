"""A transformer for images, small enough to train and to read.

Source: Dosovitskiy et al. (2021), An image is worth 16x16 words.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedpriv.errors import ConfigError
from fedpriv.settings.checks import Count, checked


@checked("model")
class VisionTransformer(nn.Module):
    """Divides an image into patches, one token each, for blocks of attention: `[n, c, h, w] -> [n, n_classes]`.

    Layer normalisation comes first in each block, and the head gets the mean of the tokens. The layers of attention are
    `blocks.I.attention.query`, `.key`, `.value` and `.out`, which can have adapters (`add_lora`).

    Args:
        input_shape: `(c, h, w)`; flat inputs are reshaped.
        n_classes: Scores per example.
        patch: Side of a patch; it divides height and width.
        width: Size of a token.
        depth: Number of blocks.
        heads: Number of attention heads; it divides the width.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...] = (1, 28, 28),
        n_classes: int = 10,
        patch: Count = 4,
        width: Count = 64,
        depth: Count = 2,
        heads: Count = 4,
    ) -> None:
        super().__init__()
        if len(input_shape) != 3 or input_shape[1] % patch or input_shape[2] % patch:
            fix = f"give images (channels, height, width) whose sides {patch} divides (data.flat off)"
            raise ConfigError("model.input_shape", input_shape, fix)
        if width % heads:
            raise ConfigError("model.heads", heads, f"give a number that divides the width, {width}")
        self.input_shape = tuple(input_shape)
        self.patch = patch
        tokens = (input_shape[1] // patch) * (input_shape[2] // patch)
        self.embed = nn.Linear(input_shape[0] * patch**2, width)
        self.position = nn.Parameter(torch.empty(tokens, width))
        nn.init.normal_(self.position, std=0.02)
        self.blocks = nn.ModuleList(_EncoderBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Returns scores of `images [n, c, h, w]` or `[n, c * h * w]`."""
        x = images.reshape(images.shape[0], *self.input_shape)  # -> [n, c, h, w]
        squares = x.unfold(2, self.patch, self.patch).unfold(3, self.patch, self.patch)  # -> [n, c, H, W, p, p]
        tokens = squares.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)  # -> [n, H * W, c * p * p]
        x = self.embed(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class _Attention(nn.Module):
    """Multi-head self-attention: for each token a mean of all values, weighted by query and keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        # [n, tokens, width] -> [n, heads, tokens, width / heads]
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(-3, -2) for layer in (self.query, self.key, self.value)
        )
        weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        return self.out((weights @ value).transpose(-3, -2).flatten(-2))


class _EncoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = _Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))
