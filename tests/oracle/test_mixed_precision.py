"""Gradients in bfloat16: the clipped sum's sensitivity holds, and what it is not shown for is refused."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.clients.layout import Layout
from fedpriv.distributed.modes import Modes
from fedpriv.models import MnistCNN, VisionTransformer
from fedpriv.oracle import low_precision
from fedpriv.oracle.backends import BACKENDS
from fedpriv.oracle.backends.precision import SERVING, Bfloat16
from fedpriv.privacy.clipping import ROUNDING, Clip

SHAPE, N = (1, 8, 8), 12


def models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 3))
    return {"cnn": MnistCNN(SHAPE, 3, (2, 4)), "vit": VisionTransformer(SHAPE, 3, width=8, heads=2), "mlp": mlp}


def batch(x: Tensor, y: Tensor) -> Batch:
    return Batch(torch.arange(1), x.unsqueeze(0), y.unsqueeze(0), torch.ones(1, len(x), dtype=torch.bool))


def examples(seed: int, scale: float) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return scale * torch.randn(N, *SHAPE, generator=draw), torch.randint(0, 3, (N,), generator=draw)


@pytest.mark.parametrize("kind", ["cnn", "vit", "mlp"])
@pytest.mark.parametrize("backend", SERVING)
@pytest.mark.parametrize("clip", [Clip(0.5), Clip(0.5, "l1")], ids=str)
def test_bfloat16_sum_change_bounded_by_clip(kind: str, backend: str, clip: Clip):
    model = Bfloat16(models()[kind])
    row, serving = Layout.of(model).row_of(model).unsqueeze(0), BACKENDS[backend](model, nn.CrossEntropyLoss())
    for seed, scale in ((0, 1.0), (1, 30.0), (2, 1e-2)):
        x, y = examples(seed, scale)
        other, of_other = examples(seed + 10, 3 * scale)
        whole, _ = serving.clipped_sum(row, batch(x, y), clip)
        assert whole.dtype == torch.float64
        for place in (0, 5, N - 1):
            a, b = x.clone(), y.clone()
            a[place], b[place] = other[place], of_other[place]
            neighbour, _ = serving.clipped_sum(row, batch(a, b), clip)
            assert float(clip.norms(whole - neighbour)) <= 2 * clip.bound * (1 + ROUNDING)
            # the others' part is the same, bit for bit but for the order of a float64 sum
            before, _ = serving.clipped_sum(row, alone(x, y, place), clip)
            after, _ = serving.clipped_sum(row, alone(a, b, place), clip)
            torch.testing.assert_close(whole - before, neighbour - after, rtol=0, atol=1e-12)


def alone(x: Tensor, y: Tensor, place: int) -> Batch:
    """One of the examples, in a batch of the same size."""
    mask = torch.arange(N).unsqueeze(0) == place
    return Batch(torch.arange(1), x.unsqueeze(0), y.unsqueeze(0), mask)


@pytest.mark.parametrize("kind", ["cnn", "vit", "mlp"])
def test_bfloat16_gradients_match_torch_autocast(kind: str):
    plain, clip, (x, y) = models()[kind], Clip(1e3), examples(3, 1.0)
    row, loss = Layout.of(plain).row_of(plain).unsqueeze(0), nn.CrossEntropyLoss()
    wanted = torch.zeros(row.shape[1], dtype=torch.float64)
    for i in range(N):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = plain(x[i : i + 1])
        found = torch.autograd.grad(loss(outputs.float(), y[i : i + 1]), list(plain.parameters()))
        wanted += torch.cat([gradient.flatten() for gradient in found]).double()
    for backend in SERVING:
        half, full = (
            BACKENDS[backend](m, loss).clipped_sum(row, batch(x, y), clip)[0] for m in (Bfloat16(plain), plain)
        )
        assert float((half[0] - wanted).norm()) < 2**-6 * float(wanted.norm())
        assert float((half - full).norm()) > 2**-14 * float(full.norm())


def run(**settings: Any) -> fp.Training:
    compute = fp.Compute(**{"precision": "bfloat16", **settings.pop("compute", {})})
    data = [TensorDataset(*examples(i, 1.0)) for i in range(2)]
    clients = fp.make_clients(settings.pop("model", models()["vit"]), nn.CrossEntropyLoss(), data)
    names = {field.name for field in fields(fp.Privacy)}
    privacy = fp.Privacy(**{"epsilon": 5, **{name: settings.pop(name) for name in names & {*settings}}})
    options = {"rounds": 2, "seed": 1, "secret_seed": 1, "compute": compute, **settings}
    return fp.Training(clients, fp.fedavg(0.5), privacy, **options)


def test_bfloat16_run_same_privacy_cost():
    half, full = run(), run(compute={"precision": "full"})
    list(half), list(full)
    assert half.spent() == full.spent()
    assert half.result().params.dtype == torch.float32
    assert not torch.equal(half.result().params, full.result().params)


BLOCKS = 3
CYCLIC = {"sampling": fp.Cyclic(BLOCKS), "noise": fp.BSR(2)}


@pytest.mark.parametrize("kind", ["mlp", "vit"])
@pytest.mark.parametrize("backend", SERVING)
def test_cyclic_example_changes_own_slot_only(kind: str, backend: str):
    """Neighbouring data with the same noise: results differ only in the rounds of the example's block."""
    clip, rounds = Clip(0.5), 2 * BLOCKS

    def answers(place: int | None) -> Tensor:
        x, y = examples(0, 1.0)
        if place is not None:
            x[place], y[place] = 30 * examples(9, 1.0)[0][0], 2
        data = [TensorDataset(*examples(1, 1.0)), TensorDataset(x, y)]
        clients = fp.make_clients(models()[kind], nn.CrossEntropyLoss(), data)
        privacy = fp.Privacy(noise_multiplier=0.5, clip=clip, **CYCLIC)
        compute = fp.Compute(backend, precision="bfloat16")
        seeds = {"seed": 1, "secret_seed": 1}
        training = fp.Training(clients, fp.fedavg(0.1), privacy, rounds=rounds, compute=compute, **seeds)
        points, found = training.population.params.clone(), list[Tensor]()
        for t in range(rounds):
            training.oracle.begin_round(t, torch.arange(2))
            found.append(training.oracle.gradient(points).double() * N / BLOCKS)  # sums, not means
        return torch.stack(found)

    before = answers(None)
    for place in (0, 4, N - 1):
        moved = answers(place) - before
        turns = torch.arange(rounds) % BLOCKS == place % BLOCKS
        assert not moved[~turns].any()
        assert not moved[:, 0].any()
        norms = clip.norms(moved[turns][:, 1])
        assert 0.1 * clip.bound < float(norms.min()) <= float(norms.max()) <= 2 * clip.bound * (1 + 1e-5)


