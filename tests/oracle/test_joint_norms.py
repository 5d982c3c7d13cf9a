"""Norms of all parameters at once, tables with few repeated rows, factors of 16 bits, and what a pass leaves behind."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn

from fedpriv.clients.batch import Batch
from fedpriv.oracle.backends.factors import Dense, Gradients, OuterProducts, add_all, compute_joint_norms
from fedpriv.oracle.backends.ghost import GhostBackend
from fedpriv.oracle.backends.recorded import Recording
from fedpriv.oracle.backends.tables import FewRows
from fedpriv.privacy.clipping import Clip, NormName

L2 = Clip(1.0)


def whole(gradients: list[Gradients]) -> Tensor:
    """All parameters' gradients in one row for each example, in float64."""
    return torch.cat([gradient.whole().double() for gradient in gradients], 2)


def three_parameters(scale: Tensor) -> list[Gradients]:
    """Gradients of six examples, each times its scale, `[1, 6]`."""
    torch.manual_seed(3)
    few = FewRows(torch.randint(0, 50, (1, 6, 4)), torch.randn(1, 6, 4, 3), 50)
    outer = OuterProducts(torch.randn(1, 6, 1, 5), torch.randn(1, 6, 1, 7))
    return [gradient.times(scale) for gradient in (Dense(torch.randn(1, 6, 9)), outer, few)]


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("largest", [1.0, 1e30, 1e45, float("inf"), float("nan")])
def test_joint_norm_matches_whole_gradient(largest: float, norm: NormName) -> None:
    """The third example may overflow or be non-finite; the norms of the others stay correct."""
    scale = torch.ones(1, 6)
    gradients = three_parameters(scale)
    if largest > 1e38:
        scale = scale.double()
    scale[0, 2] = largest
    broken = [Dense((gradient.whole() * scale.unsqueeze(2)).float()) for gradient in gradients]
    order = {"l1": 1, "l2": 2}[norm]
    wanted = torch.linalg.vector_norm(whole(list(broken)), order, dim=-1)
    for on_cpu in (True, False):
        norms = compute_joint_norms(broken, Clip(1.0, norm), on_cpu=on_cpu)
        if not largest < 1e38:
            assert not bool(torch.isfinite(norms[0, 2]))
            norms[0, 2] = wanted[0, 2] = 0
        torch.testing.assert_close(norms, wanted, rtol=2**-12, atol=1e-18)


def test_short_gradients_added_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    short = [Dense(torch.randn(2, 3, size)) for size in (4, 1, 9)]
    gradients = [short[0], OuterProducts(torch.randn(2, 3, 1, 5), torch.randn(2, 3, 1, 7)), *short[1:]]
    gradients.append(Dense(torch.randn(2, 3, 2**10 + 1)))
    weights = torch.rand(2, 3, dtype=torch.float64)
    sums = [torch.ones(2, gradient.whole().shape[2], dtype=torch.float64) for gradient in gradients]
    added: list[int] = []
    add_to = Dense.add_to

    def counted(self: Dense, sums: Tensor, weights: Tensor) -> None:
        added.append(self.numbers)
        add_to(self, sums, weights)

    monkeypatch.setattr(Dense, "add_to", counted)
    add_all(sums, gradients, weights)
    assert added == [4 + 1 + 9, 2**10 + 1]
    for total, gradient in zip(sums, gradients, strict=True):
        wanted = 1 + (weights.unsqueeze(2) * gradient.whole().double()).sum(1)
        torch.testing.assert_close(total, wanted, rtol=1e-6, atol=1e-6)


def test_overflowing_product_norm_not_finite() -> None:
    left, right = torch.ones(1, 3, 1, 2), torch.ones(1, 3, 1, 2)
    left[0, 1], right[0, 1] = 1e25, 1e25
    norms = compute_joint_norms([OuterProducts(left, right), Dense(torch.ones(1, 3, 4))], L2, on_cpu=True)
    assert torch.isfinite(norms).tolist() == [[True, False, True]]


@pytest.mark.parametrize("repeating", [[], [4], [0, 3], [0, 1, 2, 3, 5]])
def test_repeated_rows_summed_per_example(repeating: list[int]) -> None:
    torch.manual_seed(0)
    rows = torch.stack([torch.randperm(20)[:5] for _ in range(6)]).unsqueeze(0)
    for example in repeating:
        rows[0, example, 3] = rows[0, example, 1]
    values = torch.randn(1, 6, 5, 4)
    if repeating:
        # these two cancel but for a little: a norm of positions would be far too large, and a sum of them inexact
        values[0, repeating[0], 3] = -values[0, repeating[0], 1] * (1 + 2**-20)
    few = FewRows(rows, values, 20)
    table = torch.zeros(1, 6, 20, 4, dtype=torch.float64)
    for example in range(6):
        table[0, example].index_add_(0, rows[0, example], values[0, example].double())
    exact = table.flatten(2)
    torch.testing.assert_close(few.norms(L2), torch.linalg.vector_norm(exact, dim=-1), rtol=2**-12, atol=1e-18)
    torch.testing.assert_close(few.squares(), exact.square().sum(2), rtol=1e-12, atol=0)
    weights = torch.rand(1, 6, dtype=torch.float64)
    weights[0, 1] = 0
    sums = torch.zeros(1, 80, dtype=torch.float64)
    few.add_to(sums, weights)
    torch.testing.assert_close(sums[0], (weights[0].unsqueeze(1) * exact[0]).sum(0), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("positions", [1, 9])
def test_bfloat16_norm_and_sum_use_same_values(positions: int) -> None:
    """The norm and the sum both use the rounded gradient."""
    torch.manual_seed(1)
    left = torch.randn(1, 4, positions, 6).bfloat16()
    right = torch.randn(1, 4, positions, 8).bfloat16()
    gradient = OuterProducts(left, right).settled("l2")
    if positions == 1:
        summands = (left.double().mT @ right.double()).flatten(2)
    else:
        assert isinstance(gradient, Dense)
        assert gradient.values.dtype == torch.bfloat16
        summands = gradient.values.double()
    norms = gradient.norms(L2)
    torch.testing.assert_close(norms, torch.linalg.vector_norm(summands, dim=-1), rtol=2**-12, atol=0)
    sums = torch.zeros(1, 48, dtype=torch.float64)
    factors = L2.factors(norms)
    gradient.add_to(sums, factors)
    torch.testing.assert_close(sums[0], (factors[0].unsqueeze(1) * summands[0]).sum(0), rtol=1e-12, atol=1e-15)


def test_pass_leaves_no_reference_cycles() -> None:
    """Activations in a reference cycle would stay in memory until the next garbage collection."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    backend = GhostBackend(model, nn.CrossEntropyLoss())
    x, y = torch.randn(2, 5, 12), torch.randint(0, 3, (2, 5))
    batch = Batch(torch.arange(2), x, y, torch.ones(2, 5, dtype=torch.bool))
    row = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    gc.collect()
    gc.disable()
    try:
        for params in (row.expand(2, -1), torch.stack([row, 2 * row])):  # without vmap, and under it
            backend.clipped_sum(params, batch, L2)
        assert not [thing for thing in gc.get_objects() if issubclass(type(thing), Recording)]
    finally:
        gc.enable()
