"""Every strategy that a configuration can name lets out nothing but functions of recorded answers; none is left out.

A new strategy is in `STRATEGIES` and so in this test; one with required options fails here until it is given some. A
new kind of question is in the `Oracle` protocol and so is watched.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forging import plain
from privacy_worlds import Data, Wiretap, clients_of, digits_of, with_record
from strategy_options import EXACT, OPTIONS
from torch import Tensor

import fedpriv as fp
from fedpriv.config import load_config
from fedpriv.config.strategies import STRATEGIES
from fedpriv.oracle import oracle as answering
from fedpriv.oracle.data_query_engine import DataQueryEngine
from fedpriv.privacy.record import Record
from fedpriv.strategies.base import Oracle, Strategy
from fedpriv.strategies.state import flatten_with_names

SIZES, ROUNDS = (12, 9, 15), 4
QUERIES = {name for name, value in vars(Oracle).items() if callable(value) and not name.startswith("_")}


class RecordingOracle:
    """The real oracle; answers that a record was written for may be replaced by those of another run."""

    def __init__(self, oracle: answering.Oracle[DataQueryEngine], script: list[Tensor]) -> None:
        self._oracle, self._script = oracle, script
        self.answers: list[Tensor] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._oracle, name)
        return self._recorded(found) if name in QUERIES | {"release_message"} else found

    def _recorded(self, question: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def ask(*given: Any) -> Tensor:
            before = len(self._oracle.engine.ledger.records)
            answer = question(*given)
            written = len(self._oracle.engine.ledger.records) - before
            assert written <= 1
            if not written:
                return answer  # nothing was paid: so nothing of it may be seen
            self.answers.append(answer.clone())
            return self._script[len(self.answers) - 1].clone() if self._script else answer

        return ask


def strategy_of(name: str, privacy: str) -> tuple[Strategy, fp.Privacy]:
    settings = [f"strategy={{name: {name}, {OPTIONS.get(name, '')}}}", f"privacy={privacy}", f"rounds={ROUNDS}"]
    config = load_config(Path(__file__).parents[1] / "run.yaml", settings)
    return config.recipe().strategy, config.promise()


def training_of(data: Data, name: str, privacy: str, folder: Path | None = None) -> fp.Training:
    strategy, promise = strategy_of(name, privacy)
    clients = clients_of(data)
    if name in {"private_al", *EXACT}:
        for client in clients:
            client.problem = fp.Problem(constraints=(fp.ClassLossAtMost(1, 0.3, fraction=0.1), fp.LossAtMost(0.5)))
    return fp.Training(
        clients,
        strategy,
        promise,
        rounds=ROUNDS,
        seed=5,
        secret_seed=5,
        network=Wiretap(len(SIZES)),
        test=torch.utils.data.TensorDataset(*digits_of([40])[0]),
        folder=folder,
    )


def outputs_of(training: fp.Training, folder: Path, script: list[Tensor]) -> tuple[list[Any], list[Tensor]]:
    """All that a run lets out, and its recorded answers."""
    wire, watched = training.network, RecordingOracle(training.oracle, script)
    wire.sent.clear()
    training.oracle = watched
    seen: list[Any] = []
    for report in training:
        seen += [report.metrics, report.epsilon, training.progress.models.tolist(), training.progress.received.tolist()]
        seen.append(
            {key: torch.as_tensor(part).tolist() for key, part in flatten_with_names(training.progress.server).items()}
        )
    seen.append([rows.tolist() for rows in wire.sent])
    seen += [{**plain(json.loads(line)), "run": None} for line in (folder / "ledger.jsonl").read_text().splitlines()]
    seen.append({key: value for key, value in training.result().to_json().items() if key != "seconds"})
    return seen, watched.answers


def equal_except_bound(planned: Record, written: Record) -> bool:
    """Whether a record is as planned; a bound that may follow from answers is not planned."""
    known = {"bound": 1.0, "noise_multiplier": 1.0}
    same = replace(planned, **known) == replace(written, **known)
    return same and planned.noise_multiplier == pytest.approx(written.noise_multiplier, rel=1e-12)


PRIVACIES = {
    "gradient": "{epsilon: 3, delta: 1e-5, sampling: {poisson: {rate: 0.9}}}",
    "message": "{epsilon: 3, delta: 1e-5, noise_on: message, unit: client}",
    "gradient, pairwise noise": "{epsilon: 3, trust: {pairwise: {colluders: 1, ratio: 3}}, "
    "sampling: {poisson: {rate: 0.9}}}",
    "message, pairwise noise": "{epsilon: 3, noise_on: message, unit: client, "
    "trust: {pairwise: {colluders: 1, ratio: 3, secrets: {random_regular: {degree: 2}}}}}",
}


@pytest.mark.parametrize("at", PRIVACIES)
@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - EXACT))
def test_outputs_depend_on_recorded_results_only(name: str, at: str, tmp_path: Path) -> None:
    """Two neighbouring data sets, with the query results of one given to the other run: nothing else may differ."""
    data = digits_of(SIZES)
    other = with_record(data, 1, 4, torch.full((64,), 50.0, dtype=torch.float64), 3)
    runs: list[tuple[list[Any], list[Tensor]]] = []
    for folder, side in (("a", data), ("b", other)):
        (tmp_path / folder).mkdir()
        try:
            training = training_of(side, name, PRIVACIES[at], tmp_path / folder)
        except fp.ConfigError:
            assert at.startswith("message")  # every strategy can be run where each answer is noised
            assert strategy_of(name, PRIVACIES[at])[0].local_step.memory != "none"
            return
        runs.append(outputs_of(training, tmp_path / folder, runs[0][1] if runs else []))
        pairs = zip(training.plan.records, training.ledger.records, strict=True)
        assert all(equal_except_bound(planned, written) for planned, written in pairs)
    (seen, answers), (others, own) = runs
    assert not all(torch.equal(a, b) for a, b in zip(answers, own, strict=True))  # the record does matter
    assert len(answers) >= ROUNDS
    assert repr(seen) == repr(others)


@pytest.mark.parametrize("name", sorted(EXACT))
def test_exact_strategy_with_privacy_raises(name: str) -> None:
    with pytest.raises(fp.ConfigError, match="exact query results"):
        training_of(digits_of(SIZES), name, PRIVACIES["gradient"])


def test_options_table_names_strategies() -> None:
    assert {*OPTIONS, *EXACT} <= set(STRATEGIES)
    assert "gradient" in QUERIES and "statistic" in QUERIES
