"""Whole runs with noise that is correlated between rounds: what they release, cost, refuse, repeat and write down."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from scipy.stats import beta
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.config import build, forecast, load_config
from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.models import SoftmaxRegression
from fedpriv.oracle.sampler import BatchSampler
from fedpriv.privacy.accounting.accountant import Accountant, account
from fedpriv.privacy.accounting.gaussian import epsilon_of
from fedpriv.privacy.correlated import CorrelatedNoise, Factor, sensitivity
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.matrices import Matrix
from fedpriv.privacy.mechanisms import Gaussian, add_noise
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.privacy.record import Record
from fedpriv.privacy.settings import Noise
from fedpriv.randomness.streams import Randomness
from fedpriv.runs.integrity import _of_turns, findings
from fedpriv.runs.run_files import RunFiles
from fedpriv.strategies.base import Strategy

SIZES, ROUNDS = (12, 9, 4, 12), 10
NOISES: list[Noise] = [fp.BSR(4), fp.Banded(3), fp.BLT(2), fp.BSR(100)]
PRIVACY = fp.Privacy(epsilon=4.0, sampling=fp.Cyclic(4), noise=fp.BSR(4))
TRUSTS = [fp.Local(), fp.Central(), fp.SecureAggregation(3)]


def clients_of(sizes: tuple[int, ...] = SIZES) -> list[fp.Client]:
    draw = torch.Generator().manual_seed(0)
    data = [TensorDataset(torch.randn(m, 3, generator=draw), torch.arange(m) % 2) for m in sizes]
    return fp.make_clients(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), data)


def training_of(privacy: fp.Privacy = PRIVACY, strategy: Strategy | None = None, **options: Any) -> fp.Training:
    settings = {"rounds": ROUNDS, "seed": 1, "secret_seed": 1, "checkpoint_every": 2, **options}
    return fp.Training(clients_of(), strategy or fp.fedavg(0.5), privacy, **settings)


def graph() -> fp.Graph:
    return fp.Graph(nx.cycle_graph(4))


def dense(factor: Factor, rounds: int) -> np.ndarray:
    column = factor.column(rounds)
    return np.array([[column[t - j] if t >= j else 0.0 for j in range(rounds)] for t in range(rounds)])


# --- the noise -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 5, 40_000])
@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_what_is_added_is_the_inverse_of_c_times_independent_noise(noise: Matrix, dim: int) -> None:
    """And after a stop it is drawn again, bit for bit, whatever was drawn before."""
    factor, randomness, scale = noise.factor(ROUNDS, 4), Randomness(0, 1), 3.0
    record = Record(0, "gradient", 0, "gaussian", 1.0, "sample", "add_remove")
    clients, zeros = [2, 5, 6], torch.zeros(3, dim, dtype=torch.float64)

    def released(past: NoiseHistory, t: int) -> Tensor:
        made = add_noise(zeros, [scale] * 3, Gaussian(), replace(record, round=t), randomness, clients, past=past)
        return made._value

    past = NoiseHistory(factor)
    told = torch.stack([released(past, t) for t in range(ROUNDS)])
    units = [Gaussian().draw(randomness.keys("noise", t, 0, clients), dim) for t in range(ROUNDS)]
    expected = scale * np.linalg.inv(dense(factor, ROUNDS)) @ torch.stack(units).flatten(1).numpy()
    assert torch.allclose(told.flatten(1), torch.from_numpy(expected), atol=1e-4)  # the grid is 2^-20 of 4
    assert torch.equal(released(NoiseHistory(factor), ROUNDS - 1), told[-1])
    assert torch.equal(released(past, 3), told[3])
    assert torch.equal(released(past, 6), told[6])


def test_a_round_that_was_half_made_is_made_again() -> None:
    factor = fp.BLT(2).factor(ROUNDS, 4)
    whole, broken = NoiseHistory(factor), NoiseHistory(factor)
    draws = torch.randn(3, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def made(past: NoiseHistory, t: int) -> Tensor:
        for earlier in past.missing(t, 4, 2, torch.device("cpu")):
            past.filtered(draws[earlier].clone(), slice(0, 4), earlier)
            past.finish(earlier)
        out = past.filtered(draws[t].clone(), slice(0, 4), t)
        past.finish(t)
        return out

    made(broken, 0)
    broken.filtered(draws[1, :2].clone(), slice(0, 2), 1)  # and then an error
    assert torch.equal(made(broken, 2), [made(whole, t) for t in range(3)][-1])


# --- what it costs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", TRUSTS, ids=str)
@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_a_run_meets_its_target_and_its_beginnings_cost_what_the_leading_block_costs(
    noise: Matrix, trust: fp.Local, tmp_path: Path
) -> None:
    training = training_of(replace(PRIVACY, noise=noise, trust=trust), folder=tmp_path)
    told = [report.epsilon for report in training]
    factor, multiplier = noise.factor(ROUNDS, 4), training.plan.privacy.noise_multiplier
    assert multiplier is not None
    for rounds, epsilon in enumerate(told, start=1):
        assert epsilon == pytest.approx(epsilon_of(sensitivity(factor, rounds, 4) / multiplier, 1e-5), rel=1e-9)
    assert told[-1] == pytest.approx(training.result().spent.epsilon, rel=1e-12) == pytest.approx(4.0, rel=1e-4)
    assert told[-1] <= 4.0
    assert "replace_one(same slots)" in str(training.result().spent)
    file = LedgerFile.read(tmp_path / "ledger.jsonl")
    assert file.header.factor == factor
    assert account(file.records, 4, 1e-5).epsilon == pytest.approx(told[-1], rel=1e-12)
    assert not findings(RunFiles.read(tmp_path))


def test_cyclic_batches_with_independent_noise_cost_their_rounds_only() -> None:
    """Slot 0 of 4 is the batch of 3 rounds among 10."""
    training = training_of(fp.Privacy(noise_multiplier=2.0, sampling=fp.Cyclic(4)))
    list(training)
    assert training.result().spent.epsilon == pytest.approx(epsilon_of(math.sqrt(3) / 2, 1e-5), rel=1e-9)


def test_the_relation_says_how_far_one_unit_moves_an_answer() -> None:
    scales = [
        training_of(replace(PRIVACY, relation=relation), rounds=5).plan.privacy.sensitivity
        for relation in ("add_remove", "replace_one")
    ]
    assert scales[1] == 2 * scales[0]


def test_every_example_takes_part_in_its_rounds_only() -> None:
    training = training_of()
    seen: dict[int, list[tuple[int, ...]]] = {}
    for t in range(8):
        training.oracle.answerer._sampler.begin_round(t, torch.arange(4))
        chosen = training.oracle.answerer._sampler._draw_batches(fp.Cyclic(4), 0, torch.arange(4))
        starts = np.concatenate([[0], chosen.counts.cumsum()])
        for client in range(4):
            seen.setdefault(client, []).append(tuple(chosen.positions[starts[client] : starts[client + 1]].tolist()))
    for client, size in enumerate(SIZES):
        assert seen[client][:4] == seen[client][4:]
        assert sorted(sum(seen[client][:4], ())) == list(range(size))


STRATEGIES: dict[str, Callable[[], tuple[Strategy, object]]] = {
    "fedavg": lambda: (fp.fedavg(0.5), None),
    "fedavg, adam": lambda: (fp.fedavg(0.5, optimizer=fp.Adam(noise_floor=0.1)), None),
    "fedopt": lambda: (fp.fedopt(0.5), None),
    "inexact_admm": lambda: (fp.inexact_admm(), None),
    "dp_gd": lambda: (fp.gradient_descent(0.5), None),
    "dsgd": lambda: (fp.decentralized_sgd(0.1), graph()),
    "gradient_tracking": lambda: (fp.gradient_tracking(0.1), graph()),
    "gradient_tracking_pair": lambda: (fp.gradient_tracking_pair(0.1), graph()),
    "dual_averaging": lambda: (fp.dual_averaging(), graph()),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_with_one_gradient_a_round_run_and_resume_bit_for_bit(name: str, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for number, (noise, folder) in enumerate([(fp.BSR(3), whole), (fp.BSR(3), stopped)]):
        strategy, network = STRATEGIES[name]()
        privacy = replace(PRIVACY, noise=noise, epsilon=None, noise_multiplier=3.0)
        training = training_of(privacy, strategy, network=network, folder=folder)
        rounds = iter(training)
        for _ in range(ROUNDS if number == 0 else 5):  # the checkpoint is that of round 4
            next(rounds)
        params, _ = training.progress.models.clone(), rounds.close()
        if folder == whole:
            expected = params
        training.folder.close()  # pyright: ignore
    strategy, network = STRATEGIES[name]()
    again = training_of(privacy, strategy, network=network, folder=stopped, resume=True)
    list(again)
    assert torch.equal(again.progress.models, expected)
    assert (whole / "ledger.jsonl").read_bytes() == (stopped / "ledger.jsonl").read_bytes()


@pytest.mark.parametrize("trust", [fp.Central(), fp.SecureAggregation(3)], ids=str)
def test_cohorts_in_turns_share_the_noise_of_all_clients(trust: fp.Central, tmp_path: Path) -> None:
    privacy = fp.Privacy(epsilon=8.0, unit="client", at="message", trust=trust, noise=fp.BSR(2))
    training = training_of(privacy, network=fp.Star(4, fp.CyclicCohort(2)), folder=tmp_path)
    list(training)
    factor, multiplier = fp.BSR(2).factor(ROUNDS, 2), training.plan.privacy.noise_multiplier
    assert multiplier is not None
    expected = epsilon_of(sensitivity(factor, ROUNDS, 2) / multiplier, 1e-5)
    assert training.result().spent.epsilon == pytest.approx(expected, rel=1e-9)
    assert all(r.clients is None and r.time is not None and r.time.slot == r.round % 2 for r in training.ledger.records)
    assert not findings(RunFiles.read(tmp_path))


# --- audits ----------------------------------------------------------------------------------------------------


class Mean(nn.Module):
    """The loss is the output: an example's gradient is its input."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return output.mean()


