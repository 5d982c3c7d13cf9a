"""Who sees what: no bound is claimed that is smaller than what is proved."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fedpriv.errors import ConfigError, LedgerError
from fedpriv.privacy.accounting.pairwise import compute_complete_exposure
from fedpriv.privacy.adversaries import (
    ADVERSARIES,
    COLLUDERS,
    MESSAGES,
    MODEL,
    NEIGHBOUR,
    SERVER,
    compute_view,
    format_colluders,
)
from fedpriv.privacy.composition import RunCost, compose
from fedpriv.privacy.correlated import CorrelatedNoise, Factor
from fedpriv.privacy.matrix import compute_bound_matrix
from fedpriv.privacy.pairwise import Pairs, Pairwise, RandomRegular
from fedpriv.privacy.record import Record
from fedpriv.privacy.settings import Central, Local, SecureAggregation

DELTA, NOISE = 1e-5, 10.0
BASE = Record(0, "gradient", 0, "gaussian", NOISE, "sample", "replace_one")


def cells(trust: object, n_clients: int = 10, colluders: int = 1, group: int = 10, sizes=None, **changes):
    record = replace(BASE, trust=str(trust), **changes)
    found = compute_bound_matrix(
        [RunCost("run", [record], n_clients, "data", sizes)], DELTA, colluders=colluders, group=group
    )
    who = {format_colluders(colluders): COLLUDERS}
    return {(who.get(cell.adversary, cell.adversary), cell.unit.split()[0]): cell for cell in found}


def epsilon(noise: float, **changes) -> float:
    return compose([RunCost("run", [replace(BASE, noise_multiplier=noise, **changes)], 10)], DELTA).epsilon


def test_adversary_view_for_every_trust():
    trusts = [
        Local(),
        Central(),
        Central(0.5),
        SecureAggregation(3),
        Pairwise(2, 1.0),
        Pairwise(0, 1.0, RandomRegular(3)),
    ]
    for trust in trusts:
        for text in (str(trust), f"{trust}+no_power_cut"):
            for who in ADVERSARIES:
                found = compute_view([replace(BASE, trust=text)], 10, who, 1)
                assert ("no power cut" in found.assumes) == text.endswith("cut")
    with pytest.raises(LedgerError, match="must have one trust that this version"):
        compute_view([replace(BASE, trust="shuffler")], 10, MODEL, 1)
    with pytest.raises(LedgerError, match="must have one trust that this version"):
        compute_view([BASE, replace(BASE, trust="central")], 10, MODEL, 1)


def test_local_trust_epsilon_by_adversary():
    found = cells(Local())
    assert {cell.epsilon for (_, unit), cell in found.items() if unit == "sample"} == {epsilon(NOISE)}
    for who, stronger in ((MESSAGES, ""), (SERVER, ""), *((who, MESSAGES) for who in (COLLUDERS, NEIGHBOUR, MODEL))):
        assert found[who, "sample"].bound_of == stronger
        assert found[who, "group"].epsilon == pytest.approx(epsilon(NOISE / 10))
        assert (
            math.isinf(found[who, "client"].epsilon)
            and "examples of each client is not recorded" in found[who, "client"].assumes
        )
        assert not found[who, "sample"].simulated and found[who, "sample"].amplification == "none"


def test_client_epsilon_is_group_of_all_examples():
    found = cells(Local(), n_clients=3, sizes=(4, 20, 7))[MESSAGES, "client"]
    assert (found.epsilon, found.bound_of) == (pytest.approx(epsilon(NOISE / 20)), "all examples of a client")


def test_client_unit_epsilon_by_adversary():
    found = cells(Local(), unit="client")
    assert found[MESSAGES, "client"].epsilon == found[MESSAGES, "sample"].epsilon == epsilon(NOISE)
    assert found[MESSAGES, "sample"].bound_of == "the whole client"
    # ten clients, each with noise of its own: not the sum of ten changes under one noise
    assert found[MESSAGES, "group"].epsilon == pytest.approx(epsilon(NOISE / math.sqrt(10)))
    summed = cells(SecureAggregation(10), unit="client")
    assert summed[MESSAGES, "group"].epsilon == pytest.approx(epsilon(NOISE / 10))
    # an example that changes replaces its client, which is to remove one and to add one
    added = cells(Local(), unit="client", relation="add_remove")
    assert added[MESSAGES, "sample"].epsilon == pytest.approx(epsilon(NOISE / 2))
    assert added[MESSAGES, "client"].epsilon == pytest.approx(epsilon(NOISE))


def test_central_trust_epsilon_by_adversary():
    """The trusted server receives exact messages."""
    found = cells(Central())
    for who in (SERVER, MESSAGES):
        assert math.isinf(found[who, "sample"].epsilon) and "trusted" in found[who, "sample"].assumes
    for who in (COLLUDERS, NEIGHBOUR, MODEL):
        assert found[who, "sample"].epsilon == epsilon(NOISE)


def test_secure_aggregation_epsilon_by_colluders():
    trust = SecureAggregation(4)
    for colluders, left in ((1, 1.0), (6, 1.0), (7, 3 / 4), (9, 1 / 4), (12, 1 / 4)):
        found = cells(trust, colluders=colluders)
        assert found[COLLUDERS, "sample"].epsilon == pytest.approx(epsilon(NOISE * math.sqrt(left)))
        assert found[SERVER, "sample"].epsilon == epsilon(NOISE)
        assert found[COLLUDERS, "sample"].simulated
    of_three = cells(trust, clients=(1, 2, 3, 4), colluders=2)  # a cohort
    assert of_three[COLLUDERS, "sample"].epsilon == pytest.approx(epsilon(NOISE * math.sqrt(2 / 4)))
    laplace = cells(trust, colluders=8, mechanism="laplace", norm="l1")
    assert math.isinf(laplace[COLLUDERS, "sample"].epsilon)
    assert laplace[SERVER, "sample"].epsilon == pytest.approx(epsilon(NOISE, mechanism="laplace", norm="l1"))


def test_pairwise_epsilon_by_colluders():
    pairs = Pairs(2.0, 3, "complete")
    found = {q: cells(Pairwise(3, 2.0), pairs=pairs, colluders=q) for q in (1, 3, 5)}
    for q, table in found.items():
        assert table[COLLUDERS, "sample"].epsilon == pytest.approx(
            epsilon(NOISE / math.sqrt(compute_complete_exposure(10, 2.0, q)))
        )
        for who, tell in ((MESSAGES, 0), (SERVER, 0), (MODEL, 0), (NEIGHBOUR, 1)):
            assert table[who, "sample"].epsilon == pytest.approx(
                epsilon(NOISE / math.sqrt(compute_complete_exposure(10, 2.0, tell)))
            )
    assert found[1][COLLUDERS, "sample"].epsilon < found[5][COLLUDERS, "sample"].epsilon


def test_too_many_colluder_sets_epsilon_infinite():
    """The bound for the declared number of colluders remains."""
    edges = tuple(sorted((i, (i + 1) % 60) if i < 59 else (0, 59) for i in range(60)))  # a ring: no spectral bound
    pairs = Pairs(2.0, 1, "ring", edges)
    found = cells(Pairwise(1, 2.0), n_clients=60, pairs=pairs, colluders=20)
    assert math.isinf(found[COLLUDERS, "sample"].epsilon)
    assert "no bound is known" in found[COLLUDERS, "sample"].assumes
    assert found[NEIGHBOUR, "sample"].epsilon >= found[MESSAGES, "sample"].epsilon > 0


def test_amplification_description():
    sampled = cells(Local(), sampling="poisson", rate=0.25, clients=(0, 1))[MESSAGES, "sample"]
    assert sampled.amplification == (
        "examples drawn in secret, each with probability 0.25; "
        "none for the choice of participants, since silence is visible"
    )
    drawn = cells(Central(0.1), unit="client", sampling="poisson", rate=0.1)[MODEL, "client"]
    assert drawn.amplification == "clients drawn in secret, each with probability 0.1"


@pytest.mark.parametrize(
    ("separation", "words"),
    [
        (1, "none"),  # in every round: there is nothing to say
        (2, "none; a privacy unit takes part in every second round"),
        (3, "none; a privacy unit takes part in every third round"),
        (4, "none; a privacy unit takes part in every 4th round"),
    ],
)
def test_cyclic_participation_description(separation: int, words: str):
    time = CorrelatedNoise(Factor((0.5,)), separation)
    assert cells(Local(), time=time)[MESSAGES, "sample"].amplification == words


def test_slot_sampling_no_amplification_for_groups():
    time = CorrelatedNoise(Factor((0.5,)), 2)
    found = cells(Local(), sampling="poisson", rate=0.1, time=time)
    whole = cells(Local(), time=time)
    assert found[MESSAGES, "sample"].epsilon < whole[MESSAGES, "sample"].epsilon
    assert found[MESSAGES, "group"].epsilon == whole[MESSAGES, "group"].epsilon
    assert "secret" not in found[MESSAGES, "group"].amplification


@pytest.mark.parametrize("group", [1, 2, 3])
def test_group_members_at_several_clients(group: int):
    """Of sampled answers only one client's are counted for a single unit, and those of both runs for a group."""
    drawn = {"mechanism": "laplace", "norm": "l1", "sampling": "poisson", "rate": 0.1}
    records = [replace(BASE, clients=(client,), noise_multiplier=1.0, **drawn) for client in (0, 1)]
    runs = [RunCost(str(client), [record], 2, "same") for client, record in enumerate(records)]
    apart = [replace(run, data=run.name) for run in runs]  # a unit may be at any client
    together, worst = (
        [c.epsilon for c in compute_bound_matrix(r, DELTA, group=group) if "group" in c.unit] for r in (runs, apart)
    )
    if group == 1:
        assert max(together) < min(worst)
    else:
        assert together == worst


def test_colluders_or_group_zero_raises():
    for wrong in ({"colluders": 0}, {"group": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            cells(Local(), **wrong)


def test_different_clients_client_epsilon_infinite():
    """Client i of one run need not be client i of the other."""
    runs = [RunCost(str(n), [BASE], n, "data", (5,) * n) for n in (3, 4)]
    clients = [cell for cell in compute_bound_matrix(runs, DELTA) if cell.unit == "client"]
    assert clients and all(math.isinf(cell.epsilon) for cell in clients)
    assert all(cell.assumes.startswith("the runs have different clients") for cell in clients)
    alike = [cell for cell in compute_bound_matrix([runs[0], runs[0]], DELTA) if cell.unit == "client"]
    assert all(math.isfinite(cell.epsilon) for cell in alike)


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_run_without_releases_shows_no_adversary_anything(adversary):
    assert compute_view([], 10, adversary, 1).records == []
