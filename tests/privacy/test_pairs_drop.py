"""A client that fails: before anybody adds noise, and after the others did."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from pair_runs import PRIVACY
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.population import Population
from fedpriv.forecast.pairs import forecast_pairs
from fedpriv.models import SoftmaxRegression
from fedpriv.oracle.backends import build_backend
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.data_query_engine import data_oracle
from fedpriv.planning.plan import make_plan
from fedpriv.privacy.accounting import pairwise as price
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.pairwise import Links, Pairwise
from fedpriv.privacy.settings import Trust
from fedpriv.randomness.streams import Randomness, normal

N, FEATURES, RATIO = 5, 2000, 3.0
# a ring: so few pairs draw from streams of their own
RING = ((0, 1), (1, 2), (2, 3), (3, 4), (0, 4))
TRUST = Pairwise(1, RATIO, Links(RING))
MULTIPLIER = 2.0
OWN = MULTIPLIER * math.sqrt(price.compute_exposure(TRUST.pairs(N), None, N))
RANDOM = Randomness(0, 7)


@pytest.fixture(autouse=True)
def _one_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds noise with and without pairs to the same fine grid, so that the two can be compared."""
    monkeypatch.setattr("fedpriv.privacy.mechanisms.COARSE_GRID_BITS", 20)


def answer(trust: Trust, multiplier: float, cohort: list[int]) -> tuple[Tensor, float]:
    """A round's noised gradients of those who take part, `[k, dim]`, and the deviation of their own noise."""
    draw = torch.Generator().manual_seed(0)
    data = [TensorDataset(torch.randn(8, FEATURES, generator=draw), torch.arange(8) % 2) for _ in range(N)]
    population = Population(fp.make_clients(SoftmaxRegression(FEATURES, 2), nn.CrossEntropyLoss(), data))
    privacy = replace(PRIVACY, epsilon=None, noise_multiplier=multiplier, trust=trust, sampling=fp.FullBatch())
    sums = ClippedSums(build_backend("auto", population.model, population.loss), N, population.device)
    ledger = Ledger(Accountant(N, privacy.delta))
    oracle = data_oracle(population, sums, privacy, ledger, RANDOM)
    oracle.begin_round(0, torch.tensor(cohort))
    rows = oracle.gradient(population.params[cohort])
    noise = ledger.records[0].noise_multiplier
    assert isinstance(noise, float)
    return rows.double(), noise * privacy.sensitivity / 8  # a mean over eight examples


def test_late_dropout_leaves_pair_noise_in_mean() -> None:
    """The same query without pairwise noise, from the same streams, gives the mean of the other clients."""
    paired, own = answer(TRUST, MULTIPLIER, [*range(N)])
    plain, same = answer(fp.Local(), OWN, [*range(N)])
    assert same == pytest.approx(own)
    gone = 2
    mean, without = (torch.cat([rows[:gone], rows[gone + 1 :]]).mean(0) for rows in (paired, plain))
    left = torch.zeros(len(mean)).double()
    for other in (gone - 1, gone + 1):
        drawn = RATIO * own * normal(RANDOM.pair_stream(gone, other, 0, 0), len(mean))
        left += drawn if other < gone else -drawn  # the smaller number adds, the other one subtracts
    torch.testing.assert_close(mean - without, left / (N - 1), rtol=0, atol=1e-5 * own)
    # and in a plan: what is left of own noise and of these pairs, over four clients' noise under local trust
    found = forecast_pairs(
        make_plan(
            fp.fedavg(0.5),
            replace(PRIVACY, epsilon=None, noise_multiplier=MULTIPLIER, trust=TRUST, sampling=fp.FullBatch()),
            (8,) * N,
            fp.Star(N),
            rounds=1,
        ),
        fp.Star(N),
        RANDOM,
    )
    assert found is not None
    line = next(one for one in found.left if (one.colluders, one.ratio) == (1, RATIO))
    measured = math.sqrt(own**2 / (N - 1) + float((mean - without).var()))
    under_local = own * MULTIPLIER / OWN / math.sqrt(N - 1)
    assert line.if_one_drops == pytest.approx(measured / under_local, rel=0.03)
    assert line.if_one_drops > 2 * line.in_mean
    # nobody failed: the pairs' noise is gone, to a grid's width for each row
    assert float((paired.mean(0) - plain.mean(0)).abs().max()) < 1e-5 * own


def test_outage_before_round_leaves_no_pair_noise() -> None:
    """The client is absent before the round begins: only pairs with both clients present add noise, and it cancels."""
    here = [0, 1, 3, 4]
    paired, own = answer(TRUST, MULTIPLIER, here)
    exposed = math.sqrt(price.compute_exposure(TRUST.pairs(N), here, N))
    assert own == pytest.approx(MULTIPLIER * exposed * PRIVACY.sensitivity / 8)
    plain, _ = answer(fp.Local(), MULTIPLIER * exposed, here)
    assert float((paired.mean(0) - plain.mean(0)).abs().max()) < 1e-5 * own
    added = (paired - plain).std(1) / (RATIO * own)
    assert added.square().tolist() == pytest.approx([2, 1, 1, 2], rel=0.1)  # their neighbours that are here
