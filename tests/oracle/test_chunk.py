"""How many examples are computed at once: from the settings to the backend, and the same after a resume."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.clients.layout import Layout
from fedpriv.models import SoftmaxRegression
from fedpriv.oracle.backends import BACKENDS, BackendName, build_backend
from fedpriv.oracle.backends.factors import Gradients
from fedpriv.oracle.backends.ghost import GhostBackend
from fedpriv.privacy.clipping import Clip

GPU = torch.device("cuda", 0)


def training_in(folder: Path, chunk: int | None, resume: bool = False) -> fp.Training:
    torch.manual_seed(0)
    x, y = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 2
    data = [TensorDataset(x[:7], y[:7]), TensorDataset(x[7:], y[7:])]
    clients = fp.make_clients(SoftmaxRegression(4, 2), nn.CrossEntropyLoss(), data)
    options = {"resume": True} if resume else {"secret_seed": 0}
    compute, privacy = fp.Compute("vmap", device="cpu", max_physical_batch_size=chunk), fp.Privacy(noise_multiplier=5.0)
    return fp.Training(clients, fp.fedavg(0.1), privacy, rounds=4, seed=0, folder=folder, compute=compute, **options)


def close(training: fp.Training) -> None:
    assert training.folder is not None
    training.folder.close()


@pytest.mark.parametrize("name", [*BACKENDS, "auto"])
def test_every_backend_accepts_chunk(name: BackendName) -> None:
    build_backend(name, nn.Linear(2, 2), nn.CrossEntropyLoss(), 3)


@pytest.mark.parametrize("name", ["vmap", "ghost"])
def test_chunk_capped_by_cpu_cache_only(name: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    row, batch = (
        torch.zeros(1, 12),
        Batch(torch.arange(1), torch.zeros(1, 1, 2), torch.zeros(1, 1, 2), torch.ones(1, 1)),
    )
    for chunk, found in ((None, 512), (3, 3), (4096, 512)):
        assert BACKENDS[name](model, nn.MSELoss(), chunk)._max_clipped(row, batch, Clip(1.0)) == found
    assert BACKENDS[name](model, nn.MSELoss(), 500)._max_clipped(row.to("meta"), batch, Clip(1.0)) == 500


def test_clients_per_block_from_chunk() -> None:
    """Distinct models: four clients or none at once; sums without clipping: clients of up to 16 examples."""
    backend = BACKENDS["vmap"](nn.Linear(2, 2), nn.MSELoss(), 20)
    for examples, clipped, summed in ((5, 4, 4), (6, 1, 3), (16, 1, 1), (17, 1, 1), (40, 1, 1)):
        inputs = torch.zeros(3, examples, 2)
        batch = Batch(torch.arange(3), inputs, inputs, torch.ones(3, examples, dtype=torch.bool))
        params = torch.arange(18.0).reshape(3, 6)
        assert backend.clients_per_block(params, batch, Clip(1.0)) == clipped
        assert backend.clients_per_block(params, batch, None) == summed


def test_gpu_chunk_quarter_of_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    free = {"bytes": 0}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free["bytes"], 2**36))
    found: list[int] = []
    for free["bytes"] in (0, 2**30, 2**30 + 2**20, 2**33, 2**40):
        found.append(fp.Compute().examples_at_once(GPU, dim=2**14))
    assert found == [4, 1024, 1024, 8192, 16384]
    assert fp.Compute(dtype="float64").examples_at_once(GPU, dim=2**14) == 16384
    free["bytes"] = 2**33
    assert fp.Compute(dtype="float64").examples_at_once(GPU, dim=2**14) == 4096
    assert fp.Compute().examples_at_once(torch.device("cpu"), dim=2**14) == 16384
    assert fp.Compute(max_physical_batch_size=5).examples_at_once(GPU, dim=2**14, begun_with=7) == 5
    assert fp.Compute().examples_at_once(GPU, dim=2**14, begun_with=7) == 7


def test_resumed_run_keeps_chunk(tmp_path: Path) -> None:
    """Other chunks round sums differently; a resumed run must compute like the stopped run."""
    stopped = iter(training := training_in(tmp_path / "stopped", chunk=3))
    next(stopped), next(stopped)
    close(training)
    again = training_in(tmp_path / "stopped", chunk=None, resume=True)
    assert again.population.chunk == 3
    close(again)
    explicit = training_in(tmp_path / "explicit", chunk=None)
    assert explicit.population.chunk == 16384
    close(explicit)
    assert training_in(tmp_path / "explicit", chunk=5, resume=True).population.chunk == 5


class TrackingBackend(GhostBackend):
    """Counts, before each piece of a batch, the earlier pieces' gradients that still have memory."""

    def __init__(self, model: nn.Module, chunk: int) -> None:
        super().__init__(model, nn.CrossEntropyLoss(), chunk)
        self.made: list[weakref.ref[Gradients]] = []
        self.left: list[int] = []

    def _gradients(self, *args: object) -> list[Gradients]:
        self.left.append(sum(reference() is not None for reference in self.made))
        gradients = super()._gradients(*args)
        self.made.extend(weakref.ref(gradient) for gradient in gradients)
        return gradients


def test_chunk_gradients_freed_before_next() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    backend = TrackingBackend(model, chunk=4)
    params = Layout.of(model).row_of(model).unsqueeze(0)
    mask = torch.ones(1, 12, dtype=torch.bool)
    batch = Batch(torch.zeros(1, dtype=torch.long), torch.randn(1, 12, 4), torch.zeros(1, 12, dtype=torch.long), mask)
    backend.clipped_sum(params, batch, Clip(1.0))
    assert len(backend.left) > 3
    # a loop's variable may still have the last parameter's
    assert max(backend.left) <= 1, "of ten parameters"
