"""Kinds of models that people train, tiny, with data that they take."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

T, E, CLASSES = 5, 4, 3
WORDS = 7


@dataclass(frozen=True)
class Kind:
    """A model, its inputs, and the backend that serves it: torch batches some layers in one precision only."""

    make: Callable[[], nn.Module]
    backend: str = "ghost"
    inputs: str = "sequence"
    loss: Callable[[Any, Any], Tensor] = field(default_factory=nn.CrossEntropyLoss)
    random: bool = False


def inputs(name: str, n: int) -> Any:
    """Made-up inputs of `n` examples."""
    x = torch.randn(n, T, E)
    words = torch.randint(1, WORDS, (n, T))
    lengths = torch.randint(2, T + 1, (n, 1))
    mask = torch.arange(T) < lengths
    return {
        "sequence": x,
        "image": torch.randn(n, 2, 4, 4),
        "flat": x[:, 0],
        "volume": torch.randn(n, 1, 3, 3, 3),
        "words": words,
        "dict": {"words": words.where(mask, 0), "mask": mask},
        "tuple": (x, mask),
        "nested": {"first": {"x": x}, "others": (x[:, 0], mask)},
        "one dict": ({"x": x},),
        "labelled": {"x": x[:, 0], "labels": torch.randint(0, CLASSES, (n,))},
    }[name]


class Mapped(nn.Module):
    """Layers, a function `(layers, inputs) -> [n, E]` of them, and a linear head."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.head, self.function = nn.ModuleList(layers), nn.Linear(E, CLASSES), function

    def forward(self, *args: Any, **named: Any) -> Tensor:
        return self.head(self.function(self.layers, *args, **named))


