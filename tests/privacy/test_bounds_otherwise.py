"""Bounds of epsilon computed in another way: formulas for integer orders, plain integrals, and other libraries."""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as dpa
from renyi_epsilon import DELTA, rdp_epsilon
from scipy.optimize import brentq
from scipy.signal import fftconvolve
from scipy.special import gammaln, logsumexp
from scipy.stats import norm
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import SoftmaxRegression
from fedpriv.privacy.accounting import bounds, gaussian, pld, rdp
from fedpriv.privacy.accounting.events import Event, compute_cost, group_histories


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.01), (0.4, 0.2), (10.0, 0.1), (0.8, 1e-4)])
def test_sampled_renyi_equals_binomial_formula(law: Literal["gaussian", "laplace"], noise: float, rate: float) -> None:
    """Mironov, Talwar, Zhang 2019, for integer orders."""
    found = rdp.compute_divergences(Event(law, noise, "poisson", rate))
    for order in (2, 5, 16):
        k = np.arange(order + 1)
        if law == "gaussian":
            moments = (k * k - k) / (2 * noise**2)
        else:
            with np.errstate(divide="ignore", invalid="ignore"):
                terms = np.logaddexp(
                    np.log(k / (2 * k - 1)) + (k - 1) / noise, np.log((k - 1) / (2 * k - 1)) - k / noise
                )
            moments = np.where(k < 2, 0.0, terms)
        log_binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        exact = logsumexp(log_binomial + k * math.log(rate) + (order - k) * math.log1p(-rate) + moments) / (order - 1)
        assert found[list(rdp.ORDERS).index(order)] == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(("noise", "rate"), [(0.5, 0.01), (1.0, 1 / 600), (0.3, 0.2)])
def test_replace_one_bounds_equal_integration(noise: float, rate: float) -> None:
    """Curve and divergences of the dominating pair, by brute force."""
    sigma = 2 * noise
    x = np.linspace(-2 - 14 * sigma, 40 + 14 * sigma, 400_001)

    def density(mean: float) -> np.ndarray:

        def normal(m: float) -> np.ndarray:
            return np.exp(-((x - m) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))

        return (1 - rate) * normal(0.0) + rate * normal(mean)

    p, q = density(1.0), density(-1.0)
    event = Event("gaussian", noise, "poisson_replace", rate)
    ours = pld._distribution(event, 2.0**-10)
    for epsilon in (0.0, 0.01, 0.1, 0.5, 1.0):
        direct = np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0.0), x)
        bound = float(ours.get_delta_for_epsilon(epsilon))
        assert direct * (1 - 1e-6) - 1e-12 <= bound <= 1.05 * direct + 1e-5
        wide = rate * math.exp(float(gaussian.log_delta(1 / noise, np.log1p(np.expm1(np.array(epsilon)) / rate))))
        assert direct * (1 - 1e-6) <= wide  # the general amplification bound is looser
    order = rdp.ORDERS[13]
    seen = q > 1e-150  # beyond, powers of the densities leave the range of floats
    divergence = math.log(np.trapezoid(p[seen] ** order * q[seen] ** (1 - order), x[seen])) / (order - 1)
    assert rdp.compute_divergences(event)[13] == pytest.approx(divergence, rel=1e-4)


