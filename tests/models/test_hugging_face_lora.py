"""A text classifier of `transformers` from a folder of weights, adapted with LoRA on private rows of text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedpriv as fp
from fedpriv.data.torchvision_compat import import_torchvision
from fedpriv.models import add_lora, cross_entropy
from fedpriv.models.nested import Rows

pytest.importorskip("transformers", reason="transformers is not installed: pip install fedpriv[hf]")
import_torchvision("transforms")  # transformers imports torchvision, which needs help beside a CPU build of torch

LENGTH = 10  # public: every text is cut or filled up to it
GOOD = ["better", "well", "calm", "steady"]
BAD = ["worse", "pain", "fever", "bleeding"]
OTHER = ["the", "patient", "is", "today", "and", "was", "feels", "night", "after", "with"]
LAYERS = ["body.bert.encoder.layer.*.attention.self.query", "body.bert.encoder.layer.*.attention.self.value"]


class Classifier(nn.Module):
    """A model of `transformers` whose output is the scores alone, so that accuracies are known."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        from transformers import AutoModelForSequenceClassification

        self.body = AutoModelForSequenceClassification.from_pretrained(folder)

    def forward(self, **tokens: Tensor) -> Tensor:
        return self.body(**tokens).logits


def tokenizer() -> Any:
    """Of a public list of words, whatever words the texts have."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *GOOD, *BAD, *OTHER])}
    plain = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]")


def weights(folder: Path) -> Path:
    """Saves a tiny model with random weights, as a user has one on disk."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    words = len(tokenizer())
    model = BertForSequenceClassification(
        BertConfig(vocab_size=words, num_labels=2, max_position_embeddings=LENGTH, **sizes)
    )
    model.save_pretrained(folder)
    return folder


def notes(n: int, seed: int) -> Rows:
    """Notes of doctors, of different lengths: class 1 has a word for getting worse."""
    draw = random.Random(seed)
    texts: list[str] = []
    labels: list[int] = []
    for _ in range(n):
        label = draw.randrange(2)
        words = [*draw.choices(OTHER, k=draw.randint(2, LENGTH + 2)), "unlisted"]
        for telling in draw.sample((GOOD, BAD)[label], 2):
            words.insert(draw.randint(0, 2), telling)
        texts.append(" ".join(words))
        labels.append(label)
    tokens = tokenizer()(texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt")
    inputs = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    return Rows(inputs, torch.tensor(labels))


def adapted(folder: Path) -> nn.Module:
    return add_lora(Classifier(folder), LAYERS, rank=2, train=["body.classifier.*"])


def test_lora_classifier_learns_private_notes(tmp_path: Path):
    folder = weights(tmp_path)
    start = adapted(folder)
    clients = fp.make_clients(adapted(folder), cross_entropy, [notes(300, seed) for seed in range(3)])
    privacy = fp.Privacy(epsilon=8, clip=fp.Clip(1.0), trust=fp.SecureAggregation(min_honest=3))
    strategy = fp.fedavg(1.0, server_momentum=0.9)
    result = fp.train(clients, strategy, privacy, rounds=40, test=notes(200, 9), seed=0, secret_seed=0)
    assert result.spent.epsilon <= 8
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.68  # four deviations above what a coin gets right of 200

    before = dict(start.named_parameters())
    moved = {name for name, value in result.model.named_parameters() if not torch.equal(value, before[name])}
    self_attention = "body.bert.encoder.layer.0.attention.self"
    factors = {f"{self_attention}.{layer}.lora_{factor}.weight" for layer in ("query", "value") for factor in "AB"}
    trained = {*factors, "body.classifier.weight", "body.classifier.bias"}
    assert moved == trained
    assert len(result.params) == sum(before[name].numel() for name in trained)


def test_text_row_independent_of_other_lengths():
    """Texts are padded to a public length, so a row has the same tokens in any batch."""
    together, _ = notes(30, 1)[:]
    one, _ = notes(1, 1)[:]
    assert together["input_ids"].shape == (30, LENGTH)
    for name in together:
        assert torch.equal(together[name][:1], one[name])
