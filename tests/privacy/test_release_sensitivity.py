"""One unit more, less or other moves a release by at most its declared sensitivity, and moves no other row."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from privacy_worlds import DIM, N_FEATURES, Data, clients_of, digits_of, oracle_of, start_rows, with_record
from torch import Tensor

import fedpriv as fp
from fedpriv.models import MnistCNN

SIZES = (4, 7, 5)
VICTIM = 1
MULTIPLIER = 1e-3  # little noise, so that rounding to its grid is far below the sensitivity
BOUND = 0.5
ORDER = {"l1": 1, "l2": 2}
BACKENDS = ["loop", "vmap", "ghost", "linear"]
SAMPLINGS = {"full": fp.FullBatch(), "poisson": fp.Poisson(0.5), "fixed": fp.FixedSize(3)}


def crafted(relation: str) -> dict[str, tuple[Tensor, int]]:
    """Records an attacker would put in. A blank image has gradient zero: it is the record that is not there."""
    pixels, labels = digits_of([20])[0]
    generator = np.random.default_rng(5)
    blank = torch.zeros(N_FEATURES, dtype=torch.float64)
    if relation == "add_remove":
        return {"absent": (blank, 3), "absent, was huge": (blank, 3)}
    return {
        "huge": (pixels[17] * 1e6, int(labels[17])),
        "huge, other sign": (pixels[17] * -1e6, int(labels[17])),
        "duplicate": (pixels[SIZES[0] + 1], int(labels[SIZES[0] + 1])),
        "blank": (blank, 3),
        "random": (torch.from_numpy(generator.normal(size=N_FEATURES)), 9),
        "not finite": (torch.full((N_FEATURES,), 1e308, dtype=torch.float64), 0),
    }


def neighbours(unit: str, relation: str, row: int) -> dict[str, tuple[Data, Data]]:
    """Pairs of data sets that differ in one unit of client ``VICTIM``; all sizes are the same, for they are public."""
    base = digits_of(SIZES)
    x, y = base[VICTIM]
    pairs = {}
    for name, (record, label) in crafted(relation).items():
        if unit == "sample":
            # alternately as it is and with a gradient beyond the bound
            before = with_record(base, VICTIM, row, x[row] * (1, 1e6)[len(pairs) % 2], int(y[row]))
            pairs[name] = before, with_record(base, VICTIM, row, record, label)
        else:
            after = [*base]
            after[VICTIM] = (record.expand_as(x).clone(), torch.full_like(y, label))
            before = [*base]
            before[VICTIM] = (x * (1, 1e6)[len(pairs) % 2], y)
            pairs[name] = before, after
    return pairs


def differences(data: tuple[Data, Data], privacy: fp.Privacy, params: Tensor, rounds: int, **options) -> list[Tensor]:
    """What the same noise leaves of the difference between two data sets' releases, ``[n, dim]`` a round."""
    oracles = [oracle_of(side, privacy, seed=3, **options) for side in data]
    found = []
    for index in range(rounds):
        for oracle in oracles:
            oracle.begin_round(index, torch.arange(len(SIZES)))
        first, second = (oracle.gradient(params.clone()) for oracle in oracles)
        found.append(first - second)
    return found


def row_sensitivities(privacy: fp.Privacy) -> list[float]:
    """By hand: C or 2C, times the public factor n m_i / sum(m) over the (expected) batch size."""
    sensitivity = BOUND * (1 if privacy.relation == "add_remove" else 2)
    if privacy.unit == "client":
        return [sensitivity] * len(SIZES)
    expected = {
        fp.FullBatch: lambda m: m,
        fp.Poisson: lambda m: m * privacy.sampling.rate,
        fp.FixedSize: lambda m: min(m, privacy.sampling.size),
    }[type(privacy.sampling)]
    return [sensitivity * len(SIZES) * m / sum(SIZES) / expected(m) for m in SIZES]


def privacy_of(unit: str, relation: str, norm: str, sampling: str) -> fp.Privacy:
    return fp.Privacy(
        noise_multiplier=MULTIPLIER,
        clip=fp.Clip(BOUND, norm),
        mechanism=fp.Laplace() if norm == "l1" else fp.Gaussian(),
        unit=unit,
        relation=relation,
        sampling=SAMPLINGS[sampling],
    )


