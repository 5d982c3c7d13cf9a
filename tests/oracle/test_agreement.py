"""The loop backend is the specification: every other backend gives its sums."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from backend_cases import CASES, Case, Flat, cnn, join, ragged, softmax
from torch import Tensor, nn

from fedpriv.oracle.backends import BACKENDS
from fedpriv.oracle.backends.functional import unpad
from fedpriv.oracle.backends.per_example import count_cached_examples
from fedpriv.privacy.clipping import Clip

PAIRS = [pytest.param(case, name, id=f"{case.name}: {name}") for case in CASES for name in case.backends]
CLIPS = [Clip(0.3, "l2"), Clip(0.7, "l1"), Clip(1e6), None]
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


def assert_same(case: Case, name: str, params, batch, clip, anchor=None, rtol=1e-9, loss=None) -> None:
    loss = case.loss if loss is None else loss
    wanted, wanted_broken = BACKENDS["loop"](case.model, loss).clipped_sum(params, batch, clip, anchor)
    backend = BACKENDS[name](case.model, loss)
    for _ in range(2):  # the second time from what the backend may have kept
        found, broken = backend.clipped_sum(params, batch, clip, anchor)
        scale = wanted.nan_to_num(0, 0, 0).abs().max()
        torch.testing.assert_close(found, wanted, rtol=rtol, atol=float(rtol * scale), equal_nan=True)
        torch.testing.assert_close(broken, wanted_broken)


@pytest.mark.parametrize(("case", "name"), PAIRS)
@pytest.mark.parametrize("clip", CLIPS, ids=str)
@pytest.mark.parametrize("sizes", [(5, 5, 5), (4, 0, 2), (1,), (0,)], ids=str)
def test_backend_sums_match_loop(case: Case, name: str, clip: Clip | None, sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    assert_same(case, name, case.rows(len(sizes)), ragged(sizes), clip)


@pytest.mark.parametrize(("case", "name"), PAIRS)
@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_anchored_sums_match_loop(case: Case, name: str, clip: Clip | None) -> None:
    torch.manual_seed(1)
    params = case.rows(2)
    assert_same(case, name, params, ragged((3, 2)), clip, anchor=params + 0.1 * case.rows(2))


@pytest.mark.parametrize(("case", "name"), PAIRS)
@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_float32_sums_near_loop(case: Case, name: str, clip: Clip | None) -> None:
    """The error is at most 4 times that of the loop backend, plus 1e-6: processors round differently."""
    torch.manual_seed(2)
    single, params, batch = copy.deepcopy(case.loss).float(), case.rows(2, torch.float32), ragged((6, 3), torch.float32)
    double = replace(batch, inputs=batch.inputs.double())
    exact, _ = BACKENDS["loop"](case.model, case.loss).clipped_sum(params.double(), double, clip)
    loop, _ = BACKENDS["loop"](case.model, single).clipped_sum(params, batch, clip)
    found, broken = BACKENDS[name](case.model, single).clipped_sum(params, batch, clip)
    assert (found - exact).abs().max() <= 4 * (loop - exact).abs().max() + 1e-6 * exact.abs().max()
    assert broken.tolist() == [0, 0]


@pytest.mark.parametrize(("case", "name"), PAIRS)
@pytest.mark.parametrize("clip", [Clip(0.3), None], ids=str)
def test_shared_parameters_match_repeated_rows(case: Case, name: str, clip: Clip | None) -> None:
    torch.manual_seed(3)
    row, batch = case.rows(1), ragged((3, 2, 4))
    backend = BACKENDS[name](case.model, case.loss)
    short, _ = backend.clipped_sum(row.expand(3, -1), batch, clip)
    general, _ = backend.clipped_sum(row.repeat(3, 1), batch, clip)
    torch.testing.assert_close(short, general, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("case", "name"), PAIRS)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_largest_norm_matches_loop(case: Case, name: str, norm: str) -> None:
    torch.manual_seed(4)
    params, batch = case.rows(3), ragged((4, 0, 2))
    batch.inputs[2, 1, 0, 0] = torch.tensor([torch.inf, 1, 1, 1])
    wanted = BACKENDS["loop"](case.model, case.loss).largest_norm(params, batch, Clip(1.0, norm))
    found = BACKENDS[name](case.model, case.loss).largest_norm(params, batch, Clip(1.0, norm))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    assert wanted[1] == 0
    assert wanted[2] == torch.inf


@pytest.mark.parametrize(("outputs", "chunk"), [(1, 512), (2**13, 512), (2**14, 256), (2**18, 16), (2**21, 4)])
def test_cache_chunk_16_mib_within_4_to_512(outputs: int, chunk: int) -> None:
    assert count_cached_examples(4 * outputs) == chunk


@pytest.mark.parametrize("chunk", [1, 2, 3, 8, 100])
@pytest.mark.parametrize("clip", [Clip(0.3), None], ids=str)
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("name", ["vmap", "ghost"])
def test_chunk_size_same_sums(chunk: int, clip: Clip | None, alike: bool, name: str) -> None:
    torch.manual_seed(5)
    case = softmax()
    params = case.rows(1).expand(4, -1) if alike else case.rows(4)
    batch = ragged((5, 1, 4, 2))
    whole, _ = BACKENDS["loop"](case.model, case.loss).clipped_sum(params, batch, clip)
    pieces, _ = BACKENDS[name](case.model, case.loss, chunk).clipped_sum(params, batch, clip)
    torch.testing.assert_close(pieces, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("case", "name"), [*PAIRS, pytest.param(softmax(), "loop", id="loop")])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("clip", [Clip(0.5, "l1"), Clip(0.5)], ids=str)
def test_nonfinite_example_counts_zero(case: Case, name: str, bad: float, clip: Clip) -> None:
    torch.manual_seed(6)
    params, batch = case.rows(2), ragged((3, 3))
    backend = BACKENDS[name](case.model, case.loss)
    whole, _ = backend.clipped_sum(params, batch, clip)
    alone, _ = backend.clipped_sum(params[:1], join(batch.inputs[0, 1:], batch.targets[0, 1:]), clip)
    batch.inputs[0, 0, 0, 1, 1] = bad
    sums, broken = BACKENDS[name](case.model, case.loss).clipped_sum(params, batch, clip)
    assert broken.tolist() == [1, 0]
    torch.testing.assert_close(sums[0], alone[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(sums[1], whole[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("case", "name"), PAIRS)
@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_padding_content_ignored(case: Case, name: str, clip: Clip | None) -> None:
    torch.manual_seed(7)
    params, batch = case.rows(3), ragged((2, 4, 0))
    wanted, _ = BACKENDS["loop"](case.model, case.loss).clipped_sum(params, batch, clip)
    batch.inputs[~batch.mask] = torch.nan
    sums, broken = BACKENDS[name](case.model, case.loss).clipped_sum(params, batch, clip)
    assert broken.tolist() == [0, 0, 0]
    torch.testing.assert_close(sums, wanted, rtol=1e-9, atol=1e-9)
    assert sums[2].abs().max() == 0


@pytest.mark.parametrize(("case", "name"), PAIRS)
def test_exact_sum_nonfinite_example_own_client(case: Case, name: str) -> None:
    torch.manual_seed(8)
    params, batch = case.rows(2), ragged((3, 2))
    batch.inputs[0, 1] = torch.nan
    sums, broken = BACKENDS[name](case.model, case.loss).clipped_sum(params, batch, None)
    assert broken.tolist() == [1, 0]
    assert torch.isnan(sums[0]).any()
    assert torch.isfinite(sums[1]).all()


@pytest.mark.parametrize("name", ["vmap", "ghost"])
def test_exact_sum_ragged_clients_one_backward(name: str) -> None:
    """A model whose outputs are a tensor needs no gradients of single examples, padding or not."""
    case = softmax()
    params, batch = case.rows(3), ragged((3, 1, 2))
    backend = BACKENDS[name](case.model, case.loss)
    sums, _ = backend.clipped_sum(params, batch, None)
    assert not backend._example_by_example
    wanted, _ = BACKENDS["loop"](case.model, case.loss).clipped_sum(params, batch, None)
    torch.testing.assert_close(sums, wanted, rtol=1e-9, atol=1e-12)


class SingleExampleModel(Flat):
    """A user's model that takes no batch of several examples."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1:
            raise RuntimeError("one example at a time")
        return super().forward(x)


