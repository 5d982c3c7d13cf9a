"""An engine is a function and a row: a run goes by the one that it names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_round_halves import sent
from test_sharded_strategies import BARE

import fedpriv as fp
from fedpriv.config import build, load_config
from fedpriv.network.rounds import ClientInput, RoundResult, ServerUpdate, TrainState, client_update, server_update
from fedpriv.strategies.state import flatten_with_names, scatter_rows, select_rows, shared_leaves, unflatten_like


def by_bytes(
    strategy: Any,
    oracle: Any,
    network: Any,
    progress: TrainState,
    randomness: Any,
    *,
    rounds: int,
    seen: Any,
    stream: int,
) -> Iterator[RoundResult]:
    """Call, messages and state pass as bytes."""
    for index in range(progress.round, rounds):
        cohort = network.participants(index, randomness)
        call = ClientInput(
            **sent(vars(ClientInput(index, cohort, progress.received[cohort], shared_leaves(progress.local))))
        )
        here = select_rows(progress.local, cohort)
        message, local = client_update(strategy, oracle, call, unflatten_like(here, sent(flatten_with_names(here))))
        reply: ServerUpdate = server_update(strategy, seen, sent(message), progress.reply)
        numbers = progress.numbers_sent + network.numbers_sent + network.answers * reply.received.shape[1]
        local = scatter_rows(progress.local, cohort, local)
        progress = replace(progress, round=index + 1, local=local, numbers_sent=numbers, **vars(reply))
        yield RoundResult(index, cohort, progress)


@pytest.mark.parametrize("strategy", ["{name: iadmm_prox}", "{name: fedavg, learning_rate: 1, server_momentum: .5}"])
def test_other_engine_gives_same_run(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    def train() -> tuple[fp.Result, list[str]]:
        config = [f"strategy={strategy}", "network.cohort={fixed: 4}", "rounds=4", "secret_seed=3"]
        training = build(load_config(BARE, config))
        for _ in training:
            pass
        return training.result(), [str(record) for record in training.ledger.records]

    plain, records = train()
    rounds = list[int]()

    def counted(*started: Any, **options: Any) -> Iterator[RoundResult]:
        for done in by_bytes(*started, **options):
            rounds.append(done.index)
            yield done

    monkeypatch.setattr("fedpriv.runs.training.run_rounds", counted)
    other, again = train()
    assert rounds == [0, 1, 2, 3]
    assert torch.equal(other.params, plain.params)
    assert again == records
    assert (other.spent, other.measures["bytes_sent"]) == (plain.spent, plain.measures["bytes_sent"])


def test_unknown_engine_raises() -> None:
    with pytest.raises(fp.ConfigError, match=r"compute\.parallelism = 'elsewhere'"):
        load_config(BARE, ["compute.parallelism=elsewhere"])
    with pytest.raises(fp.ConfigError, match=r"compute\.parallelism = 'elsewhere'"):
        fp.Compute(parallelism="elsewhere")  # pyright: ignore[reportArgumentType]
