"""What `fedpriv plan` says of noise that other settings would leave in the final model."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from scipy.linalg import toeplitz
from torch import nn

import fedpriv as fp
from fedpriv.clients.public_info import PublicDataInfo
from fedpriv.forecast.noises import NoiseOption, forecast_noises
from fedpriv.models import SoftmaxRegression
from fedpriv.models.problem import Problem
from fedpriv.planning.plan import RunSketch
from fedpriv.privacy.settings import Noise, Sampling
from fedpriv.strategies.base import Strategy

ROUNDS, BLOCKS, N = 24, 6, 12
CYCLIC, OWN = fp.Cyclic(BLOCKS), fp.Independent()
MOMENTUM = fp.fedavg(0.5, server_momentum=0.7, weighting="clients")


def draft(
    strategy: Strategy = MOMENTUM,
    sampling: Sampling = CYCLIC,
    noise: Noise = OWN,
    network: fp.Star | fp.Graph | None = None,
    **promise: object,
) -> RunSketch:
    privacy = fp.Privacy(**{"epsilon": 2.0, "sampling": sampling, "noise": noise, **promise})
    outline, model = PublicDataInfo((60,) * N, (4,), 2), SoftmaxRegression(4, 2)
    return RunSketch(
        strategy, privacy, network or fp.Star(N), ROUNDS, outline, [Problem()] * N, model, nn.CrossEntropyLoss()
    )


def choices(of: RunSketch) -> dict[str, NoiseOption]:
    found = forecast_noises(of, of.plan())
    assert found is not None
    assert [one.left for one in found.choices] == sorted(one.left for one in found.choices)
    return {one.settings: one for one in found.choices}


def by_hand(of: RunSketch) -> float:
    """Deviation in the last model: what the steps make of the columns of C^-1, all matrices written out."""
    plan = of.plan()
    steps = [0.5 * sum(0.7**j for j in range(ROUNDS - t)) for t in range(ROUNDS)]
    over_time = plan.privacy.over_time
    first = np.eye(ROUNDS)[0] if over_time is None else over_time.factor.column(ROUNDS)
    mixed = np.linalg.inv(toeplitz(first, np.zeros(ROUNDS)))
    return float(plan.privacy.noise_multiplier * np.linalg.norm(np.array(steps) @ mixed))


@pytest.mark.parametrize("planned", [(fp.Cyclic(BLOCKS), fp.Independent()), (fp.Poisson(1 / BLOCKS), fp.Independent())])
def test_final_noise_matches_explicit_matrices(planned):
    found = choices(draft(sampling=planned[0], noise=planned[1]))
    cyclic = "sampling: {cyclic: {blocks: 6}}"
    others = {
        f"{cyclic}, noise: {{correlated: {{bsr: {{band: 6}}}}}}": (fp.Cyclic(6), fp.BSR(6)),
        f"{cyclic}, noise: {{correlated: {{banded: {{band: 6}}}}}}": (fp.Cyclic(6), fp.Banded(6)),
        f"{cyclic}, noise: {{correlated: {{blt: {{buffers: 4}}}}}}": (fp.Cyclic(6), fp.BLT(4)),
        cyclic: (fp.Cyclic(6), fp.Independent()),
        f"sampling: {{poisson: {{rate: {1 / 6:.4g}}}}}": (fp.Poisson(1 / 6), fp.Independent()),
        "sampling: {cyclic: {blocks: 2, rate: 0.3333}}, noise: {correlated: {bsr: {band: 2}}}": (
            fp.Cyclic(2, 1 / 3),
            fp.BSR(2),
        ),
        "sampling: {allocation: {batches: 6}}": (fp.Allocation(6), fp.Independent()),
        "sampling: full": (fp.FullBatch(), fp.Independent()),
    }
    del others[next(words for words, settings in others.items() if settings == planned)]
    assert found.keys() == {"as planned", *others}
    base = by_hand(draft(sampling=planned[0], noise=planned[1]))
    for words, (sampling, noise) in others.items():
        noise_left = by_hand(draft(sampling=sampling, noise=noise)) / base
        if sampling == fp.FullBatch():  # the noise of a mean over six times as many examples
            noise_left /= BLOCKS
        # the target is what the plan spends, a little below what it may
        assert found[words].left == pytest.approx(noise_left, rel=5e-3)
        needs_nothing = sampling == fp.Cyclic(6) or (planned[0] == fp.Poisson(1 / 6) and sampling != fp.FullBatch())
        assert (found[words].needs is None) == needs_nothing


def test_correlated_noise_suggested_for_public_draws():
    found = forecast_noises(draft(), draft().plan())
    assert found is not None
    assert found.suggested is not None
    assert "banded" in found.suggested  # for the strategy's own momentum
    best = draft(noise=fp.Banded(BLOCKS))
    again = forecast_noises(best, best.plan())
    assert again is not None
    assert again.suggested is None


def test_pairwise_and_correlated_noise_multiply():
    """The ratio between noise options is the same with and without pairwise noise."""
    alone, paired = (choices(draft(trust=trust)) for trust in (fp.Local(), fp.Pairwise(1, 3.0)))
    assert alone.keys() == paired.keys()
    assert sum("correlated" in words for words in paired) == 4
    for words, choice in paired.items():
        assert choice.left == pytest.approx(alone[words].left, rel=1e-3)


@pytest.mark.parametrize(("trust", "secret"), [(fp.Central(), True), (fp.SecureAggregation(9), False)])
def test_noise_options_with_cyclic_cohorts(trust, secret):
    cohort, whole = fp.Star(N, fp.CyclicCohort(4)), {"unit": "client", "noise_on": "message", "trust": trust}
    of = draft(sampling=fp.FullBatch(), noise=fp.BSR(2), network=cohort, **whole)
    found = choices(of)
    assert ("trust: {central: {cohort_rate: 0.25}}" in found) == secret
    assert any(words.startswith("network.cohort: {cyclic: {blocks: 4}}, noise: {correlated: {blt") for words in found)


def test_noise_options_on_graph():
    of = draft(fp.gradient_tracking(0.1), network=fp.Graph(nx.cycle_graph(N)))
    assert choices(of)["as planned"].left == 1


@pytest.mark.parametrize(
    "of",
    [
        draft(sampling=fp.FullBatch()),
        draft(epsilon=None, noise_on="none"),
        draft(fp.fedavg(0.5, 2), fp.Poisson(0.1)),
        draft(fp.fedavg(0.5, optimizer=fp.Adam())),
    ],
    ids=["everything every round", "not private", "two answers a round", "not linear"],
)
def test_no_noise_options_when_not_comparable(of):
    assert forecast_noises(of, of.plan()) is None
