"""What a forward pass keeps of private examples, in frozen values or elsewhere, is not released."""

from __future__ import annotations

import pytest
import torch
from frozen_parts import CLASSES
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.layout import checksum_constants, find_changed_constants


class Keeps(nn.Module):
    """A module that leaves what it saw in itself, as models do whose attention is drawn later."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(3, CLASSES), []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return self.layer(x)


class WidestSeen(nn.Module):
    """A frozen number that grows with the data, past the version that torch keeps of it; made-up examples are small."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.widest = nn.Linear(3, CLASSES), nn.Parameter(torch.tensor(5.0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.widest.data.copy_(torch.maximum(self.widest.data, x.detach().abs().max()))
        return self.layer(x)


def wide_clients(model: nn.Module) -> list[fp.Client]:
    draw = torch.Generator().manual_seed(1)
    x = 100 * torch.randn(3, 4, 3, generator=draw)
    return fp.make_clients(model, nn.CrossEntropyLoss(), [TensorDataset(own, torch.arange(4) % 2) for own in x])


WHOLE = [fp.Privacy(epsilon=3), fp.Privacy(epsilon=3, unit="client", noise_on="message")]


@pytest.mark.parametrize("backend", ["auto", "loop"])
@pytest.mark.parametrize("privacy", WHOLE, ids=["sample", "client"])
def test_released_model_holds_no_forward_examples(privacy: fp.Privacy, backend: str):
    made = wide_clients(Keeps())
    result = fp.train(made, fp.fedavg(0.5), privacy, rounds=2, compute=fp.Compute(backend=backend))
    assert result.model.seen == []
    assert all(client.model.seen == [] for client in made)


@pytest.mark.parametrize("privacy", WHOLE, ids=["sample", "client"])
def test_frozen_value_changed_by_data_raises(privacy: fp.Privacy) -> None:
    training = fp.Training(wide_clients(WidestSeen()), fp.fedavg(0.5), privacy, rounds=2)
    with pytest.raises(fp.PrivacyError, match=r"^model\.widest is frozen.* private data"):
        list(training)
    with pytest.raises(fp.PrivacyError, match=r"^model\.widest"):
        training.result()


@pytest.mark.parametrize(
    "value", [torch.zeros(2, 3), torch.zeros(3, dtype=torch.half), torch.zeros(1, dtype=torch.bool)]
)
def test_changed_constants_any_dtype_detected(value: Tensor) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("kept", torch.zeros(5)[1:3])
    model.register_buffer("own", value)
    before = checksum_constants(model)
    assert find_changed_constants(model, before) == []
    model.own.view(-1)[0] = 1
    assert find_changed_constants(model, before) == ["own"]
    model.register_buffer("more", torch.zeros(1))
    assert "more" in find_changed_constants(model, before)
