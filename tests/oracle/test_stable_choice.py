"""The same model gets the same batched backend at every try, and branches on masks do not make a model slow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.clients.population import Population
from fedpriv.models import VisionTransformer
from fedpriv.models.nested import Rows
from fedpriv.models.resnet import ResNet18
from fedpriv.oracle.backend_selection import select_backend
from fedpriv.oracle.backends import BACKENDS
from fedpriv.oracle.backends.recorded import DivergingExamplesError
from fedpriv.privacy.clipping import Clip

WORDS, LENGTH, WIDTH, CLASSES = 11, 5, 8, 3


class MaskedAttention(nn.Module):
    """Self-attention over words as Hugging Face models compute it by default: a mask that masks nothing is left out."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH, padding_idx=0), nn.Embedding(LENGTH + 4, WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm, self.head, self.dropout = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES), dropout

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        allowed = mask.bool()
        if allowed.all():
            bias = None
        else:
            bias = allowed[:, None, None, :].expand(-1, 1, words.shape[1], -1)
        x = self.words(words) + self.positions(torch.arange(words.shape[1]))
        heads = (layer(x).unflatten(2, (2, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        dropout = self.dropout if self.training else 0.0
        values = functional.scaled_dot_product_attention(*heads, attn_mask=bias, dropout_p=dropout)
        x = self.norm(x + values.transpose(1, 2).flatten(2))
        return self.head(x[:, 0])


def masked_words(n: int) -> dict[str, Tensor]:
    """Sentences of all lengths; some leave nothing to mask."""
    mask = (torch.arange(LENGTH) < torch.arange(n).unsqueeze(1) % LENGTH + 1).long()
    return {"words": torch.randint(1, WORDS, (n, LENGTH)) * mask, "mask": mask}


def population(model: nn.Module, inputs: Any) -> Population:
    n = len(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs)
    data = Rows(inputs, torch.arange(n) % CLASSES)
    return Population(fp.make_clients(model, nn.CrossEntropyLoss(), [data]))


def test_residual_network_same_backend_each_seed() -> None:
    names = []
    for seed in range(20):
        torch.manual_seed(seed)
        model = ResNet18((3, 8, 8), CLASSES, width=4, stem="cifar")
        names.append(select_backend("auto", population(model, torch.randn(6, 3, 8, 8))).name)
    assert names == ["ghost"] * 20


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_skipping_empty_mask_batched(dropout: float) -> None:
    """The model omits a mask that masks nothing, as models of Hugging Face do."""
    for seed in range(5):
        torch.manual_seed(seed)
        assert select_backend("auto", population(MaskedAttention(dropout), masked_words(12))).name == "ghost"


def test_bfloat16_transformer_batched() -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        model = VisionTransformer((1, 8, 8), CLASSES, width=8, heads=2)
        tried = select_backend("auto", population(model, torch.randn(6, 1, 8, 8)), precision="bfloat16")
        assert tried.name == "ghost"


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("anchored", [True, False])
def test_branching_examples_match_loop(clients: int, alike: bool, anchored: bool) -> None:
    torch.manual_seed(0)
    model = MaskedAttention().double()
    row = torch.cat([p.detach().flatten() for p in model.parameters()]).unsqueeze(0)
    rows = row.expand(clients, -1) if alike else row + 0.1 * torch.randn(clients, row.shape[1]).double()
    anchor = rows + 0.01 * torch.randn(clients, row.shape[1]).double() if anchored else None
    inputs = {name: values.unflatten(0, (clients, -1)) for name, values in masked_words(6 * clients).items()}
    mask = torch.arange(6).expand(clients, -1) < 5
    targets = torch.randint(0, CLASSES, (clients, 6))
    batch = Batch(torch.arange(clients), inputs, targets, mask, weights=torch.rand(clients, 6).double())
    for clip in (Clip(0.1), Clip(1e6), None):
        loop, ghost = (
            BACKENDS[name](model, nn.CrossEntropyLoss()).clipped_sum(rows, batch, clip, anchor)[0]
            for name in ("loop", "ghost")
        )
        torch.testing.assert_close(ghost, loop, rtol=1e-9, atol=1e-11)


class Branching(nn.Module):
    """Takes another way where the first number is positive."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(4, CLASSES), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        if x[:, 0].sum() > 0:
            return self.layer(x).exp()
        return self.other(x)


def test_branch_of_example_leaves_others_unchanged() -> None:
    """An additional example in the other branch leaves the summands of the others unchanged."""
    torch.manual_seed(1)
    model = Branching().double()
    row = torch.cat([p.detach().flatten() for p in model.parameters()]).unsqueeze(0)
    x, y = torch.rand(1, 4, 4).double(), torch.zeros(1, 4).long()
    whole = Batch(torch.zeros(1).long(), x, y, torch.ones(1, 4, dtype=torch.bool))
    ghost = BACKENDS["ghost"](model, nn.CrossEntropyLoss())
    before = ghost.clipped_sum(row, whole, Clip(1.0))[0]
    last = torch.arange(4).unsqueeze(0) < 3
    without = ghost.clipped_sum(row, replace(whole, mask=last), Clip(1.0))[0]
    x[0, 3] = -x[0, 3]
    assert not torch.equal(ghost.clipped_sum(row, whole, Clip(1.0))[0], before)
    torch.testing.assert_close(
        ghost.clipped_sum(row, replace(whole, mask=last), Clip(1.0))[0], without, rtol=1e-12, atol=1e-14
    )


def test_bfloat16_branching_model_uses_loop() -> None:
    """A batch of another size rounds differently, by 2**-8 of a gradient: one example would change the others."""
    chosen = select_backend("auto", population(MaskedAttention(), masked_words(12)), precision="bfloat16")
    assert chosen.name == "loop"
    assert chosen.why_not_faster.startswith("not ghost: ")
    assert not issubclass(DivergingExamplesError, RuntimeError), "else it would be taken for torch's own refusal"


@pytest.mark.filterwarnings("ignore:this model's gradients")
def test_training_reports_backend_and_reason() -> None:
    data = [TensorDataset(torch.randn(6, 4), torch.arange(6) % CLASSES) for _ in range(2)]

    class Reading(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) * float((input.detach() == input.detach()).all().item())

    for model, line in (
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, CLASSES)), "ghost"),
        (Reading(4, CLASSES), r"loop (not ghost: RuntimeError: vmap: It looks like"),
    ):
        clients = fp.make_clients(model, nn.CrossEntropyLoss(), data)
        run = fp.Training(clients, fp.fedavg(0.1), fp.Privacy(noise_multiplier=1.0), rounds=1)
        assert run.backend.startswith(line)
        assert "\n" not in run.backend
