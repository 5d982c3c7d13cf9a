"""Clips with a smaller diameter than a ball: no row, whatever it holds, moves a release by more than is charged."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedpriv as fp
from fedpriv.models import LinearRegression, Loss
from fedpriv.network import Everyone, Star
from fedpriv.planning import make_plan
from fedpriv.privacy import ROUNDING, BlockClip, Clip, ConvexHull
from fedpriv.storage.identity import digest

DRAWS = np.random.default_rng(3)
VERTICES = torch.from_numpy(DRAWS.normal((4.0, 0.0, 0.0, 0.0, 0.0), size=(5, 5)))
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
    """The released mean over all rows: those of a first client, and five others. The noise is always the same."""
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
    within += [sign * eye[0] + eye[2 + j] for sign, j in itertools.product((1, -1), range(5))]  # and 0
    return [*within, 1e9 * eye[4] - eye[1], -1e300 * eye.sum(0), eye[0] * math.nan, eye[3] * 0]


@pytest.mark.parametrize("unit", ["sample", "client"])
@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
@pytest.mark.parametrize("trust", TRUSTS, ids=str)
def test_neighbours_move_release_within_sensitivity_of_its_noise(trust, relation, unit):
    privacy = fp.Privacy(noise_multiplier=1e-6, clip=JOINED, trust=trust, relation=relation, unit=unit)
    rest = [torch.eye(12, dtype=torch.float64)[5]]
    units = 7
    if unit == "client":
        rest, units = [], 3
    *rows, last = [corners()[0], corners()[-5], corners()[7], corners()[-4], corners()[-1]]  # the last one is 0
    moved = [mean_row(torch.stack([row, *rest]), privacy) for row in (*rows, last)]
    if relation == "add_remove":
        largest = max(float((one - moved[-1]).norm()) for one in moved)
    else:
        largest = max(float((one - other).norm()) for one, other in itertools.combinations(moved, 2))
    assert 0.3 * privacy.sensitivity / units < largest <= privacy.sensitivity / units


def test_change_by_one_row_reaches_diameter():
    privacy = fp.Privacy(noise_multiplier=1e-6, clip=JOINED, trust=fp.Central())
    rows = torch.stack(corners())
    distances = torch.cdist(JOINED.rows(rows)[0], JOINED.rows(rows)[0])
    worst = divmod(int(distances.argmax()), len(rows))
    first, second = (mean_row(rows[[index, 5]], privacy) for index in worst)
    assert float((first - second).norm()) == pytest.approx(JOINED.diameter / 7, rel=1e-3)


@pytest.mark.parametrize("backend", ["vmap", "linear"])
def test_backends_agree_with_loop(backend):
    privacy = fp.Privacy(noise_multiplier=1e-6, clip=JOINED, trust=fp.Central())
    rows = torch.stack([torch.from_numpy(DRAWS.normal(size=12)), *corners()[::9]])
    assert torch.allclose(mean_row(rows, privacy, backend), mean_row(rows, privacy, "loop"), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sampling": fp.Poisson(0.5)}, "only with full batches"),
        ({"sampling": fp.FixedSize(2)}, "only with full batches"),
        ({"sampling": fp.Allocation(2)}, "only with full batches"),
        ({"mechanism": fp.Laplace()}, "only with Gaussian noise"),
        ({"noise": fp.BSR(2)}, "only with independent noise"),
        ({"noise_on": "message", "unit": "client"}, "only with noise on gradients"),
        ({"unit": "client", "trust": fp.Central(cohort_rate=0.5)}, "only with no secret cohorts"),
    ],
)
def test_unit_that_takes_part_in_secret_raises(options, text):
    with pytest.raises(fp.ConfigError, match=text):
        fp.Privacy(noise_multiplier=1.0, clip=JOINED, **options)


@pytest.mark.parametrize("method", ["norms", "unchecked_norms", "factors", "with_one"])
@pytest.mark.parametrize("clip", [JOINED, HULLS["unit vectors"]], ids=lambda clip: type(clip).__name__)
def test_norms_alone_raise(clip, method):
    with pytest.raises(fp.PrivacyError, match="clips whole rows"):
        getattr(clip, method)(torch.ones(1))


@pytest.mark.parametrize(
    "vertices",
    [torch.ones(2, 3), torch.ones(0, 0), *(torch.full((2, 2), entry, dtype=torch.float64) for entry in (0.0, 1e200))],
    ids=str,
)
@pytest.mark.parametrize("entry", [0.0, math.nan, math.inf])
def test_vertices_without_diameter_raise(vertices, entry):
    vertices = vertices * 1.0
    if entry:
        vertices[..., :1] = entry
    with pytest.raises(fp.ConfigError, match=r"privacy\.clip\.vertices"):
        ConvexHull(vertices)


def test_blocks_that_do_not_fit_raise():
    with pytest.raises(fp.ConfigError, match="at least one"):
        BlockClip([])
    for block in [(3, HULLS["unit vectors"]), (2, Clip(1.0, "l1")), (2, JOINED), (0, Clip(1.0))]:
        with pytest.raises(fp.ConfigError, match=r"privacy\.clip\.blocks"):
            BlockClip([block])
    with pytest.raises(fp.ConfigError, match="must have an entry for each"):
        JOINED.rows(torch.zeros(1, 3))


def test_difference_queries_raise():
    data = [torch.utils.data.TensorDataset(x, torch.zeros(len(x))) for x in OTHERS]
    clients = fp.make_clients(MODEL, Loss(first_output), data)
    privacy = fp.Privacy(noise_multiplier=1.0, clip=JOINED)
    with pytest.raises(fp.ConfigError, match="differences of gradients"):
        fp.train(clients, fp.svrg(0.1, epoch_length=2), privacy, rounds=2, progress=False)


def test_equal_only_with_equal_vertices():
    other = ConvexHull(torch.eye(5)[[1, 0, 2, 3, 4]])  # as long and as wide, and another map
    assert other.diameter == HULLS["unit vectors"].diameter
    assert other != HULLS["unit vectors"] and digest(other) != digest(HULLS["unit vectors"])
    assert ConvexHull(torch.eye(5)) == HULLS["unit vectors"] and hash(ConvexHull(torch.eye(5))) == hash(
        HULLS["unit vectors"]
    )
    assert BlockClip([(5, other)]) != BlockClip([(5, ConvexHull(torch.eye(5)))])
    vertices = torch.eye(2)
    hull = ConvexHull(vertices)
    vertices *= 100
    assert hull.rows(torch.eye(2))[0].norm() < 2


def test_record_has_half_of_diameter_as_bound():
    """So the ledger's rule (C for add_remove, 2C for replace_one) holds, and its price needs no new field."""
    for relation, bound in (("replace_one", JOINED.diameter / 2), ("add_remove", JOINED.bound)):
        privacy = fp.Privacy(noise_multiplier=2.0, clip=JOINED, relation=relation)
        plan = make_plan(fp.gradient_descent(1.0), privacy, [4, 3], Star(2, Everyone()), rounds=1)
        (record,) = [*plan.records]
        assert record.bound == bound * (1 + ROUNDING) and record.noise_multiplier == 2.0
