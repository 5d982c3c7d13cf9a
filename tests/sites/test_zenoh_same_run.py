"""Over Zenoh, with certificates and signatures, the run is the one of one process, to rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sites_in_memory import in_one_process
from test_sites_same_run import CASES, QUICK, STRATEGIES
from zenoh_party import NAMES, party_of, star

from fedpriv.privacy.ledger_file import LedgerFile


@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=[] if name == STRATEGIES[0] else pytest.mark.distributed) for name in sorted(QUICK)],
)
def test_run_matches_one_process(case: str, tmp_path: Path) -> None:
    made = star(tmp_path, *CASES[case])
    with made.running() as transport:
        found = party_of(made, transport, *CASES[case])
        reports = list(found.federation)
        found.federation.close()
    assert (found.federation.ended, len(reports)) == ("rounds", 4)
    assert all(report.answered == NAMES or case == "cohorts" for report in reports)
    assert not any(report.absent for report in reports)
    model, records, _ = in_one_process(found)
    torch.testing.assert_close(found.federation.model, model, rtol=1e-6, atol=1e-6)
    for number, name in enumerate(NAMES):
        ledger = LedgerFile.read(tmp_path / name / "runs" / found.proposal.hash / "ledger.jsonl")
        mine = [record for record in records if record.clients is None or number in record.clients]
        assert [record.round for record in ledger.records] == [record.round for record in mine]
    made.close()
