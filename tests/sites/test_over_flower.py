"""Five organisations over Flower, with TLS, registered node keys and noise that cancels between pairs."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedpriv[flower]' into an environment of its own")

from hospitals import NAMES, accuracy_in_one_process, adult, hospitals
from loopback import loopback
from parties import rounds_of, until

from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.reports.pages import render_markdown
from fedpriv.sites.statement import site_statement


@pytest.mark.slow
def test_killed_site_and_spent_site_run_completes() -> None:
    """One site is killed and restarted; another announces the end of its budget with a notice."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fp") as made:  # sockets need short paths
        folder = Path(made)
        found = hospitals(folder, {"west": 0.85})
        server, plan, rounds = found.server, found.plan, found.config.rounds
        with loopback(folder) as flower:
            for name in NAMES:
                flower.register(folder / name)
                flower.site(folder / name)
            flower.federate(server)
            until(lambda: rounds_of(server), "there is no first round")
            print(f"first round after {time.monotonic() - began:.0f} s")
            flower.kill("east")
            until(lambda: any("east" in report["absent"] for report in rounds_of(server)), "nobody missed east")
            flower.site(folder / "east")
            until(lambda: (server / "result.json").exists() or flower.running["federation"].poll(), "no end")
            assert (server / "result.json").exists(), flower.log_tail("federation") + flower.log_tail("superlink")
            log = flower.log_tail("west")
        round_reports, result = rounds_of(server), json.loads((server / "result.json").read_text())
        for one in round_reports:
            print(one["round"], one["answered"], one["absent"], one["noticed"], one["metrics"]["test_accuracy"])
        print(result)
        print(f"{rounds} rounds in {time.monotonic() - began:.0f} s, {'Adult' if adult() else 'digits'}")
        assert (result["ended"], len(round_reports)) == ("rounds", rounds)
        assert round_reports[0]["answered"] == [*NAMES]
        # the budget of west allows some rounds, and all knew beforehand how many
        ends = next(at for at, one in enumerate(round_reports) if "west" in one["noticed"])
        assert 0 < ends < rounds
        assert [one["absent"].get("west") for one in round_reports[ends:]] == ["over_budget"] * (rounds - ends)
        assert (result["absent"]["west"], result["noticed"]) == ("over_budget", ["west"])
        assert f"absent in rounds {ends + 1} to {rounds} (over_budget)" in " ".join(log.split())
        assert (
            f"rounds {ends + 1} to {rounds} (over_budget)" in render_markdown(site_statement(folder / "west")).decode()
        )
        assert "X25519" in result["at_most"]
        assert "simulated" not in result["at_most"]
        assert torch.load(server / "model.pt", weights_only=True)
        for name in NAMES:
            ledger = LedgerFile.read(folder / name / "runs" / plan.hash / "ledger.jsonl")
            answered = [one["round"] - 1 for one in round_reports if name in one["answered"]]
            on_record = [record.round for record in ledger.records]
            assert {*answered} <= {*on_record}
            assert len({*on_record}) == len(on_record)  # nobody was charged twice, the killed one neither
            assert ledger.altered is None
        absent = {one["round"] - 1: [NAMES.index(name) for name in one["absent"]] for one in round_reports}
        here = result["metrics"]["test_accuracy"]
        there = accuracy_in_one_process(found, absent, 5)
        print(f"test accuracy {here:.4f} over Flower, {there:.4f} in one process with the same absences")
        # of digits there are 360 to test: other noise moves the accuracy by .7 points, of Adult by .03
        assert here == pytest.approx(there, abs=0.01 if adult() else 0.03)
