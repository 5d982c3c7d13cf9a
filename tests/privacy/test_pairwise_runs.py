"""Whole runs under noise that cancels between pairs: what they say and cost, and that they repeat."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import networkx as nx
import pair_runs
import pytest
from pair_runs import PAIRWISE, PRIVACY, SIZES, clients_of, training_of

import fedpriv as fp
from fedpriv.privacy.accounting import pairwise as price
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.pairwise import Complete, Links, Pairwise, RandomRegular, Secrets, Topology

# --- what is said and paid -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("secrets", "said"),
    [(Complete(), "complete"), (RandomRegular(2), "random_regular(degree=2)"), (Topology(), "topology")],
    ids=str,
)
def test_pairwise_run_trust_text_and_target(secrets: Secrets, said: str, tmp_path: Path) -> None:
    network = fp.Graph(nx.cycle_graph(4)) if secrets == Topology() else None
    privacy = replace(PRIVACY, trust=Pairwise(1, 3.0, secrets))
    training = training_of(privacy, fp.decentralized_sgd(fp.StepSize(0.1)), network=network, folder=tmp_path)
    list(training)
    spent = training.result().spent
    assert f"trust=pairwise(colluders=1, ratio=3, {said}, simulated)" in str(spent)
    assert 3.98 < spent.epsilon <= 4.0
    file = LedgerFile.read(tmp_path / "ledger.jsonl")
    assert file.records == list(training.ledger.records)
    assert account(file.records, 4, 1e-5).epsilon == spent.epsilon


def test_pairwise_noise_below_local_at_same_epsilon() -> None:
    paired, local = (training_of(replace(PRIVACY, trust=trust)) for trust in (PAIRWISE, fp.Local()))
    own = paired.plan.records[0].noise_multiplier
    assert isinstance(own, float)
    assert own / local.plan.records[0].noise_multiplier == pytest.approx(
        math.sqrt(price.compute_complete_exposure(4, 3.0, 1)), rel=2e-3
    )
    assert paired.plan.privacy.noise_multiplier == pytest.approx(local.plan.privacy.noise_multiplier, rel=2e-3)


def test_pairwise_noise_scaled_to_cohort() -> None:
    """Cohorts of two among four: one may collude, and the other has its own noise alone."""
    for size, exposed in ((2, 1.0), (3, price.compute_complete_exposure(3, 3.0, 1))):
        training = training_of(PRIVACY, fp.fedavg(0.5), network=fp.Star(4, fp.FixedCohort(size)))
        list(training)
        multiplier = training.plan.privacy.noise_multiplier
        assert multiplier is not None
        for record in training.ledger.records:
            assert record.clients is not None and len(record.clients) == size
            assert record.noise_multiplier == pytest.approx(multiplier * math.sqrt(exposed))


def test_outage_increases_noise_of_remaining_nodes() -> None:
    network = fp.Graph(nx.complete_graph(4), outages=[fp.Outage(2, 1, 3)])
    strategy = fp.decentralized_sgd(fp.StepSize(0.1))
    training = training_of(replace(PRIVACY, trust=Pairwise(1, 3.0, Topology())), strategy, network=network)
    list(training)
    few = [record for record in training.ledger.records if record.clients is not None]
    assert few and all(record.clients == (0, 1, 3) for record in few)
    whole = next(record for record in training.ledger.records if record.clients is None)
    assert isinstance(whole.noise_multiplier, float)
    ratio = price.compute_complete_exposure(3, 3.0, 1) / price.compute_complete_exposure(4, 3.0, 1)
    assert few[0].noise_multiplier == pytest.approx(whole.noise_multiplier * math.sqrt(ratio))


def test_unequal_clients_epsilon_by_sensitivity() -> None:
    """Means over 6, 9, 4 and 12 examples: both ends of a pair add the same, and a larger client is hidden better."""
    training = training_of(replace(PRIVACY, sampling=fp.FullBatch()), fp.fedavg(0.5, local_steps=2))
    list(training)
    record = next(r for r in training.ledger.records if r.query == "client_gradient")
    assert isinstance(record.noise_multiplier, tuple)
    least = min(record.noise_multiplier)
    assert [noise / least for noise in record.noise_multiplier] == pytest.approx([m / 4 for m in SIZES])
    per_client = training.spent().per_client
    assert per_client[2] == max(per_client) and per_client[3] == min(per_client)


def constrained(privacy: fp.Privacy, rounds: int = 4) -> fp.Training:
    clients = clients_of()
    for client in clients:
        client.problem = fp.Problem(constraints=(fp.LossAtMost(0.5),))
    return fp.Training(clients, fp.private_al(), privacy, rounds=rounds, secret_seed=1)


@pytest.mark.parametrize("ratio", [0.0, 2.0])
def test_constraint_statistics_pair_ratio_setting(ratio: float) -> None:
    privacy = replace(PRIVACY, statistics=fp.Statistics(ratio=ratio))
    training = constrained(privacy)
    list(training)
    ratios = {r.query: r.pairs.ratio for r in training.ledger.records if r.pairs is not None}
    assert ratios == {"statistic:constraints": ratio, "lagrangian_gradient": 3.0}
    assert 3.9 < training.spent().epsilon <= 4.0
    assert account(training.ledger.records, 4, 1e-5).epsilon == training.spent().epsilon


@pytest.mark.parametrize("secrets", [Complete(), Links(((0, 1), (1, 2), (2, 3), (0, 3)))], ids=str)
def test_resumed_run_releases_rounds_once(secrets: Secrets, tmp_path: Path) -> None:
    privacy = replace(PRIVACY, trust=Pairwise(1, 3.0, secrets))
    stopped = training_of(privacy, folder=tmp_path)
    for report in stopped:
        if report.round == 4:
            stopped._directory.save = lambda *_: None  # as if it was killed
            break
    assert stopped.folder is not None
    stopped.folder.close()
    again = training_of(privacy, folder=tmp_path, resume=True)
    list(again)
    rounds = [record.round for record in again.ledger.records]
    assert rounds == sorted({*rounds})
    assert len(rounds) == len(again.plan.records)
    assert again.result().spent.epsilon == again.plan.spent().epsilon


def test_killed_run_resumed_epsilon_equals_plan(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        from pathlib import Path
        sys.path.insert(0, {helpers!r})
        from pair_runs import training_of
        for report in training_of(folder=Path({folder!r})):
            if report.round == 3:
                os.kill(os.getpid(), signal.SIGKILL)
    """
    folder = tmp_path / "killed"
    code = textwrap.dedent(script).format(helpers=str(Path(pair_runs.__file__).parent), folder=str(folder))
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == -signal.SIGKILL
    again = training_of(folder=folder, resume=True)
    list(again)
    assert len(again.ledger.records) == len(again.plan.records)
    assert again.result().spent.epsilon == again.plan.spent().epsilon