def of(function: Callable[..., Tensor], *layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Mapped(function, *(make() for make in layers))


def last_of_rnn(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return layers[0](x)[0][:, -1]


def time_first_rnn(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return layers[0](x.transpose(0, 1))[0][-1]


def packed(layers: nn.ModuleList, x: Tensor, mask: Tensor) -> Tensor:
    parts = nn.utils.rnn.pack_padded_sequence(x, mask.sum(1), batch_first=True, enforce_sorted=False)
    return layers[0](parts)[1][-1]


def packed_and_padded(layers: nn.ModuleList, x: Tensor, mask: Tensor) -> Tensor:
    parts = nn.utils.rnn.pack_padded_sequence(x.transpose(0, 1), mask.sum(1), enforce_sorted=False)
    outputs, lengths = nn.utils.rnn.pad_packed_sequence(layers[0](parts)[0], batch_first=True, total_length=T)
    return outputs.unflatten(2, (-1, E)).sum((1, 2)) / lengths.unsqueeze(1)


def from_states(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """From first states that depend on the example, in both directions, with all that a layer returns."""
    first = x[:, :1, : E // 2].transpose(0, 1).expand(4, -1, -1).contiguous()
    outputs, (hidden, cell) = layers[0](x, (first, 2 * first))
    return outputs.mean(1) + torch.cat([hidden[0] + hidden[3], cell.sum(0)], 1)


def attended(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return layers[0](x, x, x, need_weights=False)[0].mean(1)


def attended_time_first(layers: nn.ModuleList, x: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    return layers[0](x, x, x)[0].mean(0)


def with_weights(layers: nn.ModuleList, x: Tensor) -> Tensor:
    values, weights = layers[0](x, x, x, average_attn_weights=False)
    return values.mean(1) + weights.square().mean((1, 2, 3)).unsqueeze(1)


def attended_masked(layers: nn.ModuleList, x: Tensor, mask: Tensor) -> Tensor:
    return layers[0](x, x, x, key_padding_mask=~mask)[0].mean(1)


def attended_across(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return layers[0](x, x[:, :2, :3], x[:, :2, :2])[0].mean(1)


def attended_by_flag(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return layers[0](x, x, x, attn_mask=causal(x), is_causal=True, need_weights=False)[0][:, -1]


def attended_with_bias(layers: nn.ModuleList, x: Tensor, mask: Tensor) -> Tensor:
    """A mask of numbers for each example and head, as relative positions need."""
    scores = torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -1e9).to(x)
    each_head = scores.repeat_interleave(2, 0).unsqueeze(1).expand(-1, T, -1)
    return layers[0](x, x, x, attn_mask=each_head)[0].mean(1)


def causal(x: Tensor) -> Tensor:
    return torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)


def attended_causally(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return layers[0](x, x, x, attn_mask=causal(x), need_weights=False)[0][:, -1]


def encoded(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return layers[0](x).mean(1)


def encoded_masked(layers: nn.ModuleList, x: Tensor, mask: Tensor) -> Tensor:
    return layers[0](x, src_key_padding_mask=~mask)[:, 0]


def encoded_causally(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return layers[0](x, mask=causal(x))[:, -1]


def of_words(layers: nn.ModuleList, words: Tensor) -> Tensor:
    return layers[0](words).mean(1)


def of_text(layers: nn.ModuleList, words: Tensor, mask: Tensor) -> Tensor:
    hidden = layers[1](layers[0](words), src_key_padding_mask=~mask)
    return (hidden * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True)


def of_nested(layers: nn.ModuleList, first: dict[str, Tensor], others: tuple[Tensor, Tensor]) -> Tensor:
    return layers[0](first["x"]).where(others[1].unsqueeze(2), 0).sum(1) + others[0]


def means(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return layers[0](x.mean(1))


def twice(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return layers[0](layers[0](x).tanh())


def rematerialised(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return checkpoint(lambda z: layers[0](z).tanh(), x, use_reentrant=False).mean(1)


def rotated(layers: nn.ModuleList, x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(layers[0](x).mean(1))
    angles = torch.arange(spectrum.shape[-1], dtype=x.dtype, device=x.device)
    return torch.fft.irfft(spectrum * torch.polar(torch.ones_like(angles), angles), n=E)


def picked(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return layers[0](x) * layers[1](x).softmax(1).topk(1).values


class OneOrder(nn.Module):
    """Recurrent cells, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.GRUCell(E, E), nn.RNNCell(E, E), nn.Linear(E, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = other = x.new_zeros(len(x), E)
        for step in x.unbind(1):
            state = self.first(step, state)
            other = self.second(state, other)
        return self.head(other)


class Tied(nn.Module):
    """A language model whose first and last weights are one; with `each` it gives scores at each position."""

    def __init__(self, words: int = WORDS, each: bool = False) -> None:
        super().__init__()
        self.words, self.mix, self.each = nn.Embedding(words, E), nn.Linear(E, E), each
        self.last = nn.Linear(E, words, bias=False)
        self.last.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        hidden = self.mix(self.words(words)).tanh()
        if self.each:
            return self.last(hidden)
        return self.last(hidden.mean(1))[:, :CLASSES]


def next_words(scores: Tensor, first: Tensor) -> Tensor:
    """Each position is to tell a number that depends on the example's label."""
    targets = (first.unsqueeze(1) + torch.arange(T, device=first.device)) % WORDS
    return functional.cross_entropy(scores.transpose(1, 2), targets)


class Residual(nn.Module):
    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm, self.relu, self.head = norm(), nn.ReLU(inplace=True), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.relu(self.norm(self.second(x)))
        return self.head(x.mean((2, 3)))


def frozen_batch_norm() -> nn.Module:
    norm = nn.BatchNorm2d(4).requires_grad_(False)
    norm.running_mean.normal_()
    return norm.eval()


class Unet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(2, 4, 2, stride=2), nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.head = nn.Conv2d(4, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([x, self.up(self.down(x).tanh())], 1)).mean((2, 3))


class Adapted(nn.Module):
    """A frozen layer with a trained product of two thin matrices beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(E, E).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(1, E)), nn.Parameter(torch.randn(E, 1))
        self.head = nn.Linear(E, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x) + x @ self.a.T @ self.b.T)


class Out(NamedTuple):
    logits: Tensor
    hidden: Tensor


class WithFields(nn.Linear):
    def forward(self, input: Tensor) -> Any:
        logits = super().forward(input)
        return Out(logits, input)


class OwnLoss(nn.Linear):
    """Computes its loss from labels among its inputs, as Hugging Face models do."""

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        logits = super().forward(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


class Sinusoids(nn.Module):
    """Positions in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.arange(T * E).reshape(T, E).sin() / math.e)
        self.mix, self.head = nn.Linear(E, E), nn.Linear(E, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(x + self.places).tanh().mean(1))


def encoder(layers: int = 1, **options: Any) -> Callable[[], nn.Module]:
    settings = {"dropout": 0.0, "batch_first": True, **options}
    return lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(E, 2, 8, **settings), layers)


def attention(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.MultiheadAttention(E, 2, **{"batch_first": True, **options})


def linear() -> nn.Module:
    return nn.Linear(E, E)


parametrizations = nn.utils.parametrizations

KINDS = {
    # one layer, and plain networks
    "linear": Kind(lambda: nn.Linear(E, CLASSES), "linear", "flat"),
    "mlp": Kind(lambda: nn.Sequential(nn.Linear(E, E), nn.ReLU(inplace=True), nn.Linear(E, CLASSES)), inputs="flat"),
    "dropout": Kind(of(lambda m, x: m[1](m[0](x)), linear, lambda: nn.Dropout(0.5)), inputs="flat", random=True),
    "activations with weights": Kind(of(means, nn.PReLU)),
    "bilinear": Kind(of(lambda m, x: m[0](x[:, 0], x[:, 1]), lambda: nn.Bilinear(E, E, E))),
    "mixture of experts": Kind(of(picked, linear, lambda: nn.Linear(E, 2)), inputs="flat"),
    "complex numbers inside": Kind(of(rotated, linear)),
    "buffer": Kind(Sinusoids),
    "adapter next to a frozen layer": Kind(Adapted, inputs="flat"),
    "a layer used twice": Kind(of(twice, linear), inputs="flat"),
    "layer norm and rms norm": Kind(
        of(lambda m, x: m[1](m[0](x)).mean(1), lambda: nn.LayerNorm(E), lambda: nn.RMSNorm(E))
    ),
    # images
    "group norm": Kind(lambda: Residual(lambda: nn.GroupNorm(2, 4)), inputs="image"),
    "instance norm": Kind(lambda: Residual(lambda: nn.InstanceNorm2d(4, affine=True)), inputs="image"),
    "frozen batch norm in eval mode": Kind(lambda: Residual(frozen_batch_norm), inputs="image"),
    "channel dropout": Kind(
        of(lambda m, x: m[1](m[0](x)).amax((2, 3)), lambda: nn.Conv2d(2, E, 2), lambda: nn.Dropout2d(0.5)),
        inputs="image",
        random=True,
    ),
    "padding around, groups and strides": Kind(
        of(
            lambda m, x: m[0](x).tanh().mean((2, 3)),
            lambda: nn.Conv2d(2, E, 3, stride=2, padding=1, groups=2, padding_mode="circular"),
        ),
        inputs="image",
    ),
    "padding to the same size": Kind(
        of(lambda m, x: m[0](x).tanh().mean((2, 3)), lambda: nn.Conv2d(2, E, 2, padding="same")), inputs="image"
    ),
    "u-net": Kind(Unet, inputs="image"),
    "three dimensions": Kind(of(lambda m, x: m[0](x).mean((2, 3, 4)), lambda: nn.Conv3d(1, E, 2)), inputs="volume"),
    "depthwise": Kind(
        of(lambda m, x: m[0](x.mT).mean(2), lambda: nn.Conv1d(E, E, 2, groups=E, padding=1)),
    ),
    # sequences
    "rnn": Kind(of(last_of_rnn, lambda: nn.RNN(E, E, batch_first=True))),
    "rnn with relu, two layers": Kind(of(last_of_rnn, lambda: nn.RNN(E, E, 2, "relu", batch_first=True))),
    "lstm": Kind(of(last_of_rnn, lambda: nn.LSTM(E, E, batch_first=True))),
    "lstm, time first": Kind(of(time_first_rnn, lambda: nn.LSTM(E, E))),
    "lstm, two layers with dropout": Kind(
        of(last_of_rnn, lambda: nn.LSTM(E, E, 2, dropout=0.5, batch_first=True)), random=True
    ),
    "lstm, both ways": Kind(of(last_of_rnn, lambda: nn.LSTM(E, E // 2, bidirectional=True, batch_first=True))),
    "lstm with projection": Kind(of(last_of_rnn, lambda: nn.LSTM(E, 6, proj_size=E, batch_first=True)), "vmap or loop"),
    "gru": Kind(of(last_of_rnn, lambda: nn.GRU(E, E, batch_first=True))),
    "gru, packed": Kind(of(packed, lambda: nn.GRU(E, E, batch_first=True)), inputs="tuple"),
    "lstm, packed": Kind(
        of(lambda m, x, mask: packed(m, x, mask)[-1], lambda: nn.LSTM(E, E, batch_first=True)), inputs="tuple"
    ),
    "gru, packed, two layers, both ways": Kind(
        of(packed_and_padded, lambda: nn.GRU(E, E, 2, bidirectional=True, batch_first=True)), inputs="tuple"
    ),
    "lstm, packed, both ways": Kind(
        of(packed_and_padded, lambda: nn.LSTM(E, E, bidirectional=True, bias=False, batch_first=True)), inputs="tuple"
    ),
    "rnn, packed, two layers": Kind(of(packed_and_padded, lambda: nn.RNN(E, E, 2, batch_first=True)), inputs="tuple"),
    "lstm from states, two layers, both ways": Kind(
        of(from_states, lambda: nn.LSTM(E, E // 2, 2, bidirectional=True, batch_first=True))
    ),
    "gru without bias, both ways, time first": Kind(
        of(
            lambda m, x: m[0](x.transpose(0, 1))[0].mean(0),
            lambda: nn.GRU(E, E // 2, bidirectional=True, bias=False),
        )
    ),
    "cells, step by step": Kind(OneOrder),
    "lstm cell": Kind(of(lambda m, x: m[0](x[:, 0])[0], lambda: nn.LSTMCell(E, E))),
    "temporal convolution": Kind(of(lambda m, x: m[0](x.mT).tanh().mean(2), lambda: nn.Conv1d(E, E, 2, dilation=2))),
    # attention
    "attention": Kind(of(attended, attention())),
    "attention, time first": Kind(of(attended_time_first, attention(batch_first=False))),
    "attention with weights": Kind(of(with_weights, attention())),
    "attention with bias_kv": Kind(of(attended, attention(add_bias_kv=True))),
    "attention with zeros": Kind(of(attended, attention(add_zero_attn=True))),
    "attention without bias, with dropout": Kind(of(attended, attention(bias=False, dropout=0.5)), random=True),
    "attention across, other widths of keys and values": Kind(of(attended_across, attention(kdim=3, vdim=2))),
    "attention, causal by flag": Kind(of(attended_by_flag, attention())),
    "attention, a mask of numbers for each head": Kind(of(attended_with_bias, attention()), inputs="tuple"),
    "attention, padding mask": Kind(of(attended_masked, attention()), inputs="tuple"),
    "attention, causal": Kind(of(attended_causally, attention())),
    "transformer encoder": Kind(of(encoded, encoder(2))),
    "transformer encoder, norm first, gelu": Kind(of(encoded, encoder(norm_first=True, activation="gelu"))),
    "transformer encoder, padding mask": Kind(of(encoded_masked, encoder()), inputs="tuple"),
    "transformer encoder, causal": Kind(of(encoded_causally, encoder())),
    "transformer decoder": Kind(
        of(lambda m, x: m[0](x, x).mean(1), lambda: nn.TransformerDecoderLayer(E, 2, 8, 0.0, batch_first=True))
    ),
    "transformer": Kind(
        of(lambda m, x: m[0](x, x).mean(1), lambda: nn.Transformer(E, 2, 1, 1, 8, 0.0, batch_first=True))
    ),
    # words
    "embedding": Kind(of(of_words, lambda: nn.Embedding(WORDS, E, padding_idx=0)), inputs="words"),
    "bag of words": Kind(of(lambda m, words: m[0](words), lambda: nn.EmbeddingBag(WORDS, E)), inputs="words"),
    "bag of words, largest": Kind(
        of(lambda m, words: m[0](words), lambda: nn.EmbeddingBag(WORDS, E, mode="max")), inputs="words"
    ),
    "bag of words, sum, with padding": Kind(
        of(lambda m, words: m[0](words), lambda: nn.EmbeddingBag(WORDS, E, mode="sum", padding_idx=2)), inputs="words"
    ),
    "bag of words, weighted": Kind(
        of(
            lambda m, words, mask: m[0](words, per_sample_weights=mask.to(m[0].weight) + 0.5),
            lambda: nn.EmbeddingBag(WORDS, E, mode="sum"),
        ),
        inputs="dict",
    ),
    "bag of words, padded": Kind(
        of(lambda m, words, mask: m[0](words), lambda: nn.EmbeddingBag(WORDS, E, padding_idx=0)), inputs="dict"
    ),
    "positions": Kind(
        of(
            lambda m, words: (m[0](words) + m[1](torch.arange(T, device=words.device))).tanh().mean(1),
            lambda: nn.Embedding(WORDS, E),
            lambda: nn.Embedding(40, E),
        ),
        inputs="words",
    ),
    "large tied weights": Kind(lambda: Tied(words=97), inputs="words"),
    "language model": Kind(lambda: Tied(words=97, each=True), inputs="words", loss=next_words),
    "tied weights": Kind(Tied, inputs="words"),
    "text with a mask, by name": Kind(
        of(of_text, lambda: nn.Embedding(WORDS, E, padding_idx=0), lambda: encoder()().layers[0]), inputs="dict"
    ),
    # weights that are computed
    "weight norm": Kind(of(means, lambda: parametrizations.weight_norm(linear()))),
    "orthogonal weights": Kind(of(means, lambda: parametrizations.orthogonal(linear()))),
    "spectral norm": Kind(of(means, lambda: parametrizations.spectral_norm(linear())), "loop"),
    "spectral norm in eval mode": Kind(of(means, lambda: parametrizations.spectral_norm(linear()).eval())),
    "spectral norm by hooks in eval mode": Kind(of(means, lambda: nn.utils.spectral_norm(linear()).eval())),
    "spectral norm by hooks": Kind(of(means, lambda: nn.utils.spectral_norm(linear())), "loop"),
    "random slopes": Kind(of(means, nn.RReLU), "loop", random=True),
    "checkpointing, reentrant": Kind(
        of(lambda m, x: checkpoint(lambda z: m[0](z).tanh(), x, use_reentrant=True).mean(1), linear), "loop"
    ),
    "checkpointing": Kind(of(rematerialised, linear), "loop"),
    # other inputs and outputs than one tensor
    "nested inputs": Kind(of(of_nested, linear), inputs="nested"),
    "a dict by position": Kind(of(lambda m, inputs: m[0](inputs["x"]).mean(1), linear), inputs="one dict"),
    "outputs with fields": Kind(
        lambda: WithFields(E, CLASSES), inputs="flat", loss=lambda out, y: functional.cross_entropy(out.logits, y)
    ),
    "built-in loss": Kind(lambda: OwnLoss(E, CLASSES), inputs="labelled", loss=lambda out, _: out["loss"]),
}
