"""The attack on noise whose scale is measured on the data: it wins against `published` and loses to the default.

The attacker sees one released gradient of one client, and guesses whether a certain record was in the client's data.
It needs nothing but the size of the noise. Its success bounds epsilon from below (Clopper and Pearson, 1934).
"""

from __future__ import annotations

import math

import pytest
import torch
from privacy_worlds import DIM, Data, digits_of, exact_clipped_sums, oracle_of, with_record
from scipy import stats
from torch import Tensor

import fedpriv as fp
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.calibration import calibrate

TRIALS = 250
SIZE = 60
DELTA = 1e-5


def neighbours() -> tuple[Data, Data]:
    """Sixty real digits, and the same with one of them replaced by a white square (pixels stay within [0, 1])."""
    ordinary = digits_of([SIZE])
    return ordinary, with_record(ordinary, 0, 5, torch.ones(64, dtype=torch.float64), int(ordinary[0][1][5]))


def releases(data: Data, privacy: fp.Privacy, seed: int) -> Tensor:
    """One released gradient a trial, ``[trials, 640]``."""
    oracle = oracle_of(data, privacy, seed=seed)
    params, found = torch.zeros(1, DIM, dtype=torch.float64), []
    for trial in range(TRIALS):
        oracle.begin_round(trial, torch.arange(1))
        found.append(oracle.gradient(params)[0])
    return torch.stack(found)


def epsilon_lower_bound(guesses_without: Tensor, guesses_with: Tensor) -> float:
    """95 % lower bound on epsilon from guesses "it is in": both error rates at 97.5 %, both directions."""

    def upper(errors: int) -> float:
        return float(stats.beta.ppf(0.975, errors + 1, TRIALS - errors)) if errors < TRIALS else 1.0

    false_in, false_out = upper(int(guesses_without.sum())), upper(int((~guesses_with).sum()))
    shown = [(1 - false_out - DELTA) / false_in, (1 - false_in - DELTA) / false_out]
    return max(0.0, math.log(max(*shown, 1e-9)))


def by_noise_size(privacy: fp.Privacy, threshold: float | None = None) -> float:
    """The scale attack: mean absolute value over coordinates against a threshold."""
    sizes = [releases(data, privacy, seed).abs().mean(1) for seed, data in enumerate(neighbours())]
    if threshold is None:
        threshold = float(torch.cat(sizes).median())
    return epsilon_lower_bound(*(s > threshold for s in sizes))


def by_projection(privacy: fp.Privacy) -> float:
    """The best test against Gaussian noise of known scale: project on the difference of the exact answers."""
    data = neighbours()
    exact = [
        exact_clipped_sums(side, torch.zeros(1, DIM, dtype=torch.float64), privacy.clip.bound, "l2")[0] / SIZE
        for side in data
    ]
    direction, middle = exact[1] - exact[0], (exact[0] + exact[1]) / 2
    scores = [(releases(side, privacy, seed) - middle) @ direction for seed, side in enumerate(data)]
    return epsilon_lower_bound(*(s > 0 for s in scores))


def largest_l1(data: Data) -> float:
    """At parameters zero every gradient is (1/10 - label) times the pixels: its l1 norm is 1.8 times theirs."""
    return 1.8 * float(data[0][0].abs().sum(1).max())


def test_scale_attack_on_published_noise_succeeds() -> None:
    """At a nominal epsilon of 0.01."""
    scales = [largest_l1(data) / SIZE / 0.01 for data in neighbours()]
    assert scales[1] > 1.5 * scales[0]
    shown = by_noise_size(fp.Privacy(published=fp.Published(epsilon_bar=0.01)), math.sqrt(scales[0] * scales[1]))
    assert shown > 4


def calibrated(epsilon: float, mechanism: fp.Gaussian | fp.Laplace, norm: str) -> fp.Privacy:
    relative = fp.Privacy(noise_multiplier=1.0, mechanism=mechanism, clip=fp.Clip(1.0, norm))
    oracle = oracle_of(digits_of([SIZE]), relative)
    oracle.gradient(torch.zeros(1, DIM, dtype=torch.float64))
    factor = calibrate(oracle.engine.ledger.records, 1, epsilon, DELTA)
    return fp.Privacy(noise_multiplier=factor, mechanism=mechanism, clip=fp.Clip(1.0, norm))


@pytest.mark.parametrize(("mechanism", "norm"), [(fp.Gaussian(), "l2"), (fp.Laplace(), "l1")])
def test_scale_attack_on_default_noise_fails(mechanism: fp.Gaussian | fp.Laplace, norm: str) -> None:
    privacy = calibrated(0.1, mechanism, norm)
    assert by_noise_size(privacy) == 0


def test_projection_attack_below_claimed_epsilon() -> None:
    for claim in (0.1, 1.0):
        assert by_projection(calibrated(claim, fp.Gaussian(), "l2")) <= claim


def test_projection_attack_detects_too_little_noise() -> None:
    """So that the test above can fail: a twentieth of the noise shows more than was claimed."""
    privacy = calibrated(1.0, fp.Gaussian(), "l2")
    assert by_projection(fp.Privacy(noise_multiplier=privacy.noise_multiplier / 20)) > 1.0


def test_published_noise_epsilon_infinite() -> None:
    oracle = oracle_of(digits_of([SIZE]), fp.Privacy(published=fp.Published(epsilon_bar=0.01)))
    oracle.gradient(torch.zeros(1, DIM, dtype=torch.float64))
    spent = account(oracle.engine.ledger.records, 1, DELTA)
    assert math.isinf(spent.epsilon)
    assert "measured on the client's own data" in str(spent)


def test_public_cohort_no_amplification() -> None:
    """Shares of noise add up with the participants, so a sum shows how many there were: who takes part is public.

    The price of a round is that of a round with these participants, and they alone pay it.
    """
    privacy = fp.Privacy(
        noise_multiplier=5.0, unit="client", relation="add_remove", trust=fp.SecureAggregation(min_honest=1)
    )
    oracle = oracle_of(digits_of([SIZE] * 3), privacy)
    params = torch.zeros(1, DIM, dtype=torch.float64)
    oracle.begin_round(0, torch.tensor([1]), params)
    oracle.gradient(params)
    assert [(r.clients, r.sampling, r.rate) for r in oracle.engine.ledger.records] == [((1,), "full", 1.0)]
    assert account(oracle.engine.ledger.records, 3, DELTA).per_client[::2] == (0.0, 0.0)
