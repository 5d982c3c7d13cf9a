"""Processes over Zenoh that hang or are killed: the others continue, and each record is charged once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from parties import Organisations, rounds_of, until
from sites_in_memory import config_of
from zenoh_party import FEDAVG, NAMES, Star, star

from fedpriv.config import to_yaml
from fedpriv.privacy.ledger_file import LedgerFile


@pytest.fixture
def organisations(tmp_path: Path) -> Iterator[tuple[Organisations, Star]]:
    """Four sites that run, and the folder of a server that does not."""
    made = star(tmp_path, FEDAVG, "rounds=30")
    made.close()
    (tmp_path / "server").mkdir(mode=0o700)
    (tmp_path / "server" / "config.yaml").write_text(to_yaml(config_of(FEDAVG, "rounds=30")))
    (tmp_path / "server" / "plan.yaml").write_text(made.proposal.text)
    found = Organisations(tmp_path)
    made.address = found.address
    try:
        for name in NAMES:
            found.site(name)
        yield found, made
    finally:
        found.end()


def charged(made: Star, name: str) -> list[int]:
    ledger = made.folder / name / "runs" / made.proposal.hash / "ledger.jsonl"
    return [record.round for record in LedgerFile.read(ledger).records]


@pytest.mark.distributed
def test_suspended_site_absent_until_resumed(organisations: tuple[Organisations, Star]) -> None:
    found, made = organisations
    questions = dict.fromkeys(range(4), made.question(0))
    with made.server(wait=3, grace=60) as transport:
        assert not transport.wait_for_all(600)
        found.signal("north", signal.SIGSTOP)
        replies = dict(transport.ask(questions))
        assert [*replies] == [1, 2, 3]
        found.signal("north", signal.SIGCONT)
        replies |= until(lambda: transport.ask({0: questions[0]}), "north does not go on")
        assert dict(transport.ask(questions)) == replies  # the same question, the same bytes
    assert [charged(made, name) for name in NAMES] == [[0]] * 4


@pytest.mark.distributed
def test_killed_server_resumes_next_round(organisations: tuple[Organisations, Star]) -> None:
    found, made = organisations
    server = made.folder / "server"
    for stop in (3, 9):
        found.federate("--interval", 0.1)
        until(lambda stop=stop: len(rounds_of(server)) >= stop, "no rounds")
        found.kill("federation")
    found.federate()
    until(lambda: (server / "result.json").exists() or found.running["federation"].poll(), "no end")
    told = rounds_of(server)
    assert [one["round"] for one in told] == [*range(1, 31)], found.log_tail("federation")
    assert all(one["answered"] == [*NAMES] for one in told)
    assert [charged(made, name) for name in NAMES] == [[*range(30)]] * 4
