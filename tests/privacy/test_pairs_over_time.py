"""Whole runs with noise that cancels between pairs of clients and over rounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from correlated_runs import training_of
from pairs_over_time import PRIVACY, RING, TRUST, N, Zeros

import fedpriv as fp
from fedpriv.config import build, forecast, load_config
from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.oracle.backends import build_backend
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.data_query_engine import data_oracle
from fedpriv.privacy.accounting.accountant import Accountant, account
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.pairwise import Complete, Links, Pairwise, Topology
from fedpriv.privacy.release import Answer
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Strategy

RUNS: dict[str, tuple[Any, Any, Any]] = {
    "star, ring of secrets": (lambda: fp.fedavg(0.5), lambda: None, Links(RING)),
    "star, complete": (lambda: fp.inexact_admm(), lambda: None, Complete()),
    "graph": (lambda: fp.gradient_tracking(0.1), lambda: fp.Graph(nx.cycle_graph(4)), Topology()),
}


@pytest.mark.parametrize("noise", [fp.BSR(3), fp.BLT(2)], ids=str)
@pytest.mark.parametrize("name", RUNS)
def test_resumed_run_epsilon_equals_plan(name: str, noise: Any, tmp_path: Path) -> None:
    """Pairwise noise starts anew at both ends, so it still cancels."""
    strategy, network, secrets = RUNS[name]
    trust = Pairwise(1, 3.0, secrets)
    privacy = replace(PRIVACY, trust=trust, noise=noise, epsilon=None, noise_multiplier=3.0)
    for resume in (False, True):
        training = training_of(privacy, strategy(), network=network(), folder=tmp_path, resume=resume)
        for report in training:
            if report.round == 5 and not resume:
                break
        training.folder.close()  # pyright: ignore
    rounds = [record.round for record in training.ledger.records]
    assert len(rounds) == len(training.plan.records)
    assert training.result().spent.epsilon == training.plan.spent().epsilon


def client_run(**more: Any) -> dict[str, Any]:
    return {"unit": "client", "noise_on": "message", "sampling": fp.FullBatch(), **more}


CHANGING: dict[str, tuple[dict[str, Any], dict[str, Any], Strategy]] = {
    "random cohort": ({}, {"network": fp.Star(4, fp.FixedCohort(3))}, fp.fedavg(0.5)),
    "cyclic clients": (client_run(), {"network": fp.Star(4, fp.CyclicCohort(2))}, fp.fedavg(0.5)),
    "random nodes": (
        {},
        {"network": fp.Graph(nx.cycle_graph(4), activity=fp.RandomNodes(0.5))},
        fp.gradient_tracking(0.1),
    ),
    "outage": (
        {},
        {"network": fp.Graph(nx.complete_graph(4), outages=[fp.Outage(2, 1, 3)])},
        fp.decentralized_sgd(0.1),
    ),
}


@pytest.mark.parametrize("name", CHANGING)
def test_changing_participants_raise(name: str) -> None:
    privacy, options, strategy = CHANGING[name]
    with pytest.raises(ConfigError, match=r"need all clients in every round|or all clients$") as error:
        training_of(replace(PRIVACY, **privacy), strategy, **options)
    assert error.value.field == "network.cohort"


def test_partial_cohort_release_raises() -> None:
    made = Zeros(TRUST, fp.BSR(4), 5)
    with pytest.raises(PrivacyError, match="the plan has no such query"):
        made.rows(0, range(3))
    answer = Answer(0, 0, "gradient", range(3), PRIVACY.clip)
    with pytest.raises(PrivacyError, match=r"round 0 has 3 of 4 clients.*only if all clients take part in every round"):
        made.training.oracle.queries.scheme.price(answer, [1.0] * 3)
    assert not made.training.ledger.records
    record = replace(training_of(PRIVACY).plan.records[0], clients=(0, 1, 2))
    with pytest.raises(ConfigError, match="all clients take part in every round"):
        account([record], N, 1e-5)


CONFIG = """
model: softmax
data: {name: digits, partition: {kind: iid, n_clients: 3}}
strategy: {name: fedavg, learning_rate: .5}
privacy:
  epsilon: 2
  trust: {pairwise: {colluders: 1, ratio: 2}}
  sampling: {cyclic: {blocks: 3}}
  noise: {correlated: {bsr: {band: 3}}}
rounds: 6
seed: 1
"""


def test_plan_states_pair_noise_memory(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "config.yaml")
    found = forecast(config)
    # own noise and that of pairs go through one filter
    assert found.over_time is not None and f"{2 * 3 * found.parameters * 8 / 1e6:.3g} MB" in found.over_time
    training = build(config, tmp_path / "run")
    list(training)
    assert training.result().spent.epsilon <= 2
    assert "pairwise(colluders=1, ratio=2, complete, simulated)" in str(training.result().spent)


def test_agreed_secrets_with_correlated_noise_raise() -> None:
    """Noise from agreed secrets is new in every round: the run would be charged for a matrix that it does not use."""
    training = Zeros(TRUST, fp.BSR(4), 3).training
    over_time = training.plan.privacy
    secrets = Randomness(secret_seed=2)

    def oracle(privacy: fp.Privacy, pair_secrets: Randomness | None) -> Any:
        sums = ClippedSums(
            build_backend("linear", training.population.model, training.population.loss), N, torch.device("cpu")
        )
        ledger = Ledger(Accountant(N, privacy.delta))
        return data_oracle(
            training.population, sums, privacy, ledger, Randomness(secret_seed=1), pair_secrets=pair_secrets
        )

    with pytest.raises(
        ConfigError, match=r"privacy\.noise = 'correlated noise or cyclic batches': noise that pairs of sites share"
    ):
        oracle(over_time, secrets)
    # either of them alone is an oracle
    assert oracle(over_time, None).engine.excluded == frozenset()
    assert oracle(replace(over_time, noise=fp.Independent()), secrets).engine.excluded == frozenset()
