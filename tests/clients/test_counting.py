"""Sizes of lazy clients may be counted once, by threads."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import fedpriv as fp


def load(client: int) -> TensorDataset:
    size = 1 + client % 5
    draw = torch.Generator().manual_seed(client)
    return TensorDataset(torch.randn(size, 3, generator=draw), torch.arange(size) % 2)


class Unread(Dataset):
    """Only its length may be asked for."""

    def __len__(self) -> int:
        return 7


def test_count_examples_reads_each_client_once() -> None:
    reads, threads, meeting = Counter[int](), set[int](), threading.Barrier(3, timeout=20)

    def counted(client: int) -> TensorDataset:
        reads[client] += 1
        threads.add(threading.get_ident())
        if client in (0, 64, 128):  # the first of each worker's: three are read at once
            meeting.wait()
        return load(client)

    assert fp.count_examples(counted, 300, num_workers=3) == [1 + client % 5 for client in range(300)]
    assert reads == Counter(range(300)) and len(threads) == 3
    assert fp.count_examples(lambda _: Unread(), 3) == [7, 7, 7]


def test_counted_lazy_clients_train() -> None:
    sizes = fp.count_examples(load, 20)
    torch.manual_seed(0)
    clients = fp.lazy_clients(nn.Linear(3, 2), nn.CrossEntropyLoss(), load, sizes)
    result = fp.train(clients, fp.fedavg(0.1), fp.Privacy(noise_multiplier=1.0), rounds=2)
    assert result.rounds == 2 and list(clients.sizes) == [1 + client % 5 for client in range(20)]


def test_count_examples_error_names_client() -> None:
    reads: list[int] = []

    def broken(client: int) -> Dataset:
        reads.append(client)
        if client == 9:
            raise OSError("gone")
        return load(client)

    with pytest.raises(fp.DataError, match=r"client 9: load\(9\) raises OSError: gone"):
        fp.count_examples(broken, 100_000)
    assert len(reads) < 50_000  # nobody else is read
    with pytest.raises(fp.DataError, match=r"client 3: load\(3\) returns no examples"):
        fp.count_examples(lambda i: TensorDataset(torch.zeros(int(i != 3), 2)), 5)
    with pytest.raises(fp.DataError, match=r"client 0: len\(\) of a client's data set raises"):
        fp.count_examples(lambda i: iter([1]), 5)  # type: ignore[arg-type, return-value]
    with pytest.raises(fp.ConfigError, match=r"count_examples\.n_clients = 0"):
        fp.count_examples(load, 0)


def test_count_progress_shown_on_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fp.count_examples(load, 10)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    fp.count_examples(load, 10)
    out, err = capsys.readouterr()
    assert not out and "counts as public" in err