def answers(inputs: Tensor, noise: Noise, blocks: int, rounds: int, multiplier: float, seed: int = 1) -> np.ndarray:
    """All released rows `[rounds, n]` of clients `[n, m]` with one parameter each."""
    data = [TensorDataset(own.unsqueeze(1), torch.zeros(len(own))) for own in inputs]
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)  # noise follows from the seed and from where models begin
    privacy = fp.Privacy(
        noise_multiplier=multiplier, relation="add_remove", sampling=fp.Cyclic(blocks), noise=noise, delta=1e-4
    )
    training = fp.Training(
        fp.make_clients(model, Mean(), data), fp.fedavg(1e-9), privacy, rounds=rounds, seed=1, secret_seed=seed
    )
    points = training.population.params.clone()
    rows = []
    for t in range(rounds):
        training.oracle.begin_round(t, torch.arange(len(data)))
        rows.append(training.oracle.gradient(points)[:, 0].double().numpy())
    return np.stack(rows) * inputs.shape[1] / blocks  # sums, not means


def lower_bound(scores: np.ndarray, present: np.ndarray, delta: float) -> float:
    """Epsilon below which the scores cannot be explained, at 95 % (Clopper and Pearson), at the best of few cuts."""
    best, cuts = 0.0, np.quantile(scores, [0.5, 0.7, 0.8, 0.9, 0.95])
    for cut in cuts:
        caught, called = int((scores[present] > cut).sum()), int((scores[~present] > cut).sum())
        level = 0.05 / len(cuts) / 2
        hits = beta.ppf(level, caught, present.sum() - caught + 1) if caught else 0.0
        false = beta.ppf(1 - level, called + 1, (~present).sum() - called)
        best = max(best, math.log(max((hits - delta) / false, 1e-9)))
    return best


