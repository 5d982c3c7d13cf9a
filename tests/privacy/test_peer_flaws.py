"""Flaws in the price and the noise of another simulator: fedpriv refuses or survives each of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peer_runs import SIZES, training_of
from privacy_worlds import DIM, Listener, clients_of, digits_of, exact_clipped_sums, oracle_of, start_rows
from torch import Tensor

import fedpriv as fp
from fedpriv.network.rounds import initial_state, run_rounds
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.plan_filter import UnplannedRelease
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.fedavg import AddMeanUpdate
from fedpriv.strategies.server_optimizers import ServerSgd


def test_rounds_beyond_plan_raise() -> None:
    """There: planned for 10 rounds, ran 100, still printed epsilon 2.0 where 5.1 was true."""
    training = training_of(fp.Privacy(epsilon=2.0), rounds=10)
    start = initial_state(training.strategy, training.population.params.clone())
    with pytest.raises(UnplannedRelease, match="round 10"):
        list(run_rounds(training.strategy, training.oracle, training.network, start, Randomness(0), rounds=100))
    assert len(training.ledger.records) == 10
    assert 1.99 < training.result().spent.epsilon <= 2.0


def test_run_without_limit_charged_for_all_rounds() -> None:
    planned = training_of(fp.Privacy(epsilon=2.0), rounds=10)
    without_limit = fp.Privacy(noise_multiplier=planned.plan.privacy.noise_multiplier)
    longer = training_of(without_limit, rounds=100)
    list(longer)
    spent = longer.result().spent
    assert spent.epsilon == account(longer.ledger.records, 3, 1e-5).epsilon
    # ten times the rounds at the same noise: mu grows by sqrt(10), and so does epsilon at least
    assert spent.epsilon > math.sqrt(10) * 2.0


def test_cohort_has_distinct_clients() -> None:
    for cohort in (fp.FixedCohort(5), fp.FixedCohort(8), fp.PoissonCohort(0.7), fp.Everyone()):
        star, members = fp.Star(8, cohort), set()
        for index in range(200):
            drawn = star.participants(index, Randomness(3)).tolist()
            assert drawn == sorted(set(drawn))
            members |= set(drawn)
        assert members == set(range(8))
    with pytest.raises(fp.ConfigError, match="must be at most 8, the number of clients"):
        fp.Star(8, fp.FixedCohort(9))


def test_record_with_repeated_client_raises() -> None:
    record = Record(0, "gradient", 0, "gaussian", 5.0, "sample", "replace_one", clients=(1, 1))
    with pytest.raises(fp.ConfigError, match="at most once"):
        account([record], 3, 1e-5)


@pytest.mark.parametrize(
    ("multiplier", "rounds", "expected"), [(0.05, 1, 20.0), (10.0, 1, 0.1), (10.0, 100, 4.2203), (1.0, 10, 9.98996)]
)
def test_laplace_epsilon_is_inverse_of_scale(multiplier: float, rounds: int, expected: float) -> None:
    """There: the accountant inverted the scale and said 5.0 where 20 was true."""
    privacy = fp.Privacy(noise_multiplier=multiplier, mechanism=fp.Laplace(), clip=fp.Clip(1.0, "l1"))
    training = training_of(privacy, rounds)
    list(training)
    epsilon = training.result().spent.epsilon
    assert expected * (1 - 2e-4) < epsilon < expected * 1.002


def listen(folder: Path, stop: int, **options) -> tuple[list[Tensor], list[Tensor]]:
    """Answers of a run up to round ``stop``, and the noise in them; checkpoints after every third round."""
    heard, asked = list[Tensor](), list[Tensor]()
    training = fp.Training(
        clients_of(digits_of(SIZES)),
        fp.Strategy(Listener(heard, asked, sign=-1), AddMeanUpdate(ServerSgd(0.1))),
        fp.Privacy(noise_multiplier=4.0),
        rounds=9,
        folder=folder,
        checkpoint_every=3,
        compute=fp.Compute(dtype="float64", device="cpu"),
        **options,
    )
    heard.clear(), asked.clear()  # those of the plan
    for report in training:
        if report.round == stop:
            break
    factor = len(SIZES) / sum(SIZES)
    exact = [exact_clipped_sums(digits_of(SIZES), x.contiguous(), 1.0, "l2") for x in asked]
    return heard, [answer - factor * sums for answer, sums in zip(heard, exact, strict=True)]


def test_resumed_run_draws_new_noise(tmp_path: Path) -> None:
    """There: a resumed run drew the noise of the first again, and the iterates could be subtracted."""
    first, first_noise = listen(tmp_path, stop=5)
    resumed, resumed_noise = listen(tmp_path, stop=9, resume=True)
    assert len(first) == 5
    released = [noise for answer, noise in zip(resumed, resumed_noise, strict=True) if bool(answer.any())]
    assert len(released) == 4
    distinct = torch.stack([noise.flatten() for noise in [*first_noise, *released]])
    correlations = torch.corrcoef(distinct) - torch.eye(len(distinct), dtype=distinct.dtype)
    assert correlations.abs().max() < 5 / math.sqrt(distinct.shape[1])


def test_row_noise_scales_with_weight() -> None:
    """There: weighting after clipping was accepted (norm 1000 against noise 1). Here a row's noise has its weight."""
    sizes, bound, multiplier = (2, 40, 8), 0.5, 1e-3
    for sampling in (fp.FullBatch(), fp.FixedSize(2), fp.Poisson(0.25)):
        privacy = fp.Privacy(noise_multiplier=multiplier, clip=fp.Clip(bound), sampling=sampling)
        params, factors, moves = torch.zeros(3, DIM, dtype=torch.float64), [], []
        for client in range(3):
            sides = []
            for sign in (1e3, -1e3):
                data = digits_of(sizes)
                data[client][0].mul_(sign)  # every record of the client at once, so m records move by 2C each at most
                sides.append(oracle_of(data, privacy).gradient(params))
            moved = (sides[0] - sides[1]).norm(dim=1)
            assert (moved[torch.arange(3) != client] == 0).all()
            moves.append(float(moved[client]))
        expected = {fp.FullBatch: lambda m: m, fp.FixedSize: lambda m: min(m, 2), fp.Poisson: lambda m: m / 4}
        for size, move in zip(sizes, moves, strict=True):
            factor = 3 * size / sum(sizes) / expected[type(sampling)](size)
            factors.append(factor)
            assert move <= size * factor * 2 * bound * (1 + 1e-5)
        noise = oracle_of([(x * 0, y) for x, y in digits_of(sizes)], privacy).gradient(params).std(1)
        claimed = torch.tensor(factors, dtype=torch.float64) * 2 * bound * multiplier
        torch.testing.assert_close(noise, claimed, rtol=0.15, atol=0)


