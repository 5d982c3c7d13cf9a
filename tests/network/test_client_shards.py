"""Two places, each with some clients' data, one oracle and one ledger: the run, and its price, of all in one place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sharded import Meeting, ShardedNetwork, in_shards
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.population import Population
from fedpriv.clients.shard import ClientShard
from fedpriv.models import SoftmaxRegression
from fedpriv.network.rounds import RoundNetwork, initial_state, run_rounds, server_view
from fedpriv.oracle.backends import build_backend
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.data_query_engine import data_oracle
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Strategy

SIZES, ROUNDS = (9, 4, 12, 6, 7), 4
SHARDS = [(1, 3), (0, 2, 4)]
CONSTRAINED = fp.Problem(constraints=(fp.ClassLossAtMost(1, 0.3, fraction=0.3), fp.LossAtMost(0.5)))
SETTINGS: dict[str, dict[str, Any]] = {
    "batches": {"sampling": fp.Poisson(0.5)},
    "fixed batches": {"sampling": fp.FixedSize(5)},
    "clients": {"unit": "client", "noise_on": "message"},
    "sums": {"trust": fp.SecureAggregation(min_honest=2)},
    "curator": {"unit": "client", "noise_on": "message", "trust": fp.Central(cohort_rate=0.6)},
    "pairs": {"trust": fp.Pairwise(colluders=1, ratio=2.0)},
    "constraints": {"statistics": fp.Statistics(bound=2.0)},
}


def clients(problem: fp.Problem | None = None) -> list[fp.Client]:
    draw = torch.Generator().manual_seed(4)
    data = [TensorDataset(torch.rand(m, 3, generator=draw), torch.randint(3, (m,), generator=draw)) for m in SIZES]
    return fp.make_clients(SoftmaxRegression(3, 3), nn.CrossEntropyLoss(), data, problem)


def run(
    strategy: Strategy,
    privacy: fp.Privacy,
    network: RoundNetwork,
    owned: list[fp.Client],
    part: ClientShard | None,
    total: Any,
) -> tuple[list[Tensor], list[Record]]:
    population = Population(owned, dtype=torch.float64, shard=part)
    ledger = Ledger(Accountant(len(SIZES), privacy.delta))
    sums = ClippedSums(build_backend("vmap", population.model, population.loss), len(owned), population.device)
    streams = Randomness(5, secret_seed=6)
    oracle = data_oracle(population, sums, privacy, ledger, streams, **total)
    start = initial_state(strategy, population.params.clone())
    seen = server_view(network, privacy)
    rounds = run_rounds(strategy, oracle, network, start, streams, rounds=ROUNDS, seen=seen)
    return [done.progress.models for done in rounds], list(ledger.records)


EVERYONE_NEEDED = ("constraints", "curator")


@pytest.mark.parametrize(
    ("name", "cohort"),
    [(name, None) for name in SETTINGS]
    + [(name, fp.FixedCohort(2 if name != "sums" else 3)) for name in SETTINGS if name not in EVERYONE_NEEDED],
)
def test_sharded_run_and_ledger_match_whole_run(name: str, cohort: fp.FixedCohort | None) -> None:
    problem = CONSTRAINED if name == "constraints" else None
    strategy = fp.private_al(beta=0.5) if problem else fp.fedavg(0.5)
    privacy = fp.Privacy(noise_multiplier=0.3, clip=fp.Clip(1.0), **SETTINGS[name])

    def network() -> fp.Star:
        return fp.Star(len(SIZES), cohort)

    models, records = run(strategy, privacy, network(), clients(problem), None, {})
    facts = ClientShard.whole(clients(problem))

    def work(ids: Tensor, place: int, meeting: Meeting) -> tuple[list[Tensor], list[Record]]:
        numbers = tuple(ids.tolist())
        part = ClientShard(numbers, facts.all_sizes, facts.n_objectives)
        owned = [client for number, client in enumerate(clients(problem)) if number in numbers]
        sharded: Any = ShardedNetwork(network(), ids, place, meeting)
        return run(strategy, privacy, sharded, owned, part, {"sum_clients": sharded.total})

    for found, own_records in in_shards(work, SHARDS):
        assert own_records == records
        assert len(found) == len(models) == ROUNDS
        for own, wanted in zip(found, models, strict=True):
            torch.testing.assert_close(own[:1], wanted[:1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["batches", "constraints"])
def test_shard_without_clients_keeps_run(name: str) -> None:
    """More processes than clients: a place has sums, maxima and records to take part in, but no rows."""
    problem = CONSTRAINED if name == "constraints" else None
    strategy = fp.private_al(beta=0.5) if problem else fp.fedavg(0.5)
    privacy = fp.Privacy(noise_multiplier=0.3, clip=fp.Clip(1.0), **SETTINGS[name])
    models, records = run(strategy, privacy, fp.Star(len(SIZES)), clients(problem), None, {})
    facts = ClientShard.whole(clients(problem))

    def work(ids: Tensor, place: int, meeting: Meeting) -> tuple[list[Tensor], list[Record]]:
        part = ClientShard(tuple(ids.tolist()), facts.all_sizes, facts.n_objectives, facts.widths)
        sharded: Any = ShardedNetwork(fp.Star(len(SIZES)), ids, place, meeting)
        return run(
            strategy, privacy, sharded, list(part.select(clients(problem))), part, {"sum_clients": sharded.total}
        )

    everyone = tuple(range(len(SIZES)))
    (found, own_records), (nothing, other_records) = in_shards(work, [everyone, ()])
    assert own_records == other_records == records
    for own, wanted in zip(found, models, strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-9, atol=1e-9)
    assert {len(rows) for rows in nothing} == {0}


def test_client_shard_numbers_must_ascend() -> None:
    for numbers in ((1, 0), (0, 0), (0, 5), (-1,)):
        with pytest.raises(fp.ConfigError, match="must be numbers from 0 to 4 in ascending order"):
            ClientShard(numbers, SIZES, 5)
    with pytest.raises(fp.ConfigError, match="must have one number for each of the 5 clients"):
        Population(clients(), shard=ClientShard((0, 1), SIZES, 5))
    part = ClientShard((1, 3), SIZES, 5)
    cohort = torch.tensor([0, 3, 4])
    assert part.rows(cohort).tolist() == [1]
    assert part.positions(cohort).tolist() == [1]
    assert part.sizes.tolist() == [4, 6]


@pytest.mark.parametrize("cohort", [[2, 0], [1, 1, 3]], ids=["out of order", "twice"])
def test_unordered_cohort_raises(cohort: list[int]) -> None:
    training = fp.Training(clients(), fp.fedavg(0.1), fp.Privacy(noise_multiplier=1.0), rounds=1, secret_seed=1)
    with pytest.raises(fp.ConfigError, match="must list each client at most once, in ascending order"):
        training.oracle.begin_round(0, torch.tensor(cohort))
