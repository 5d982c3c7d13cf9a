"""Noise that cancels between pairs of clients and over rounds: its law, its price, and what whole runs make of it.

The brute force knows no product: it writes down every draw of every round with its sign, filters it by C, takes away
what colluders know, and asks for the best statistic of all releases of all clients and rounds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from audit_worlds import checked, subject
from pair_draws import law_holds
from test_correlated_price import drawn, matrix_of, patterns
from test_correlated_runs import Mean, training_of
from test_pairwise_price import graph_of
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.audit.noise import noise as noise_check
from fedpriv.config import build, forecast, load_config
from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.privacy.accounting import pairwise as price
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.gaussian import epsilon_of
from fedpriv.privacy.correlated import CorrelatedNoise, Factor, sensitivity
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.mechanisms import Gaussian
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.privacy.pairwise import Complete, Edges, Links, Pairs, Pairwise, Secrets, Topology, in_order, name_of
from fedpriv.privacy.record import Record
from fedpriv.privacy.release.pairwise import PairwiseRelease
from fedpriv.runs.integrity import findings
from fedpriv.runs.run_files import RunFiles
from fedpriv.strategies.base import Strategy

RING = ((0, 1), (1, 2), (2, 3), (0, 3))
TRUST = Pairwise(1, 3.0, Links(RING))
PRIVACY = fp.Privacy(epsilon=4.0, trust=TRUST, sampling=fp.Cyclic(4), noise=fp.BSR(4))
ROUNDS, N = 10, 4


# --- what it costs ---------------------------------------------------------------------------------------------


def law_of(n: int, edges: Edges, ratio: float, factor: Factor, rounds: int, colluding: set[int]) -> np.ndarray:
    """Covariance of what is left of the noise on all honest clients' rows, round after round."""
    honest = [i for i in range(n) if i not in colluding]
    draws = [np.eye(n)[i] for i in honest]
    draws += [ratio * (np.eye(n)[i] - np.eye(n)[j]) for i, j in edges if not {i, j} & colluding]
    released = np.linalg.inv(matrix_of(factor.column(rounds)))
    # a draw of round r is in the row of client i and round t as often as C^-1 says
    parts = [np.outer(released[:, r], draw[honest]).ravel() for r in range(rounds) for draw in draws]
    return np.array(parts).T @ np.array(parts)


def worst_shift(n: int, edges: Edges, ratio: float, colluders: int, factor: Factor, rounds: int, blocks: int) -> float:
    """The largest distance, in deviations, over all colluders, victims and rounds in which its unit takes part."""
    found = 0.0
    for colluding in combinations(range(n), min(colluders, n - 1)):
        honest = [i for i in range(n) if i not in colluding]
        weights = np.linalg.inv(law_of(n, edges, ratio, factor, rounds, set(colluding)))
        weights = weights.reshape(rounds, len(honest), rounds, len(honest))
        for at in range(len(honest)):
            own = np.abs(weights[:, at, :, at])  # each answer may move in the direction that is worst
            found = max(found, *(float(own[np.ix_(p, p)].sum()) for p in patterns(rounds, blocks)))
    return math.sqrt(found)


def records_of(pairs: Pairs, factor: Factor, rounds: int, blocks: int, own: float) -> list[Record]:
    plain = Record(0, "gradient", 0, "gaussian", own, "sample", "replace_one", pairs=pairs)
    return [replace(plain, round=t, time=CorrelatedNoise(factor, blocks).at(t)) for t in range(rounds)]


