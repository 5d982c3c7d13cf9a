"""Five hospitals train by gradient tracking over mutual TLS, one process each, without a server."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from hearts import NAMES, PAIRS, Hearts, hearts
from parties import Parties, free_port, rounds_of, until
from signed import Authority

from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.reports.pages import render_markdown
from fedpriv.sites.statement import site_statement


class Neighbours(Parties):
    """Sites that connect to their neighbours with smaller numbers."""

    def __init__(self, found: Hearts) -> None:
        super().__init__(found.folder, os.environ)
        self.found = found
        self.addresses = {name: f"tls/127.0.0.1:{free_port()}" for name in NAMES}

    def peer(self, name: str, *options: object) -> None:
        number = NAMES.index(name)
        words = ["site", "peer", self.folder / name, "--listen", self.addresses[name], "--wait", 2, *options]
        for pair in PAIRS:
            if number == max(pair):
                words += ["--connect", self.addresses[NAMES[min(pair)]]]
        self.start(name, [sys.executable, "-m", "fedpriv", *words])

    def rounds(self, name: str) -> list[dict]:
        return rounds_of(self.found.run_folder(name))

    def has_ended(self, name: str) -> bool:
        return (self.found.run_folder(name) / "result.json").exists()


def links_of(name: str) -> set[str]:
    number = NAMES.index(name)
    return {NAMES[sum(pair) - number] for pair in PAIRS if number in pair}


@pytest.mark.slow
def test_killed_peer_rejoins_each_saves_model(tmp_path: Path) -> None:
    found = hearts(tmp_path, Authority(tmp_path / "authority"))
    organisations = Neighbours(found)
    began = time.monotonic()
    try:
        for name in NAMES:
            organisations.peer(name, "--interval", 0.5)
        until(lambda: all(len(organisations.rounds(name)) >= 3 for name in NAMES), "there are no three rounds")
        print(f"\nfive processes are in round 3 after {time.monotonic() - began:.1f} s; budapest is killed")
        organisations.kill("budapest")
        until(lambda: "budapest" in organisations.rounds("zurich")[-1]["down"], "nobody missed budapest")
        print(f"its neighbours go on without it after {time.monotonic() - began:.1f} s; it is started again")
        # on a slow machine the others would have ended before it is back
        others = [name for name in NAMES if name != "budapest"]
        for name in others:
            organisations.signal(name, signal.SIGSTOP)
        organisations.peer("budapest", "--interval", 0.5)
        until(lambda: organisations.log_tail("budapest").count("spent so far") == 2, "budapest does not start")
        for name in others:
            organisations.signal(name, signal.SIGCONT)
        until(lambda: all(organisations.has_ended(name) for name in NAMES), "no end")
        print(f"all have ended after {time.monotonic() - began:.1f} s\n")
        until(lambda: all(process.poll() == 0 for process in organisations.running.values()), "somebody stays")
        organisations.running.clear()
        logs = {name: organisations.log_tail(name) for name in NAMES}
    finally:
        organisations.end()
    check(found, organisations)
    for name in NAMES:
        print(f"--- {name}\n{logs[name]}")
    assert "budapest does not respond: rounds continue without this neighbour" in logs["zurich"]
    assert "budapest responds again" in logs["zurich"]


def check(found: Hearts, organisations: Neighbours) -> None:
    """Every site has its own model, ledger and statement, and both ends of each link counted it in the same rounds."""
    models = []
    up: dict[str, list[set[str]]] = {}
    print("round | " + " | ".join(f"{name:16}" for name in NAMES))
    for index, lines in enumerate(zip(*(organisations.rounds(name) for name in NAMES), strict=True)):
        print(
            f"{index + 1:5} | "
            + " | ".join(f"{len(line['up'])} links, {line['metrics']['test_accuracy']:.3f}  " for line in lines)
        )
    for name in NAMES:
        rounds = organisations.rounds(name)
        assert len(rounds) == 20
        up[name] = [set(line["up"]) for line in rounds]
        result = json.loads((found.run_folder(name) / "result.json").read_text())
        assert (result["ended"], result["rounds"]) == ("finished", 20)
        assert {*result["neighbours"]} == links_of(name)
        assert not any(each["is_missing"] or each["is_unsettled"] for each in result["neighbours"].values())
        assert rounds[-1]["up"] == [other for other in NAMES if other in links_of(name)]
        ledger = LedgerFile.read(found.run_folder(name) / "ledger.jsonl")
        released = [record.round for record in ledger.records]
        assert released == [line["round"] - 1 for line in rounds if line["status"] in ("released", "interrupted")]
        assert ledger.altered is None
        models.append(
            torch.cat([value.flatten() for value in torch.load(found.run_folder(name) / "model.pt").values()])
        )
        assert "gradient_tracking" in render_markdown(site_statement(found.folder / name)).decode()
    assert any(line["status"] == "passed" for line in organisations.rounds("budapest"))
    corrected = [(name, line["round"]) for name in NAMES for line in organisations.rounds(name) if line["corrected"]]
    for name, rounds in up.items():
        for index, others in enumerate(rounds):
            for other in others:
                assert name in up[other][index] or corrected, (name, other, index)
    # nearly the same model, from data that nobody has seen together
    distances = torch.cdist(torch.stack(models), torch.stack(models))
    print(f"largest distance between two models {distances.max():.3f}, norm {models[0].norm():.3f}")
    assert 0 < distances.max() < models[0].norm()
