"""Nodes of sites make the run that one process would make, if it had the secrets of all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peers_in_memory import in_one_process, peers
from sites_in_memory import bare

from fedpriv.privacy.accounting.accountant import account

PAIRS = "privacy.trust={pairwise: {colluders: 1, ratio: 3.0}}"
EDGES = "privacy.trust={pairwise: {colluders: 0, ratio: 3.0, secrets: topology}}"
CASES = {
    "gradient_tracking": ("strategy={name: gradient_tracking, step_size: .5}",),
    "gradient_tracking, mixed": ("strategy={name: gradient_tracking, step_size: .5, gradient_at: mixed, average: 1}",),
    "gradient_tracking_pair": ("strategy={name: gradient_tracking_pair, step_size: .5}",),
    "dual_averaging": ("strategy={name: dual_averaging}",),
    "dual_averaging, literal": (
        "strategy={name: dual_averaging, inactive: literal}",
        "network.activity={name: random_nodes, rate: .6}",
        "rounds=8",
    ),
    "dual_averaging, edges": ("strategy={name: dual_averaging}", "network.activity=random_edges", "rounds=8"),
    "decentralized_sgd": ("strategy={name: decentralized_sgd, step_size: .5}",),
    "decentralized_sgd, adam": ("strategy={name: decentralized_sgd, step_size: .05, optimizer: adam}",),
    "links": (
        "strategy={name: gradient_tracking, step_size: .5}",
        "network.activity={name: random_links, rate: .6}",
        "rounds=8",
    ),
    "outages": (
        "strategy={name: gradient_tracking, step_size: .5}",
        "network.outages=[{node: 1, start: 1, stop: 3}]",
        "network.mixing=lazy_metropolis",
    ),
    "a path, batches": (
        "strategy={name: gradient_tracking, step_size: .5}",
        "network.topology=path",
        "privacy.sampling={poisson: {rate: .3}}",
    ),
    "pairs": ("strategy={name: gradient_tracking, step_size: .5}", PAIRS),
    "pairs, edges": ("strategy={name: dual_averaging}", EDGES),
}
QUICK = {"gradient_tracking", "gradient_tracking_pair", "dual_averaging", "decentralized_sgd", "links", "pairs, edges"}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.distributed) for name in CASES]
)
def test_run_matches_one_process(case: str, tmp_path: Path) -> None:
    found = peers(tmp_path, *CASES[case])
    found.run()
    rounds = found.resolved_plan.rounds
    assert {node.ended for node in found.nodes.values()} == {"finished"}
    assert {len(reports) for reports in found.reports.values()} == {rounds}
    assert not any(report.down for reports in found.reports.values() for report in reports)
    assert not any(report.status == "passed" for reports in found.reports.values() for report in reports)
    models, records = in_one_process(found)
    tolerance = 1e-5
    if "pairs" in case or "dual_averaging" in case:
        # noise of pairs cancels up to rounding; a primal is its dual over a curvature of some hundredths
        tolerance = 5e-4
    for number, node in found.nodes.items():
        torch.testing.assert_close(node.model, models[number], rtol=tolerance, atol=tolerance)
        mine = [record for record in records if record.clients is None or number in record.clients]
        assert [bare(record) for record in found.ledger(number)] == [bare(record) for record in mine]
        whole = account(records, 4, 1e-5)
        assert found.sites[number].spent().epsilon == pytest.approx(whole.per_client[number], rel=1e-6)
    found.close()