CASES = [
    case
    for case in itertools.product(["sample", "client"], ["replace_one", "add_remove"], ["l1", "l2"], SAMPLINGS)
    if case[0] == "client" or case[1] == "replace_one" or case[3] != "fixed"
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("unit", "relation", "norm", "sampling"), CASES)
def test_unit_moves_row_within_sensitivity(unit: str, relation: str, norm: str, sampling: str, backend: str) -> None:
    """Other rows do not move."""
    privacy = privacy_of(unit, relation, norm, sampling)
    allowed = row_sensitivities(privacy)
    rounds = 1 if sampling == "full" else 2
    largest = 0.0
    for name, pair in neighbours(unit, relation, row=2).items():
        for change in differences(pair, privacy, start_rows(len(SIZES)), rounds, backend=backend):
            for client in range(len(SIZES)):
                moved = float(torch.linalg.vector_norm(change[client], ORDER[norm]))
                if client != VICTIM:
                    assert moved == 0, f"{name}: client {client} moved by {moved}"
                    continue
                assert moved <= allowed[client] * (1 + 1e-5), f"{name}: {moved} > {allowed[client]}"
                largest = max(largest, moved / allowed[client])
    if sampling == "full":
        assert largest > 0.5  # a bound that nothing comes near would let a missing factor two pass


@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("unit", ["sample", "client"])
@pytest.mark.parametrize("sampling", list(SAMPLINGS))
def test_declared_sensitivity_attained(unit: str, relation: str, norm: str, sampling: str) -> None:
    """At parameters zero the gradients of (x, y) and (-x, y) are opposite, and a blank image's is zero."""
    if (unit, relation, sampling) == ("sample", "add_remove", "fixed"):
        with pytest.raises(fp.ConfigError, match="no bound on the privacy cost is known under add_remove"):
            privacy_of(unit, relation, norm, sampling)
        return
    privacy = privacy_of(unit, relation, norm, sampling)
    base = digits_of(SIZES)
    x, y = base[VICTIM]
    partner = 0.0 if relation == "add_remove" else -1e3
    if unit == "sample":
        pair = tuple(with_record(base, VICTIM, 2, x[2] * scale, int(y[2])) for scale in (1e3, partner))
    else:
        pair = tuple([base[0], (x * scale, y), base[2]] for scale in (1e3, partner))
    changes = differences(pair, privacy, torch.zeros(len(SIZES), DIM).double(), rounds=8)
    moved = max(float(torch.linalg.vector_norm(change[VICTIM], ORDER[norm])) for change in changes)
    assert moved == pytest.approx(row_sensitivities(privacy)[VICTIM], rel=1e-4)
    # and the noise is that multiple of it which the ledger has
    oracle = oracle_of(base, privacy)
    oracle.begin_round(0, torch.arange(len(SIZES)))
    oracle.gradient(torch.zeros(len(SIZES), DIM).double())
    assert oracle.engine._newest is not None
    planned, factors = oracle.engine._newest
    assert planned.record.noise_multiplier == MULTIPLIER
    scale = oracle.queries.scheme.noise_scales(planned, factors)[VICTIM]
    assert moved <= scale / MULTIPLIER <= moved * 1.01


