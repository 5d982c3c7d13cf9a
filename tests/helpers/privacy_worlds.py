"""Small worlds on real digits, who listens there, and an answer computed without the library to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.population import Population
from fedpriv.models import SoftmaxRegression
from fedpriv.oracle.backends import BACKENDS
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.data_query_engine import DataQueryEngine, data_oracle
from fedpriv.oracle.oracle import Oracle
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness

Data = list[tuple[Tensor, Tensor]]
N_FEATURES, N_CLASSES = 64, 10
DIM = N_FEATURES * N_CLASSES


@lru_cache(maxsize=1)
def _digits() -> tuple[Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return torch.from_numpy(pixels / 16), torch.from_numpy(labels)


def digits_of(sizes: Sequence[int]) -> Data:
    """Digits in file order, client after client: inputs ``[m, 64]`` in [0, 1] float64, labels ``[m]``."""
    x, y = _digits()
    parts = torch.arange(sum(sizes)).split(list(sizes))
    return [(x[part].clone(), y[part].clone()) for part in parts]


def blank(sizes: Sequence[int]) -> Data:
    """Images without a gradient: what is answered about them is its noise."""
    return [(torch.zeros(m, N_FEATURES, dtype=torch.float64), torch.zeros(m, dtype=torch.long)) for m in sizes]


def with_record(data: Data, client: int, row: int, x: Tensor, y: int) -> Data:
    """The neighbour in which one record is another one."""
    changed = [(inputs.clone(), labels.clone()) for inputs, labels in data]
    changed[client][0][row], changed[client][1][row] = x, y
    return changed


def clients_of(data: Data, model: nn.Module | None = None) -> list[fp.Client]:
    """Softmax regression without bias on these data, unless another model is given."""
    return fp.make_clients(
        model or SoftmaxRegression(N_FEATURES, N_CLASSES), nn.CrossEntropyLoss(), [TensorDataset(x, y) for x, y in data]
    )


def oracle_of(
    data: Data,
    privacy: fp.Privacy,
    *,
    backend: str = "linear",
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    model: nn.Module | None = None,
    randomness: Randomness | None = None,
    device: str | torch.device = "cpu",
) -> Oracle[DataQueryEngine]:
    """The real oracle over the real ledger, in memory, without a limit."""
    population = Population(clients_of(data, model), device, dtype)
    ledger = Ledger(Accountant(len(data), privacy.delta))
    sums = ClippedSums(BACKENDS[backend](population.model, population.loss), len(population), population.device)
    return data_oracle(population, sums, privacy, ledger, randomness or Randomness(secret_seed=seed))


def exact_clipped_sums(data: Data, params: Tensor, bound: float, norm: str) -> Tensor:
    """Sums of clipped per-example gradients of softmax regression in numpy: ``[n, 640]``."""
    order = {"l1": 1, "l2": 2}[norm]
    rows = []
    for (x, y), row in zip(data, params.numpy(), strict=True):
        scores = x.numpy() @ row.reshape(N_CLASSES, N_FEATURES).T
        scores = np.exp(scores - scores.max(1, keepdims=True))
        errors = scores / scores.sum(1, keepdims=True) - np.eye(N_CLASSES)[y.numpy()]
        gradients = np.einsum("mk,mf->mkf", errors, x.numpy()).reshape(len(x), -1)
        lengths = np.linalg.norm(gradients, order, axis=1)
        rows.append((gradients * np.minimum(1, bound / np.maximum(lengths, 1e-300))[:, None]).sum(0))
    return torch.from_numpy(np.array(rows))


def start_rows(n_clients: int, seed: int = 1) -> Tensor:
    """Parameters that differ from client to client, ``[n, 640]`` float64."""
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n_clients, DIM)) * 0.3)


def record(round_index: int = 0, **changes: Any) -> Record:
    """A record of a gradient with Gaussian noise, but for these fields."""
    plain = Record(round_index, "gradient", 0, "gaussian", 10.0, "sample", "replace_one")
    return replace(plain, **changes)


@dataclass(frozen=True)
class Listener:
    """A client update that stores its queries and their results; it sends the result times `sign`."""

    gradients: list[Tensor]
    asked: list[Tensor] = field(default_factory=list)
    sign: float = 1.0

    receives = ("model",)
    sends = ("update",)
    memory = "private"
    linear = False

    def init(self, params: Tensor) -> None:
        """Has no state."""

    def __call__(self, received: Tensor, state: None, oracle: Any) -> tuple[Tensor, None]:
        self.asked.append(received.clone())
        self.gradients.append(oracle.gradient(received))
        return self.sign * self.gradients[-1], state


class Wiretap(fp.Star):
    """A star that keeps a copy of everything that is sent over it."""

    def __init__(self, n_clients: int) -> None:
        super().__init__(n_clients)
        self.sent: list[Tensor] = []

    def _tap(self, rows: Tensor) -> Tensor:
        self.sent.append(rows.detach().clone())
        return rows

    def mean(self, rows: Tensor) -> Tensor:
        return super().mean(self._tap(rows))

    def mix(self, rows: Tensor) -> Tensor:
        return super().mix(self._tap(rows))

    def gather(self, rows: Tensor) -> Tensor:
        return super().gather(self._tap(rows))
