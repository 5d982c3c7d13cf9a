"""The backend that is chosen for a model without the data, and models that vmap cannot batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_batches import clients
from model_kinds import (
    CLASSES,
    KINDS,
    E,
)
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

import fedpriv as fp
from fedpriv.clients.population import Population
from fedpriv.errors import PromiseWarning
from fedpriv.models.nested import Rows
from fedpriv.oracle.backend_selection import select_backend

pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop", "ignore:enable_nested_tensor", "ignore:.*norm_first"
)


def test_unbatchable_model_warns_with_reason() -> None:
    kind = KINDS["checkpointing"]
    with pytest.warns(
        PromiseWarning, match=r"one example at a time, about \d+ times slower.*vmap.*not ghost: .*own_model"
    ):
        run = fp.Training(clients(kind, kind.make()), fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1)
    assert sum("one example at a time" in text for text in run.warnings) == 1
    told = fp.Training(
        clients(kind, kind.make()), fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1, compute=fp.Compute("loop")
    )
    assert not [text for text in told.warnings if "the parameters can move" not in text]


def test_unbatchable_model_with_constraints_raises() -> None:
    kind = KINDS["checkpointing"]
    made = clients(kind, kind.make())
    owners = [fp.Client(c.model, c.loss, c.loader, problem=fp.Problem(constraints=(fp.LossAtMost(2.0),))) for c in made]
    with pytest.raises(
        fp.ConfigError, match=r"problem\.constraints = 'Mapped': .*a model that torch\.func\.vmap can batch"
    ):
        fp.Training(owners, fp.private_al(), fp.Privacy(epsilon=3), rounds=2)


@pytest.mark.parametrize("backend", ["ghost", "vmap"])
def test_unsupported_explicit_backend_raises(backend: Any) -> None:
    kind = KINDS["checkpointing"]
    with pytest.raises(
        fp.ConfigError, match=rf"compute\.backend = '{backend}': cannot be used for this model .*use 'auto'"
    ):
        fp.Training(
            clients(kind, kind.make()), fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1, compute=fp.Compute(backend)
        )


class InPlace(nn.Module):
    """Changes the inputs that it is given, so a second pass over them differs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs.mul_(2))


def test_model_without_backend_error_has_fix() -> None:
    data = torch.utils.data.TensorDataset(torch.ones(6, 4), torch.zeros(6, dtype=torch.long))
    owners = fp.make_clients(InPlace(), nn.functional.cross_entropy, [data])
    with pytest.raises(
        fp.ConfigError, match=r"'auto': cannot be used for this model .*change the model.*in-place changes"
    ) as error:
        fp.Training(owners, fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1)
    assert "use 'auto'" not in str(error.value)


def test_backend_choice_independent_of_data() -> None:
    """The model receives synthetic inputs only: their entries are below 1, those of the data are 5."""
    largest: list[float] = []

    class Observed(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            if not is_functorch_wrapped_tensor(input):
                largest.append(float(input.detach().abs().max()))
            return super().forward(input)

    model = nn.Sequential(Observed(E, E), nn.Linear(E, CLASSES))
    data = [Rows(torch.full((6, E), 5.0), torch.zeros(6).long()) for _ in "ab"]
    population = Population(fp.make_clients(model, nn.CrossEntropyLoss(), data))
    population.reset_models()
    assert select_backend("auto", population).name == "ghost"
    assert len(largest) > 5 and max(largest) <= 1
