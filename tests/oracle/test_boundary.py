"""All outputs of a client are functions of the releases in the ledger, for every strategy."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from forging import plain
from privacy_worlds import DIM, Data, Wiretap, clients_of, digits_of, with_record
from torch import Tensor

import fedpriv as fp
from fedpriv.oracle.data_query_engine import DataQueryEngine
from fedpriv.oracle.oracle import Oracle

SIZES = (12, 9, 15)
ROUNDS = 6


class Recorder:
    """The real oracle; records its query results, or replaces computed results with those of another run."""

    def __init__(self, oracle: Oracle[DataQueryEngine], script: list[Tensor] | None = None) -> None:
        self._oracle, self._script = oracle, script
        self.n_clients = oracle.n_clients
        self.own: list[Tensor] = []

    @property
    def is_aggregate(self) -> bool:
        return self._oracle.is_aggregate

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> Tensor | None:
        return self._oracle.begin_round(round_index, cohort, received)

    def gradient(self, params: Tensor) -> Tensor:
        # every query passes through the real interface
        answer = self._oracle.gradient(params)
        return self._keep(answer) if self._oracle.privacy.noise_on == "gradient" else answer

    def client_gradient(self, params: Tensor) -> Tensor:
        answer = self._oracle.client_gradient(params)
        return self._keep(answer) if self._oracle.privacy.noise_on == "gradient" else answer

    @property
    def weights(self) -> Tensor:
        return self._oracle.weights

    def gradient_difference(self, params: Tensor, anchor: Tensor) -> Tensor:
        return self._keep(self._oracle.gradient_difference(params, anchor))

    def release_message(self, message: Tensor) -> Tensor:
        released = self._oracle.release_message(message)
        return self._keep(released) if self._oracle.privacy.noise_on == "message" else released

    def _keep(self, answer: Tensor) -> Tensor:
        self.own.append(answer.clone())
        return answer if self._script is None else self._script[len(self.own) - 1].clone()


@dataclass
class RunOutputs:
    """All that one run lets out."""

    messages: list[Tensor]
    models: list[Tensor]
    reports: list[tuple[dict[str, float], float]]
    ledger: list[str]
    own: list[Tensor]
    result: dict[str, object]


def watch(
    data: Data, strategy: fp.Strategy, privacy: fp.Privacy, folder: Path, script: list[Tensor] | None = None
) -> RunOutputs:
    wire = Wiretap(len(SIZES))
    training = fp.Training(
        clients_of(data),
        strategy,
        privacy,
        rounds=ROUNDS,
        seed=5,
        secret_seed=5,
        network=wire,
        test=torch.utils.data.TensorDataset(*digits_of([50])[0]),
        folder=folder,
    )
    wire.sent.clear()  # those of the plan
    recorder = Recorder(training.oracle, script)
    training.oracle = recorder
    models, reports = [], []
    for report in training:
        models.append(training.progress.models.clone())
        reports.append((report.metrics, report.epsilon))
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    ledger = [json.dumps({**plain(line), "run": None}) for line in lines]
    result = {name: value for name, value in training.result().to_json().items() if name != "seconds"}
    return RunOutputs(wire.sent, models, reports, ledger, recorder.own, result)


def strategies() -> dict[str, tuple[fp.Strategy, fp.Privacy]]:
    private, client = fp.Privacy(epsilon=3), fp.Privacy(epsilon=3, unit="client")
    return {
        "prox": (fp.inexact_admm(), private),
        "trust": (fp.inexact_admm(fp.Trust(fp.Decay(0.1, 0.0))), replace(private, sampling=fp.Poisson(0.5))),
        "box, received": (fp.inexact_admm(feasible=fp.BoxSet(0.1), linearize_at="received", average=1.0), client),
        "fedavg": (fp.fedavg(0.5, local_steps=2), replace(private, sampling=fp.FixedSize(5))),
        "fedavg, messages": (fp.fedavg(0.5, local_steps=3), replace(client, noise_on="message")),
        "secure sum": (fp.fedavg(0.5), replace(private, trust=fp.SecureAggregation(3))),
    }


@pytest.mark.parametrize("name", list(strategies()))
def test_outputs_depend_only_on_releases(name: str, tmp_path: Path) -> None:
    """With the releases of one data set, a run on a neighbouring data set must have equal outputs."""
    strategy, privacy = strategies()[name]
    data = digits_of(SIZES)
    other = with_record(data, 1, 4, torch.full((64,), 50.0, dtype=torch.float64), 3)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    a = watch(data, strategy, privacy, tmp_path / "a")
    b = watch(other, strategy, privacy, tmp_path / "b", script=a.own)
    assert not all(torch.equal(x, y) for x, y in zip(a.own, b.own, strict=True))  # the record does matter
    assert len(a.messages) == ROUNDS
    assert all(torch.equal(x, y) for x, y in zip(a.messages, b.messages, strict=True))
    assert all(torch.equal(x, y) for x, y in zip(a.models, b.models, strict=True))
    assert a.reports == b.reports
    assert a.ledger == b.ledger
    assert a.result == b.result
    # one line for each release, after the header
    assert len(a.ledger) == 1 + len(a.own)


def test_ledger_contains_no_query_result(tmp_path: Path) -> None:
    """A changed record of the data leaves the ledger equal, apart from its checksums."""
    data = digits_of(SIZES)
    other = with_record(data, 1, 4, torch.full((64,), 1e308, dtype=torch.float64), 3)  # a broken example
    ledgers = []
    for name, side in (("a", data), ("b", other)):
        (tmp_path / name).mkdir()
        ledgers.append(watch(side, fp.inexact_admm(), fp.Privacy(epsilon=3), tmp_path / name).ledger)
    assert ledgers[0] == ledgers[1]


def test_stopping_round_independent_of_data() -> None:
    """Given noise and a limit, the round at which the budget ends is the same on all data."""
    privacy = fp.Privacy(epsilon=1.0, noise_multiplier=12.0)
    rounds = []
    for scale in (0.0, 1.0, 1e6):
        data = [(x * scale, y) for x, y in digits_of(SIZES)]
        training = fp.Training(clients_of(data), fp.inexact_admm(), privacy, rounds=50)
        rounds.append(len(list(training)))
        assert training.result().spent.epsilon <= 1.0
    assert rounds[0] == rounds[1] == rounds[2]
    assert 1 < rounds[0] < 50


@dataclass(frozen=True)
class Momentum:
    """A user's local step."""

    receives = ("model",)
    sends = ("velocity",)
    memory = "private"
    linear = True

    def init(self, params):
        return torch.zeros_like(params)

    def __call__(self, received, state, oracle):
        v = 0.9 * state + oracle.gradient(received)
        return v, v


@dataclass(frozen=True)
class Descent:
    """A user's aggregator."""

    receives = ("velocity",)
    sends = ("model",)
    is_sum = True

    def init(self, params):
        return params, {"w": params}

    def __call__(self, message, network, state):
        w = state["w"] - 0.5 * network.mean(message)
        return w, {"w": w}


@pytest.mark.parametrize("mechanism", [fp.Gaussian(), fp.Laplace()])
def test_custom_strategy_charged_automatically(mechanism, tmp_path: Path) -> None:
    privacy = fp.Privacy(
        epsilon=2.0, mechanism=mechanism, clip=fp.Clip(1.0, "l2" if mechanism == fp.Gaussian() else "l1")
    )
    seen = watch(digits_of(SIZES), fp.Strategy(Momentum(), Descent()), privacy, tmp_path)
    assert seen.result["rounds"] == ROUNDS
    assert 2.0 * (1 - 2e-3) <= seen.result["epsilon"] <= 2.0
    assert [json.loads(line)["round"] for line in seen.ledger[1:]] == list(range(ROUNDS))
    assert {tuple(m.shape) for m in seen.messages} == {(len(SIZES), DIM)}
