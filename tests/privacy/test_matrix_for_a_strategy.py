"""The optimised band suits the steps of the run's own strategy, and its price does not rest on that."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from correlated_runs import training_of
from test_correlated_price import brute, matrix_of

import fedpriv as fp
from fedpriv.config import load_config, to_yaml
from fedpriv.errors import ConfigError
from fedpriv.network.local import Star
from fedpriv.planning import plan
from fedpriv.planning.impulses import MOST_ROUNDS, compute_responses
from fedpriv.planning.plan import make_plan
from fedpriv.privacy import matrices
from fedpriv.privacy.correlated import CorrelatedNoise, Factor, compute_sensitivity, invert_column
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.matrices import BLT, BSR, Banded
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Strategy

PRIVACY = fp.Privacy(epsilon=2.0, sampling=fp.Cyclic(10), noise=Banded(10))
ROUNDS, BLOCKS = 60, 10


def hand_computed_response(rate: Callable[[int], float], momentum: float, kept: float) -> np.ndarray:
    """What models have of each round's noise: steps with momentum, and an average of the models."""
    found, speed, model, average = np.zeros((ROUNDS, ROUNDS)), *np.zeros((3, ROUNDS))
    for t in range(ROUNDS):
        speed = momentum * speed + np.eye(ROUNDS)[t]
        model = model - rate(t + 1) * speed
        average = kept * average + (1 - kept) * model if t else model
        found[t] = average
    return found


CASES: dict[str, tuple[Strategy, np.ndarray]] = {
    "constant steps": (fp.fedavg(0.5), hand_computed_response(lambda t: 0.5, 0, 0)),
    "momentum": (fp.fedavg(0.5, server_momentum=0.9), hand_computed_response(lambda t: 0.5, 0.9, 0)),
    "schedule": (
        fp.fedavg(fp.Cosine(1.0, ROUNDS)),
        hand_computed_response(lambda t: fp.Cosine(1.0, ROUNDS)(t), 0, 0),
    ),
    "average of models": (fp.fedavg(0.5, average=fp.Ema(0.9)), hand_computed_response(lambda t: 0.5, 0, 0.9)),
}


def errors(response: np.ndarray, factor: Factor, blocks: int) -> tuple[float, float]:
    """Squared error of all iterates and of the last, with noise as large as the sensitivity: all matrices dense."""
    left = response @ np.linalg.inv(matrix_of(factor.column(len(response))))
    squares = (left**2).sum(1) * compute_sensitivity(factor, len(response), blocks) ** 2
    return float(squares.mean()), float(squares[-1])


def noise_response(strategy: Strategy, rounds: int = ROUNDS, network: Any = None) -> np.ndarray | None:
    return compute_responses(strategy, PRIVACY, network or Star(4), rounds, Randomness(0))


def factor_of(strategy: Strategy, noise: Any, rounds: int = ROUNDS, blocks: int = BLOCKS) -> Factor:
    privacy = fp.Privacy(epsilon=2.0, sampling=fp.Cyclic(blocks), noise=noise)
    over_time = make_plan(strategy, privacy, (100,) * 4, Star(4), rounds=rounds).privacy.over_time
    assert over_time is not None and over_time.separation == blocks
    return over_time.factor


@pytest.mark.parametrize("name", CASES)
def test_model_noise_response_equals_hand_computed(name: str) -> None:
    strategy, wanted = CASES[name]
    assert noise_response(strategy) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_optimised_band_best_for_strategy(name: str) -> None:
    """Compared with the square root that it starts from, buffers, the optimum for constant steps, and nearby bands."""
    strategy, response = CASES[name]
    mean, last = (factor_of(strategy, Banded(BLOCKS, iterate)) for iterate in ("average", "last"))
    others = [BSR(BLOCKS).factor(ROUNDS, BLOCKS), BLT(4).factor(ROUNDS, BLOCKS), Factor()]
    others += [Banded(BLOCKS, iterate).factor(ROUNDS, BLOCKS) for iterate in ("average", "last")]
    draw = np.random.default_rng(0)
    others += [Factor(tuple(np.array(mean.band) + 0.02 * draw.normal(size=BLOCKS - 1))) for _ in range(20)]
    for other in (*others, last):
        assert errors(response, mean, BLOCKS)[0] <= errors(response, other, BLOCKS)[0] * (1 + 1e-5)
    for other in (*others, mean):
        assert errors(response, last, BLOCKS)[1] <= errors(response, other, BLOCKS)[1] * (1 + 1e-5)
    gained = errors(response, mean, BLOCKS)[0] / errors(response, others[0], BLOCKS)[0]
    assert gained < (1.0 if name == "constant steps" else 0.95)


@pytest.mark.parametrize("band", [BLOCKS, 2 * BLOCKS])
def test_optimised_band_not_worse_than_square_root(band: int) -> None:
    """Also with a band wider than the separation, where results about a unit overlap."""
    strategy, response = CASES["momentum"]
    for place, iterate in enumerate(("average", "last")):
        found, root = factor_of(strategy, Banded(band, iterate)), BSR(band).factor(ROUNDS, BLOCKS)
        assert errors(response, found, BLOCKS)[place] <= errors(response, root, BLOCKS)[place] * (1 + 1e-6)


def test_optimised_band_sensitivity_covers_brute_force() -> None:
    """Over all rounds in which a unit may take part; coefficients may have any sign."""
    for name, (strategy, _) in CASES.items():
        for band in (3, 5):
            factor = factor_of(strategy, Banded(band), rounds=9, blocks=3)
            exact = brute(matrix_of(factor.column(9)), 3)
            assert compute_sensitivity(factor, 9, 3) ** 2 >= exact * (1 - 1e-12), name
            if band <= 3:
                assert compute_sensitivity(factor, 9, 3) ** 2 == pytest.approx(exact, rel=1e-10)


