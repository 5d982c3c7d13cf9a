"""Torch's warning about operations that are slow under vmap: off in fedpriv's calls, on in a user's."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import batching


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(10, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.bag(words))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(tokens).mean(1))


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "EmbeddingBag": lambda: (Bag(), torch.randint(0, 10, (20, 5))),
    "weight_norm": lambda: (parametrizations.weight_norm(nn.Linear(4, 2)), torch.randn(20, 4)),
    "attention": lambda: (Encoder(), torch.randn(20, 3, 8)),
}


def warned(call: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in caught if "performance drop" in str(warning.message)]


def own_vmap() -> object:
    bag = nn.EmbeddingBag(10, 4)
    return torch.func.vmap(lambda words: bag(words.unsqueeze(0)))(torch.randint(0, 10, (3, 5)))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", ["auto", "vmap"])
def test_vmap_fallback_warning_is_off(name: str, backend: str) -> None:
    model, inputs = MODELS[name]()
    data = TensorDataset(inputs, torch.arange(20) % 2)
    test = TensorDataset(inputs.roll(1, -1), torch.arange(20) % 2)
    clients = fp.make_clients(model, nn.CrossEntropyLoss(), [data])
    compute = fp.Compute(device="cpu", backend=backend)  # pyright: ignore[reportArgumentType] - a name
    train = lambda: fp.train(clients, fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1, compute=compute, test=test)  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fp.errors.PromiseWarning)
        assert warned(train) == []
    assert len(warned(own_vmap)) == 1


def test_vmap_fallback_warning_returns_after_error() -> None:
    with pytest.raises(RuntimeError):
        batching.vmap(lambda x: x @ torch.ones(5))(torch.ones(3, 2))
    assert len(warned(own_vmap)) == 1


def test_vmap_fallback_warning_off_during_other_thread() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def wait(x: Tensor) -> Tensor:
        begun.set()
        may_end.wait(10)
        return x

    thread = threading.Thread(target=lambda: batching.vmap(wait)(torch.ones(2)))
    thread.start()
    assert begun.wait(10)
    batching.vmap(lambda x: x)(torch.ones(2))
    assert warned(own_vmap) == []
    may_end.set()
    thread.join()
    assert len(warned(own_vmap)) == 1


def test_fedpriv_imports_no_other_vmap() -> None:
    package = Path(fp.__file__).parent
    importing = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"torch\.func import .*\bvmap\b|torch\.vmap\(|func\.vmap\(", path.read_text(encoding="utf-8"))
    ]
    assert importing == ["models/batching.py"]
