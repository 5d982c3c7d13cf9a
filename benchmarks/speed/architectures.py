"""Lines with clipped gradients of common architectures: recurrent, with tables, transformers, residual.

The backend is the one that a run would select (`select_backend`). Peers are torch.func's vmap, if it can batch the
model, and opacus' hooks, if they support its layers; a peer that fails is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import opponents
import torch
from memory import peak_megabytes
from nets import group_norm_resnet
from rows import OURS, PLAIN, Effort, Found, Row, interleaved
from sequence_nets import CLASSES, Gpt, HuggingFaceGpt, MaskedClassifier, MeanOfWords, Recurrent
from subprocesses import apart
from torch import Tensor, nn

from fedpriv.clients.batch import Batch
from fedpriv.clients.client import make_clients
from fedpriv.clients.layout import Layout
from fedpriv.clients.population import Population
from fedpriv.models import VisionTransformer, add_lora
from fedpriv.models.nested import Nested, Rows, map_tree
from fedpriv.oracle.backend_selection import select_backend
from fedpriv.oracle.backends import build_backend
from fedpriv.oracle.backends.precision import Bfloat16
from fedpriv.privacy.clipping import Clip

LOSS = nn.CrossEntropyLoss()


@dataclass(frozen=True)
class Subject:
    """A model and a batch for it, with the sizes of the line or of a smoke run."""

    model: Callable[[Effort], nn.Module]
    inputs: Callable[[int], Nested]
    examples: int = 64
    next_words: bool = False
    precision: str = "full"
    peers: tuple[str, ...] = ("functorch", "opacus hooks")
    aim: str = "2.0"

    def data(self, effort: Effort) -> tuple[Nested, Tensor]:
        """Returns inputs and targets."""
        x = self.inputs(effort.of(self.examples, 4))
        if self.next_words:
            assert isinstance(x, Tensor)
            return x, x.roll(-1, 1)
        count = len(next(iter(x.values())) if isinstance(x, dict) else x)
        return x, torch.randint(0, CLASSES, (count,))


def masked_words(count: int) -> dict[str, Tensor]:
    """Returns words at 32 positions; a quarter of the examples has nothing to mask."""
    lengths = torch.arange(count) % 4 * 8 + 8
    mask = (torch.arange(32) < lengths.unsqueeze(1)).long()
    return {"words": torch.randint(1, 5_000, (count, 32)) * mask, "mask": mask}


def lora_gpt(effort: Effort) -> nn.Module:
    """Returns the GPT with adapters next to the queries and values; everything else is frozen."""
    model = Gpt(layers=effort.of(6, 1), width=effort.of(384, 24))
    return add_lora(model, ["blocks.*.attention.query", "blocks.*.attention.value"], rank=4)


SUBJECTS = {
    "LSTM 32 -> 64, 40 steps": Subject(
        lambda _: Recurrent(nn.LSTM(32, 64, batch_first=True)), lambda n: torch.randn(n, 40, 32), peers=(), aim="2.5"
    ),
    "GRU 32 -> 64, 40 steps": Subject(
        lambda _: Recurrent(nn.GRU(32, 64, batch_first=True)), lambda n: torch.randn(n, 40, 32), peers=(), aim="2.5"
    ),
    "LSTM, two layers, both ways": Subject(
        lambda _: Recurrent(nn.LSTM(32, 64, 2, bidirectional=True, batch_first=True)),
        lambda n: torch.randn(n, 40, 32),
        peers=(),
        aim="2.5",
    ),
    "embedding of 10 000 words": Subject(lambda _: MeanOfWords(10_000), lambda n: torch.randint(0, 10_000, (n, 40))),
    "bag of 10 000 words": Subject(
        lambda _: nn.Sequential(nn.EmbeddingBag(10_000, 64), nn.Linear(64, CLASSES)),
        lambda n: torch.randint(0, 10_000, (n, 40)),
        peers=("functorch",),
    ),
    "BERT, 2 layers, default attention": Subject(lambda _: MaskedClassifier(), masked_words, 32, peers=()),
    "ViT small": Subject(
        lambda _: VisionTransformer((1, 28, 28), CLASSES, width=64, heads=4),
        lambda n: torch.randn(n, 1, 28, 28),
        aim="1.7",
    ),
    "ViT small, bfloat16": Subject(
        lambda _: VisionTransformer((1, 28, 28), CLASSES, width=64, heads=4),
        lambda n: torch.randn(n, 1, 28, 28),
        precision="bfloat16",
        peers=(),
        aim="1.5",
    ),
    "ResNet-18 with GroupNorm, 11 M": Subject(
        lambda effort: group_norm_resnet(effort.of(64, 16)), lambda n: torch.randn(n, 3, 32, 32), 8
    ),
    "GPT, 6 layers, 384 wide": Subject(
        lambda effort: Gpt(layers=effort.of(6, 1), width=effort.of(384, 24)),
        lambda n: torch.randint(0, 256, (n, 64)),
        8,
        next_words=True,
        peers=("functorch",),
        aim="1.8",
    ),
    "the same GPT with LoRA": Subject(
        lora_gpt, lambda n: torch.randint(0, 256, (n, 64)), 8, next_words=True, peers=("functorch",), aim="1.3"
    ),
    "Hugging Face GPT-2, 6 layers, 384 wide, with LoRA": Subject(
        lambda effort: HuggingFaceGpt(layers=effort.of(6, 1), width=effort.of(384, 24)),
        lambda n: torch.randint(0, 256, (n, 64)),
        8,
        next_words=True,
        peers=("functorch",),
        aim="1.3",
    ),
}


def steps_of(name: str, effort: Effort, *, tried: bool = True) -> tuple[dict[str, Callable[[], object]], str]:
    """Returns the steps of fedpriv, plain torch and the peers on a batch, and the backend's name.

    Args:
        name: Name of the subject.
        effort: Settings of the run.
        tried: True to test backends and peers; False uses ghost, without a test that would hide its memory.
    """
    torch.manual_seed(0)
    subject = SUBJECTS[name]
    model = subject.model(effort)
    x, y = subject.data(effort)
    if tried:
        few = map_tree(lambda values: values[:8], x), y[:8]
        population = Population(make_clients(model, LOSS, [Rows(*few)]))
        population.reset_models()
        selection = select_backend("auto", population, precision=subject.precision)
        backend, used, peers = selection.backend, selection.name, subject.peers
    else:
        backend, used, peers = build_backend("ghost", model, LOSS), "ghost", ()
    params = Layout.of(model).row_of(model).unsqueeze(0)
    mask = torch.ones(1, len(y), dtype=torch.bool)
    batch = Batch(
        torch.zeros(1, dtype=torch.long), map_tree(lambda values: values.unsqueeze(0), x), y.unsqueeze(0), mask
    )
    plain_model = Bfloat16(model) if subject.precision == "bfloat16" else model
    clip = Clip(opponents.CLIP)
    steps: dict[str, Callable[[], object]] = {
        OURS: lambda: backend.clipped_sum(params, batch, clip),
        PLAIN: partial(opponents.plain(plain_model), x, y),
    }
    for peer in peers:
        with suppress(Exception):  # models that torch.func cannot batch, and layers that opacus does not support
            made: opponents.Step
            if peer == "functorch":
                made = opponents.functorch(model)
            else:
                made = opponents.opacus(model, "hooks", len(y))
            made(x, y)
            steps[peer] = partial(made, x, y)
    return steps, used


def clipped(name: str, effort: Effort) -> Found:
    """Measures one client with one batch."""
    steps, backend = steps_of(name, effort)
    return Found(interleaved(steps, effort), backend)


def memory(name: str, effort: Effort) -> Found:
    """Measures the peak memory of the same work above model and data, with a separate process for each contender."""
    return Found({who: apart(peak, name, who, effort.divide, effort=effort) for who in (OURS, PLAIN)})


def peak(name: str, contender: str, divide: int) -> float:
    """Returns the peak megabytes of one contender's step, above the memory in use before it."""
    torch.set_num_threads(1)
    steps, _ = steps_of(name, Effort(divide=divide), tried=False)
    before = peak_megabytes()
    steps[contender]()
    return max(peak_megabytes() - before, 1.0)


_STEP = "plain gradient"
ROWS = (
    *(
        Row(
            f"clipped gradient, {name}, batch {subject.examples}",
            _STEP,
            subject.aim,
            partial(clipped, name),
        )
        for name, subject in SUBJECTS.items()
    ),
    *(
        Row(f"peak extra memory, {name}", _STEP, "1.5", partial(memory, name), unit="MB")
        for name in ("LSTM 32 -> 64, 40 steps", "ViT small", "GPT, 6 layers, 384 wide", "the same GPT with LoRA")
    ),
)