@pytest.mark.parametrize("broken", [False, True])
def test_an_audit_stays_below_the_claim_unless_one_block_comes_again(
    broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every client is a trial: half of them hold a canary in slot 0, whose gradient is as long as the clip allows."""
    blocks, rounds, multiplier, n = 4, 8, 3.0, 4000
    present = np.arange(n) % 2 == 0
    inputs = torch.zeros(n, blocks)
    inputs[present, 0] = 1.0
    if broken:  # slot 0 in every round, and the ledger is told what it should have been
        honest = BatchSampler._draw_batches
        monkeypatch.setattr(
            BatchSampler, "_draw_batches", lambda self, *asked: _at_round(self, 0, lambda: honest(self, *asked))
        )
    factor = fp.BSR(3).factor(rounds, blocks)
    found = answers(inputs, fp.BSR(3), blocks, rounds, multiplier)
    takes_part = np.ones(rounds) if broken else np.arange(rounds) % blocks == 0
    matrix = dense(factor, rounds)
    scores = (matrix @ takes_part) @ (matrix @ found)  # the best test between Gaussians
    claim = epsilon_of(sensitivity(factor, rounds, blocks) / multiplier, 1e-4)
    empirical = lower_bound(scores, present, 1e-4)
    assert (empirical > claim) if broken else (0.2 * claim < empirical <= claim)


def _at_round(draws: BatchSampler, round_index: int, call: Callable[[], Any]) -> Any:
    real, draws._round = draws._round, round_index
    try:
        return call()
    finally:
        draws._round = real


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("slot", range(4))
def test_one_example_moves_the_answers_as_far_as_is_claimed_and_no_further(noise: Matrix, slot: int) -> None:
    """Two neighbours with the same noise: the difference of what they release has none."""
    blocks, rounds = 4, 10
    without = torch.zeros(1, blocks)
    inputs = without.clone()
    inputs[0, slot] = 1.0
    both = [answers(data, noise, blocks, rounds, 1.0, seed=7) for data in (inputs, without)]
    factor = noise.factor(rounds, blocks)
    moved, claim = np.linalg.norm(dense(factor, rounds) @ (both[0] - both[1])), sensitivity(factor, rounds, blocks)
    assert moved <= claim * (1 + 1e-4)
    if slot == 0:
        assert moved == pytest.approx(claim, rel=1e-4)


def test_a_block_that_takes_part_twice_in_a_row_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchSampler, "slot", lambda self, sampling: min(self._round, 2) % sampling.blocks)
    training = training_of()
    with pytest.raises(PrivacyError, match="has block 2 take part, and it is the turn of block 3"):
        list(training)
    assert len(training.ledger.records) == 3


# --- what the ledger holds -------------------------------------------------------------------------------------


def records_of(**changes: Any) -> list[Record]:
    return [replace(record, **changes) for record in training_of().plan.records]


def test_records_are_read_back_and_need_their_matrix() -> None:
    (record, *_), time = records_of(), CorrelatedNoise(fp.BSR(4).factor(ROUNDS, 4), 4)
    assert record.time == time
    assert Record.from_json(record.to_json(), factor=time.factor) == record
    for factor in (None, fp.BSR(3).factor(ROUNDS, 4)):
        with pytest.raises(ValueError, match="matrix"):
            Record.from_json(record.to_json(), factor=factor)
    for wrong in ({"separation": 0}, {"separation": 4.0}, {"separation": True}, {"slot": 4}, {"more": 1}):
        line = json.loads(record.to_json())
        line["time"] |= wrong
        with pytest.raises(ValueError):
            Record.from_json(json.dumps(line), factor=time.factor)


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ([1, 2], "where round 0 must"),
        ([0, 2], "where round 1 must"),
        ([0, 1, 1], "where round 2 must"),
        ([0, 1, 0], "where round 2 must"),
    ],
)
def test_rounds_that_are_missing_or_come_twice_have_no_price(order: list[int], said: str) -> None:
    records = records_of()
    with pytest.raises(PrivacyError, match=said):
        account([records[t] for t in order], 4, 1e-5)


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 9.0},
        {"bound": 0.5},
        {"attempt": 1},
        {"index": 1},
        {"query": "message"},
        {"time": CorrelatedNoise(Factor(), 4, 1)},
        {"time": CorrelatedNoise(fp.BSR(4).factor(ROUNDS, 4), 5, 1)},
    ],
    ids=str,
)
def test_a_round_with_other_noise_than_those_before_has_no_price(change: dict[str, Any]) -> None:
    first, second, *_ = records_of()
    accountant = Accountant(4, 1e-5)
    accountant.admit(first)
    with pytest.raises(PrivacyError, match="other noise"):
        accountant.admit(replace(second, **change))
    accountant.admit(second)


@pytest.mark.parametrize("change", [{"mechanism": "laplace"}, {"clients": (0,)}, {"sampling": "without_replacement"}])
def test_a_record_without_a_price_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Gaussian, from all clients, of all or Poisson draws"):
        account(records_of(**change)[:1], 4, 1e-5)


def test_other_answers_beside_it_are_counted_as_independent() -> None:
    records, multiplier = records_of(), records_of()[0].noise_multiplier
    assert isinstance(multiplier, float)
    other = replace(records[0], time=None, query="statistic:constraints", index=1, noise_multiplier=2.0)
    mu2 = (sensitivity(fp.BSR(4).factor(ROUNDS, 4), ROUNDS, 4) / multiplier) ** 2 + 2 / 4
    found = account([*records, other, replace(other, round=1)], 4, 1e-5)
    assert found.epsilon == pytest.approx(epsilon_of(math.sqrt(mu2), 1e-5), rel=1e-9)


CONFIG = """
model: softmax
data: {name: digits, partition: {kind: iid, n_clients: 3}}
strategy: {name: fedavg, learning_rate: .5}
privacy: {epsilon: 2, sampling: {cyclic: {blocks: 3}}, noise: {time: {bsr: {band: 3}}}}
rounds: 6
seed: 1
"""


def test_a_configuration_says_it_and_an_edited_number_of_blocks_is_found(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "config.yaml")
    assert config.promise(3).noise == fp.BSR(3) and config.promise(3).sampling == fp.Cyclic(3)
    training = build(config, tmp_path / "run")
    list(training)
    assert training.plan.privacy.over_time == CorrelatedNoise(fp.BSR(3).factor(6, 3), 3)
    folder = RunFiles.read(tmp_path / "run")
    asked = {"privacy": {"sampling": {"cyclic": {"blocks": 3}}}}
    assert not findings(replace(folder, config=None)) and not [*_of_turns(replace(folder, config=asked))]
    for edited in ({"sampling": {"cyclic": {"blocks": 2}}}, {"sampling": "full"}, {}):
        (found,) = _of_turns(replace(folder, config={"privacy": edited}))
        assert "blocks take turns" in found.text


# --- what is refused -------------------------------------------------------------------------------------------

CLIENT = {"unit": "client", "sampling": fp.FullBatch()}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "poisson": ({"sampling": fp.Poisson(0.1)}, {}, "privacy.sampling"),
    "fixed size": ({"sampling": fp.FixedSize(2)}, {}, "privacy.sampling"),
    "laplace": ({"mechanism": fp.Laplace(), "clip": fp.Clip(1.0, "l1")}, {}, "privacy.mechanism"),
    "schedule": ({"schedule": fp.Geometric(0.9)}, {}, "privacy.schedule"),
    "secret cohort": ({**CLIENT, "trust": fp.Central(0.5)}, {}, "privacy.trust.cohort_rate"),
    "random cohort": ({}, {"network": fp.Star(4, fp.FixedCohort(2))}, "network.cohort"),
    "random cohort of clients": (CLIENT, {"network": fp.Star(4, fp.PoissonCohort(0.5))}, "network.cohort"),
    "random nodes": ({}, {"network": fp.Graph(nx.cycle_graph(4), activity=fp.RandomNodes(0.5))}, "network.cohort"),
    "turns of single clients": (CLIENT, {"network": fp.Star(4, fp.CyclicCohort(2))}, "network.cohort"),
    "both in turns": ({}, {"network": fp.Star(4, fp.CyclicCohort(2))}, "network.cohort"),
    "two questions": ({}, {"strategy": fp.fedavg(0.5, local_steps=2)}, "privacy.noise"),
    "differences": ({}, {"strategy": fp.svrg(0.1, epoch_length=2)}, "privacy.noise"),
    "scaffold": ({}, {"strategy": fp.scaffold(0.1, local_steps=2)}, "privacy.noise"),
    "a separation of one's own": ({"noise": CorrelatedNoise(Factor((0.5,)), 8)}, {}, "privacy.noise"),
    "a matrix of one's own, random cohort": (
        {"noise": CorrelatedNoise(Factor(), 1), **CLIENT},
        {"network": fp.Star(4, fp.PoissonCohort(0.5))},
        "network.cohort",
    ),
    "no privacy": ({"at": "none"}, {}, "privacy.noise"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_price_is_refused(name: str) -> None:
    privacy, options, field = REFUSED[name]
    with pytest.raises(ConfigError) as error:
        training_of(replace(PRIVACY, **privacy), **options)
    assert error.value.field == field


@pytest.mark.parametrize("name", ["two questions", "differences", "random cohort", "laplace"])
def test_cyclic_batches_are_refused_where_they_have_no_price_also_without_a_matrix(name: str) -> None:
    privacy, options, field = REFUSED[name]
    with pytest.raises(ConfigError) as error:
        training_of(replace(PRIVACY, noise=fp.Independent(), **privacy), **options)
    # nobody asked for noise over time: what does not fit are the batches
    assert error.value.field == field.replace("privacy.noise", "privacy.sampling")


def test_fresh_noise_in_the_middle_is_refused(tmp_path: Path) -> None:
    training = training_of(folder=tmp_path)
    next(iter(training))
    training.folder.close()  # pyright: ignore
    with pytest.raises(ConfigError, match="fresh_noise"):
        training_of(folder=tmp_path, resume=True, fresh_noise=True)


def test_a_plan_says_what_is_kept(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    found = forecast(load_config(tmp_path / "config.yaml"))
    kept = 2 * 3 * found.parameters * 8 / 1e6
    assert found.over_time == f"cancels over rounds, {kept:.3g} MB in memory; each sample takes part in one of 3 rounds"
    assert found.batches == "3 fixed slots of each client's examples, one a round in turn (cyclic)"
    independent = load_config(tmp_path / "config.yaml", ["privacy.noise=independent"])
    assert forecast(independent).over_time == "independent; each sample takes part in one of 3 rounds"