@pytest.mark.parametrize("noise", [0.4, 1.0, 5.0])
@pytest.mark.parametrize("rate", [0.001, 0.3])
def test_closed_form_curves_equal_dp_accounting(noise: float, rate: float) -> None:
    grid = {"value_discretization_interval": 2.0**-10, "sampling_prob": rate}
    pairs = [
        (Event("gaussian", noise, "poisson", rate), dpa.from_gaussian_mechanism(noise, **grid)),
        (Event("laplace", noise, "poisson", rate), dpa.from_laplace_mechanism(noise, **grid)),
        (
            Event("gaussian", noise, "poisson_replace", rate),
            dpa.from_gaussian_mechanism(2 * noise, neighboring_relation=NeighboringRelation.REPLACE_ONE, **grid),
        ),
    ]
    for event, theirs in pairs:
        ours = pld._distribution(event, 2.0**-10)
        for epsilon in (0.0, 0.05, 0.5, 2.0):
            assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(
                theirs.get_delta_for_epsilon(epsilon), rel=1e-4, abs=1e-12
            )


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_low_rate_few_rounds_epsilon_tight(rounds: int) -> None:
    """Large losses are rare there: the tilt of the best Renyi bound left out the window that has the answer."""
    event = Event("gaussian", 1.0, "poisson_replace", 1 / 64)
    x = np.linspace(-30, 30, 600_001)
    rows = [(1 - event.rate) * norm.pdf(x) + event.rate * norm.pdf(x - shift) for shift in (0.5, -0.5)]
    losses, mass = np.log(rows[0] / rows[1]), rows[0] * (x[1] - x[0])
    grid = np.round(losses / 1e-4).astype(int)
    one = np.bincount(grid - grid.min(), mass)
    total, lowest = one, int(grid.min()) * rounds
    for _ in range(rounds - 1):
        total = fftconvolve(total, one)
    values = (np.arange(len(total)) + lowest) * 1e-4
    true = brentq(lambda e: float(np.maximum(1 - np.exp(e - values), 0) @ total) - DELTA, 0, 3)
    assert true <= bounds.compute_tight_epsilons({event: rounds}, DELTA)["pld"] * 1.001
    assert bounds.compute_tight_epsilons({event: rounds}, DELTA)["pld"] <= true * 1.01


def test_bounds_equal_opacus() -> None:
    analysis = pytest.importorskip("opacus.accountants")
    for sigma, rate, steps in [(1.0, 0.01, 1000), (2.0, 0.1, 500)]:
        event = Event("gaussian", sigma, "poisson", rate)
        # what PRV reports is its estimate plus its own error bound, .01 unless a smaller one is asked for
        for name, ours, options in [
            ("RDPAccountant", rdp_epsilon({event: steps}), {}),
            ("PRVAccountant", pld.epsilon({event: steps}, DELTA), {"eps_error": 0.002}),
        ]:
            theirs = getattr(analysis, name)()
            theirs.history = [(sigma, rate, steps)]
            assert ours == pytest.approx(theirs.get_epsilon(DELTA, **options), abs=0.01)


@pytest.mark.parametrize(("sigma", "rate", "rounds"), [(1.0, 0.05, 40), (2.0, 0.2, 60)])
def test_dp_sgd_run_epsilon_equals_opacus(sigma: float, rate: float, rounds: int) -> None:
    """Poisson batches from one owner, add-remove: what the run's ledger is priced at, against both accountants."""
    accountants = pytest.importorskip("opacus.accountants")
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    clients = fp.make_clients(
        SoftmaxRegression(4, 2), torch.nn.CrossEntropyLoss(), [TensorDataset(x, torch.arange(30) % 2)]
    )
    privacy = fp.Privacy(noise_multiplier=sigma, delta=DELTA, relation="add_remove", sampling=fp.Poisson(rate))
    training = fp.Training(clients, fp.fedavg(0.1), privacy, rounds=rounds, seed=0, secret_seed=0)
    assert len(list(training)) == rounds
    spent = training.spent()
    assert spent.accountant == "pld"
    theirs = {name: getattr(accountants, name)() for name in ("PRVAccountant", "RDPAccountant")}
    for accountant in theirs.values():
        for _ in range(rounds):
            accountant.step(noise_multiplier=sigma, sample_rate=rate)
    assert spent.epsilon == pytest.approx(theirs["PRVAccountant"].get_epsilon(DELTA, eps_error=0.002), abs=0.01)
    [(_, history)] = group_histories(Counter(compute_cost(record, 1) for record in training.ledger.records), 1)
    assert rdp_epsilon(history) == pytest.approx(theirs["RDPAccountant"].get_epsilon(DELTA), abs=0.01)