@pytest.mark.parametrize("seed", range(40))
def test_epsilon_is_that_of_the_worst_unit_among_all_releases_written_out(seed: int) -> None:
    draw, (n, edges) = np.random.default_rng(seed), graph_of(seed)
    n, edges = min(n, 5), tuple(pair for pair in edges if max(pair) < 5)
    rounds, blocks, colluders = int(draw.integers(1, 7)), int(draw.integers(1, 4)), int(draw.integers(0, 3))
    within = Factor(tuple(draw.normal(size=blocks - 1).tolist()))
    decreasing = Factor(tuple(sorted(draw.random(5), reverse=True)))
    buffers = Factor((), (0.4, 0.2), (0.9, 0.3))
    ratio = float(draw.choice([0.3, 1.0, 3.0]))
    for factor in (within, decreasing, buffers):
        records = records_of(Pairs(ratio, colluders, name_of(edges), edges), factor, rounds, blocks, own=4.0)
        worst = worst_shift(n, edges, ratio, colluders, factor, rounds, blocks) / 4.0
        found = account(records, n, 1e-5).epsilon
        assert found == pytest.approx(epsilon_of(worst, 1e-5), rel=1e-6)
        assert found >= epsilon_of(worst, 1e-5) * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_never_below_for_bands_of_any_sign(seed: int) -> None:
    draw, edges = np.random.default_rng(seed), in_order(nx.path_graph(3).edges)
    factor, rounds, blocks = Factor(tuple(draw.normal(size=4).tolist())), 6, int(draw.integers(1, 4))
    records = records_of(Pairs(2.0, 1, name_of(edges), edges), factor, rounds, blocks, own=4.0)
    worst = worst_shift(3, edges, 2.0, 1, factor, rounds, blocks) / 4.0
    assert account(records, 3, 1e-5).epsilon >= epsilon_of(worst, 1e-5) * (1 - 1e-9)


def test_both_factors_multiply_and_beginnings_cost_the_leading_block(tmp_path: Path) -> None:
    training = training_of(PRIVACY, folder=tmp_path)
    told = [report.epsilon for report in training]
    factor, exposed = fp.BSR(4).factor(ROUNDS, 4), price.exposure(TRUST.pairs(N), None, N)
    own = training.plan.records[0].noise_multiplier
    assert isinstance(own, float) and exposed < 1
    for rounds, epsilon in enumerate(told, start=1):
        shift = sensitivity(factor, rounds, 4) * math.sqrt(exposed) / own
        assert epsilon == pytest.approx(epsilon_of(shift, 1e-5), rel=1e-9)
    assert told[-1] == pytest.approx(4.0, rel=1e-4) and told[-1] <= 4.0
    file = LedgerFile.read(tmp_path / "ledger.jsonl")
    assert (file.header.factor, file.header.secrets) == (factor, in_order(RING))
    assert account(file.records, N, 1e-5).epsilon == pytest.approx(told[-1], rel=1e-12)
    assert not findings(RunFiles.read(tmp_path))


def test_secret_draws_in_slots_cost_what_less_effective_noise_would() -> None:
    pairs = Pairs(3.0, 1, "complete")
    worth = 1 / math.sqrt(price.complete(5, 3.0, 1))
    plain = drawn(fp.BSR(4), 40, 4, 0.2, noise_multiplier=5.0 * worth)
    paired = drawn(fp.BSR(4), 40, 4, 0.2, noise_multiplier=5.0, pairs=pairs)
    assert account(paired, 5, 1e-5).epsilon == pytest.approx(account(plain, 5, 1e-5).epsilon, rel=1e-9)


# --- the noise -------------------------------------------------------------------------------------------------


class Zeros:
    """Releases of clients whose gradients are zero: noise alone, `[rounds, n, dim]`."""

    def __init__(self, trust: Pairwise, noise: Any, dim: int, multiplier: float = 0.7, n: int = N) -> None:
        data = [TensorDataset(torch.zeros(8, dim), torch.zeros(8)) for _ in range(n)]
        model = nn.Linear(dim, 1, bias=False)
        nn.init.zeros_(model.weight)
        privacy = fp.Privacy(
            noise_multiplier=multiplier, relation="add_remove", trust=trust, sampling=fp.Cyclic(4), noise=noise
        )
        self.training = fp.Training(
            fp.make_clients(model, Mean(), data), fp.fedavg(1e-9), privacy, rounds=ROUNDS, seed=1, secret_seed=1
        )
        multiplier_of_own = self.training.plan.records[0].noise_multiplier
        assert isinstance(multiplier_of_own, float)
        self.own, self.n = multiplier_of_own * privacy.sensitivity / 2, n  # a mean over the two examples of a slot

    def rows(self, t: int, clients: range | None = None) -> Tensor:
        oracle, everyone = self.training.oracle, range(self.n)
        oracle.begin_round(t, torch.tensor([*(clients or everyone)]))
        return oracle.gradient(self.training.population.params[[*(clients or everyone)]]).double()

    def all(self) -> Tensor:
        return torch.stack([self.rows(t) for t in range(ROUNDS)])


SECRETS: dict[str, Secrets] = {"ring": Links(RING), "one pair": Links(((0, 1),)), "complete": Complete()}


