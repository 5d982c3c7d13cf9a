"""Models of sequences, and a residual network, for the lines of `architectures.py`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.data.torchvision_compat import import_torchvision

CLASSES = 10


class Recurrent(nn.Module):
    """A recurrent layer with a classifier on its last output."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[n, t, inputs]` to `[n, classes]`."""
        return self.head(self.layer(x)[0][:, -1])


class MeanOfWords(nn.Module):
    """Two layers on the mean of words' embeddings."""

    def __init__(self, words: int, width: int = 64) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.hidden, self.head = nn.Linear(width, width), nn.Linear(width, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        """Maps `[n, t]` to `[n, classes]`."""
        return self.head(functional.relu(self.hidden(self.table(words).mean(1))))


class Attention(nn.Module):
    """Causal attention with several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[n, t, width]` to `[n, t, width]`."""
        parts = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        return self.out(functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2))


class GptBlock(nn.Module):
    """Attention and two linear layers, with residual connections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[n, t, width]` to `[n, t, width]`."""
        x = x + self.attention(self.first(x))
        return x + self.narrow(functional.gelu(self.wide(self.second(x))))


class Gpt(nn.Module):
    """A small GPT with tied first and last weights: scores `[n, words, t]` of the next word."""

    def __init__(self, words: int = 256, length: int = 64, width: int = 384, layers: int = 6, heads: int = 6) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(GptBlock(width, heads) for _ in range(layers)))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.last.weight = self.table.weight

    def forward(self, words: Tensor) -> Tensor:
        """Maps `[n, t]` to `[n, words, t]`."""
        x = self.table(words) + self.positions(torch.arange(words.shape[1], device=words.device))
        return self.last(self.norm(self.blocks(x))).transpose(1, 2)


class HuggingFaceGpt(nn.Module):
    """A GPT-2 of `transformers` with random weights and `peft` adapters for queries, keys and values."""

    def __init__(self, words: int = 256, length: int = 64, width: int = 384, layers: int = 6, heads: int = 6) -> None:
        super().__init__()
        import_torchvision(
            "transforms"
        )  # transformers imports torchvision, which needs a workaround with a CPU build of torch
        from peft import LoraConfig, get_peft_model
        from transformers import GPT2Config, GPT2LMHeadModel

        no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        sizes = {"vocab_size": words, "n_positions": length, "n_embd": width, "n_layer": layers, "n_head": heads}
        body = GPT2LMHeadModel(GPT2Config(**sizes, **no_dropout, use_cache=False, bos_token_id=None, eos_token_id=None))
        self.body = get_peft_model(body, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True))

    def forward(self, words: Tensor) -> Tensor:
        """Maps `[n, t]` to `[n, words, t]`."""
        return self.body(input_ids=words).logits.transpose(1, 2)


class MaskedClassifier(nn.Module):
    """A small BERT as in Hugging Face: torch's attention, and no mask if it would mask nothing."""

    def __init__(self, words: int = 5_000, length: int = 64, width: int = 128, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(words, width, padding_idx=0), nn.Embedding(length, width)
        self.layers = nn.ModuleList(MaskedBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """Maps `[n, t], [n, t]` to `[n, classes]`."""
        allowed = mask.bool()
        if allowed.all():
            bias = None
        else:
            bias = allowed[:, None, None, :].expand(-1, 1, words.shape[1], -1)
        x = self.norm(self.table(words) + self.positions(torch.arange(words.shape[1], device=words.device)))
        for layer in self.layers:
            x = layer(x, bias)
        return self.head(x[:, 0])


class MaskedBlock(nn.Module):
    """A layer of BERT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Maps `[n, t, width], [n, 1, t, t]` to `[n, t, width]`."""
        parts = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(*parts, attn_mask=bias)
        x = self.first(x + self.out(attended.transpose(1, 2).flatten(2)))
        return self.second(x + self.narrow(functional.gelu(self.wide(x))))
