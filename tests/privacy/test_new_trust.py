"""A trust that was added to the settings alone is refused wherever its guarantee needs a rule of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

import fedpriv as fp
from fedpriv.errors import ConfigError, LedgerError
from fedpriv.network.local import CyclicCohort, Star
from fedpriv.planning.compatibility import check
from fedpriv.planning.correlated_rounds import with_matrix
from fedpriv.privacy.adversaries import ADVERSARIES, compute_view
from fedpriv.privacy.composition import RunCost
from fedpriv.privacy.record import Record
from fedpriv.privacy.release import release_scheme
from fedpriv.privacy.settings import Trust
from fedpriv.reports.run_statement import describe_simulated_trust

TRUSTS: list[Trust] = [fp.Local(), fp.SecureAggregation(2), fp.Central(), fp.Pairwise(colluders=1, ratio=3)]
N_CLIENTS = 4


class Unknown:
    """A trust that no rule of fedpriv names."""

    def __init__(self, *, sums_only: bool) -> None:
        self.sums_only = sums_only

    def __str__(self) -> str:
        return "local_shuffled"

    def shares(self, n_clients: int) -> int:
        return n_clients


def privacy_with(trust: Any, **settings: Any) -> fp.Privacy:
    privacy = fp.Privacy(noise_multiplier=1.0, unit="client", **settings)
    object.__setattr__(privacy, "trust", trust)  # as if the union of trusts named it
    return privacy


def record_with(trust: str) -> Record:
    return Record(0, "gradient", 0, "gaussian", 1.0, "client", "replace_one", trust=trust)


@pytest.mark.parametrize("sums_only", [False, True])
def test_new_trust_without_strategy_rules_raises(sums_only: bool):
    privacy = privacy_with(Unknown(sums_only=sums_only))
    with pytest.raises(ConfigError, match=r"privacy.trust.*compatibility"):
        check(fp.fedavg(learning_rate=0.1), privacy, Star(N_CLIENTS), N_CLIENTS)


@pytest.mark.parametrize("sums_only", [False, True])
def test_new_trust_without_release_scheme_raises(sums_only: bool):
    with pytest.raises(ConfigError, match="release scheme"):
        release_scheme(privacy_with(Unknown(sums_only=sums_only)), [10] * N_CLIENTS)


def test_new_trust_with_cyclic_cohorts_raises():
    """Noise of an earlier cohort cancels only where all clients send their noise, which a new trust may not ensure."""
    privacy = privacy_with(Unknown(sums_only=True), noise=fp.BSR(2))
    with pytest.raises(ConfigError, match=r"network.cohort"):
        with_matrix(privacy, Star(N_CLIENTS, CyclicCohort(2)), rounds=4)


@pytest.mark.parametrize("sums_only", [False, True])
def test_new_trust_with_correlated_noise_raises(sums_only: bool):
    """The record counts on correlated noise, also if the new release scheme leaves it out."""
    privacy = privacy_with(Unknown(sums_only=sums_only), noise=fp.BSR(2))
    with pytest.raises(ConfigError, match=r"privacy.trust.*correlated"):
        with_matrix(privacy, Star(N_CLIENTS), rounds=4)


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_record_of_new_trust_has_no_adversary(adversary: str):
    with pytest.raises(LedgerError, match="adversary"):
        compute_view([record_with("local_shuffled")], N_CLIENTS, adversary, 1)


def test_statement_of_new_trust_raises():
    """A name that begins like a known one does not get its sentences."""
    with pytest.raises(LedgerError, match="run_statement"):
        describe_simulated_trust([RunCost("run", [record_with("local_shuffled")], N_CLIENTS)])


@pytest.mark.parametrize("trust", TRUSTS, ids=str)
def test_each_trust_has_scheme_adversaries_and_sentences(trust: Trust):
    assert {type(each) for each in TRUSTS} == {*get_args(Trust)}, "add the new trust to TRUSTS"
    privacy = fp.Privacy(noise_multiplier=1.0, unit="client", trust=trust)
    scheme = release_scheme(privacy, [10] * N_CLIENTS)
    assert scheme.sums_only == trust.sums_only
    record = record_with(privacy.trusted)
    assert all(compute_view([record], N_CLIENTS, adversary, 1).assumes for adversary in ADVERSARIES)
    assert len(describe_simulated_trust([RunCost("run", [record], N_CLIENTS)])) == 2
    assert describe_simulated_trust([RunCost("run", [replace(record, trust=f"{trust}+no_power_cut")], N_CLIENTS)])