def expected_law(trust: Pairwise, factor: Factor) -> np.ndarray:
    """Covariance of all rounds and clients over the variance of own noise: a Kronecker product."""
    edges = trust.pairs(N).edges
    shared = price.adjacency(in_order(nx.complete_graph(N).edges) if edges is None else edges, N)
    inverse = np.linalg.inv(matrix_of(factor.column(ROUNDS)))
    return np.kron(inverse @ inverse.T, price.covariance(shared, trust.ratio))


@pytest.mark.parametrize("noise", [fp.BSR(4), fp.BLT(2), fp.Independent()], ids=str)
@pytest.mark.parametrize("secrets", SECRETS)
def test_the_noise_of_all_rounds_and_clients_has_the_covariance_that_is_paid_for(secrets: str, noise: Any) -> None:
    trust, dim = Pairwise(1, 3.0, SECRETS[secrets]), 4000
    made = Zeros(trust, noise, dim)
    over_time = made.training.plan.privacy.over_time
    assert over_time is not None
    law = made.own**2 * expected_law(trust, over_time.factor)
    assert law_holds(made.all().reshape(ROUNDS * N, dim), law)


@pytest.mark.parametrize("noise", [fp.BSR(4), fp.BLT(2)], ids=str)
@pytest.mark.parametrize("secrets", SECRETS)
def test_what_pairs_add_cancels_in_the_sum_of_every_round(secrets: str, noise: Any) -> None:
    made = Zeros(Pairwise(1, 30.0, SECRETS[secrets]), noise, dim=50)
    keys = [made.training.oracle.answerer._randomness.keys("noise", t, 0, range(N)) for t in range(ROUNDS)]
    units = torch.stack([Gaussian().draw(key, 50).sum(0) for key in keys]).numpy()
    factor = noise.factor(ROUNDS, 4)
    own = made.own * np.linalg.inv(matrix_of(factor.column(ROUNDS))) @ units
    assert np.abs(made.all().sum(1).numpy() - own).max() < 1e-4 * made.own


# --- whole runs ------------------------------------------------------------------------------------------------


RUNS: dict[str, tuple[Any, Any, Any]] = {
    "star, ring of secrets": (lambda: fp.fedavg(0.5), lambda: None, Links(RING)),
    "star, complete": (lambda: fp.inexact_admm(), lambda: None, Complete()),
    "graph": (lambda: fp.gradient_tracking(0.1), lambda: fp.Graph(nx.cycle_graph(4)), Topology()),
}


@pytest.mark.parametrize("noise", [fp.BSR(3), fp.BLT(2)], ids=str)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_stopped_goes_on_bit_for_bit(name: str, noise: Any, tmp_path: Path) -> None:
    strategy, network, secrets = RUNS[name]
    trust = Pairwise(1, 3.0, secrets)
    privacy = replace(PRIVACY, trust=trust, noise=noise, epsilon=None, noise_multiplier=3.0)

    def made(folder: str, **more: Any) -> fp.Training:
        return training_of(privacy, strategy(), network=network(), folder=tmp_path / folder, **more)

    whole, stopped = made("whole"), made("stopped")
    list(whole)
    rounds = iter(stopped)
    for _ in range(5):
        next(rounds)
    rounds.close()
    stopped.folder.close()  # pyright: ignore
    again = made("stopped", resume=True)
    list(again)
    assert torch.equal(again.progress.models, whole.progress.models)
    assert (tmp_path / "whole/ledger.jsonl").read_bytes() == (tmp_path / "stopped/ledger.jsonl").read_bytes()


def client_run(**more: Any) -> dict[str, Any]:
    return {"unit": "client", "at": "message", "sampling": fp.FullBatch(), **more}


