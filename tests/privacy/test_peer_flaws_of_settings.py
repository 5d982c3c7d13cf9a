"""Settings that another simulator accepted, or that failed somewhere inside: fedpriv names each before the run."""

from __future__ import annotations

import math

import pytest
import torch
from peer_runs import SIZES, training_of
from privacy_worlds import clients_of, digits_of

import fedpriv as fp
from fedpriv.randomness.streams import Randomness

BAD_SETTINGS = {
    "clip -1": (lambda: fp.Clip(-1.0), "clip.bound"),
    "clip 0": (lambda: fp.Clip(0.0), "clip.bound"),
    "clip nan": (lambda: fp.Clip(math.nan), "clip.bound"),
    "clip inf": (lambda: fp.Clip(math.inf), "clip.bound"),
    "noise 0": (lambda: fp.Privacy(noise_multiplier=0.0), "noise_multiplier"),
    "noise -1": (lambda: fp.Privacy(noise_multiplier=-1.0), "noise_multiplier"),
    "noise nan": (lambda: fp.Privacy(noise_multiplier=math.nan), "noise_multiplier"),
    "epsilon 0": (lambda: fp.Privacy(epsilon=0.0), "epsilon"),
    "epsilon -1": (lambda: fp.Privacy(epsilon=-1.0), "epsilon"),
    "no amount": (lambda: fp.Privacy(), "epsilon"),
    "delta 1": (lambda: fp.Privacy(epsilon=1, delta=1.0), "delta"),
    "delta -1e-5": (lambda: fp.Privacy(epsilon=1, delta=-1e-5), "delta"),
    "delta 0 with Gaussian": (lambda: fp.Privacy(epsilon=1, delta=0.0), "delta"),
    "unit": (lambda: fp.Privacy(epsilon=1, unit="household"), "unit"),
    "relation": (lambda: fp.Privacy(epsilon=1, relation="swap"), "relation"),
    "batch rate 0": (lambda: fp.Poisson(0.0), "sampling.rate"),
    "batch rate 2": (lambda: fp.Poisson(2.0), "sampling.rate"),
    "batch 0": (lambda: fp.FixedSize(0), "sampling.size"),
    "cohort 0": (lambda: fp.FixedCohort(0), "cohort.size"),
    "cohort rate 0": (lambda: fp.PoissonCohort(0.0), "cohort.rate"),
    "cohort of 9": (lambda: training_of(fp.Privacy(epsilon=1), network=fp.Star(3, fp.FixedCohort(9))), "cohort.fixed"),
    "min_honest 0": (lambda: fp.SecureAggregation(0), "min_honest"),
    "rounds 0": (lambda: training_of(fp.Privacy(epsilon=1), rounds=0), "rounds"),
    "rounds -3": (lambda: training_of(fp.Privacy(epsilon=1), rounds=-3), "rounds"),
    "no clients": (lambda: fp.train([], fp.inexact_admm(), fp.Privacy(epsilon=1), rounds=1), "clients"),
    "boundary": (lambda: fp.Privacy(epsilon=1, noise_on="msg"), "privacy.noise_on"),
    "no boundary": (lambda: fp.Privacy(epsilon=1, noise_on=None), "privacy.noise_on"),
    "mechanism as a word": (lambda: fp.Privacy(epsilon=1, mechanism="laplace"), "privacy.mechanism"),
    "mechanism as a class": (lambda: fp.Privacy(epsilon=1, mechanism=fp.Laplace), "privacy.mechanism"),
    "trust as a word": (lambda: fp.Privacy(epsilon=1, trust="central"), "privacy.trust"),
    "sampling as a word": (lambda: fp.Privacy(epsilon=1, sampling="poisson"), "privacy.sampling"),
    "sampling as a class": (lambda: fp.Privacy(epsilon=1, sampling=fp.FullBatch), "privacy.sampling"),
    "clip as a number": (lambda: fp.Privacy(epsilon=1, clip=1.0), "privacy.clip"),
    "published as a number": (lambda: fp.Privacy(published=0.05), "privacy.published"),
    "statistics as a number": (lambda: fp.Privacy(epsilon=1, statistics=4.0), "privacy.statistics"),
    "public counts as a word": (lambda: fp.Statistics(public_counts="no"), "public_counts"),
    "half a client": (lambda: fp.SecureAggregation(1.5), "min_honest"),
    "min_honest nan": (lambda: fp.SecureAggregation(math.nan), "min_honest"),
    "half an example": (lambda: fp.FixedSize(2.5), "sampling.size"),
    "batch nan": (lambda: fp.FixedSize(math.nan), "sampling.size"),
    "published mechanism": (lambda: fp.Published(0.05, mechanism="gausian"), "published.mechanism"),
    "published at": (lambda: fp.Published(0.05, noise_on="msg"), "published.noise_on"),
    "published delta_bar": (lambda: fp.Published(0.05, "gaussian", delta_bar=2.0), "published.delta_bar"),
    "published bound": (lambda: fp.Published(0.05, "gaussian", gradient_bound=-1.0), "published.gradient_bound"),
    "linearize_at": (lambda: fp.inexact_admm(linearize_at="recieved"), "strategy.linearize_at"),
    "norm of a trust region": (lambda: fp.Trust(norm="l1"), "strategy.step.norm"),
    "gradient_at": (lambda: fp.gradient_tracking(fp.StepSize(0.1), gradient_at="own"), "strategy.gradient_at"),
    "inactive": (lambda: fp.dual_averaging(inactive="eager"), "strategy.inactive"),
    "epsilon_bar 0": (lambda: fp.Published(0.0), "epsilon_bar"),
    "schedule 0": (lambda: fp.Geometric(0.0), "schedule.ratio"),
    "schedule of shares 0": (
        lambda: training_of(fp.Privacy(epsilon=1, schedule=fp.Custom(lambda k: 0.0))),
        "schedule.function",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_bad_setting_raises_before_run(name: str) -> None:
    """There: clip -1 and noise 0 were accepted; cohort 0, batch 0 and an empty user failed somewhere inside."""
    make, field = BAD_SETTINGS[name]
    with pytest.raises(fp.ConfigError, match=field):
        make()


def test_client_without_examples_raises() -> None:
    with pytest.raises(fp.DataError, match="no examples"):
        clients_of([*digits_of(SIZES), (torch.zeros(0, 64), torch.zeros(0, dtype=torch.long))])


def test_empty_poisson_cohort_round_completes() -> None:
    """Each of three clients takes part with probability .3, so a third of the rounds have no participants."""
    network = fp.Star(3, fp.PoissonCohort(0.3))
    sizes = {len(network.participants(k, Randomness(0))) for k in range(30)}
    assert 0 in sizes
    training = training_of(fp.Privacy(noise_multiplier=2.0), rounds=30, network=network)
    assert len(list(training)) == 30
