"""Norms and sums of gradients that are kept as products, against the gradients themselves."""

from __future__ import annotations

import math

import pytest
import torch
from backend_cases import ragged
from torch import Tensor, nn

from fedpriv.clients.batch import Batch
from fedpriv.oracle.backends import BACKENDS, factors
from fedpriv.oracle.backends.chains import WithBias
from fedpriv.oracle.backends.factors import Convolved, Dense, Gradients, OuterProducts
from fedpriv.oracle.backends.tables import FewRows, OneVector, TiedGradients, few_rows
from fedpriv.privacy.clipping import Clip

L2 = Clip(1.0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def kinds() -> dict[str, Gradients]:
    torch.manual_seed(0)
    options = ((2, 1), (1, 0), (1, 2))
    mostly_distinct = torch.rand(2, 3, 8).argsort(-1)[..., :6]
    mostly_distinct[1, 2, 4] = mostly_distinct[1, 2, 0]
    one_vector = normal(2, 3, 1, 5).expand(-1, -1, 6, -1)
    return {
        "one position": OuterProducts(normal(2, 3, 1, 9), normal(2, 3, 1, 7)),
        "positions": OuterProducts(normal(2, 3, 2, 16), normal(2, 3, 2, 16)),
        "a layer with a bias": WithBias(OuterProducts(normal(2, 3, 1, 9), normal(2, 3, 1, 7))),
        "convolution": Convolved(normal(2, 3, 2, 40, 4, 2), normal(2, 3, 2, 5, 8, 6), (3, 3), options, 1),
        "convolution in one dimension": Convolved(
            normal(2, 3, 1, 40, 4), normal(2, 3, 1, 25, 9), (3,), ((2,), (0,), (1,)), 1
        ),
        "rows": FewRows(torch.randint(0, 4, (2, 3, 6)), normal(2, 3, 6, 5), 8),
        "rows, repeated in one example": FewRows(mostly_distinct, normal(2, 3, 6, 5), 8),
        "rows, none of them repeated": FewRows(mostly_distinct.sort(-1).values[:, :, :1], normal(2, 3, 1, 5), 8),
        "one vector for all rows": few_rows(mostly_distinct, normal(2, 3, 1, 5).expand(-1, -1, 6, -1), 8),
        "one vector for rows that repeat": few_rows(torch.randint(0, 4, (2, 3, 6)), one_vector, 8),
        "tied to rows of one vector": OuterProducts(normal(2, 3, 2, 60), normal(2, 3, 2, 5)).plus(
            few_rows(torch.randint(0, 4, (2, 3, 6)), one_vector, 60)
        ),
        "tied": OuterProducts(normal(2, 3, 2, 60), normal(2, 3, 2, 50)).plus(
            FewRows(torch.randint(0, 4, (2, 3, 6)), normal(2, 3, 6, 50), 60)
        ),
    }


@pytest.mark.parametrize("name", list(kinds()))
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_factored_norms_and_sums_match_dense(name: str, norm: str) -> None:
    found, clip = kinds()[name].settled(norm), Clip(1.0, norm)
    whole, weights = Dense(kinds()[name].whole()), torch.rand(2, 3, dtype=torch.float64)
    assert found.size == whole.size
    torch.testing.assert_close(found.norms(clip), whole.norms(clip), rtol=1e-12, atol=0)
    sums, wanted = torch.ones(2, whole.values.shape[2], dtype=torch.float64), torch.ones_like(whole.values[:, 0])
    found.add_to(sums, weights)
    whole.add_to(wanted, weights)
    torch.testing.assert_close(sums, wanted, rtol=1e-12, atol=1e-12)
    cells = torch.tensor([[True, False, True], [False, True, True]])
    torch.testing.assert_close(found.masked(cells).whole(), whole.masked(cells).whole())
    torch.testing.assert_close(found.times(weights).whole(), whole.times(weights).whole())


def test_one_vector_detected_by_strides_up_to_limit() -> None:
    rows = torch.zeros(1, 2, 3, dtype=torch.long)
    vector = normal(1, 2, 1, 5)
    assert type(few_rows(rows, vector.expand(-1, -1, 3, -1), 9)) is OneVector
    assert type(few_rows(rows, vector.repeat(1, 1, 3, 1), 9)) is FewRows
    many = rows[:, :, :1].expand(-1, -1, 2**13 + 1)
    assert type(few_rows(many, vector.expand(-1, -1, 2**13 + 1, -1), 9)) is FewRows


def test_large_weight_gradients_stay_factored() -> None:
    assert isinstance(kinds()["positions"].settled("l2"), OuterProducts)
    assert isinstance(kinds()["positions"].settled("l1"), Dense), "an l1 norm does not follow from products"
    many = Convolved(normal(1, 2, 1, 40, 2, 2), normal(1, 2, 1, 30, 4, 4), (3, 3), ((1, 1), (0, 0), (1, 1)), 1)
    assert isinstance(many.settled("l2"), OuterProducts)
    torch.testing.assert_close(many.settled("l2").norms(L2), Dense(many.whole()).norms(L2), rtol=1e-12, atol=0)


def test_table_gradients_stay_sparse() -> None:
    few = FewRows(torch.randint(0, 10**6, (1, 4, 6)), normal(1, 4, 6, 64), 10**6)
    tied = OuterProducts(normal(1, 4, 1, 10**6), normal(1, 4, 1, 64)).plus(few)
    for gradients in (few, few.plus(few), few.minus(few), few.times(torch.rand(1, 4)), tied, few.plus(tied)):
        for norm in ("l1", "l2") if isinstance(gradients, FewRows) else ("l2",):
            assert gradients.settled(norm).numbers < 3 * 10**6
            assert not isinstance(gradients.settled(norm), Dense)
    assert isinstance(tied.minus(tied), TiedGradients)
    assert isinstance(FewRows(torch.zeros(1, 1, 9).long(), normal(1, 1, 9, 2), 4).settled("l2"), Dense)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tied_table_cancellation_norm_not_below_exact(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    left, right = torch.zeros(1, 20, 1, 9, dtype=dtype), torch.randn(1, 20, 1, 7, dtype=dtype)
    left[..., 2] = -1
    almost = right * (1 + 1e-6)
    tied = OuterProducts(left, right).plus(FewRows(torch.full((1, 20, 1), 2), almost, 9))
    exact = (almost.double() - right.double()).norm(dim=-1).squeeze(2)
    assert bool((tied.norms(L2) * (1 + 1e-9) >= exact).all())


@pytest.mark.parametrize("small", [1e-3, 1e-9, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cancelling_positions_norm_not_below_exact(small: float, dtype: torch.dtype) -> None:
    """The second position cancels the first except for a small rest."""
    torch.manual_seed(1)
    left, right = torch.randn(1, 50, 1, 8, dtype=dtype), torch.randn(1, 50, 1, 8, dtype=dtype)
    again = right * (1 + small)
    pair = OuterProducts(torch.cat([left, -left], 2), torch.cat([right, again], 2))
    exact = Dense(left.double().mT @ (right.double() - again.double())).values.flatten(2)
    assert bool((pair.norms(L2) * (1 + 1e-9) >= torch.linalg.vector_norm(exact, dim=-1)).all())
    # clipped terms must not be so long that the rounding of their sum passes the bound
    terms, tight = (
        torch.linalg.vector_norm(left.double(), dim=-1) * torch.linalg.vector_norm(right.double(), dim=-1),
        1e-12,
    )
    assert bool((Clip(tight).factors(pair.norms(L2)) * terms.squeeze(2) <= 2.0**14 * tight).all())


def test_close_anchor_keeps_precision() -> None:
    """SVRG needs precise differences of gradients at close points."""
    torch.manual_seed(2)
    model, batch, step = nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)), ragged((4,)), 1e-7
    row = normal(1, sum(p.numel() for p in model.parameters()))
    anchor, clip = row + step * normal(*row.shape), Clip(step)
    found, wanted = (
        BACKENDS[name](model, nn.CrossEntropyLoss()).clipped_sum(row, batch, clip, anchor)[0]
        for name in ("ghost", "loop")
    )
    assert not math.isclose(float(wanted.norm()), 0.0)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6 * float(wanted.abs().max()))


def test_chunked_products_match_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory limit for float64 factors admits one example at a time."""
    draw = torch.Generator().manual_seed(0)
    products = OuterProducts(torch.randn(2, 5, 3, 4, generator=draw), torch.randn(2, 5, 3, 6, generator=draw))
    weights = torch.rand(2, 5, generator=draw).double()

    def results() -> tuple[Tensor, Tensor]:
        sums = torch.zeros(2, 24, dtype=torch.float64)
        products.add_to(sums, weights)
        return products.squares(), sums

    together = results()
    monkeypatch.setattr(factors, "_CONVERTED", 1)
    for piece, whole in zip(results(), together, strict=True):
        torch.testing.assert_close(piece, whole, rtol=1e-12, atol=0)


@pytest.mark.parametrize("padding_idx", [0, 1, -1])
@pytest.mark.parametrize("clip", [Clip(1.0), None], ids=str)
def test_padding_index_row_has_zero_gradient(padding_idx: int, clip: Clip | None) -> None:
    """As in torch: the data contain padding words, and their row stays unchanged."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(4, 3, padding_idx), nn.Flatten(), nn.Linear(6, 2)).double()
    words, labels = torch.tensor([[[0, 1], [3, 3], [2, 1], [3, 0]]]), torch.tensor([[0, 1, 1, 0]])
    batch = Batch(torch.zeros(1, dtype=torch.long), words, labels, torch.ones(1, 4, dtype=torch.bool))
    params = torch.cat([p.detach().flatten() for p in model.parameters()]).unsqueeze(0)
    ghost, loop = (
        BACKENDS[name](model, nn.CrossEntropyLoss()).clipped_sum(params, batch, clip)[0] for name in ("ghost", "loop")
    )
    torch.testing.assert_close(ghost, loop, rtol=1e-9, atol=1e-12)
    assert (loop[0, :12].view(4, 3)[padding_idx] == 0).all()
    assert (loop[0, :12] != 0).any()
