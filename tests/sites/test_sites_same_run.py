"""Sites and a server make the run that one process would make, if it had the secrets of all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sites_in_memory import bare, config_of, in_one_process, party

from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.ledger_file import LedgerFile

STRATEGIES = (
    "{name: fedavg, learning_rate: .5}",
    "{name: fedavg, learning_rate: .5, local_steps: 2, server_momentum: .9, weighting: clients, average: 1}",
    "{name: fedprox, learning_rate: .5, proximal_mu: .1}",
    "{name: fedopt, learning_rate: .5, server_optimizer: yogi, tau: .01}",
    "{name: scaffold, learning_rate: .5, local_steps: 2, control_rate: .5}",
    "{name: iadmm_prox, average: 1}",
    "{name: iadmm_trust}",
    "{name: iadmm_output}",
    "{name: dp_gd, learning_rate: 1, momentum: .9, output: average, average: 4, regularizer: {box: {bound: 2}}}",
    "{name: dp_svrg, epoch_length: 3}",
    "{name: dp_svrg_plus_plus, epoch_length: 1, learning_rate: .1}",
    "{name: dp_accmd, radius: 2}",
)
FAIR = (
    "data={name: breast_cancer, variant: diagnostic, partition: {kind: iid, n_clients: 4}}",
    "model=logistic_regression",
    "loss=logistic",
    "problem.constraints=[{name: class_loss_at_most, label: 1, bound: .4, fraction: .37}]",
    "strategy={name: private_al}",
)
CASES = {
    **{options: (f"strategy={options}",) for options in STRATEGIES},
    "cohorts": ("network.cohort.fixed=3",),
    "batches": ("strategy={name: fedavg, learning_rate: .5}", "privacy.sampling={poisson: {rate: .3}}"),
    "fixed batches": ("strategy={name: fedavg, learning_rate: .5}", "privacy.sampling={fixed_size: {size: 50}}"),
    "laplace": ("strategy={name: fedavg, learning_rate: .5}", "privacy.mechanism=laplace"),
    "whole clients": (
        "strategy={name: fedavg, learning_rate: .5, local_steps: 2}",
        "privacy.unit=client",
        "privacy.noise_on=message",
        "privacy.relation=add_remove",
    ),
    "adaptive clip": (
        "strategy={name: fedavg, learning_rate: .5, adaptive_clip: {initial: .3}}",
        "privacy.unit=client",
        "privacy.noise_on=message",
    ),
    "pairs": ("strategy={name: fedavg, learning_rate: .5}", "privacy.trust={pairwise: {colluders: 1, ratio: 3.0}}"),
    "pairs, a constraint": (*FAIR, "privacy.trust={pairwise: {colluders: 1, ratio: 3.0}}"),
    "sparse pairs": (
        "strategy={name: iadmm_prox}",
        "privacy.trust={pairwise: {colluders: 0, ratio: 2.0, secrets: {random_regular: {degree: 2}}}}",
    ),
    "a constraint": FAIR,
    "pairs, also for a constraint": (
        *FAIR,
        "privacy.clip={norm: l2, bound: 20.0}",
        "privacy.trust={pairwise: {colluders: 0, ratio: 3.0, secrets: {random_regular: {degree: 2}}}}",
        "privacy.statistics.ratio=2",
    ),
}


VIEWS = ("strategy={name: fedavg, learning_rate: .5}",)
QUICK = {
    STRATEGIES[0],
    STRATEGIES[5],
    "cohorts",
    "whole clients",
    "pairs, a constraint",
    "pairs, also for a constraint",
}


def test_site_random_views_match_one_process(tmp_path: Path) -> None:
    """The views are set in `site.yaml`; with the seeds of all sites one process draws the same views."""
    with_views = config_of(*VIEWS, "data.augment=[{name: crop, padding: 1}]", "data.augmentation_multiplicity=2")
    found = party(tmp_path, *VIEWS, data=with_views.data.model_dump(mode="json"))
    list(found.federation)
    for site in found.sites.values():
        assert site._plans.session(found.proposal.hash)._population.multiplicity == 2
    model, records, _ = in_one_process(replace(found, config=with_views))
    torch.testing.assert_close(found.federation.model, model, rtol=1e-6, atol=1e-6)
    without, _, _ = in_one_process(found)
    assert float((without - model).abs().max()) > 1e-4
    assert found.federation.spent().epsilon == pytest.approx(account(records, 4, 1e-5).epsilon, rel=1e-6)
    found.close()


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.distributed) for name in CASES]
)
def test_run_matches_one_process(case: str, tmp_path: Path) -> None:
    found = party(tmp_path, *CASES[case])
    reports = list(found.federation)
    assert (found.federation.ended, len(reports)) == ("rounds", 4)
    assert not any(report.absent for report in reports)
    model, records, _ = in_one_process(found)
    # rows are summed in another order; those with noise of pairs are the same bits (test_exact_pairs.py)
    torch.testing.assert_close(found.federation.model, model, rtol=1e-6, atol=1e-6)
    for number, name in enumerate(("north", "east", "south", "west")):
        ledger = LedgerFile.read(tmp_path / name / "runs" / found.proposal.hash / "ledger.jsonl")
        mine = [record for record in records if record.clients is None or number in record.clients]
        assert [bare(record) for record in ledger.records] == [bare(record) for record in mine]
        whole = account(records, 4, 1e-5)
        own = found.sites[number].spent().epsilon
        assert own == pytest.approx(whole.per_client[number], rel=1e-6)
    assert found.federation.spent().epsilon == pytest.approx(whole.epsilon, rel=1e-6)
    found.close()
