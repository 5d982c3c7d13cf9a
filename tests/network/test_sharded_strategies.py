"""No strategy reduces rows itself: with the rows in two places, every run is what it is with all of them in one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from sharded import Meeting, Network, ShardedNetwork, in_shards, trajectory
from strategy_fingerprints import OF_STRATEGIES
from torch import Tensor
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.config import load_config
from fedpriv.models import SoftmaxRegression
from fedpriv.network.activity import RandomNodes
from fedpriv.network.rounds import initial_state, run_rounds
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.state import flatten_with_names

N, DIM, ROUNDS = 5, 4, 8
BARE = Path(__file__).parents[1] / "run.yaml"
SHARDS = {"halves": [(0, 1, 2), (3, 4)], "interleaved": [(1, 3), (0, 2, 4)]}
# the others that papers publish differ in their noise alone
DIFFERENT = [options for options in OF_STRATEGIES if "published" not in options or "dp_accmd" in options]
EVERYONE_NEEDED = {"proximal_al", "private_al"}


def network_of(name: str) -> Network:
    if name == "nodes":
        return fp.Graph(nx.complete_graph(N), activity=RandomNodes(0.6))
    if name == "ring":
        return fp.Graph(nx.cycle_graph(N))
    return fp.Star(N, {"star": None, "poisson": fp.PoissonCohort(0.6), "fixed": fp.FixedCohort(2)}[name])


def networks_for(options: str) -> list[str]:
    strategy = strategy_of(options)
    if strategy.name in EVERYONE_NEEDED:
        return ["star"]
    return (
        ["star", "ring", "nodes"]
        if strategy.local_step.receives[0].startswith("mixed")
        else ["star", "poisson", "fixed"]
    )


@cache
def strategy_of(options: str) -> Strategy:
    privacy = ["privacy={epsilon_bar: .5}"] if "variant: published" in options else []
    return load_config(BARE, [f"strategy={{{options}}}", f"rounds={ROUNDS}", *privacy]).recipe().strategy


def assert_same(strategy: Strategy, network: str, shards: list[tuple[int, ...]]) -> None:
    whole = trajectory(strategy, network_of(network), torch.arange(N), DIM, 0.1, ROUNDS)

    def work(ids: Tensor, place: int, meeting: Meeting) -> list[Any]:
        seen = ShardedNetwork(network_of(network), ids, place, meeting)
        return trajectory(strategy, seen, ids, DIM, 0.1, ROUNDS)

    for ids, found in zip(shards, in_shards(work, shards), strict=True):
        assert len(found) == len(whole)
        for (models, received, sent, server), (own, own_heard, own_sent, own_server) in zip(whole, found, strict=True):
            assert sent == own_sent
            pairs = [(models, own), (received, own_heard)]
            pairs += zip(flatten_with_names(server).values(), flatten_with_names(own_server).values(), strict=True)
            for one, other in pairs:
                one, other = torch.as_tensor(one).double(), torch.as_tensor(other).double()
                one = one[list(ids)] if one.ndim and len(one) == N else one
                both = torch.broadcast_tensors(other, one)  # rows that are all one may stand as one
                torch.testing.assert_close(*both, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize(
    ("options", "network", "shards"),
    [
        (options, network, list(SHARDS)[(place + turn) % 2])
        for place, options in enumerate(DIFFERENT)
        for turn, network in enumerate(networks_for(options))
    ],
)
def test_sharded_strategy_matches_whole(options: str, network: str, shards: str) -> None:
    assert_same(strategy_of(options), network, SHARDS[shards])


@dataclass(frozen=True)
class AveragesItself(type(fp.scaffold(0.1).aggregator)):
    """What SCAFFOLD's server would do if it took the mean of its rows by itself."""

    def __call__(self, message: Tensor, network: Any, state: Any) -> tuple[Tensor, Any]:
        received, state = super().__call__(message, network, state)
        x, _, controls = received.chunk(3, 1)
        return torch.cat([x, controls.mean(0, keepdim=True).expand_as(x), controls], 1), state


def test_sharding_detects_local_mean() -> None:
    plain = fp.scaffold(0.1, 2)
    wrong = replace(plain, aggregator=AveragesItself(0.1, 2))
    assert_same(plain, "star", SHARDS["halves"])
    with pytest.raises(AssertionError, match="not close"):
        assert_same(wrong, "star", SHARDS["halves"])


def test_oracle_partial_cohort_raises() -> None:
    """Noise for a part of the cohort alone would be too small."""
    data = [TensorDataset(torch.rand(6, 4), torch.arange(6) % 2) for _ in range(2)]
    clients = fp.make_clients(SoftmaxRegression(4, 2), torch.nn.CrossEntropyLoss(), data)
    training = fp.Training(clients, fp.fedavg(0.5), fp.Privacy(noise_multiplier=2.0), rounds=1)

    def work(ids: Tensor, place: int, meeting: Meeting) -> None:
        seen = ShardedNetwork(fp.Star(2), ids, place, meeting)
        start = initial_state(training.strategy, training.population.params[ids])
        next(run_rounds(training.strategy, training.oracle, seen, start, Randomness(0), rounds=1))

    with pytest.raises(
        fp.ConfigError,
        match=r"oracle query = \(1, 8\): the queried points must have one row for each participant, shape \(2, 8\)",
    ):
        in_shards(work, [(0,), (1,)])
    assert not training.ledger.records
