"""Clips with a smaller diameter than a ball: no two rows, whatever they hold, move a release by more than is charged."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from privacy_worlds import oracle_of
from torch import Tensor

import fedpriv as fp
from fedpriv.models import LinearRegression, Loss
from fedpriv.oracle.query import QueryBuilder
from fedpriv.privacy import BlockClip, Clip, ConvexHull, release_scheme
from fedpriv.storage.identity import digest

DRAWS = np.random.default_rng(3)
VERTICES = torch.from_numpy(DRAWS.normal(size=(5, 5)) + [4.0, 0.0, 0.0, 0.0, 0.0])
HULLS = {"unit vectors": ConvexHull(torch.eye(5)), "far from zero": ConvexHull(VERTICES)}
JOINED = BlockClip([(2, Clip(0.7)), (5, ConvexHull(torch.eye(5))), (5, ConvexHull(0.3 * VERTICES))])
ODD = [0.0, 1.0, -1.0, 1e-320, 1e308, -1e308, math.nan, math.inf, -math.inf, 0.5, 1 - 2**-53]


def brute_force(hull: ConvexHull) -> tuple[float, float]:
    """Largest norm and largest distance of two points of a hull: at its corners, one pair after another."""
    corners = [*hull.vertices.numpy(), np.zeros(len(hull.vertices))]
    distances = [math.dist(one, other) for one, other in itertools.combinations(corners, 2)]
    return max(math.hypot(*corner) for corner in corners), max(distances)


@pytest.mark.parametrize("hull", HULLS.values(), ids=HULLS)
def test_hull_diameter_equals_brute_force_over_pairs(hull):
    norm, distance = brute_force(hull)
    assert norm <= hull.bound <= norm * (1 + 1e-12)
    assert distance <= hull.diameter <= distance * (1 + 1e-12)


def test_unit_vectors_differ_by_root_two():
    assert HULLS["unit vectors"].diameter == pytest.approx(math.sqrt(2), rel=1e-12)
    assert JOINED.diameter**2 == pytest.approx(1.4**2 + 2 + 0.09 * brute_force(HULLS["far from zero"])[1] ** 2)


def rows_of(width: int):
    return st.lists(st.one_of(st.sampled_from(ODD), st.floats(width=64)), min_size=width, max_size=width)


@given(first=rows_of(12), second=rows_of(12))
@settings(max_examples=150, deadline=None)
def test_clipped_rows_of_any_numbers_within_diameter(first, second):
    rows, broken = JOINED.rows(torch.tensor([first, second], dtype=torch.float64))
    assert torch.isfinite(rows).all()
    assert broken.tolist() == [not np.isfinite(one).all() for one in (first, second)]
    assert float((rows[0] - rows[1]).norm()) <= JOINED.diameter * (1 + 2**-12)
    assert float(rows.norm(dim=1).max()) <= JOINED.bound * (1 + 2**-12)


def test_points_of_hull_stay_as_they_are():
    weights = torch.from_numpy(DRAWS.dirichlet(np.ones(5), 20))
    clipped, broken = HULLS["far from zero"].rows(weights)
    assert torch.allclose(clipped, weights @ VERTICES, rtol=1e-14) and not broken.any()


def first_output(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs[:, 0]


MODEL = LinearRegression(12)
TRUSTS = [fp.Central(), fp.SecureAggregation(2), fp.Local(), fp.Pairwise(1, 100)]
OTHERS = [torch.eye(12, dtype=torch.float64)[[2, 9]], torch.eye(12, dtype=torch.float64)[[3, 7, 11]]]


def mean_row(rows: Tensor, privacy: fp.Privacy, backend: str = "linear") -> Tensor:
    """The released mean over all rows: those of a first client, and five of two others. The noise is always the same."""
    data = [torch.utils.data.TensorDataset(x, torch.zeros(len(x))) for x in (rows, *OTHERS)]
    with pytest.warns(UserWarning, match="secret_seed"):
        result = fp.train(
            fp.make_clients(MODEL, Loss(first_output), data),
            fp.gradient_descent(1.0),
            privacy,
            rounds=1,
            secret_seed=4,
            progress=False,
            compute=fp.Compute(backend=backend, device="cpu", dtype="float64"),
        )
    return -result.params.double().view(-1)


def corners() -> list[Tensor]:
    """Rows that reach every pair of corners of the blocks, and rows beyond all bounds."""
    eye = torch.eye(12, dtype=torch.float64)
    within = [sign * eye[0] + eye[2 + j] + eye[7 + k] for sign, j, k in itertools.product((1, -1), range(5), range(5))]
    return [*within, 1e9 * eye[4] - eye[1], -1e300 * eye.sum(0), eye[0] * math.nan, eye[3] * 0]


@pytest.mark.parametrize("unit", ["sample", "client"])
@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
@pytest.mark.parametrize("trust", TRUSTS, ids=str)
def test_neighbours_move_release_within_sensitivity_of_its_noise(trust, relation, unit):
    privacy = fp.Privacy(noise_multiplier=1e-6, clip=JOINED, trust=trust, relation=relation, unit=unit)
    n, size = (3, 1) if unit == "client" else (7, 2)
    rest = [torch.eye(12, dtype=torch.float64)[5]] * (size - 1)
    worst = [corners()[0], corners()[-5], corners()[7], corners()[-3], corners()[-1]]
    found = [mean_row(torch.stack([row, *rest]), privacy) for row in worst]
    largest = max(float((one - other).norm()) for one, other in itertools.combinations(found, 2))
    if relation == "add_remove":  # the last row is the one that is not there
        largest = max(float((one - found[-1]).norm()) for one in found)
    weight = 1 / n if unit == "client" else 1 / n
    assert 0.5 * privacy.sensitivity * weight < largest <= privacy.sensitivity * weight
