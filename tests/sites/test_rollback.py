"""A site with a folder restored from an old copy stops when it receives its own newer signed counter."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from sites_in_memory import Party, party

from fedpriv.errors import LedgerError
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.sites import Federation, Site
from fedpriv.sites.absence_notice import new_key, public_key
from fedpriv.sites.messages import TrainRequest, pack, unpack_response
from fedpriv.sites.reply_counter import InvalidCounter, ReplyCounter
from fedpriv.sites.site_records import ROLLBACK, RolledBack
from fedpriv.sites.statement import site_statement

DIM = 640
FEDAVG = "strategy={name: fedavg, learning_rate: .5}"
GD = ("strategy={name: dp_gd}", "privacy.epsilon=.5", "data.partition={kind: iid, n_clients: 4}")
PAIRS = "privacy.trust={pairwise: {colluders: 1, ratio: 3.0}}"
NORTH = 0


def stop(found: Party) -> Path:
    """Stops the site north, so that its folder can be copied."""
    found.sites[NORTH].close()
    return found.folder / "north"


def start(found: Party) -> Site:
    site = Site(found.folder / "north")
    found.sites[NORTH] = site
    found.transport.sites[NORTH] = site
    return site


def restore(copy: Path, folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def records(found: Party) -> int:
    return len(LedgerFile.read(found.folder / "north" / "runs" / found.proposal.hash / "ledger.jsonl").records)


def question(found: Party, at: int, counter: ReplyCounter | None = None) -> bytes:
    return pack(TrainRequest(found.proposal.hash, at, torch.zeros(DIM), (), counter))


@pytest.mark.parametrize("options", [(FEDAVG,), (*GD, PAIRS)], ids=["alone", "pairs"])
def test_restored_folder_answers_nothing(options: tuple[str, ...], tmp_path: Path) -> None:
    """The site answers again when its newest folder is restored."""
    found = party(tmp_path, *options)
    folder = tmp_path / "north"
    rounds = iter(found.federation)
    copies: list[Path] = []  # one after each round, and one before the first
    for n_answered in range(4):
        copies.append(tmp_path / f"copy-{n_answered}")
        shutil.copytree(stop(found), copies[-1])
        for number, copy in enumerate(copies[:-1]):
            restore(copy, folder)
            start(found)
            # the server asks for the next round, and shows what it has seen
            asked = question(found, n_answered, found.federation._counters.largest(NORTH))
            assert unpack_response(found.sites[NORTH].answer(asked), DIM).code == "rolled_back"
            # also without being shown it again, in any federation, after a restart, and in its statement
            assert unpack_response(found.sites[NORTH].answer(question(found, n_answered)), DIM).code == "rolled_back"
            assert records(found) == number
            stop(found)
            with pytest.raises(RolledBack, match=f"has signed {n_answered} record"):
                Site(folder)
            with pytest.raises(LedgerError, match="is an older copy"):
                site_statement(folder)
        restore(copies[-1], folder)
        start(found)
        assert next(rounds).absent == {}
        assert records(found) == n_answered + 1
    assert found.sites[NORTH].spent().epsilon <= found.federation.resolved_plan.plan.spent().epsilon * (1 + 1e-9)
    found.close()


def test_federation_continues_without_rolled_back_site(tmp_path: Path) -> None:
    found = party(tmp_path, FEDAVG)
    rounds = iter(found.federation)
    shutil.copytree(stop(found), tmp_path / "copy")
    start(found)
    next(rounds)
    found.federation.close()
    again = Federation(found.proposal, found.transport, tmp_path / "server")  # it remembers over a restart
    restore(tmp_path / "copy", stop(found))
    start(found)
    assert [dict(report.absent) for report in again] == [{"north": "rolled_back"}] * 3
    assert records(found) == 0
    found.federation = again
    found.close()


def test_killed_server_keeps_reply_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = party(tmp_path, FEDAVG)
    rounds = iter(found.federation)
    next(rounds)
    shutil.copytree(stop(found), tmp_path / "copy")
    start(found)

    def killed(federation: Federation, rows: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Federation, "_advance", killed)
        next(rounds)
    found.federation.close()
    restore(tmp_path / "copy", stop(found))
    start(found)
    found.federation = Federation(found.proposal, found.transport, tmp_path / "server")
    assert found.federation.progress.round == 1
    assert next(iter(found.federation)).absent == {"north": "rolled_back"}
    assert records(found) == 1
    found.close()


def test_copy_before_plan_detected(tmp_path: Path) -> None:
    found = party(tmp_path, FEDAVG)
    next(iter(found.federation))
    counter = found.federation._counters.largest(NORTH)
    folder = stop(found)
    shutil.rmtree(folder / "runs")
    (folder / "plans.json").unlink()
    start(found)
    assert unpack_response(found.sites[NORTH].answer(question(found, 1)), DIM).code == "other_plan"
    assert unpack_response(found.sites[NORTH].answer(question(found, 1, counter)), DIM).code == "rolled_back"
    with pytest.raises(RolledBack):
        found.sites[NORTH].join(found.proposal.text, found.proposal.fingerprint)
    found.close()


def test_missing_notice_detected_by_counter(tmp_path: Path) -> None:
    found = party(tmp_path, *GD, PAIRS)
    found.sites[NORTH].declare_absence(found.proposal.hash, 2, 2)
    next(iter(found.federation))
    counter = found.federation._counters.largest(NORTH)
    assert (counter.records, counter.notices) == (1, 1)
    (stop(found) / "runs" / found.proposal.hash / "notices.json").unlink()
    start(found)
    assert unpack_response(found.sites[NORTH].answer(question(found, 1, counter)), DIM).code == "rolled_back"
    found.close()


def test_forged_counter_does_not_stop_site(tmp_path: Path) -> None:
    found = party(tmp_path, FEDAVG)
    next(iter(found.federation))
    site, plan = found.sites[NORTH], found.proposal.hash
    counter = found.federation._counters.largest(NORTH)
    forged = (
        counter.model_copy(update={"records": 9}),
        counter.model_copy(update={"notices": 1}),
        counter.model_copy(update={"plan": "0" * 64}),
        found.federation._counters.largest(1),
        ReplyCounter.signed(new_key(), plan, NORTH, records=9, notices=0),
        ReplyCounter.signed(site._folder.signing_key, plan, 1, records=9, notices=0),
    )
    for wrong in forged:
        assert unpack_response(site.answer(question(found, 1, wrong)), DIM).code == "bad_counter"
    # under a plan that it does not have, a count of another key proves nothing
    other = ReplyCounter.signed(new_key(), "0" * 64, NORTH, records=9, notices=0)
    asked = pack(TrainRequest("0" * 64, 1, torch.zeros(DIM), (), other))
    assert unpack_response(site.answer(asked), DIM).code == "other_plan"
    assert not (tmp_path / "north" / ROLLBACK).exists()
    # an older count is no proof either, and does not change the answer
    first = site.answer(question(found, 1, counter))
    assert unpack_response(first, DIM).code is None
    assert site.answer(question(found, 1)) == first
    assert records(found) == 2
    found.close()


def test_server_detects_smaller_and_forged_counters(tmp_path: Path) -> None:
    found = party(tmp_path, FEDAVG)
    sent: list[bytes] = []

    def spoil(site: int, reply: bytes) -> bytes:
        if site != NORTH:
            return reply
        sent.append(reply)
        read, first = unpack_response(reply, DIM), unpack_response(sent[0], DIM)
        assert read.counter is not None
        return {
            1: reply,
            2: pack(type(read)(read.plan, read.round, read.message, None, (), None)),
            3: pack(
                type(read)(
                    read.plan, read.round, read.message, None, (), read.counter.model_copy(update={"records": 9})
                )
            ),
            4: pack(type(read)(read.plan, read.round, read.message, None, (), smaller(first.counter))),
        }[len(sent)]

    def smaller(counter: ReplyCounter | None) -> ReplyCounter:
        assert counter is not None
        key = found.sites[NORTH]._folder.signing_key
        return ReplyCounter.signed(key, counter.plan, NORTH, records=0, notices=0)

    found.transport.spoil = spoil
    reasons = [report.absent.get("north") for report in found.federation]
    assert reasons == [None, "malformed", "malformed", "rolled_back"]
    found.close()


def test_counter_signature_covers_each_field() -> None:
    key = new_key()
    counter = ReplyCounter.signed(key, "a" * 64, 1, records=2, notices=3)
    counter.check(counter.plan, 1, public_key(key))
    for field, value in (("records", 3), ("notices", 2), ("site", 2), ("plan", "b" * 64)):
        changed = counter.model_copy(update={field: value})
        with pytest.raises(InvalidCounter):
            changed.check(changed.plan, changed.site, public_key(key))
