"""Several threads give the bits that one gives, however many they are."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.clients.layout import Layout
from fedpriv.distributed import threads
from fedpriv.oracle.backends import BackendName, build_backend
from fedpriv.oracle.backends.base import Backend
from fedpriv.oracle.backends.linear import LinearBackend
from fedpriv.oracle.backends.per_example import PerExample
from fedpriv.oracle.backends.threaded import SizeDependentBackend, ThreadedBackend, wrap_in_threads
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness

CLIENTS, EXAMPLES = 25, 30
CLIPS = [None, Clip(0.5), Clip(0.5, "l1")]


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), *layers, nn.Linear(64, 3))


def cut(name: BackendName, model: nn.Module) -> Backend:
    """A backend that takes few clients at once, so that there is work for several threads."""
    return build_backend(name, model, nn.CrossEntropyLoss(), 150)


def world(model: nn.Module, *, alike: bool) -> tuple[Tensor, Batch]:
    draw = torch.Generator().manual_seed(1)
    rows = Layout.of(model).row_of(model).expand(CLIENTS, -1)
    if not alike:
        rows = rows + 0.1 * torch.randn(rows.shape, generator=draw)
    x = torch.randn(CLIENTS, EXAMPLES, 1, 6, 6, generator=draw)
    x[3, 4] = torch.nan
    mask = torch.rand(CLIENTS, EXAMPLES, generator=draw) < 0.8
    mask[3, 4], mask[7] = True, False
    y = torch.randint(0, 3, (CLIENTS, EXAMPLES), generator=draw)
    weights = torch.rand(CLIENTS, EXAMPLES, generator=draw)
    return rows, Batch(torch.arange(CLIENTS), x, y, mask, None, weights)


def test_work_split_into_blocks_for_threads() -> None:
    """Three threads must have work, or the other tests of this file would use one thread."""
    model = network()
    for alike, clip in product((True, False), CLIPS):
        params, batch = world(model, alike=alike)
        for name in ("vmap", "ghost"):
            backend = cut(name, model)
            assert isinstance(backend, PerExample)
            assert backend.clients_per_block(params, batch, clip) <= CLIENTS / 3


@pytest.mark.parametrize("clip", CLIPS, ids=str)
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("name", ["vmap", "ghost"])
def test_thread_count_same_sums_bitwise(name, clip: Clip | None, alike: bool) -> None:
    model = network()
    params, batch = world(model, alike=alike)
    found = {}
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        backend = wrap_in_threads(cut(name, model))
        assert isinstance(backend, ThreadedBackend)
        found[count] = backend.clipped_sum(params, batch, clip, params * 0.9)
        assert torch.get_num_threads() == count
    for count in (2, 3):
        for one, several in zip(found[1], found[count], strict=True):
            assert one.numpy().tobytes() == several.numpy().tobytes()
    assert found[2][1].tolist() == [1 if client == 3 else 0 for client in range(CLIENTS)]


def test_threaded_largest_norm_matches() -> None:
    model = network()
    params, batch = world(model, alike=False)
    torch.set_num_threads(2)
    backend = cut("vmap", model)
    torch.testing.assert_close(
        wrap_in_threads(backend).largest_norm(params, batch, Clip(1.0)), backend.largest_norm(params, batch, Clip(1.0))
    )


class Meeting(nn.Module):
    """Each thread but the first waits in its first call until another one is in it, too."""

    met = threading.local()
    barrier = threading.Barrier(2, timeout=60)

    def forward(self, x: Tensor) -> Tensor:
        if threading.current_thread() is not threading.main_thread() and not hasattr(self.met, "once"):
            self.met.once = self.barrier.wait()
        return x

    def __deepcopy__(self, memo: object) -> Meeting:
        return Meeting()


def test_two_threads_run_concurrently() -> None:
    model = network(Meeting())
    params, batch = world(model, alike=True)
    torch.set_num_threads(2)
    wrap_in_threads(cut("ghost", model)).clipped_sum(params, batch, Clip(1.0))
    assert not Meeting.barrier.broken


def test_dropout_model_uses_one_thread() -> None:
    model = network(nn.Dropout(0.5))
    params, batch = world(model, alike=True)
    found = []
    for count in (1, 2):
        torch.set_num_threads(count)
        backend = wrap_in_threads(cut("vmap", model))
        for _ in range(2):
            torch.manual_seed(5)
            found.append(backend.clipped_sum(params, batch, Clip(0.5))[0])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-6, atol=1e-9)


class Warmer(nn.Module):
    """What a user may change between two rounds."""

    temperature = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.temperature


def test_model_attribute_change_reaches_threads() -> None:
    warmer = Warmer()
    model = network(warmer)
    params, batch = world(model, alike=False)
    found = []
    for count in (1, 2):
        torch.set_num_threads(count)
        backend = wrap_in_threads(cut("ghost", model))
        for warmer.temperature in (1.0, 0.5):
            found.append(backend.clipped_sum(params, batch, None)[0])
    assert torch.equal(found[0].nan_to_num(), found[2].nan_to_num())
    assert torch.equal(found[1].nan_to_num(), found[3].nan_to_num())
    assert not torch.equal(found[0].nan_to_num(), found[1].nan_to_num())


def test_linear_model_not_threaded() -> None:
    backend = build_backend("auto", nn.Linear(3, 2), nn.CrossEntropyLoss())
    assert isinstance(wrap_in_threads(backend), SizeDependentBackend)
    assert isinstance(wrap_in_threads(backend, insist=True), LinearBackend)


def test_threads_inherit_torch_modes() -> None:
    torch.set_num_threads(2)
    here = threading.get_ident()

    def work(_: int, item: int) -> tuple[bool, bool, torch.dtype, int, bool]:
        product_of = torch.ones(2, 2) @ torch.ones(2, 2)
        return (
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
            product_of.dtype,
            torch.get_num_threads(),
            (threading.get_ident() == here),
        )

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert set(threads.map_in_threads(work, range(4))) == {(False, True, torch.bfloat16, 1, False)}
    assert set(threads.map_in_threads(work, range(4))) == {(True, False, torch.float32, 1, False)}


def test_thread_error_stops_new_work() -> None:
    torch.set_num_threads(2)
    begun = []

    def work(_: int, item: int) -> None:
        begun.append(item)
        if item == 0:
            raise ValueError("first")
        time.sleep(0.02)

    with pytest.raises(ValueError, match="first"):
        threads.map_in_threads(work, range(1000))
    assert len(begun) < 100


def test_thread_error_raised_and_count_kept() -> None:
    torch.set_num_threads(2)

    def work(_: int, item: int) -> int:
        if item == 3:
            raise ValueError("three")
        return item

    with pytest.raises(ValueError, match="three"):
        threads.map_in_threads(work, range(6))
    assert torch.get_num_threads() == 2
    assert threads.map_in_threads(work, [1, 2, 4]) == [1, 2, 4]
    assert threads.map_in_threads(work, []) == []


def test_noise_independent_of_threads() -> None:
    record = Record(0, "gradient", 0, "gaussian", 1.0, "sample", "replace_one")
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        bounded = torch.zeros(9, 20_000, dtype=torch.float64)
        noised = add_noise(bounded, [1.0] * 9, fp.Gaussian(), record, Randomness(0, 1), list(range(9)))
        found.append(noised._value)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_run_independent_of_threads() -> None:
    x, y = torch.randn(400, 1, 6, 6), torch.arange(400) % 3
    data = [TensorDataset(*pair) for pair in zip(x.split(40), y.split(40), strict=True)]
    models = []
    for count in (1, 2, 3):
        clients = fp.make_clients(network(), nn.CrossEntropyLoss(), data)
        privacy = fp.Privacy(noise_multiplier=1.0)
        compute = fp.Compute(device="cpu", threads=count, max_physical_batch_size=80)
        models.append(
            fp.train(clients, fp.fedavg(0.5), privacy, rounds=2, secret_seed=0, seed=0, compute=compute).params
        )
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])


@pytest.mark.parametrize(
    ("copies", "insist", "expected"), [(1, False, 1), (1, True, 3), (40, False, 3)], ids=["little", "insisted", "much"]
)
def test_few_blocks_threaded_if_large(
    monkeypatch: pytest.MonkeyPatch, copies: int, insist: bool, expected: int
) -> None:
    seen = list[int]()
    model = network()
    params, batch = world(model, alike=True)
    batch = replace(batch, inputs=batch.inputs.repeat(1, 1, 1, copies, copies))
    monkeypatch.setattr(PerExample, "clients_per_block", lambda *_: CLIENTS)
    monkeypatch.setattr(PerExample, "clipped_sum", lambda *_: (seen.append(torch.get_num_threads()), params.sum(1)))
    backend = build_backend("ghost", model, nn.CrossEntropyLoss())
    torch.set_num_threads(3)
    wrap_in_threads(backend, insist=insist).clipped_sum(params, batch, Clip(0.5))
    assert seen == [expected]
    assert torch.get_num_threads() == 3, "the others keep their threads"


def test_many_parameters_threaded_if_large(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[int]()
    model = nn.Sequential(nn.Linear(2000, 20), nn.Tanh(), nn.Linear(20, 3))
    params = Layout.of(model).row_of(model).expand(1, -1)
    mask = torch.ones(1, 500, dtype=torch.bool)
    batch = Batch(torch.arange(1), torch.randn(1, 500, 2000), torch.zeros(1, 500).long(), mask)
    monkeypatch.setattr(PerExample, "clipped_sum", lambda *_: (seen.append(torch.get_num_threads()), params.sum(1)))
    torch.set_num_threads(2)
    backend = wrap_in_threads(build_backend("ghost", model, nn.CrossEntropyLoss()))
    for chosen in (batch, batch.piece(slice(0, 1), slice(0, 100))):
        backend.clipped_sum(params, chosen, Clip(0.5))
    assert seen == [2, 1]
