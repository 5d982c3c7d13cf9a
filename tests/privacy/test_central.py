"""A trusted curator: noise once on the sum, and cohorts that nobody else learns of."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from forging import lines_of
from privacy_worlds import DIM, clients_of, digits_of, oracle_of
from torch import Tensor

import fedpriv as fp
from fedpriv.config import load_config
from fedpriv.oracle.data_query_engine import DataQueryEngine
from fedpriv.oracle.oracle import Oracle
from fedpriv.randomness.streams import Randomness

SIZES = (4, 7, 5, 6, 3, 8, 5, 4)
N = len(SIZES)
RATE, BOUND = 0.3, 0.5
CENTRAL = fp.Privacy(
    noise_multiplier=1.0, clip=fp.Clip(BOUND), unit="client", noise_on="message", trust=fp.Central(cohort_rate=RATE)
)
QUIET = replace(CENTRAL, noise_multiplier=1e-6)


def sums(oracle: Oracle[DataQueryEngine], message: Tensor, rounds: int) -> Tensor:
    """What the curator shows, over the number of clients: `[rounds, dim]`."""
    found = []
    for index in range(rounds):
        drawn = oracle.begin_round(index, torch.arange(N), message)
        sent = oracle.release_message(message if drawn is None else message[drawn])
        assert len(sent) == N  # how many were drawn does not show
        found.append(sent.mean(0))
    return torch.stack(found)


@pytest.mark.parametrize("mechanism", [fp.Gaussian(), fp.Laplace()])
@pytest.mark.parametrize("rate", [1e-6, 0.3, 1.0])
def test_sum_noise_independent_of_cohort(mechanism, rate: float):
    norm = "l2" if mechanism == fp.Gaussian() else "l1"
    privacy = replace(CENTRAL, mechanism=mechanism, clip=fp.Clip(BOUND, norm), trust=fp.Central(rate))
    noise = sums(oracle_of(digits_of(SIZES), privacy), torch.zeros(N, DIM, dtype=torch.float64), 30)
    expected = 2 * BOUND / (rate * N) * (1 if norm == "l2" else math.sqrt(2))
    assert float(noise.std()) == pytest.approx(expected, rel=0.03)
    per_round = noise.std(1) / expected
    assert (abs(per_round - 1) < 0.2).all()  # no round has less: an empty cohort looks like any other


def test_secret_cohort_mean_unbiased():
    """Clients outside the cohort contribute nothing."""
    message = torch.zeros(N, DIM, dtype=torch.float64)
    message[:, :N] = torch.eye(N, dtype=torch.float64) * 3  # clipped to 0.5; client i's own coordinate
    oracle = oracle_of(digits_of(SIZES), QUIET)
    drawn = (sums(oracle, message, 600)[:, :N] * N * RATE / BOUND).round().numpy()
    assert set(np.unique(drawn)) == {0.0, 1.0}
    np.testing.assert_allclose(drawn.mean(0), RATE, atol=5 * math.sqrt(RATE * (1 - RATE) / 600))
    # draws of different clients have nothing to do with each other
    correlations = np.corrcoef(drawn.T) - np.eye(N)
    assert abs(correlations).max() < 5 / math.sqrt(600)


@pytest.mark.parametrize("at", ["message", "gradient"])
def test_client_moves_sum_within_sensitivity(at: str):
    """With the same draws and noise, in the rounds that drew it; in the others not at all."""
    privacy = replace(QUIET, noise_on=at)
    data = digits_of(SIZES)
    x, y = data[2]
    other = [*data[:2], (x * -50, (y + 3) % 10), *data[3:]]
    models = []
    for side in (data, other):
        training = fp.Training(clients_of(side), fp.fedavg(5.0), privacy, rounds=60, seed=3, secret_seed=3)
        rounds = []
        for index in range(60):
            drawn = training.oracle.begin_round(index, torch.arange(N), training.population.params)
            if at == "gradient":
                rounds.append(training.oracle.gradient(training.population.params).sum(0))
            else:
                step = -5.0 * training.oracle.gradient(training.population.params[drawn])
                rounds.append(training.oracle.release_message(step).sum(0))
        models.append(torch.stack(rounds))
    moved = (models[0] - models[1]).norm(dim=1)
    allowed = 2 * BOUND / RATE
    touched = moved > 1e-3
    assert 0.15 < touched.double().mean() < 0.45
    assert 0.5 * allowed < moved.max() <= allowed * (1 + 1e-3)
    assert (moved[~touched] < 1e-4).all()


def test_secret_cohort_epsilon_equals_poisson():
    training = fp.Training(clients_of(digits_of(SIZES)), fp.fedavg(0.1), replace(CENTRAL, delta=1e-5), rounds=20)
    record = training.plan.records[0]
    assert (record.sampling, record.rate, record.unit, record.clients) == ("poisson", RATE, "client", None)
    assert "central(cohort_rate=0.3, secret)" in str(training.plan.spent())
    # an independent accountant: replace-one, noise of standard deviation 2C on a sum of rows of norm C
    other = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    other.compose(dp_event.PoissonSampledDpEvent(RATE, dp_event.GaussianDpEvent(2.0)), 20)
    assert training.plan.spent().epsilon == pytest.approx(other.get_epsilon(1e-5), rel=5e-3)
    everyone = fp.Training(
        clients_of(digits_of(SIZES)), fp.fedavg(0.1), replace(CENTRAL, trust=fp.Central()), rounds=20
    )
    assert training.plan.spent().epsilon < 0.8 * everyone.plan.spent().epsilon


def test_outputs_hide_secret_cohort(tmp_path: Path):
    seen = []
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        training = fp.Training(
            clients_of(digits_of(SIZES)), fp.fedavg(0.1), CENTRAL, rounds=5, seed=0, secret_seed=seed, folder=folder
        )
        reports = [(report.metrics, report.epsilon) for report in training]
        ledger = [{**line, "run": None} for line in lines_of(folder / "ledger.jsonl")]
        seen.append((reports, ledger, training.plan.evaluations))
    assert seen[0] == seen[1]
    assert seen[0][2][0] == pytest.approx(RATE * sum(SIZES))


def test_each_attempt_draws_new_cohort():
    """One cohort under two noise draws is two queries of one draw; that costs more than two draws."""
    message = torch.zeros(N, DIM, dtype=torch.float64)
    message[:, :N] = torch.eye(N, dtype=torch.float64)

    def drawn(attempt: int, secret_seed: int = 0) -> Tensor:
        oracle = oracle_of(digits_of(SIZES), QUIET, randomness=Randomness(0, secret_seed, attempt))
        return (sums(oracle, message, 10)[:, :N] * N * RATE / BOUND).round()

    assert torch.equal(drawn(0), drawn(0)) and not torch.equal(drawn(0), drawn(1))
    assert not torch.equal(drawn(0, 1), drawn(0))
    public = [Randomness(0).stream("cohort", index).random(N) < RATE for index in range(10)]
    assert not np.array_equal(drawn(0).numpy() > 0, np.array(public))


def test_secret_cohort_second_release_raises():
    oracle = oracle_of(digits_of(SIZES), replace(CENTRAL, noise_on="gradient"))
    params = torch.zeros(N, DIM, dtype=torch.float64)
    oracle.begin_round(0, torch.arange(N), params)
    oracle.gradient(params)
    with pytest.raises(fp.PrivacyError, match="second query"):
        oracle.gradient(params)
    messages = oracle_of(digits_of(SIZES), CENTRAL)
    drawn = messages.begin_round(0, torch.arange(N), params)
    messages.release_message(params[drawn])
    messages.gradient(params[drawn])  # moves on to the next answer of this round, whose cohort is the same
    with pytest.raises(fp.PrivacyError, match="same secret cohort"):
        messages.release_message(params[drawn])
    assert len(messages.engine.ledger.records) == 1


def test_releases_of_round_have_distinct_indices():
    """The index selects batches and noise: a repeated index is a repeated draw."""
    oracle = oracle_of(digits_of(SIZES), replace(CENTRAL, trust=fp.Local()))
    params = torch.zeros(N, DIM, dtype=torch.float64)
    oracle.begin_round(0, torch.arange(N), params)
    for _ in range(2):
        oracle.gradient(params)  # exact: it stays inside the client
    oracle.release_message(params)
    oracle.gradient(params)
    oracle.release_message(params)
    assert [record.index for record in oracle.engine.ledger.records] == [2, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unit": "sample", "noise_on": "gradient"}, "set unit to 'client'"),
        ({"noise_on": "none", "unit": "client"}, "use network.cohort"),
        ({"published": fp.Published(1.0)}, "use network.cohort"),
    ],
)
def test_cohort_rate_unsupported_settings_raise(change, message: str):
    with pytest.raises(fp.ConfigError, match=message):
        replace(CENTRAL, **change)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.5, math.nan])
def test_cohort_rate_not_probability_raises(rate: float):
    with pytest.raises(fp.ConfigError, match="cohort_rate"):
        fp.Central(rate)


def test_secret_cohort_with_public_cohort_raises():
    with pytest.raises(fp.ConfigError, match="draws its cohorts in secret"):
        fp.Training(
            clients_of(digits_of(SIZES)), fp.fedavg(0.1), CENTRAL, rounds=2, network=fp.Star(N, fp.PoissonCohort(0.5))
        )
    with pytest.raises(fp.ConfigError, match="needs each client's message"):
        fp.Training(clients_of(digits_of(SIZES)), fp.scaffold(0.1), CENTRAL, rounds=2)


def test_central_sample_noise_equals_dp_sgd():
    """Sample level, everyone: noise once, for 2C over the number of examples, as for one data set in one place."""
    data = digits_of(SIZES)
    privacy = fp.Privacy(noise_multiplier=1.0, clip=fp.Clip(1e-9), trust=fp.Central())
    oracle = oracle_of(data, privacy)
    params = torch.zeros(N, DIM, dtype=torch.float64)
    oracle.begin_round(0, torch.arange(N), params)
    noise = oracle.gradient(params).mean(0)
    assert float(noise.std()) == pytest.approx(2e-9 / sum(SIZES), rel=0.05)


def test_central_trust_from_configuration():
    base = [
        "privacy.unit=client",
        "privacy.noise_on=message",
        "privacy.noise_multiplier=1",
        "privacy.epsilon=null",
        "strategy={name: fedavg, learning_rate: 0.1}",
    ]
    for trust, expected in (("central", fp.Central()), ("{central: {cohort_rate: 0.25}}", fp.Central(0.25))):
        config = load_config(Path(__file__).parents[1] / "run.yaml", [*base, f"privacy.trust={trust}"])
        assert config.promise().trust == expected
