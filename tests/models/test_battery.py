"""Each kind of model is served by the backend that is meant for it, with the gradients of one example at a time."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from model_batches import batch, clients, single
from model_kinds import (
    CLASSES,
    KINDS,
    E,
    T,
    inputs,
)
from torch import Tensor, nn

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.clients.layout import collect_constants
from fedpriv.clients.population import Population
from fedpriv.models.nested import Rows
from fedpriv.oracle.backend_selection import select_backend
from fedpriv.oracle.backends import BACKENDS
from fedpriv.oracle.validation import validate_per_example
from fedpriv.privacy.clipping import Clip

CLIPS = [Clip(0.3), Clip(1e6), None]
pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop", "ignore:enable_nested_tensor", "ignore:.*norm_first"
)


def assert_close(found: Tensor, wanted: Tensor, relative: float) -> None:
    torch.testing.assert_close(found, wanted, rtol=relative, atol=relative * float(wanted.abs().max()))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("dtype", "relative"), [(torch.float64, 1e-9), (torch.float32, 1e-6)], ids=["64", "32"])
def test_battery_gradients_match_per_example_loop(name: str, dtype: torch.dtype, relative: float) -> None:
    torch.manual_seed(1)
    kind = KINDS[name]
    model = kind.make()
    population = Population(clients(kind, model), dtype=dtype)
    population.reset_models()
    validate_per_example(population)
    chosen = select_backend("auto", population).name
    assert chosen in kind.backend
    model = model.to(dtype)
    if kind.random:
        model.eval()
    backend, loop = BACKENDS[chosen](model, kind.loss), BACKENDS["loop"](model, kind.loss)
    whole, start = batch(kind, dtype), population.params[0]
    apart = torch.stack([start, start + 0.1 * torch.randn_like(start)])
    for rows in (start.expand(2, -1), apart):
        for clip in CLIPS:
            found = backend.clipped_sum(rows, whole, clip)[0]
            assert_close(found, loop.clipped_sum(rows, whole, clip)[0], relative)
            alone = [backend.clipped_sum(rows, one, clip)[0] for one in single(whole)]
            assert_close(found, torch.stack(alone).sum(0), relative)
            assert found.abs().max() > 0


@pytest.mark.parametrize("name", KINDS)
def test_battery_training_keeps_frozen_parameters(name: str) -> None:
    torch.manual_seed(2)
    kind = KINDS[name]
    model = kind.make()
    first = next(model.parameters())
    first.requires_grad_(len(list(model.parameters())) == 1)
    made = clients(kind, model)
    test = Rows(inputs(kind.inputs, 4), torch.randint(0, CLASSES, (4,)))
    before = copy.deepcopy(made[0].model)
    run = fp.Training(made, fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=2, test=test, seed=0)
    assert torch.isfinite(torch.tensor(list(run)[-1].metrics["test_loss"]))
    for client in made:
        frozen = collect_constants(client.model)
        assert all(torch.equal(frozen[key], value) for key, value in collect_constants(before).items())
        trained = {key: p for key, p in client.model.named_parameters() if p.requires_grad}
        assert all(not torch.equal(trained[key], p) for key, p in before.named_parameters() if p.requires_grad)


def test_masked_padding_keeps_gradient() -> None:
    """The same words padded to other lengths give the same gradient: what is padded is masked."""
    torch.manual_seed(5)
    kind = KINDS["text with a mask, by name"]
    model = kind.make().double()
    row = torch.cat([p.detach().flatten() for p in model.parameters()]).unsqueeze(0)
    words, y, one = torch.tensor([[[3, 1, 2]]]), torch.zeros(1, 1).long(), torch.ones(1, 1, dtype=torch.bool)

    def gradient(length: int) -> Tensor:
        padded = nn.functional.pad(words, (0, length - 3))
        given = {"words": padded, "mask": (torch.arange(length) < 3).expand(1, 1, -1)}
        return BACKENDS["ghost"](model, kind.loss).clipped_sum(row, Batch(torch.zeros(1).long(), given, y, one), None)[
            0
        ]

    torch.testing.assert_close(gradient(3), gradient(T), rtol=1e-9, atol=1e-12)


def test_non_tensor_inputs_raise() -> None:
    class Strings(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return {"text": "a word"}, torch.tensor(0)

    with pytest.raises(fp.DataError, match=r"of tensors, or of dicts and tuples of tensors"):
        Population(fp.make_clients(nn.Linear(E, CLASSES), nn.CrossEntropyLoss(), [Strings()]))


def test_frozen_values_converted_to_run_dtype() -> None:
    """Otherwise a run in float64 or on another device mixes types and devices."""
    kind = KINDS["adapter next to a frozen layer"]
    model = kind.make()
    model.register_buffer("places", torch.ones(2))
    population = Population(clients(kind, model), dtype=torch.float64)
    for one in (population.model, *(client.model for client in population.clients)):
        assert {value.dtype for value in collect_constants(one).values()} == {torch.float64}
