"""Models of `transformers` from their configurations, with random weights: inputs by name, outputs with fields."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.data.torchvision_compat import import_torchvision
from fedpriv.models.nested import Rows, map_tree
from fedpriv.oracle.backends import BACKENDS
from fedpriv.privacy.clipping import Clip

pytest.importorskip("transformers", reason="transformers is not installed: pip install fedpriv[hf]")
import_torchvision("transforms")  # transformers imports torchvision, which needs help beside a CPU build of torch

WORDS, LENGTH = 30, 6
SMALL = {"vocab_size": WORDS, "attn_implementation": "eager"}


def bert(**options: Any) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    options = {**SMALL, **options}
    return BertForSequenceClassification(BertConfig(max_position_embeddings=LENGTH, num_labels=2, **sizes, **options))


def bert_by_default() -> nn.Module:
    """With torch's scaled_dot_product_attention."""
    return bert(attn_implementation=None)


def _gpt() -> dict[str, Any]:
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": LENGTH}
    return {**sizes, **SMALL, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    return GPT2ForSequenceClassification(GPT2Config(num_labels=2, **_gpt()))


def gpt2_of_words() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(**_gpt()))


def of_logits(outputs: Any, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.logits, labels)


def of_model(outputs: Any, _: Tensor) -> Tensor:
    return outputs.loss


def texts(n: int, seed: int, labels: bool) -> tuple[dict[str, Tensor], Tensor]:
    draw = torch.Generator().manual_seed(seed)
    words = torch.randint(2, WORDS, (n, LENGTH), generator=draw)
    mask = (torch.arange(LENGTH) < torch.randint(2, LENGTH + 1, (n, 1), generator=draw)).long()
    given = {"input_ids": words * mask, "attention_mask": mask}
    if labels:
        given["labels"] = words.where(mask.bool(), -100)
    return given, (words[:, 0] > WORDS // 2).long()


KINDS = {
    "bert": (bert, of_logits, "ghost"),
    "bert, default attention": (bert_by_default, of_logits, "ghost"),
    "gpt2": (gpt2, of_logits, "ghost"),
    "words": (gpt2_of_words, of_model, "ghost"),
}


@pytest.mark.parametrize("name", KINDS)
def test_transformers_model_trains(name: str) -> None:
    torch.manual_seed(0)
    make, loss, backend = KINDS[name]
    data = [Rows(*texts(8, seed, loss is of_model)) for seed in range(3)]
    made = fp.make_clients(make(), loss, data[:2])
    run = fp.Training(made, fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=2, test=data[2], seed=0)
    assert torch.isfinite(torch.tensor(list(run)[-1].metrics["test_loss"]))
    assert any("one example at a time" in text for text in run.warnings) == (backend == "loop")


@pytest.mark.parametrize("name", [name for name, (_, _, backend) in KINDS.items() if backend == "ghost"])
def test_transformers_gradients_match_loop(name: str) -> None:
    torch.manual_seed(1)
    make, loss, _ = KINDS[name]
    model: nn.Module = make().double().eval()
    x, y = texts(6, 5, loss is of_model)
    rows = torch.stack([torch.cat([p.detach().flatten() for p in model.parameters()])] * 2)
    rows[1] += 0.01 * torch.randn_like(rows[1])
    cells: Callable[[Tensor], Tensor] = lambda t: t.unflatten(0, (2, 3))  # noqa: E731
    batch = Batch(torch.arange(2), map_tree(cells, x), cells(y), torch.ones(2, 3, dtype=torch.bool))
    for clip in (Clip(0.3), None):
        wanted, found = (
            BACKENDS[b](copy.deepcopy(model), loss).clipped_sum(rows, batch, clip)[0] for b in ("loop", "ghost")
        )
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9 * float(wanted.abs().max()))


def test_transformers_masked_words_ignored() -> None:
    torch.manual_seed(2)
    model = bert().double().eval()
    x, y = texts(1, 0, labels=False)
    row = torch.cat([p.detach().flatten() for p in model.parameters()]).unsqueeze(0)
    sums = []
    for filler in (0, 7):
        words = x["input_ids"].where(x["attention_mask"].bool(), filler)
        given = {"input_ids": words, "attention_mask": x["attention_mask"]}
        batch = Batch(
            torch.zeros(1).long(), map_tree(lambda t: t[None], given), y[None], torch.ones(1, 1, dtype=torch.bool)
        )
        found = BACKENDS["loop"](model, of_logits).clipped_sum(row, batch, Clip(1.0))[0]
        parts = dict(
            zip(dict(model.named_parameters()), found[0].split([p.numel() for p in model.parameters()]), strict=True)
        )
        sums.append(torch.cat([part for key, part in parts.items() if "word_embeddings" not in key]))
    torch.testing.assert_close(*sums, rtol=1e-9, atol=1e-12)
