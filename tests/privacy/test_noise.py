"""The noise that is added is the noise that is claimed: its scale, its law, and that no draw is used twice.

What is left of a release after taking the exact clipped sum away, over the claimed scale, is standard noise.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from privacy_worlds import DIM, digits_of, exact_clipped_sums, oracle_of, start_rows
from scipy import stats
from torch import Tensor

import fedpriv as fp
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.record import Record
from fedpriv.privacy.release import Answer
from fedpriv.randomness.streams import Randomness

SIZES = (9, 14, 11, 6)
BOUND = 0.7
MULTIPLIER = 0.05  # little noise, so that a wrong clip under it shows
LAWS = {"gaussian": ("l2", fp.Gaussian(), stats.norm), "laplace": ("l1", fp.Laplace(), stats.laplace)}


def privacy_of(law: str, multiplier: float = MULTIPLIER, **options) -> fp.Privacy:
    norm, mechanism, _ = LAWS[law]
    return fp.Privacy(noise_multiplier=multiplier, clip=fp.Clip(BOUND, norm), mechanism=mechanism, **options)


def exact_rows(params: Tensor, law: str) -> Tensor:
    """Clipped sums times the public factor of a full batch, n / sum(m), without the library."""
    sums = exact_clipped_sums(digits_of(SIZES), params, BOUND, LAWS[law][0])
    return sums * len(SIZES) / sum(SIZES)


def claimed_scale(relation: str, multiplier: float = MULTIPLIER) -> float:
    return multiplier * BOUND * (2 if relation == "replace_one" else 1) * len(SIZES) / sum(SIZES)


def residuals(law: str, rounds: int, seed: int = 0, **options) -> Tensor:
    """``[rounds, 2 answers, n, dim]``, from the real oracle."""
    privacy = privacy_of(law, **options)
    oracle = oracle_of(digits_of(SIZES), privacy, seed=seed)
    params = start_rows(len(SIZES))
    exact, found = exact_rows(params, law), []
    for index in range(rounds):
        oracle.begin_round(index, torch.arange(len(SIZES)))
        found += [oracle.gradient(params) - exact, oracle.gradient(params) - exact]
    whole = torch.stack(found).view(rounds, 2, len(SIZES), DIM)
    return whole / claimed_scale(privacy.relation)


def unit_scale(law: str, noise: Tensor) -> float:
    """Estimate of the scale: 1 within 1 / sqrt(N) or less."""
    return float(noise.abs().mean()) if law == "laplace" else float(noise.square().mean().sqrt())


@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
@pytest.mark.parametrize("law", LAWS)
def test_noise_has_claimed_distribution_and_scale(law: str, relation: str) -> None:
    noise = residuals(law, rounds=30, relation=relation)
    assert noise.numel() > 150_000
    assert unit_scale(law, noise) == pytest.approx(1, abs=0.01)
    for client in range(len(SIZES)):
        assert unit_scale(law, noise[:, :, client]) == pytest.approx(1, abs=0.02)
    assert abs(float(noise.mean())) < 0.02
    assert stats.kstest(noise.flatten().numpy(), LAWS[law][2].cdf).pvalue > 1e-3


@pytest.mark.parametrize("law", LAWS)
def test_noise_uncorrelated_across_rounds_and_clients(law: str) -> None:
    """Also across the queries of a round, coordinates and seeds."""
    noise, other_seed = residuals(law, rounds=12), residuals(law, rounds=12, seed=1)
    pairs = {
        "rounds": (noise[:-1], noise[1:]),
        "answers of a round": (noise[:, 0], noise[:, 1]),
        "answer and next round": (noise[:-1, 1], noise[1:, 0]),
        "clients": (noise[:, :, :-1], noise[:, :, 1:]),
        "coordinates": (noise[..., :-1], noise[..., 1:]),
        "seeds": (noise, other_seed),
    }
    for name, (a, b) in pairs.items():
        correlation = float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])
        assert abs(correlation) < 4.5 / math.sqrt(a.numel()), f"{name}: {correlation}"
        # two independent numbers are often rounded to one multiple of the grid of normal noise
        assert float((a == b).double().mean()) < 0.01, name


def first_word(randomness: Randomness, *name) -> int:
    return int(randomness.stream(*name).words(1)[0])


def test_noise_streams_all_differ() -> None:
    """Each name opens its own stream: the first 64 bits of 13 600 streams, other seeds and attempts never agree."""
    names = list(itertools.product(["batch", "noise", "local", "secret_cohort"], range(17), range(4), range(50)))
    firsts = [first_word(Randomness(secret_seed=7), *name) for name in names]
    others = [
        first_word(randomness, *names[0])
        for randomness in (
            Randomness(secret_seed=8),
            Randomness(secret_seed=7, attempt=1),
            Randomness(secret_seed=71),
            Randomness(secret_seed=7, run="another"),
        )
    ]
    assert len(set(firsts + others)) == len(names) + len(others)
    assert first_word(Randomness(3, secret_seed=7), *names[-1]) == firsts[-1]


def test_stream_names_of_several_digits_differ() -> None:
    names = [(1, 11, 0), (11, 1, 0), (1, 1, 10), (1, 1, 1), (11, 11, 0), (111, 1, 0), (1, 111, 0)]
    assert len({first_word(Randomness(secret_seed=1), "noise", *name) for name in names}) == len(names)


@pytest.mark.parametrize("participants", [3, 4])
@pytest.mark.parametrize("law", LAWS)
def test_noise_shares_sum_to_distribution(law: str, participants: int) -> None:
    """Three shares sum to the whole noise exactly; a fourth client only adds. Each row of the result is the mean."""
    privacy = privacy_of(law, trust=fp.SecureAggregation(min_honest=3))
    oracle = oracle_of(digits_of(SIZES), privacy)
    params = torch.zeros(len(SIZES), DIM, dtype=torch.float64)
    exact, cohort, sums = exact_rows(params, law), torch.arange(participants), []
    for index in range(100):
        oracle.begin_round(index, cohort, params[cohort])
        answer = oracle.gradient(params[cohort])
        assert torch.equal(answer, answer[:1].expand(participants, -1))
        sums.append((answer.sum(0) - exact[cohort].sum(0)) / claimed_scale("replace_one"))
    total = torch.cat(sums)
    assert float(total.square().mean()) / LAWS[law][2].var() == pytest.approx(participants / 3, abs=0.03)
    if participants == 3:
        assert unit_scale(law, total) == pytest.approx(1, abs=0.015)
        assert stats.kstest(total.numpy(), LAWS[law][2].cdf).pvalue > 1e-3


def test_sum_noise_covers_largest_sensitivity() -> None:
    """With batches of two each, rows weigh as the clients' sizes: the sum's noise is for the largest of them."""
    privacy = privacy_of("gaussian", sampling=fp.FixedSize(2), trust=fp.SecureAggregation(min_honest=4))
    oracle = oracle_of(digits_of(SIZES), privacy)
    params = torch.zeros(len(SIZES), DIM, dtype=torch.float64)
    largest = max(SIZES) * len(SIZES) / sum(SIZES) / 2
    noise = []
    for index in range(200):
        oracle.begin_round(index, torch.arange(4), params)
        # a blank pixel has no gradient at all, so what is released there is noise
        noise.append(oracle.gradient(params).sum(0)[::64])
    assert digits_of([sum(SIZES)])[0][0][:, 0].abs().max() == 0
    assert float(torch.cat(noise).std()) == pytest.approx(MULTIPLIER * 2 * BOUND * largest, rel=0.08)


def test_record_bound_includes_rounding() -> None:
    """Scale and record state the bound with what float64 sums may add to it."""
    oracle = oracle_of(digits_of(SIZES), privacy_of("gaussian", multiplier=1.0))
    answer = Answer(0, 0, "gradient", range(len(SIZES)), oracle.privacy.clip)
    scheme, factors = oracle.queries.scheme, [1.0] * len(SIZES)
    planned = scheme.price(answer, factors)
    record, scales = planned.record, scheme.noise_scales(planned, factors)
    assert record.bound == pytest.approx(BOUND * (1 + 2**-10), rel=1e-12)
    assert scales == pytest.approx([2 * record.bound] * len(SIZES), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("law", LAWS)
def test_releases_on_grid_of_claimed_scale(law: str, dtype: torch.dtype) -> None:
    oracle = oracle_of(digits_of(SIZES), privacy_of(law), dtype=dtype)
    released = oracle.gradient(start_rows(len(SIZES)).to(dtype)).double()
    bits = 8 if law == "gaussian" else 20
    grid = 2.0 ** (math.ceil(math.log2(claimed_scale("replace_one"))) - bits)
    steps = released / grid
    assert steps.abs().max() < 2**24  # float32 holds every point of the grid up to here
    assert torch.equal(steps, steps.round())
    assert len(np.unique(steps.numpy() % 2)) == 2  # the grid is not finer than what is used


def test_message_noise_has_claimed_scale() -> None:
    privacy = fp.Privacy(noise_multiplier=3.0, clip=fp.Clip(BOUND), unit="client", noise_on="message")
    oracle = oracle_of(digits_of(SIZES), privacy)
    message = torch.ones(len(SIZES), DIM, dtype=torch.float64)
    exact, noise = message * BOUND / math.sqrt(DIM), []
    for index in range(40):
        oracle.begin_round(index, torch.arange(len(SIZES)))
        noise.append((oracle.release_message(message) - exact) / (3.0 * 2 * BOUND))
    assert unit_scale("gaussian", torch.cat(noise)) == pytest.approx(1, abs=0.01)
    assert stats.kstest(torch.cat(noise).flatten().numpy(), stats.norm.cdf).pvalue > 1e-3


def test_release_of_float32_sums_is_float64() -> None:
    """In float32, 100 000 plus small noise would lie on a grid of 2^-7, and the low bits would not be noise."""
    record = Record(0, "gradient", 0, "gaussian", 1.0, "sample", "replace_one")
    release = add_noise(torch.full((1, 200), 1e5), [2.0**-6], fp.Gaussian(), record, Randomness(secret_seed=1), [0])
    value = Ledger(Accountant(1, 1e-5)).open(release)
    assert value.dtype == torch.float64
    grid = (value - 1e5) * 2.0**14  # 2^-8 of the scale
    assert torch.equal(grid, grid.round())
    assert len(grid.remainder(16).unique()) == 16
