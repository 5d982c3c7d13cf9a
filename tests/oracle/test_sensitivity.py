"""The guarantee, on real neighbouring data sets: one example moves one row by no more than the bound."""

from __future__ import annotations

import pytest
import torch
from backend_cases import CASES, Case, join, ragged
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.oracle.backends import BACKENDS
from fedpriv.privacy.clipping import Clip

SERVED = [pytest.param(case, name, id=f"{case.name}: {name}") for case in CASES for name in ("loop", *case.backends)]
SCALES = st.sampled_from([1e-12, 1e-3, 1.0, 1e3, 1e12, 1e100, 1e300, float("inf"), float("nan")])
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


@pytest.mark.parametrize(("case", "name"), SERVED)
@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(0, 4),
    scale=SCALES,
    weight_scale=st.sampled_from([1e-6, 1.0, 1e6]),
    bound=st.sampled_from([1e-3, 1.0, 50.0]),
    norm=st.sampled_from(["l1", "l2"]),
    with_anchor=st.booleans(),
)
def test_neighbouring_row_change_bounded_by_clip(
    case: Case,
    name: str,
    seed: int,
    size: int,
    scale: float,
    weight_scale: float,
    bound: float,
    norm,
    with_anchor: bool,
) -> None:
    torch.manual_seed(seed)
    clip, backend = Clip(bound, norm), BACKENDS[name](case.model, case.loss)
    params = weight_scale * case.rows(1)
    anchor = params + case.rows(1) if with_anchor else None
    common, two = ragged((size,)), ragged((2,))
    two.inputs[:] *= scale
    x, y = torch.cat([common.inputs[0], two.inputs[0]]), torch.cat([common.targets[0], two.targets[0]])

    def row(kept: list[int]) -> torch.Tensor:
        return backend.clipped_sum(params, join(x[kept], y[kept]), clip, anchor)[0][0]

    everyone = list(range(size))
    without, one, other = row(everyone), row([*everyone, size]), row([*everyone, size + 1])
    slack = 1e-9 * bound * (size + 2)
    assert clip.norms(one - without) <= bound + slack
    assert clip.norms(one - other) <= 2 * bound + slack
    assert torch.isfinite(one).all()


@pytest.mark.parametrize(("case", "name"), SERVED)
def test_example_leaves_other_clients_unchanged(case: Case, name: str) -> None:
    torch.manual_seed(0)
    params, batch, backend = case.rows(3), ragged((3, 2, 3)), BACKENDS[name](case.model, case.loss)
    for clip in (Clip(0.5), Clip(0.5, "l1"), None):
        before, _ = backend.clipped_sum(params, batch, clip)
        changed = ragged((3, 2, 3))
        changed.inputs[[0, 2]] = batch.inputs[[0, 2]]
        changed.targets[[0, 2]] = batch.targets[[0, 2]]
        after, _ = backend.clipped_sum(params, changed, clip)
        torch.testing.assert_close(after[[0, 2]], before[[0, 2]], rtol=1e-12, atol=1e-12)
        assert not torch.allclose(after[1], before[1])


def test_closed_form_clips_tiny_delta_huge_input() -> None:
    case = next(c for c in CASES if c.name == "user's loss")
    torch.manual_seed(0)
    x, y = torch.full((1, 1, 4, 4), 1e18), torch.zeros(1, dtype=torch.long)
    params = torch.zeros(1, 51)
    params[0, 48] = 1e-23  # the only output, so delta = 2e-23, whose square is no float32
    clip = Clip(1e-6)
    row = BACKENDS["linear"](case.model, case.loss).clipped_sum(params, join(x, y), clip)[0]
    assert clip.norms(row.double()) <= 1e-6 * (1 + 1e-5)
    assert clip.norms(row.double()) > 0