@pytest.mark.parametrize("sampling", ["full", "poisson"])
@pytest.mark.parametrize("unit", ["sample", "client"])
def test_client_gradient_sensitivity_without_weight(unit: str, sampling: str) -> None:
    """Both answers have the same noise in units of their sensitivity, which is all that a record tells."""
    privacy = privacy_of(unit, "replace_one", "l2", sampling)
    pair = [digits_of(SIZES), digits_of(SIZES)]
    x, y = pair[0][VICTIM]
    for side, scale in zip(pair, (1e3, -1e3), strict=True):
        # opposite gradients beyond the bound at parameters zero, whichever examples are drawn
        side[VICTIM] = (x[2] * scale).expand_as(x).clone(), y[2].expand_as(y).clone()
    if unit == "sample":
        pair[1] = with_record(pair[0], VICTIM, 2, -1e3 * x[2], int(y[2]))
    params, moved, noise = torch.zeros(len(SIZES), DIM).double(), [], []
    for seed in range(1 if sampling == "full" else 8):
        first, second = (oracle_of(side, privacy, seed=seed) for side in pair)
        moved.append(float((first.client_gradient(params) - second.client_gradient(params))[VICTIM].norm()))
        noise.append(first.engine.ledger.records[0].noise_multiplier)
    rate = 0.5 if sampling == "poisson" else 1.0
    expected = 2 * BOUND / (1 if unit == "client" else rate * SIZES[VICTIM])
    assert max(moved) == pytest.approx(expected, rel=1e-4)
    assert set(noise) == {MULTIPLIER}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_gradient_difference_within_sensitivity(norm: str, backend: str) -> None:
    privacy = privacy_of("sample", "replace_one", norm, "full")
    params, anchor = start_rows(len(SIZES)), start_rows(len(SIZES), seed=2)
    moves = []
    for pair in neighbours("sample", "replace_one", row=2).values():
        first, second = (oracle_of(side, privacy, backend=backend, seed=3) for side in pair)
        change = first.gradient_difference(params, anchor) - second.gradient_difference(params, anchor)
        assert change[[0, 2]].abs().max() == 0
        moves.append(float(torch.linalg.vector_norm(change[VICTIM], ORDER[norm])))
    # two gradients of norm C each differ by up to 2C, which is what a difference is clipped to
    allowed = 2 * row_sensitivities(privacy)[VICTIM]
    assert 0.5 * allowed < max(moves) <= allowed * (1 + 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("unit", ["sample", "client"])
def test_nonfinite_record_not_spread_by_padding(unit: str, backend: str) -> None:
    """Ragged clients are padded, with what happens to lie first in memory: it must not be counted in their rows."""
    sizes, privacy = (6, 5, 6), privacy_of(unit, "replace_one", "l2", "full")
    clean = digits_of(sizes)
    broken = with_record(clean, 0, 0, torch.full((N_FEATURES,), 1e308, dtype=torch.float64), 0)
    params = start_rows(3)
    first, second = (oracle_of(side, privacy, backend=backend) for side in (clean, broken))
    a, b = first.gradient(params), second.gradient(params)
    assert torch.equal(a[1:], b[1:])
    assert torch.isfinite(b).all()
    assert second.engine._sums.broken_examples.tolist() == [1, 0, 0]


def test_overflowing_input_counted_as_broken() -> None:
    """1e300 is finite where it is checked and infinite in float32."""
    data = with_record(digits_of(SIZES), 0, 0, torch.full((N_FEATURES,), 1e300, dtype=torch.float64), 0)
    for backend in BACKENDS:
        oracle = oracle_of(
            data, privacy_of("sample", "replace_one", "l2", "full"), backend=backend, dtype=torch.float32
        )
        assert torch.isfinite(oracle.gradient(start_rows(3).float())).all()
        assert oracle.engine._sums.broken_examples.tolist() == [1, 0, 0]


@pytest.mark.parametrize("backend", ["loop", "vmap", "ghost"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_group_norm_network_within_sensitivity(norm: str, backend: str) -> None:
    torch.manual_seed(0)
    model = MnistCNN((1, 8, 8), channels=(2, 4))
    privacy = privacy_of("sample", "replace_one", norm, "full")
    params = torch.nn.utils.parameters_to_vector(model.parameters()).detach().double().expand(len(SIZES), -1)
    moves = []
    for pair in neighbours("sample", "replace_one", row=2).values():
        change = differences(pair, privacy, params, 1, backend=backend, model=model)[0]
        assert change[[0, 2]].abs().max() == 0
        moves.append(float(torch.linalg.vector_norm(change[VICTIM], ORDER[norm])))
    allowed = row_sensitivities(privacy)[VICTIM]
    assert 0.4 * allowed < max(moves) <= allowed * (1 + 1e-4)


@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_message_within_sensitivity(norm: str, relation: str) -> None:
    privacy = fp.Privacy(
        noise_multiplier=MULTIPLIER, clip=fp.Clip(BOUND, norm), unit="client", noise_on="message", relation=relation
    )
    base = start_rows(3)
    partner = 0.0 if relation == "add_remove" else -1.0
    allowed, moves = privacy.sensitivity, []
    for row in (
        base[1] * 1e9 * partner,
        base[1] * partner,
        torch.full((DIM,), torch.inf, dtype=torch.float64),
        base[1] * torch.nan,
    ):
        changed = base.clone()
        changed[1] = row
        first, second = (oracle_of(digits_of(SIZES), privacy, seed=3).release_message(m) for m in (base, changed))
        assert torch.equal(first[[0, 2]], second[[0, 2]])
        moves.append(float(torch.linalg.vector_norm(first[1] - second[1], ORDER[norm])))
    assert 0.99 * allowed < max(moves) <= allowed * (1 + 1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-9)])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_backends_equal_along_private_run(norm: str, dtype: str, tolerance: float) -> None:
    privacy = fp.Privacy(epsilon=3, clip=fp.Clip(1.0, norm), mechanism=fp.Laplace() if norm == "l1" else fp.Gaussian())
    paths = []
    for backend in BACKENDS:
        training = fp.Training(
            clients_of(digits_of((10, 14, 9))),
            fp.inexact_admm(),
            privacy,
            rounds=10,
            seed=4,
            secret_seed=4,
            compute=fp.Compute(backend=backend, dtype=dtype, device="cpu"),
        )
        paths.append(torch.stack([training.progress.received[0] for _ in training]))
        assert len(paths[-1]) == 10
    for path in paths[1:]:
        torch.testing.assert_close(path, paths[0], rtol=0, atol=tolerance)
    assert paths[0][-1].abs().max() > 100 * tolerance