def test_graph_strategy_noise_response() -> None:
    strategy, network = fp.decentralized_sgd(0.1), fp.Graph(nx.cycle_graph(4))
    # answers are alike at all nodes, so that mixing leaves them as they are
    assert noise_response(strategy, network=network) == pytest.approx(-0.1 * np.tri(ROUNDS), abs=1e-12)


@pytest.mark.parametrize("strategy", [fp.fedavg(0.5, optimizer=fp.Adam()), fp.fedopt(0.5)], ids=lambda s: s.name)
def test_nonlinear_strategy_uses_constant_steps_band(strategy: Strategy) -> None:
    assert noise_response(strategy) is None
    assert factor_of(strategy, Banded(4)) == Banded(4).factor(ROUNDS, BLOCKS)


def test_noise_response_above_round_limit_is_none() -> None:
    assert noise_response(fp.fedavg(0.5), MOST_ROUNDS + 1) is None


def test_optimised_band_thousand_rounds_under_20_seconds() -> None:
    """With the steps of the MNIST benchmark."""
    start = time.process_time()
    response = noise_response(fp.fedavg(40.0, average=fp.Ema(0.99)), 1000)
    assert response is not None
    factor = Banded(100).factor(1000, 100, lambda: response)
    assert time.process_time() - start < 20

    def left(matrix: Factor) -> float:
        turned = np.convolve(response[-1][::-1], invert_column(matrix.column(1000)))[:1000]
        return float(np.linalg.norm(turned)) * compute_sensitivity(matrix, 1000, 100)

    assert left(factor) < 0.85 * min(left(matrix.factor(1000, 100)) for matrix in (BSR(100), BLT(4)))


def test_matrix_computed_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last digits of sums, and of a matrix, may depend on the number of threads."""
    allowed, seen = torch.get_num_threads(), list[int]()
    real = plan.compute_responses
    monkeypatch.setattr(plan, "compute_responses", lambda *asked: seen.append(torch.get_num_threads()) or real(*asked))
    try:
        torch.set_num_threads(2)
        factor_of(fp.fedavg(0.5), Banded(4))
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(allowed)


def test_resume_keeps_matrix_despite_other_optimum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with different rounding."""
    for noise in (Banded(4), BLT(2)):
        privacy = fp.Privacy(noise_multiplier=3.0, sampling=fp.Cyclic(4), noise=noise)
        folder = tmp_path / type(noise).__name__
        begun = training_of(privacy, folder=folder)
        for report in begun:
            if report.round == 5:
                break
        begun.folder.close()  # pyright: ignore
        with monkeypatch.context() as other:
            other.setattr(matrices, "_minimise", lambda error, start: start * (1 + 1e-6))
            matrices._banded.cache_clear(), matrices._buffered.cache_clear()
            assert training_of(privacy).plan.privacy.over_time != begun.plan.privacy.over_time
            again = training_of(privacy, folder=folder, resume=True)
        assert again.plan.privacy.over_time == begun.plan.privacy.over_time
        list(again)
        again.folder.close()  # pyright: ignore
        matrices._banded.cache_clear(), matrices._buffered.cache_clear()


def test_resume_reads_matrix_from_ledger(tmp_path: Path) -> None:
    privacy = fp.Privacy(noise_multiplier=3.0, sampling=fp.Cyclic(4), noise=Banded(4, "last"))

    def made(folder: str, **more: Any) -> fp.Training:
        return training_of(privacy, fp.fedavg(0.5, server_momentum=0.9), folder=tmp_path / folder, **more)

    whole, stopped = made("whole"), made("stopped")
    list(whole)
    rounds = iter(stopped)
    for _ in range(5):
        next(rounds)
    rounds.close()
    stopped.folder.close()  # pyright: ignore
    again = made("stopped", resume=True)
    list(again)
    assert again.plan.privacy.over_time == whole.plan.privacy.over_time
    header = LedgerFile.read(tmp_path / "stopped/ledger.jsonl").header
    assert whole.plan.privacy.over_time == CorrelatedNoise(header.factor or Factor(), 4)
    assert header.factor != Banded(4, "last").factor(10, 4)  # that of constant steps


CONFIG = """
model: softmax
data: {name: digits, partition: {kind: iid, n_clients: 3}}
strategy: {name: fedavg, learning_rate: .5}
privacy: {epsilon: 2, sampling: {cyclic: {blocks: 3}}, noise: {correlated: {banded: {band: 3, iterate: last}}}}
rounds: 6
"""


def test_band_objective_from_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "config.yaml")
    assert config.promise(3).noise == Banded(3, "last")
    (tmp_path / "again.yaml").write_text(to_yaml(config))
    assert "iterate: last" in to_yaml(config) and load_config(tmp_path / "again.yaml") == config
    buffers = load_config(tmp_path / "config.yaml", ["privacy.noise={correlated: {blt: {buffers: 2, iterate: last}}}"])
    assert buffers.promise(3).noise == BLT(2, "last")
    for wrong, said in (("itrate: last", "did you mean 'iterate'"), ("iterate: lst", "choose 'average' or 'last'")):
        with pytest.raises(ConfigError, match=said):
            load_config(tmp_path / "config.yaml", [f"privacy.noise={{correlated: {{banded: {{band: 3, {wrong}}}}}}}"])
