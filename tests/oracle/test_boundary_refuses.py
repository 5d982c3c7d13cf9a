"""Settings that cannot be private raise or are reported; exact queries record no noise."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from privacy_worlds import clients_of, digits_of

import fedpriv as fp
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.release import Answer, release_scheme

SIZES = (12, 9, 15)


def test_admm_with_message_noise_raises() -> None:
    with pytest.raises(fp.ConfigError, match="state that does not depend on released messages alone"):
        fp.train(
            clients_of(digits_of(SIZES)),
            fp.inexact_admm(),
            fp.Privacy(epsilon=3, unit="client", noise_on="message"),
            rounds=2,
        )


def test_message_noise_with_sample_unit_raises() -> None:
    with pytest.raises(fp.ConfigError, match="the privacy unit must be 'client'"):
        fp.Privacy(epsilon=3, noise_on="message")


@pytest.mark.parametrize(
    ("privacy", "reason"),
    [
        (fp.Privacy(noise_on="none"), "exact query results, no noise"),
        (fp.Privacy(published=fp.Published(0.05)), "the noise scale is measured on the client's own data"),
        (fp.Privacy(published=fp.Published(0.05, mechanism="gaussian")), "the gradient bound is assumed, not enforced"),
        (fp.Privacy(published=fp.Published(math.inf)), "exact query results, no noise"),
        (fp.Privacy(noise_on="message", unit="client", published=fp.Published(0.05)), "the noise scale is measured"),
    ],
    ids=["none", "eq 20", "assumed bound", "no noise", "as message"],
)
def test_non_private_run_reports_reason(privacy: fp.Privacy, reason: str) -> None:
    strategy = fp.fedavg(0.1) if privacy.noise_on == "message" else fp.inexact_admm()
    result = fp.train(clients_of(digits_of(SIZES)), strategy, privacy, rounds=2)
    assert math.isinf(result.spent.epsilon)
    assert all(math.isinf(epsilon) for epsilon in result.spent.per_client)
    assert any(reason in why for why in result.spent.non_private)
    assert "epsilon=inf (not private" in str(result) and reason in str(result)
    assert result.to_json()["epsilon"] == "inf"


def test_per_client_epsilon_counts_own_rounds() -> None:
    network = fp.Star(3, fp.FixedCohort(1))
    training = fp.Training(
        clients_of(digits_of(SIZES)), fp.fedavg(0.1), fp.Privacy(noise_multiplier=3.0), rounds=9, network=network
    )
    turns = [int(record.clients[0]) for record in training.plan.records]
    list(training)
    spent = training.result().spent
    for client, epsilon in enumerate(spent.per_client):
        alone = [replace(r, clients=(0,)) for r in training.ledger.records if r.clients == (client,)]
        assert len(alone) == turns.count(client)
        assert epsilon == (account(alone, 1, 1e-5).epsilon if alone else 0.0)
    assert spent.epsilon == max(spent.per_client)


def test_unprotected_query_records_no_noise() -> None:
    privacy = fp.Privacy(noise_on="none")
    record = release_scheme(privacy, [5, 6]).unprotected(Answer(3, 1, "gradient", range(2), privacy.clip)).record
    assert (record.mechanism, record.noise_multiplier, record.non_private) == (
        "none",
        0,
        "exact query results, no noise",
    )
    assert (record.round, record.index, record.clients) == (3, 1, None)


def test_exact_query_records_full_batch() -> None:
    """Sampling does not amplify an exact query, so the record has no sampling."""
    privacy = fp.Privacy(noise_on="none", sampling=fp.Allocation(3))
    result = fp.train(clients_of(digits_of(SIZES)), fp.fedavg(0.1), privacy, rounds=3)
    facts = {(record.sampling, record.rate, record.batches, record.mechanism) for record in result.charged}
    assert facts == {("full", 1.0, None, "none")}
