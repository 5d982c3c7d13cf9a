"""Where only a sum is released, nothing has a row of parameters for each client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from counting_calls import AdmitAll, LargestTensor
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.population import Population
from fedpriv.network.rounds import initial_state, run_rounds, server_view
from fedpriv.oracle import data_query_engine
from fedpriv.oracle.backends import build_backend
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.data_query_engine import data_oracle
from fedpriv.privacy.ledger import Ledger
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Oracle, Strategy
from fedpriv.strategies.erm import SendGradient

FEATURES, CLASSES = 6, 3
BASE = fp.Privacy(noise_multiplier=1.0, delta=1e-7)
PRIVACIES = {
    "examples": replace(BASE, trust=fp.Central()),
    "some of the examples": replace(BASE, trust=fp.SecureAggregation(4), sampling=fp.Poisson(0.5)),
    "clients": replace(BASE, unit="client", trust=fp.SecureAggregation(4)),
    "clients drawn in secret": replace(BASE, unit="client", trust=fp.Central(0.3)),
}
STRATEGIES = {
    "fedavg": fp.fedavg(0.5),
    "fedopt": fp.fedopt(0.5),
    "dp_gd": fp.gradient_descent(0.5, momentum=0.5, average=1),
    "dp_svrg": fp.svrg(0.5, 1),
    "dp_accmd": fp.accelerated_mirror_descent(fp.EuclideanBall(2.0), 1.0),
}


def load(client: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(client)
    return TensorDataset(torch.randn(2, FEATURES, generator=draw), torch.randint(CLASSES, (2,), generator=draw))


class Run:
    """Rounds of a strategy among n clients with two examples each."""

    def __init__(self, n: int, strategy: Strategy, privacy: fp.Privacy, width: int = 4) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width))
        clients = fp.lazy_clients(model, nn.CrossEntropyLoss(), load, [2] * n, num_workers=1)
        population = Population(clients, dtype=torch.float64)
        sums = ClippedSums(build_backend("auto", population.model, population.loss), n, population.device)
        self.ledger, self.dim, self._streams = Ledger(AdmitAll()), population.dim, Randomness(3, 4)
        oracle = data_oracle(population, sums, privacy, self.ledger, self._streams)
        network = fp.Star(n)
        self._parts = strategy, oracle, network, initial_state(strategy, population.params), self._streams
        self._seen = server_view(network, privacy)

    def models(self, rounds: int = 3) -> list[Tensor]:
        return [done.progress.models[0] for done in run_rounds(*self._parts, rounds=rounds, seen=self._seen)]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("privacy", PRIVACIES)
def test_largest_tensor_below_all_client_rows(privacy: str, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most half of all rows: the size of a piece does not grow with the number of clients."""
    n, pieces = 400, 8
    run = Run(n, STRATEGIES[strategy], PRIVACIES[privacy], width=40)
    monkeypatch.setattr(data_query_engine, "_MAX_ENTRIES", n * run.dim // pieces)
    with LargestTensor() as largest:
        run.models(2)
    assert largest.numbers < n * run.dim / 2


def test_five_thousand_clients_memory_bounded() -> None:
    n = 5000
    run = Run(n, fp.fedavg(0.5), PRIVACIES["examples"], width=64)
    with LargestTensor() as largest:
        run.models(1)
    assert largest.numbers < n * run.dim / 2


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("privacy", PRIVACIES)
def test_pieces_match_whole_up_to_rounding(privacy: str, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Run(9, STRATEGIES[strategy], PRIVACIES[privacy])
    wanted = whole.models()
    pieces = Run(9, STRATEGIES[strategy], PRIVACIES[privacy])
    monkeypatch.setattr(data_query_engine, "_MAX_ENTRIES", 2 * pieces.dim)  # two clients at a time
    for one, other in zip(wanted, pieces.models(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert len(whole.ledger.records) == len(pieces.ledger.records) == 3


@dataclass(frozen=True)
class KeepsRows(SendGradient):
    """The same messages, from clients that keep something: each computes its own."""

    memory: ClassVar[Any] = "private"

    def init(self, params: Tensor) -> Tensor:
        return torch.zeros(len(params), 1)

    def __call__(self, received: Tensor, state: Tensor, oracle: Oracle) -> tuple[Tensor, Tensor]:
        assert len(received) == len(state) == len(oracle.weights)
        return super().__call__(received, None, oracle)[0], state + 1


@pytest.mark.parametrize("privacy", PRIVACIES)
def test_stateless_clients_share_one_computation(privacy: str) -> None:
    one = fp.gradient_descent(0.5)
    each = replace(one, local_step=KeepsRows(("point",)))
    runs = [Run(9, strategy, PRIVACIES[privacy]) for strategy in (one, each)]
    for a, b in zip(*(run.models() for run in runs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    assert runs[0].ledger.records == runs[1].ledger.records


@dataclass(frozen=True)
class QueriesTwice(SendGradient):
    """Expects one row, and that a second query of a round raises."""

    def __call__(self, received: Tensor, state: None, oracle: Oracle) -> tuple[Tensor, None]:
        assert len(received) == 1
        answer = oracle.gradient(received)
        assert answer.shape == received.shape
        with pytest.raises(fp.PrivacyError, match=r"[Ss]econd query|already has a query result"):
            oracle.gradient(received)
        return answer, None


@pytest.mark.parametrize("privacy", PRIVACIES)
def test_shared_step_second_query_raises(privacy: str) -> None:
    Run(9, replace(fp.gradient_descent(0.5), local_step=QueriesTwice()), PRIVACIES[privacy]).models(2)


@dataclass(frozen=True)
class Elsewhere(SendGradient):
    """Asks at another point than the one received."""

    def __call__(self, received: Tensor, state: None, oracle: Oracle) -> tuple[Tensor, None]:
        return oracle.gradient(received + 1e-3), None


@pytest.mark.parametrize("privacy", PRIVACIES)
def test_query_at_other_point_raises(privacy: str) -> None:
    with pytest.raises(fp.PrivacyError, match="not received"):
        Run(9, replace(fp.gradient_descent(0.5), local_step=Elsewhere()), PRIVACIES[privacy]).models(1)
