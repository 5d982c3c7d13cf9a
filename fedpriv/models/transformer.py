"""Transformers for images and for text, small enough to train privately and to read.

Sources: Dosovitskiy et al. (2021), An image is worth 16x16 words; Press, Smith and Lewis (2022), Train short, test
long: attention with linear biases.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.errors import ConfigError
from fedpriv.settings.checks import Count, validate_arguments


@validate_arguments("model")
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
            fix = (
                f"must be the shape (channels, height, width) of images whose sides are multiples of {patch}, the "
                "patch: change patch, leave out data.flat, or use another model"
            )
            raise ConfigError("model.input_shape", input_shape, fix)
        _require_heads_divide_width(heads, width)
        self.input_shape = tuple(input_shape)
        self.patch = patch
        tokens = (input_shape[1] // patch) * (input_shape[2] // patch)
        self.embed = nn.Linear(input_shape[0] * patch**2, width)
        self.position = nn.Parameter(torch.empty(tokens, width))
        nn.init.normal_(self.position, std=0.02)
        self.blocks = nn.ModuleList(_AttentionBlock(width, _Attention(width, heads)) for _ in range(depth))
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


@validate_arguments("model")
class CharTransformer(nn.Module):
    """Predicts each next token from those before it: `[n, length]` token numbers to scores `[n, n_classes, length]`.

    It consists of an embedding, blocks of causal attention, and a linear layer. The dimension of classes comes before
    the positions, as torch's cross entropy requires. Positions have no parameters, since these would be noised;
    instead a token attends less to tokens further back, by a slope for each head (ALiBi). So a window may have any
    length.

    Args:
        n_classes: Number of tokens.
        width: Size of a token.
        depth: Number of blocks.
        heads: Number of attention heads; it divides the width.

    Raises:
        ConfigError: If the number of heads does not divide the width.

    Source: Press, Smith and Lewis (2022).
    """

    def __init__(self, n_classes: int, width: Count = 32, depth: Count = 2, heads: Count = 4) -> None:
        super().__init__()
        _require_heads_divide_width(heads, width)
        self.embed = nn.Embedding(n_classes, width)
        self.blocks = nn.ModuleList(_AttentionBlock(width, _CausalAttention(width, heads)) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns scores of the next token at each position."""
        x = self.embed(tokens)  # -> [n, length, width]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).mT  # [n, length, n_classes] -> [n, n_classes, length]


class _Attention(nn.Module):
    """Multi-head self-attention: for each token a mean of all values, weighted by query and keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def _projected(self, x: Tensor) -> list[Tensor]:
        """Returns query, key and value of each head: `[n, tokens, width] -> 3 x [n, heads, tokens, width / heads]`."""
        layers = (self.query, self.key, self.value)
        return [layer(x).unflatten(-1, (self.heads, -1)).transpose(-3, -2) for layer in layers]

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self._projected(x)
        weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        return self.out((weights @ value).transpose(-3, -2).flatten(-2))


class _CausalAttention(_Attention):
    """Multi-head self-attention to a token and those before it, less to what is further back."""

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self._projected(x)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=self._bias(x))
        return self.out(attended.transpose(-3, -2).flatten(-2))

    def _bias(self, x: Tensor) -> Tensor:
        """Returns the terms added to the scores of attention, `[heads, length, length]`: -inf for later tokens."""
        places = torch.arange(x.shape[-2], dtype=x.dtype, device=x.device)
        distance = places[:, None] - places[None, :]
        # From 2, a head that uses little more than the token before, to 1/32, in equal ratios. The paper's slopes are
        # 1/2 to 1/256, for words; with them, characters were learnt more slowly.
        slopes = [2.0 ** (1 - 6 * head / max(self.heads - 1, 1)) for head in range(self.heads)]
        lines = torch.tensor(slopes, dtype=x.dtype, device=x.device)[:, None, None] * distance
        return torch.where(distance < 0, -torch.inf, -lines)


class _AttentionBlock(nn.Module):
    """Attention and two linear layers, each after a layer normalisation and added to its input."""

    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = attention
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def _require_heads_divide_width(heads: int, width: int) -> None:
    if width % heads:
        raise ConfigError("model.heads", heads, f"must be a divisor of the width, {width}")