CHANGING: dict[str, tuple[dict[str, Any], dict[str, Any], Strategy]] = {
    "random cohort": ({}, {"network": fp.Star(4, fp.FixedCohort(3))}, fp.fedavg(0.5)),
    "clients in turns": (client_run(), {"network": fp.Star(4, fp.CyclicCohort(2))}, fp.fedavg(0.5)),
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
def test_participants_who_change_are_refused(name: str) -> None:
    privacy, options, strategy = CHANGING[name]
    with pytest.raises(ConfigError, match="everyone take") as error:
        training_of(replace(PRIVACY, **privacy), strategy, **options)
    assert error.value.field == "network.cohort"


def test_an_answer_of_some_clients_is_refused_whatever_a_network_says_of_itself() -> None:
    made = Zeros(TRUST, fp.BSR(4), 5)
    with pytest.raises(PrivacyError, match=r"round 0 has 3 of 4 clients.*only if all take part in every round"):
        made.rows(0, range(3))
    assert not made.training.ledger.records
    record = replace(training_of(PRIVACY).plan.records[0], clients=(0, 1, 2))
    with pytest.raises(ConfigError, match="from all clients"):
        account([record], N, 1e-5)


CONFIG = """
model: softmax
data: {name: digits, partition: {kind: iid, n_clients: 3}}
strategy: {name: fedavg, learning_rate: .5}
privacy:
  epsilon: 2
  trust: {pairwise: {colluders: 1, ratio: 2}}
  sampling: {cyclic: {blocks: 3}}
  noise: {time: {bsr: {band: 3}}}
rounds: 6
seed: 1
"""


def test_a_configuration_says_it_and_a_plan_what_is_kept(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "config.yaml")
    found = forecast(config)
    # own noise and that of pairs go through one filter
    assert found.over_time is not None and f"{2 * 3 * found.parameters * 8 / 1e6:.3g} MB" in found.over_time
    training = build(config, tmp_path / "run")
    list(training)
    assert training.result().spent.epsilon <= 2
    assert "pairwise(colluders=1, ratio=2, complete, simulated)" in str(training.result().spent)


# --- what an audit sees ----------------------------------------------------------------------------------------


PROMISE = {"trust": Pairwise(1, 3.0), "noise": fp.BSR(4), "sampling": fp.Cyclic(2)}


def test_an_audit_knows_the_noise() -> None:
    found = checked(noise_check, subject(fp.fedavg(0.5), rounds=8, **PROMISE))
    assert found.verdict == "held" and "no correlation between rounds" in found.evidence, found


def one_end_by_another_matrix(planting: pytest.MonkeyPatch) -> None:
    """Client 0 filters its row, and with it its end of every pair's noise, by another C than the others."""
    right, other = NoiseHistory.filtered, NoiseHistory(Factor((0.9, 0.8)))

    def filtered(self: NoiseHistory, unit: Tensor, rows: slice, round_index: int) -> Tensor:
        other.missing(round_index, 1, unit.shape[1], unit.device)
        own, made = unit[:1].clone(), right(self, unit, rows, round_index)
        if rows.start == 0:
            made[:1] = right(other, own, slice(0, 1), round_index)
            other.finish(round_index)
        return made

    planting.setattr(NoiseHistory, "filtered", filtered)


def pairs_without_filter(planting: pytest.MonkeyPatch) -> None:
    """Noise of pairs is new in every round, and only a client's own is filtered."""
    noise_by_round = PairwiseRelease._pair_noise_by_round

    def unfiltered(self: PairwiseRelease, *given: Any) -> Any:
        right, rows = noise_by_round(self, *given), given[-1]
        assert right is not None and self.privacy.over_time is not None
        column, kept = self.privacy.over_time.factor.column(ROUNDS), dict[int, Tensor]()

        def drawn(t: int) -> Tensor:
            kept.update({r: right(r) for r in range(t + 1) if r not in kept})
            return sum((column[t - r] * kept[r] for r in range(t + 1)), torch.zeros_like(rows, dtype=torch.float64))

        return drawn

    planting.setattr(PairwiseRelease, "_pair_noise_by_round", unfiltered)


def one_round_of_pairs_for_all(planting: pytest.MonkeyPatch) -> None:
    """The pairs draw once and for all."""
    noise_by_round = PairwiseRelease._pair_noise_by_round

    def first_round(self: PairwiseRelease, *given: Any) -> Any:
        right = noise_by_round(self, *given)
        assert right is not None
        return lambda _: right(0)

    planting.setattr(PairwiseRelease, "_pair_noise_by_round", first_round)


@pytest.mark.parametrize("plant", [one_end_by_another_matrix, pairs_without_filter, one_round_of_pairs_for_all])
def test_an_audit_finds_ends_that_filter_in_different_ways(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = checked(noise_check, subject(fp.fedavg(0.5), rounds=8, **PROMISE))
    assert found.verdict == "found", found