@pytest.mark.parametrize("name", ["vmap", "ghost"])
def test_exact_sum_unbatched_model_matches_loop(name: str) -> None:
    torch.manual_seed(0)
    model = SingleExampleModel(bias=True).double()
    row = torch.cat([p.detach().flatten() for p in model.parameters()])
    params, anchor, batch = row.expand(3, -1), 2 * row.expand(3, -1), ragged((3, 1, 2))
    for start in (None, anchor):
        wanted, _ = BACKENDS["loop"](model, nn.CrossEntropyLoss()).clipped_sum(params, batch, None, start)
        sums, broken = BACKENDS[name](model, nn.CrossEntropyLoss()).clipped_sum(params, batch, None, start)
        torch.testing.assert_close(sums, wanted, rtol=1e-9, atol=1e-12)
        assert broken.tolist() == [0, 0, 0]


def test_unpad_fills_with_first_real_example() -> None:
    batch = ragged((3, 3))
    batch.mask[:] = torch.tensor([[True, True, True], [False, True, False]])
    inputs, targets = unpad(batch)
    assert isinstance(inputs, Tensor) and isinstance(targets, Tensor)
    assert torch.equal(inputs[0], batch.inputs[0]) and torch.equal(targets[0], batch.targets[0])
    for cell in range(3):
        assert torch.equal(inputs[1, cell], batch.inputs[1, 1]) and targets[1, cell] == batch.targets[1, 1]


@pytest.mark.parametrize("name", ["vmap", "ghost"])
def test_dropout_mask_per_example(name: str) -> None:
    torch.manual_seed(9)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(16, 3))
    batch = ragged((4,))
    batch.inputs[:] = batch.inputs[:, :1]
    batch.targets[:] = 0
    params = torch.randn(1, 51, dtype=torch.float64)
    backend = BACKENDS[name](model, nn.CrossEntropyLoss())
    once = backend.clipped_sum(params, join(batch.inputs[0, :1], batch.targets[0, :1]), Clip(1.0))[0]
    assert not torch.allclose(backend.clipped_sum(params, batch, Clip(1.0))[0], 4 * once)


@pytest.mark.parametrize("name", ["loop", "vmap"])
@pytest.mark.parametrize("clip", [Clip(1.0), None], ids=str)
def test_buffer_updates_discarded(name: str, clip: Clip | None) -> None:
    class Counting(Flat):
        def __init__(self) -> None:
            super().__init__(bias=True)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    model = Counting()
    BACKENDS[name](model, nn.CrossEntropyLoss()).clipped_sum(softmax().rows(2), ragged((2, 1)), clip)
    assert model.calls == 0


def test_group_norm_matches_loop() -> None:
    torch.manual_seed(10)
    case = Case(
        "", nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(4, 4), nn.Flatten(), cnn()[3]), nn.CrossEntropyLoss()
    )
    for sizes in [(3, 3), (5, 1)]:
        for clip in CLIPS:
            assert_same(case, "vmap", case.rows(2), ragged(sizes), clip)
            assert_same(case, "vmap", case.rows(1).expand(2, -1), ragged(sizes), clip)