def test_repeated_round_raises() -> None:
    """Two runs with one oracle both query round 0: equal noise on two results would reveal their exact difference."""
    oracle = oracle_of(digits_of(SIZES), fp.Privacy(noise_multiplier=1.0))
    for index in range(2):
        oracle.begin_round(index, torch.arange(3))
        oracle.gradient(start_rows(3))
    with pytest.raises(fp.PrivacyError, match="round 0"):
        oracle.begin_round(0, torch.arange(3))
        oracle.gradient(start_rows(3, seed=9))
    assert len(oracle.engine.ledger.records) == 2


def test_pure_epsilon_run_meets_target() -> None:
    privacy = fp.Privacy(epsilon=2.5, delta=0.0, mechanism=fp.Laplace(), clip=fp.Clip(1.0, "l1"))
    training = training_of(privacy, rounds=5)
    list(training)
    spent = training.result().spent
    assert (spent.delta, spent.accountant) == (0.0, "pure")
    assert 2.5 * (1 - 1e-3) < spent.epsilon <= 2.5
    assert training.plan.privacy.noise_multiplier == pytest.approx(2.0, rel=1e-3)
    with pytest.raises(fp.ConfigError, match="l1 clip"):
        replace(privacy, clip=fp.Clip(1.0, "l2"))
