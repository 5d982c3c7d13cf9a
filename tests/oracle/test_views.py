"""Several views of an example: the mean of their gradients is clipped once, by every backend."""

from __future__ import annotations

import copy

import pytest
import torch
from backend_cases import CASES, FEATURES, Case, softmax
from torch import nn

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.clients.population import Population
from fedpriv.oracle.backend_selection import select_backend
from fedpriv.oracle.backends import BACKENDS
from fedpriv.oracle.backends.threaded import wrap_in_threads
from fedpriv.privacy.clipping import Clip

PAIRS = [
    pytest.param(case, name, id=f"{case.name}: {name}") for case in CASES for name in case.backends if name != "linear"
]
SERVED = [*PAIRS, *(pytest.param(case, "loop", id=f"{case.name}: loop") for case in CASES)]
VIEWS = 3
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


def several(clients: int = 2, examples: int = 3, dtype: torch.dtype = torch.float64) -> Batch:
    """Examples with views of each; the last client has one example less."""
    inputs = torch.randn(clients, examples, VIEWS, *FEATURES, dtype=dtype)
    targets = torch.randint(3, (clients, examples, 1)).expand(-1, -1, VIEWS)
    mask = torch.ones(clients, examples, dtype=torch.bool)
    mask[-1, -1] = False
    return Batch(torch.arange(clients), inputs, targets, mask, views=VIEWS)


@pytest.mark.parametrize(("case", "name"), PAIRS)
@pytest.mark.parametrize("clip", [Clip(0.3), Clip(0.7, "l1"), Clip(1e6), None], ids=str)
@pytest.mark.parametrize("alike", [True, False], ids=["one row", "rows"])
def test_view_sums_match_loop(case: Case, name: str, clip: Clip | None, alike: bool) -> None:
    torch.manual_seed(0)
    batch, params = several(), case.rows(1).expand(2, -1) if alike else case.rows(2)
    for anchor in (None, params + 0.1 * case.rows(1)):
        wanted, _ = BACKENDS["loop"](case.model, case.loss).clipped_sum(params, batch, clip, anchor)
        found, broken = BACKENDS[name](case.model, case.loss).clipped_sum(params, batch, clip, anchor)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=float(1e-9 * wanted.abs().max()))
        assert broken.tolist() == [0, 0]


@pytest.mark.parametrize(("case", "name"), SERVED)
def test_equal_views_match_single_example(case: Case, name: str) -> None:
    torch.manual_seed(1)
    batch, params = several(), case.rows(2)
    same = batch.inputs[:, :, :1].expand_as(batch.inputs)
    of_views = Batch(batch.rows, same, batch.targets, batch.mask, views=VIEWS)
    alone = Batch(batch.rows, batch.inputs[:, :, 0], batch.targets[:, :, 0], batch.mask)
    for clip in (Clip(0.3), None):
        found, wanted = (
            BACKENDS[name](case.model, case.loss).clipped_sum(params, b, clip)[0] for b in (of_views, alone)
        )
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=float(1e-9 * wanted.abs().max()))


@pytest.mark.parametrize(("case", "name"), SERVED)
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("scale", [1.0, 1e6, torch.inf])
def test_view_example_change_bounded_by_clip(case: Case, name: str, norm, scale: float) -> None:
    torch.manual_seed(2)
    clip, params, batch, other = Clip(0.3, norm), case.rows(2), several(), several()
    inputs = batch.inputs.clone()
    inputs[0, 1] = scale * other.inputs[0, 1]
    backend = BACKENDS[name](case.model, case.loss)
    replaced = Batch(batch.rows, inputs, batch.targets, batch.mask, views=VIEWS)
    before, after = (backend.clipped_sum(params, b, clip)[0] for b in (batch, replaced))
    assert clip.norms(after[0] - before[0]) <= 2 * clip.bound + 1e-9
    assert torch.equal(before[1], after[1])
    without = Batch(batch.rows, batch.inputs, batch.targets, batch.mask.clone(), views=VIEWS)
    without.mask[0, 1] = False
    assert clip.norms(before[0] - backend.clipped_sum(params, without, clip)[0][0]) <= clip.bound + 1e-9


@pytest.mark.parametrize(("case", "name"), SERVED)
def test_nonfinite_view_drops_own_example(case: Case, name: str) -> None:
    torch.manual_seed(3)
    params, batch = case.rows(2), several()
    batch.inputs[0, 1, 2] = torch.inf
    kept = Batch(batch.rows, batch.inputs, batch.targets, batch.mask.clone(), views=VIEWS)
    kept.mask[0, 1] = False
    backend = BACKENDS[name](case.model, case.loss)
    found, broken = backend.clipped_sum(params, batch, Clip(0.3))
    torch.testing.assert_close(found, backend.clipped_sum(params, kept, Clip(0.3))[0], rtol=1e-9, atol=1e-12)
    assert broken.tolist() == [1, 0]
    assert backend.largest_norm(params, batch, Clip(1.0)).tolist()[0] == torch.inf


@pytest.mark.parametrize("name", ["vmap", "ghost"])
def test_float32_view_sums_match_loop(name: str) -> None:
    for case in CASES:
        if name not in case.backends:
            continue
        torch.manual_seed(4)
        batch, params = several(dtype=torch.float32), case.rows(2, torch.float32)
        loss = copy.deepcopy(case.loss).float() if isinstance(case.loss, nn.Module) else case.loss
        wanted, found = (
            BACKENDS[key](case.model, loss).clipped_sum(params, batch, Clip(0.3))[0] for key in ("loop", name)
        )
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["vmap", "ghost"])
@pytest.mark.parametrize("threads", [2, 3])
def test_thread_count_same_view_sums_bitwise(name: str, threads: int) -> None:
    torch.manual_seed(5)
    case, batch = next(case for case in CASES if case.name == "cnn"), several(clients=61, examples=5)
    params, before = case.rows(61), torch.get_num_threads()
    for clip in (Clip(0.3), None):
        backend = wrap_in_threads(BACKENDS[name](case.model, case.loss, 50))  # so little at once that threads have work
        try:
            alone = backend.clipped_sum(params, batch, clip)[0]
            torch.set_num_threads(threads)
            assert torch.equal(backend.clipped_sum(params, batch, clip)[0], alone)
        finally:
            torch.set_num_threads(before)


def test_views_linear_raises_auto_chooses_ghost() -> None:
    case = softmax()
    with pytest.raises(fp.ConfigError, match=r"backend = 'linear': the mean gradient of 3 views is not a product"):
        BACKENDS["linear"](case.model, case.loss).clipped_sum(case.rows(2), several(), Clip(0.3))
    data = [torch.utils.data.TensorDataset(torch.rand(4, *FEATURES), torch.arange(4) % 3)]
    chosen = []
    for views in (1, 2):
        clients = fp.make_clients(case.model, case.loss, data, augmentation=fp.Augmentation([fp.Flip()], views))
        chosen.append(select_backend("auto", Population(clients)).name)
    assert chosen == ["linear", "ghost"]
    with pytest.raises(fp.ConfigError, match=r"compute.backend = 'linear': cannot be used for this model"):
        select_backend("linear", Population(clients))
