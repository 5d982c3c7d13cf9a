"""A process uses its share of cores, and extra threads only for enough work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.distributed import cores, threads
from fedpriv.oracle.backends.linear import LinearBackend


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Sets the container's limit, in the files of one version of cgroups."""
    monkeypatch.setattr(cores, "_V2", tmp_path / "cpu.max")
    monkeypatch.setattr(cores, "_V1", (tmp_path / "quota", tmp_path / "period"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)

    def write(**contents: str) -> None:
        for name, text in contents.items():
            (tmp_path / name.replace("_", ".")).write_text(text + "\n")

    return write


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ({}, 8),
        ({"cpu_max": "max 100000"}, 8),
        ({"cpu_max": "200000 100000"}, 2),
        ({"cpu_max": "150000 100000"}, 2),
        ({"cpu_max": "10000 100000"}, 1),
        ({"cpu_max": "9900000 100000"}, 8),
        ({"quota": "-1", "period": "100000"}, 8),
        ({"quota": "300000", "period": "100000"}, 3),
        ({"cpu_max": "nonsense"}, 8),
    ],
)
def test_usable_cores_within_container_limit(limit, contents: dict[str, str], expected: int) -> None:
    limit(**contents)
    assert cores.usable_cores() == expected


@pytest.fixture
def restored_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("restored_threads")
def test_torch_threads_within_container_cores(limit) -> None:
    torch.set_num_threads(4)
    limit(cpu_max="300000 100000")
    fp.Compute().start()
    assert torch.get_num_threads() == 3
    fp.Compute(threads=5).start()
    assert torch.get_num_threads() == 5, "who names a number gets it"
    limit(cpu_max="max 100000")
    fp.Compute().start()
    assert torch.get_num_threads() == 5


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize(
    ("n_examples", "insisted", "expected"),
    [(20, None, 1), (20, 2, 2), (16_000, None, 2)],
    ids=["little", "insisted", "much"],
)
def test_linear_model_threads_only_large_work(
    monkeypatch: pytest.MonkeyPatch, n_examples: int, insisted: int | None, expected: int
) -> None:
    seen = set[int]()
    clipped_sum = LinearBackend.clipped_sum

    def watched(*given: object) -> tuple[torch.Tensor, torch.Tensor]:
        seen.add(torch.get_num_threads())
        return clipped_sum(*given)

    torch.set_num_threads(2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    data = TensorDataset(torch.randn(n_examples, 100), torch.arange(n_examples) % 10)
    clients = fp.make_clients(nn.Linear(100, 10), nn.CrossEntropyLoss(), [data])
    training = fp.Training(
        clients, fp.fedavg(0.1), fp.Privacy(noise_multiplier=9.0), rounds=1, compute=fp.Compute(threads=insisted)
    )
    monkeypatch.setattr(LinearBackend, "clipped_sum", watched)
    list(training)
    assert seen == {expected}
    assert torch.get_num_threads() == 2, "the others keep their threads"


@pytest.mark.usefixtures("restored_threads")
def test_thread_count_restored_after_error() -> None:
    torch.set_num_threads(2)
    with pytest.raises(ValueError, match="broken"), threads.single_thread():
        assert torch.get_num_threads() == 1
        raise ValueError("broken")
    assert torch.get_num_threads() == 2
