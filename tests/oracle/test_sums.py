"""Sensitivity in the arithmetic that runs: clipped sums are exact to a small part of the bound, in any order."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from backend_cases import join
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.models import Loss
from fedpriv.oracle.backends import BACKENDS
from fedpriv.oracle.backends.summation import sum_of_products
from fedpriv.oracle.clipped_sums import ClippedSums, check_depth
from fedpriv.privacy.clipping import ROUNDING, Clip

ALLOWED = ROUNDING / 4


class Slope(nn.Module):
    """One number per example and input: with the loss `output * target` a gradient is `target * input`."""

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 1, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs)


LOSS = Loss(lambda outputs, targets: outputs[:, 0] * targets)

ORDERS = {
    "alike": lambda x: np.abs(x),
    "up then down": lambda x: np.concatenate([np.sort(x)[::-1][: len(x) // 2], np.sort(x)[: len(x) - len(x) // 2]]),
    "alternating": lambda x: np.abs(x) * (-1.0) ** np.arange(len(x)),
    "one large among small": lambda x: np.where(np.arange(len(x)) == 0, 1.0, x * 2.0**-13),
    "random": lambda x: x,
}


def gradients_of(n: int, order: str, seed: int) -> Tensor:
    """Gradients within the bound 1 that are hard to add up in that order, `[n]` float32."""
    draws = np.random.default_rng(seed).uniform(-1, 1, n)
    return torch.from_numpy(ORDERS[order](draws)).float()


def clipped_sum(values: Tensor, backend: str, chunk: int) -> float:
    """Through the same path as a run: chunks of a batch, added up."""
    model = Slope()
    sums = ClippedSums(BACKENDS[backend](model, LOSS), 1, torch.device("cpu"))
    whole = join(torch.ones(len(values), 1), values)
    cuts = [slice(low, low + chunk) for low in range(0, len(values), chunk)]
    batches = (Batch(whole.rows, whole.inputs[:, c], whole.targets[:, c], whole.mask[:, c]) for c in cuts)
    rows = torch.zeros(1, 1)
    return float(sums.gradients(batches, torch.arange(1), rows, clip=Clip(1.0)))


@settings(max_examples=25)
@given(
    n=st.sampled_from([1, 1000, 16_384, 60_000]),
    order=st.sampled_from(list(ORDERS)),
    chunk=st.sampled_from([512, 16_384, 10**6]),
    seed=st.integers(0, 2**31),
)
def test_clipped_sum_error_bounded(n: int, order: str, chunk: int, seed: int) -> None:
    values = gradients_of(n, order, seed)
    found = clipped_sum(values, "linear", chunk)
    assert abs(found - math.fsum(values.tolist())) <= ALLOWED


@pytest.mark.parametrize("order", ["alike", "alternating"])
def test_million_example_chunk_error_bounded(order: str) -> None:
    values = gradients_of(10**6, order, 0)
    assert abs(clipped_sum(values, "linear", 10**6) - math.fsum(values.tolist())) <= ALLOWED


@pytest.mark.parametrize(
    ("backend", "n"), [("linear", 16_384), ("vmap", 16_384), pytest.param("loop", 2000, marks=pytest.mark.slow)]
)
def test_long_sum_change_bounded_by_clip(backend: str, n: int) -> None:
    """Small rows are lost in a slightly larger float32 partial sum, and kept in a slightly smaller one."""
    values = torch.full((n,), 0.7 if backend == "loop" else 2.0**-11 * 1.0001)
    values[: n // 2] = 0.99 if backend == "loop" else 1.0
    other = values.clone()
    values[0], other[0] = 1.0, -1.0
    moved = clipped_sum(values, backend, n) - clipped_sum(other, backend, n)
    assert abs(moved) <= 2 * (1 + ROUNDING)
    for row in (values, other):
        assert abs(clipped_sum(row, backend, n) - math.fsum(row.tolist())) <= ALLOWED


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("dim", [10, 10_000, 3_000_000])
def test_long_row_norms_match_float64(norm: str, dim: int) -> None:
    for row in (torch.full((1, dim), 0.1), torch.rand(1, dim).sort(descending=True).values):
        wanted = float(torch.linalg.vector_norm(row.double(), {"l1": 1, "l2": 2}[norm]))
        found = Clip(1.0, norm).norms(row)
        assert found.dtype == torch.float64
        assert float(found) == pytest.approx(wanted, rel=ALLOWED)
        clipped = Clip(1.0, norm).rows(row)[0]
        assert float(torch.linalg.vector_norm(clipped, {"l1": 1, "l2": 2}[norm])) <= 1 + ALLOWED


def test_too_many_additions_raise() -> None:
    check_depth([10**6], chunk=10**6)
    check_depth([10**6] * 20, chunk=16_384)
    with pytest.raises(Exception, match=r"compute\.max_physical_batch_size"):
        check_depth([10**8], chunk=10**8)
    with pytest.raises(Exception, match=r"compute\.max_physical_batch_size"):
        check_depth([1] * 2**21, chunk=1)  # the clients' rows are added up one after another
    check_depth([2**20 - 2], chunk=2**20)  # n (n + 4) additions of 2^-53 in 2^-13
    with pytest.raises(Exception, match=r"compute\.max_physical_batch_size"):
        check_depth([2**20 - 1], chunk=2**20)


def test_run_with_too_many_additions_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = fp.make_clients(Slope(), Loss(lambda outputs, _: outputs[:, 0]), [[(torch.ones(1), torch.ones(1))] * 3])
    fp.Training(clients, fp.fedavg(0.1), fp.Privacy(epsilon=1.0), rounds=1)
    monkeypatch.setattr("fedpriv.oracle.clipped_sums.ROUNDING", 2.0**-50)
    with pytest.raises(fp.ConfigError, match=r"compute\.max_physical_batch_size"):
        fp.Training(clients, fp.fedavg(0.1), fp.Privacy(epsilon=1.0), rounds=1)


HUGE = [
    (torch.float32, 1.0, 1e30),  # its square is no float32
    (torch.float32, 1e15, 1e18),  # nor is this product's, though both factors' squares are
    (torch.float32, -1e18, 1e20),
    (torch.float32, 1.0, 3e38),  # two of them have a norm that is none
    (torch.float32, 1e25, 1e15),  # the product itself is none: broken
    (torch.float32, 1.0, math.inf),
    (torch.float32, math.nan, 1.0),
    (torch.float64, 1e150, -1e150),
    (torch.float64, 1.0, 1e307),
    (torch.float64, 1e200, 1e200),
]


@pytest.mark.parametrize("backend", list(BACKENDS))
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize(("dtype", "delta", "value"), HUGE)
@pytest.mark.parametrize("anchored", [False, True])
def test_huge_gradient_clipped_nonfinite_zero(
    backend: str, norm: str, dtype: torch.dtype, delta: float, value: float, anchored: bool
) -> None:
    """With the loss `output * target` a gradient is `target * input`; at another anchor it is zero."""
    model = Slope(2).to(dtype)
    loss = Loss(lambda outputs, targets: outputs[:, 0] * targets * (outputs[:, 0].detach() == 0))
    inputs = torch.tensor([[value, value], [0.125, 0.125]], dtype=dtype)
    targets = torch.tensor([delta, 1.0], dtype=dtype)
    anchor = torch.ones(1, 2, dtype=dtype) if anchored else None
    batch, clip = join(inputs, targets), Clip(0.5, norm)
    sums, broken = BACKENDS[backend](model, loss).clipped_sum(torch.zeros(1, 2, dtype=dtype), batch, clip, anchor)
    gradient = float(inputs[0, 0] * targets[0])
    whole = math.isfinite(gradient)
    entry = math.copysign(0.25 if norm == "l1" else 0.125**0.5, gradient) if whole else 0.0
    assert sums.tolist()[0] == pytest.approx([0.125 + entry] * 2, rel=1e-6)
    assert broken.tolist() == [not whole]


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("bound", [1e-300, 1e-15, 1.0, 1e300])
@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e30, 1e160, 1e300, 1.7e308])
def test_clipped_row_norm_bounded_extreme_scales(norm: str, bound: float, scale: float) -> None:
    rows = scale * torch.tensor([[0.3, -0.1, 0.0, 0.2], [1.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    clipped, _ = Clip(bound, norm).rows(rows)
    # exact, in units of the bound
    lengths = [
        math.fsum(abs(x / bound) for x in row) if norm == "l1" else math.hypot(*(x / bound for x in row))
        for row in clipped.tolist()
    ]
    assert max(lengths) <= 1 + 2.0**-12


@pytest.fixture
def without_subnormal_numbers():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers to zero")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("without_subnormal_numbers")
@pytest.mark.parametrize("dim", [1000, 3 * 2**12])
@pytest.mark.parametrize("count", [1, 20])
def test_underflowing_squares_norm_not_below_exact(dim: int, count: int) -> None:
    """The squares of a thousand entries are all zero; the lost parts add up with the length of the row."""
    rows = torch.full((count, dim), 1e-19)
    assert float(rows.square().sum()) == 0
    wanted = math.sqrt(dim) * float(rows[0, 0])
    # few rows are computed in float64, where nothing underflows and sums round by 2**-53 of themselves
    assert bool((Clip(1.0).norms(rows) >= wanted * (1 - 1e-12)).all())
    clipped = Clip(wanted / 2).rows(rows)[0].double()
    assert bool((clipped.norm(dim=1) <= wanted / 2 * (1 + ALLOWED)).all())


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_norms_per_client_example_match(norm: str) -> None:
    """Rows of three pieces, three examples of each of two clients."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 3, 3 * 2**12, generator=draw) * torch.arange(1, 7).view(2, 3, 1)
    wanted = torch.linalg.vector_norm(rows.double(), {"l1": 1, "l2": 2}[norm], dim=-1)
    torch.testing.assert_close(Clip(1.0, norm).norms(rows), wanted, rtol=1e-5, atol=0)


def test_wide_row_products_match_matmul() -> None:
    draw = torch.Generator().manual_seed(0)
    right, left = torch.randn(2, 3, 2**16 + 1, generator=draw), torch.rand(2, 1, 3, generator=draw).double()
    torch.testing.assert_close(sum_of_products(left, right), left @ right.double())
