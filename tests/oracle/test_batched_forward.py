"""The ghost backend without vmap: which models it takes, that rows stay apart, and that the batch size is hidden."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpriv.clients.batch import Batch
from fedpriv.clients.layout import Layout
from fedpriv.models import CharTransformer, FemnistCNN, MnistCNN, ResNet18, VisionTransformer, add_lora
from fedpriv.oracle.backends.batched_forward import BatchedForward, BatchSize, MixingRowsError
from fedpriv.oracle.backends.calls import Call
from fedpriv.oracle.backends.factors import Dense, OuterProducts
from fedpriv.oracle.backends.functional import Functional
from fedpriv.oracle.backends.ghost import GhostBackend
from fedpriv.oracle.backends.loop import LoopBackend
from fedpriv.oracle.backends.row_layers import OPERATIONS
from fedpriv.oracle.backends.tables import OneVector
from fedpriv.privacy.clipping import Clip

N, CLASSES, LOSS = 5, 3, nn.CrossEntropyLoss()
IMAGES = torch.randn(N, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
WORDS = torch.arange(N * 6).reshape(N, 6) % 7
STEPS = torch.randn(N, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


class Custom(nn.Module):
    """A function of a batch and this module, which has two layers, a weight and a buffer."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, CLASSES)
        self.scale, self.offset = nn.Parameter(torch.rand(8) + 0.5), nn.Parameter(torch.randn(1, 8))
        self.register_buffer("mean", torch.randn(8))
        self.table = torch.randn(8)  # neither a parameter nor a buffer

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self, self.first(x.flatten(1)).tanh(), x))


class Sequences(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer, self.last = layer, nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs, state = self.layer(x)
        hidden = state[0] if isinstance(state, tuple) else state
        return self.last(outputs[:, -1, :4] + hidden[-1])


class Sentences(nn.Module):
    """Words and positions, a mask where it masks anything, torch's attention, and a layer tied to the words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions, self.norm = nn.Embedding(7, 4), nn.Embedding(6, 4), nn.LayerNorm(4)
        self.bag, self.start = nn.EmbeddingBag(7, 4), nn.Parameter(torch.randn(1, 1, 4))
        self.last = nn.Linear(4, 7, bias=False)
        self.last.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        allowed = x != 0
        h = self.norm(self.words(x) + self.positions(torch.arange(x.shape[1]))) + self.start
        if allowed.all():
            mask = None
        else:
            mask = allowed[:, None, None, :].expand(-1, 1, x.shape[1], -1)
        heads = h.view(x.shape[0], -1, 2, 2).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
        return self.last(attended.transpose(1, 2).flatten(2).mean(1) + self.bag(x))[:, :CLASSES]


class OneScore(nn.Module):
    """The mean of a text's scores over its positions."""

    def __init__(self, text: nn.Module) -> None:
        super().__init__()
        self.text = text

    def forward(self, x: Tensor) -> Tensor:
        return self.text(x).mean(2)[:, :CLASSES]


class Mean(nn.Module):
    """The mean of each example's words, `[n, t, d] -> [n, d]`."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Transposed(nn.Module):
    """Layers with weights `[inputs, outputs]`, as in GPT-2 of Hugging Face."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.offset = nn.Parameter(torch.randn(64, 8)), nn.Parameter(torch.randn(8))
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.addmm(self.offset, x.flatten(1), self.weight).tanh())


def clipped(backend, model: nn.Module, x: Tensor, clients: int = 1) -> Tensor:
    rows = Layout.of(model).row_of(model).expand(clients, -1)
    targets = torch.arange(clients * N).reshape(clients, N) % CLASSES
    batch = Batch(torch.arange(clients), x.expand(clients, *x.shape), targets, torch.ones(clients, N, dtype=torch.bool))
    return backend.clipped_sum(rows, batch, Clip(0.3))[0]


