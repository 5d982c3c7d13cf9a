"""Texts of different lengths: padding that depends on others is refused, and the fix that is named works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.models.nested import map_tree
from fedpriv.oracle.backends import BACKENDS
from fedpriv.privacy.clipping import Clip

WORDS, LENGTH = 20, 9
Collate = Callable[[list[tuple[Tensor, int]]], Any]


class Texts(Dataset):
    """Texts of 2 to 8 words, or all of one length."""

    def __init__(self, client: int, lengths: list[int]) -> None:
        draw = torch.Generator().manual_seed(client)
        self.texts = [torch.randint(1, WORDS, (length,), generator=draw) for length in lengths]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.texts[index], int(self.texts[index][0] > WORDS // 2)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn, self.head = nn.Embedding(WORDS, 4), nn.GRU(4, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        hidden = self.rnn(self.words(words))[0]
        return self.head((hidden * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True))


def pad_to_longest(examples: list[tuple[Tensor, int]]) -> Any:
    words = pad_sequence([text for text, _ in examples], batch_first=True)
    return {"words": words, "mask": (words > 0).float()}, torch.tensor([label for _, label in examples])


def pad_to_fixed_length(examples: list[tuple[Tensor, int]]) -> Any:
    padded = [nn.functional.pad(text, (0, LENGTH - len(text))) for text, _ in examples]
    return pad_to_longest([(text, label) for text, (_, label) in zip(padded, examples, strict=True)])


def training(collate: Collate | None, lengths: list[int]) -> fp.Training:
    torch.manual_seed(0)
    loaders = [DataLoader(Texts(client, lengths), batch_size=4, collate_fn=collate) for client in range(2)]
    clients = [fp.Client(Reader(), nn.CrossEntropyLoss(), loader) for loader in loaders]
    return fp.Training(clients, fp.fedavg(0.5), fp.Privacy(epsilon=5), rounds=2, seed=0, secret_seed=1)


RAGGED = [2, 8, 5, 3, 7, 6]


@pytest.mark.parametrize("collate", [pad_to_longest, None])
def test_ragged_texts_raise_with_fix(collate: Collate | None):
    """Without a collate function torch itself cannot stack the texts, and its error does not mention padding."""
    message = (
        r"client 0: the inputs .* shapes, e.g. \[\(2,\), \(3,\), \(5,\)\].*pad each example to a length that you choose"
    )
    with pytest.raises(fp.DataError, match=message):
        training(collate, RAGGED)


def test_fixed_length_padding_keeps_gradients():
    run = training(pad_to_fixed_length, RAGGED)
    assert len(list(run)) == 2
    assert not any("collate_fn" in text for text in run.warnings)
    inputs = run.population.examples.inputs
    assert inputs["words"].shape == (12, LENGTH)

    # each clipped gradient is that of the text alone, as it is
    model = Reader().double()
    row = torch.cat([p.detach().flatten() for p in model.parameters()]).unsqueeze(0)
    one = torch.ones(1, 1, dtype=torch.bool)
    for text, label in Texts(0, RAGGED):
        sums: list[Tensor] = []
        for collate in (pad_to_fixed_length, pad_to_longest):
            x, y = collate([(text, label)])
            given = map_tree(lambda t: (t.double() if t.is_floating_point() else t).unsqueeze(0), x)
            batch = Batch(torch.zeros(1).long(), given, y.unsqueeze(0), one)
            sums.append(BACKENDS["loop"](model, nn.CrossEntropyLoss()).clipped_sum(row, batch, Clip(0.1))[0])
        torch.testing.assert_close(*sums, rtol=1e-9, atol=1e-12)


def test_equal_lengths_train_without_padding():
    same = training(pad_to_longest, [4] * 6)
    assert len(list(same)) == 2
    assert not any("collate_fn" in text for text in same.warnings)