def test_bfloat16_correlated_noise_run_resumes(tmp_path: Path):
    whole, full = run(**CYCLIC, rounds=6), run(**CYCLIC, rounds=6, compute={"precision": "full"})
    list(whole), list(full)
    assert whole.spent() == full.spent()
    assert not torch.equal(whole.result().params, full.result().params)
    options = {**CYCLIC, "rounds": 6, "folder": tmp_path, "checkpoint_every": 2}
    stopped = run(**options)
    for report in stopped:
        if report.round == 3:
            break
    stopped.folder.close()
    again = run(**options, resume=True)
    list(again)
    assert again.spent() == whole.spent()
    assert torch.isfinite(again.result().params).all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"compute": {"backend": "linear"}, "model": nn.Sequential(nn.Flatten(), nn.Linear(64, 3))}, "'linear'"),
        ({"compute": {"dtype": "float64"}}, r"^compute\.dtype"),
        ({"relation": "add_remove"}, r"^compute\.precision = 'bfloat16'"),
        ({"unit": "client"}, r"^compute\.precision = 'bfloat16'"),
    ],
)
def test_bfloat16_without_proven_guarantee_raises(settings: dict[str, Any], said: str):
    with pytest.raises(fp.ConfigError, match=said):
        run(**settings)


class OwnAutocast(nn.Module):
    """A model that chooses bfloat16 by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            outputs = self.layer(x)
        return outputs.float()


def loss_in_half(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs.bfloat16().float(), targets)


@pytest.mark.parametrize(
    ("model", "loss"),
    [(OwnAutocast, nn.functional.cross_entropy), (lambda: nn.Linear(4, 2), loss_in_half)],
    ids=["forward", "loss"],
)
@pytest.mark.parametrize(
    "settings", [{"relation": "add_remove"}, {"unit": "client", "noise_on": "message"}], ids=["add_remove", "client"]
)
def test_own_bfloat16_with_varying_batch_size_raises(model: Any, loss: Any, settings: dict[str, Any]):
    def train(**settings: Any) -> fp.Result:
        data = TensorDataset(torch.randn(8, 4), torch.arange(8) % 2)
        privacy = fp.Privacy(epsilon=3, delta=1e-5, **settings)
        return fp.train(fp.make_clients(model(), loss, [data]), fp.fedavg(learning_rate=0.1), privacy, rounds=1)

    with pytest.raises(
        fp.errors.ConfigError, match=r"computes in torch\.bfloat16, which is supported only for the privacy unit sample"
    ):
        train(**settings)
    assert train().spent.epsilon <= 3


@pytest.fixture
def coarse_products():
    """Float32 products in bfloat16, on processors that can: types stay float32."""
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


def train_mlp(**settings: Any) -> fp.Result:
    data = TensorDataset(torch.randn(8, 4), torch.arange(8) % 2)
    privacy = fp.Privacy(epsilon=3, delta=1e-5, **settings)
    clients = fp.make_clients(nn.Linear(4, 2), nn.functional.cross_entropy, [data])
    return fp.train(clients, fp.fedavg(learning_rate=0.1), privacy, rounds=1)


@pytest.mark.parametrize(
    "settings", [{"relation": "add_remove"}, {"unit": "client", "noise_on": "message"}], ids=["add_remove", "client"]
)
def test_coarse_products_with_varying_batch_size_raise(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """With `medium`, 33 and 32 examples of a small network gave sums that differ by 1.43 clip bounds, not 1."""
    assert train_mlp(**settings).spent.epsilon <= 3
    monkeypatch.setattr(low_precision, "largest_error", lambda device: 2.0**-11)
    with pytest.raises(fp.errors.ConfigError, match="multiplies float32 numbers with lower precision"):
        train_mlp(**settings)
    assert train_mlp().spent.epsilon <= 3


def test_full_float32_products_have_small_error():
    assert low_precision.largest_error(torch.device("cpu")) < 2**-17


def test_coarse_products_detected(coarse_products: None):
    left, right = torch.randn(128, 256), torch.randn(256, 256)
    error = (left @ right).double() - left.double() @ right.double()
    if float(error.abs().max()) < 1e-3:
        pytest.skip("this processor multiplies in float32 whatever torch is told")
    assert low_precision.largest_error(torch.device("cpu")) > 2**-11
    with Modes(torch.float32, full_precision=True).fixed():
        assert low_precision.largest_error(torch.device("cpu")) < 2**-17
    assert train_mlp(relation="add_remove").spent.epsilon <= 3
    assert torch.get_float32_matmul_precision() == "medium"
