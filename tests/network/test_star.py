"""Means on a star divide by a public number, whoever took part."""

from __future__ import annotations

import pytest
import torch

import fedpriv as fp
from fedpriv.randomness.streams import Randomness


def test_a_mean_over_a_random_cohort_is_over_its_expected_size() -> None:
    """How many took part is not in it; over many rounds it is the mean of all clients."""
    star, rows, means = fp.Star(8, fp.PoissonCohort(0.5)), torch.arange(8.0).unsqueeze(1), []
    sizes = set()
    for index in range(400):
        cohort = star.participants(index, Randomness(3))
        sizes.add(len(cohort))
        mean = star.mean(rows[cohort])
        assert mean.shape == (8, 1)
        torch.testing.assert_close(mean, (rows[cohort].sum(0) / 4).expand(8, 1))
        means.append(float(mean[0]))
    assert len(sizes) > 3
    assert sum(means) / len(means) == pytest.approx(3.5, abs=0.35)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_a_mean_over_a_cohort_of_fixed_size_is_over_that(size: int) -> None:
    star, rows = fp.Star(8, fp.FixedCohort(size)), torch.arange(8.0).unsqueeze(1)
    cohort = star.participants(0, Randomness(3))
    assert len(set(cohort.tolist())) == size
    assert float(star.mean(rows[cohort])[0]) == pytest.approx(float(rows[cohort].mean()))
