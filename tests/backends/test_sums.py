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

from fedpriv.backends import BACKENDS
from fedpriv.batch import Batch
from fedpriv.models import Loss
from fedpriv.privacy.clipping import ROUNDING, Clip
from fedpriv.sums import Sums, check_depth

ALLOWED = ROUNDING / 4


class Slope(nn.Module):
    """One number per example: with the loss `output * target` a gradient is `target * input`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)

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
    sums = Sums(BACKENDS[backend](model, LOSS), 1, torch.device("cpu"))
    whole = join(torch.ones(len(values), 1), values)
    cuts = [slice(low, low + chunk) for low in range(0, len(values), chunk)]
    batches = (Batch(whole.rows, whole.inputs[:, c], whole.targets[:, c], whole.mask[:, c]) for c in cuts)
    rows = torch.zeros(1, 1)
    return float(sums.gradients(batches, torch.arange(1), rows, clip=Clip(1.0)))


@settings(max_examples=25, deadline=None)
@given(
    n=st.sampled_from([1, 1000, 16_384, 60_000]),
    order=st.sampled_from(list(ORDERS)),
    chunk=st.sampled_from([512, 16_384, 10**6]),
    seed=st.integers(0, 2**31),
)
def test_sums_are_exact_to_a_part_of_the_bound(n: int, order: str, chunk: int, seed: int) -> None:
    values = gradients_of(n, order, seed)
    found = clipped_sum(values, "linear", chunk)
    assert abs(found - math.fsum(values.tolist())) <= ALLOWED


@pytest.mark.parametrize("order", ["alike", "alternating"])
def test_a_million_examples_in_one_chunk(order: str) -> None:
    values = gradients_of(10**6, order, 0)
    assert abs(clipped_sum(values, "linear", 10**6) - math.fsum(values.tolist())) <= ALLOWED


@pytest.mark.parametrize(("backend", "n"), [("linear", 16_384), ("vmap", 16_384), ("loop", 2000)])
def test_one_example_moves_a_long_sum_by_its_bound(backend: str, n: int) -> None:
    """Rows of which each is lost beside a partial sum that is a little larger, and kept beside a little smaller one."""
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
def test_norms_of_long_rows_are_not_too_small(norm: str, dim: int) -> None:
    for row in (torch.full((1, dim), 0.1), torch.rand(1, dim).sort(descending=True).values):
        wanted = float(torch.linalg.vector_norm(row.double(), {"l1": 1, "l2": 2}[norm]))
        found = Clip(1.0, norm).norms(row)
        assert found.dtype == torch.float64
        assert float(found) == pytest.approx(wanted, rel=ALLOWED)
        clipped = Clip(1.0, norm).rows(row)[0]
        assert float(torch.linalg.vector_norm(clipped, {"l1": 1, "l2": 2}[norm])) <= 1 + ALLOWED


def test_sums_that_would_be_too_long_are_refused() -> None:
    check_depth([10**6], chunk=10**6, clients=1)
    check_depth([10**6] * 20, chunk=16_384, clients=20)
    with pytest.raises(Exception, match=r"compute\.chunk"):
        check_depth([10**8], chunk=10**8, clients=1)