def plain(name: str) -> nn.Module:
    torch.manual_seed(3)
    models = {
        "two layers": lambda: Custom(lambda own, h, x: h),
        "parameter outside the layers": lambda: Custom(lambda own, h, x: h * own.scale + own.offset - own.mean),
        "known sizes": lambda: Custom(lambda own, h, x: h.view(h.size(0), 2, h.shape[1] // 2).reshape(-1, 8)),
        "joined": lambda: Custom(lambda own, h, x: torch.cat([h[:, 4:], torch.cat([h[:, :2], h[:, 2:4]], 1)], dim=-1)),
        "stacked": lambda: Custom(lambda own, h, x: torch.stack([h, 2 * h], 1).flatten(1)[:, 4:12] + torch.zeros(8)),
        "a new axis": lambda: Custom(lambda own, h, x: h[..., :, None].flatten(1)),
        "transposed weights": Transposed,
        "fewer dimensions": lambda: Custom(lambda own, h, x: (torch.stack([h, h.exp(), 2 * h, h, h], 1) * h).sum(1)),
        "transposed matrices": lambda: Custom(lambda own, h, x: h.view(h.size(0), 2, 4).mT.flatten(1)),
        "padded": lambda: Custom(lambda own, h, x: functional.pad(h[:, None], (0, 0, 1, 1)).sum(1)),
        "zeros of fixed sizes": lambda: Custom(lambda own, h, x: h + torch.zeros(2, 3, 8).sum((0, 1))),
        "a branch": lambda: Custom(lambda own, h, x: h if (x[:, 0, 0, 0] > 0).all() else 2 * h),
        "convolutions": lambda: MnistCNN((1, 8, 8), CLASSES, (2, 4)),
        "femnist": lambda: FemnistCNN((1, 8, 8), CLASSES, (2, 4, 4)),
        "residual": lambda: ResNet18((1, 8, 8), CLASSES, width=16, stem="cifar"),
        "transformer": lambda: VisionTransformer((1, 8, 8), CLASSES, width=8, heads=2),
        "adapters": lambda: add_lora(VisionTransformer((1, 8, 8), CLASSES, width=8, heads=2), ["blocks.*.query"]),
        "transformer of text": lambda: OneScore(CharTransformer(7, width=8)),
        "lstm": lambda: Sequences(nn.LSTM(3, 4, 2, batch_first=True)),
        "gru": lambda: Sequences(nn.GRU(3, 4, bidirectional=True, batch_first=True)),
        "sentences": Sentences,
        "mean of words": lambda: nn.Sequential(nn.Embedding(7, 4), Mean(), nn.Linear(4, CLASSES)),
        "sum of words": lambda: nn.Sequential(nn.EmbeddingBag(7, 4, mode="sum"), nn.Linear(4, CLASSES)),
    }
    return models[name]().double()


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize(
    ("name", "x"),
    [
        *((name, IMAGES) for name in ("two layers", "parameter outside the layers", "known sizes")),
        *((name, IMAGES) for name in ("joined", "stacked", "a new axis", "transposed weights")),
        *((name, IMAGES) for name in ("transposed matrices", "fewer dimensions", "padded", "zeros of fixed sizes")),
        *((name, IMAGES) for name in ("a branch", "convolutions", "femnist", "residual", "transformer", "adapters")),
        *((name, STEPS) for name in ("lstm", "gru")),
        *((name, WORDS) for name in ("sentences", "mean of words", "sum of words", "transformer of text")),
    ],
)
def test_known_operations_match_loop_without_vmap(name, x, clients) -> None:
    model = plain(name)
    ghost = GhostBackend(model, LOSS)
    ghost._gradients_under_vmap = None  # what vmap would be called with
    actual = clipped(ghost, model, x, clients)
    torch.testing.assert_close(actual, clipped(LoopBackend(model, LOSS), model, x, clients), rtol=1e-9, atol=1e-11)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.flip(0)

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0].flip(0)


def looped(_, h: Tensor, x: Tensor) -> Tensor:
    return torch.stack([h[index] * (index + 1) for index in range(len(h))])


MIXED = {
    "mean of the batch": lambda own, h, x: h - h.mean(0),
    "mean of everything": lambda own, h, x: h - h.mean(),
    "softmax over examples": lambda own, h, x: h.softmax(0),
    "softmax over examples from the end": lambda own, h, x: functional.softmax(h, dim=-2),
    "running sum": lambda own, h, x: h.cumsum(0),
    "order": lambda own, h, x: h.flip(0),
    "neighbour": lambda own, h, x: h.roll(1, 0),
    "a slice": lambda own, h, x: h + h[:1],
    "a slice behind an ellipsis": lambda own, h, x: h + h[..., :1, :],
    "an index": lambda own, h, x: h + h[0],
    "transposed": lambda own, h, x: h + h.T.reshape(h.shape[0], -1),
    "transposed by name": lambda own, h, x: h + h.transpose(0, 1).reshape(h.shape[0], -1),
    "products of examples": lambda own, h, x: (h @ h.mT) @ h,
    "einsum over a second batch": lambda own, h, x: torch.einsum("bi,ci->bi", h, h),
    "divided by the batch size": lambda own, h, x: h / h.shape[0],
    "divided by the length": lambda own, h, x: h / len(h),
    "clamped by the batch size": lambda own, h, x: h.clamp(max=h.shape[0]),
    "a branch by several numbers of each example": lambda own, h, x: h if h[:, :2] < 9 else 2 * h,
    "a branch by the batch size": lambda own, h, x: h if x.shape[0] == 1 else 2 * h,
    "the batch size as a number": lambda own, h, x: h * float(x.size(0)),
    "count of all numbers": lambda own, h, x: h * h.numel(),
    "a number": lambda own, h, x: h * h.abs().max().item(),
    "numpy": lambda own, h, x: h * float(np.asarray(h.detach().numpy()).max()),
    "a loop": looped,
    "custom autograd function": lambda own, h, x: Reversed.apply(h),
    "in place": lambda own, h, x: h.add_(h.sum(0)),
    "an unknown tensor": lambda own, h, x: h * own.table,
    "a computed weight": lambda own, h, x: functional.linear(h, own.last.weight.T @ own.last.weight),
    "reshape to batch size": lambda own, h, x: h.reshape(5, -1),
    "positions of true entries": lambda own, h, x: h + torch.where(h[:, 0] < 9)[0].unsqueeze(1),
    "groups with a weight alone": lambda own, h, x: functional.group_norm(h.unsqueeze(2), 2, own.scale).squeeze(2),
    "dropout": lambda own, h, x: functional.dropout(h, 0.5),
    "batch normalisation": lambda own, h, x: functional.batch_norm(h, None, None, training=True),
    "a long constant": lambda own, h, x: h + torch.arange(5.0).unsqueeze(1),
    "joined to more examples": lambda own, h, x: torch.cat([h, h])[:5],
    "a product of constants": lambda own, h, x: (
        h + torch.addmm(own.mean, torch.ones(5, 8).double(), torch.eye(8).double())
    ),
    "states without width": lambda own, h, x: h + torch.zeros(2, x.shape[0]).sum(),
    "padded at one end of the batch, cut at the other": lambda own, h, x: functional.pad(h, (0, 0, 1, -1)),
    "attention mask of other examples": lambda own, h, x: functional.scaled_dot_product_attention(
        *[h[:, None].expand(-1, 5, -1)] * 3, attn_mask=h[:, :5] < 0
    ).sum(1),
    "zeros of the batch": lambda own, h, x: h + torch.zeros(x.shape[0], 8),
}


@pytest.mark.parametrize("name", list(MIXED))
def test_possibly_mixing_operation_raises(name: str) -> None:
    model = Custom(MIXED[name]).double()
    model.table = model.table.double()
    ghost = GhostBackend(model, LOSS)
    with pytest.raises(MixingRowsError):
        ghost._gradients_without_vmap(
            Layout.of(model).row_of(model), IMAGES.unsqueeze(0), torch.arange(N).unsqueeze(0) % CLASSES
        )


@pytest.mark.parametrize("name", ["divided by the batch size", "a branch by the batch size", "an unknown tensor"])
def test_vmap_fallback_matches_loop(name: str) -> None:
    torch.manual_seed(4)
    model = Custom(MIXED[name]).double()
    model.table = model.table.double()
    ghost = GhostBackend(model, LOSS)
    expected = clipped(LoopBackend(model, LOSS), model, IMAGES)
    torch.testing.assert_close(clipped(ghost, model, IMAGES), expected, rtol=1e-9, atol=1e-11)
    assert not ghost._rows_apart, "vmap is taken at once the next time"


@pytest.mark.parametrize("value", [1.0, 2])
def test_batch_size_arithmetic_raises(value: float) -> None:
    size = BatchSize()
    for compute in (
        lambda: size + value,
        lambda: value * size,
        lambda: value / size,
        lambda: size == value,
        lambda: size > value,
        lambda: float(size),
        lambda: int(size),
        lambda: bool(size),
        lambda: str(size),
        lambda: {size: value},
        lambda: f"{size}",
        lambda: [value] * size,
        lambda: 1.0 - size,
    ):
        with pytest.raises((MixingRowsError, OverflowError)):
            compute()


def test_example_gradient_independent_of_others() -> None:
    """If one example changes, only its own unclipped gradient changes."""
    model = plain("convolutions")
    others = IMAGES.clone()
    others[0] = 3 * torch.randn(1, 8, 8, dtype=torch.float64)
    ghost, row, targets = GhostBackend(model, LOSS), Layout.of(model).row_of(model), torch.arange(N).unsqueeze(0) % 3
    before, after = (ghost._gradients_without_vmap(row, x.unsqueeze(0), targets) for x in (IMAGES, others))
    for one, two in zip(before, after, strict=True):
        changed = (one.whole() - two.whole()).abs().amax((0, 2)) > 0
        assert not changed[1:].any()
    assert (before[0].whole()[0, 0] != after[0].whole()[0, 0]).any()


@pytest.mark.parametrize("x", [torch.randn(5, 7, 3), torch.randn(5, 0, 3), torch.randn(5, 7, 3).double()])
def test_batched_mean_equals_torch_bitwise(x: Tensor) -> None:
    """The gradient of the mean is one expanded tensor, stored once."""
    x.requires_grad_()
    calls: list[Call] = []
    with BatchedForward({}, [], [x], 5, calls, lambda tensor: tensor, OPERATIONS):
        means = [x.mean(1), torch.mean(x, dim=1, keepdim=True), x.mean((1, 2))]
    wanted = [x.mean(1), x.mean(1, keepdim=True), x.mean((1, 2))]
    for found, right in zip(means, wanted, strict=True):
        torch.testing.assert_close(found, right, rtol=0, atol=0, equal_nan=True)
        gradients = [torch.autograd.grad((mean**2).sum(), x, retain_graph=True)[0] for mean in (found, right)]
        torch.testing.assert_close(*gradients, rtol=0, atol=0)
        assert gradients[0].stride(1) == 0 or not x.numel()


@pytest.mark.parametrize("module", [nn.EmbeddingBag(7, 4), nn.Sequential(nn.Embedding(7, 4), Mean())])
def test_mean_of_embeddings_stores_one_vector(module: nn.Module) -> None:
    model = nn.Sequential(module, nn.Linear(4, CLASSES))
    x, y = WORDS.unsqueeze(0), (torch.arange(N) % CLASSES).unsqueeze(0)
    gradients = GhostBackend(model, LOSS)._gradients(Layout.of(model).row_of(model).unsqueeze(0), x, y, 1)
    assert [type(gradient) for gradient in gradients] == [OneVector, OuterProducts, Dense]


@pytest.mark.parametrize("module", [nn.EmbeddingBag(7, 4), nn.Sequential(nn.Embedding(7, 4), Mean())])
def test_nonfinite_example_leaves_others_bitwise(module: nn.Module) -> None:
    """The rows of the table repeat, and the norm of two short parameters is computed jointly."""
    model = nn.Sequential(module, nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    row = Layout.of(model).row_of(model).unsqueeze(0)
    row[0, 6 * 4] = torch.inf  # the table's last row, which only the last example has
    words = torch.arange(4 * 6).reshape(1, 4, 6) % 3
    broken = torch.cat([words, torch.full((1, 1, 6), 6)], 1)
    sums = []
    for x, kept in ((words[:, [0, 1, 2, 3, 3]], 4), (broken, 5)):
        mask = (torch.arange(5) < kept).unsqueeze(0)
        batch = Batch(torch.arange(1), x, (torch.arange(5) % CLASSES).unsqueeze(0), mask)
        sums.append(GhostBackend(model, LOSS).clipped_sum(row, batch, Clip(0.1))[0])
    assert torch.equal(*sums)


def test_failed_call_restores_parameters() -> None:
    model = Custom(lambda own, h, x: h @ h)
    functional_model = Functional(model, LOSS)
    before = dict(model.named_parameters())
    buffers = dict(model.named_buffers())
    row = torch.randn(functional_model.layout.dim)
    with pytest.raises(RuntimeError):
        functional_model.outputs(functional_model.unflatten(row), IMAGES.float())
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    # a layer that is replaced later is the one that is called
    model.function = lambda own, h, x: h
    model.first = nn.Linear(64, 8)
    named = functional_model.unflatten(row)
    wanted = named["last.bias"] + (
        (IMAGES.float().flatten(1) @ named["first.weight"].T + named["first.bias"]).tanh() @ named["last.weight"].T
    )
    torch.testing.assert_close(functional_model.outputs(named, IMAGES.float()), wanted)
