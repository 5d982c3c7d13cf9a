"""Peers that lie, repeat, split, flood or send nonsense: no release is made twice, no round is lost.

Each attack has its line in docs/protocol.md or docs/reliability.md. The tests of the transports cover attacks on
connections.
"""

from __future__ import annotations

import json
import random
import resource
import struct
import threading
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from sites_in_memory import InMemory, Party, config_of, party, public_info

from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.sites import Federation, Site, SiteRound, propose
from fedpriv.sites.absence_notice import AbsenceNotice
from fedpriv.sites.messages import TrainRequest, TrainResponse, compute_request_limit, pack, unpack_response
from fedpriv.sites.operating import run_operator_services
from fedpriv.sites.operator_log import read_log
from fedpriv.sites.reply_counter import ReplyCounter

DIM = 640
FEDAVG = "strategy={name: fedavg, learning_rate: .5}"
GD = ("strategy={name: dp_gd}", "privacy.epsilon=.5", "data.partition={kind: iid, n_clients: 4}")
PAIRS = "privacy.trust={pairwise: {colluders: 1, ratio: 3.0}}"
NORTH = 0


@pytest.fixture
def found(tmp_path: Path):
    made = party(tmp_path, FEDAVG)
    yield made
    made.close()


def question(found: Party, at: int, value: float = 0.0, plan: str | None = None) -> bytes:
    return pack(TrainRequest(plan or found.proposal.hash, at, torch.full((DIM,), value)))


def code(reply: bytes) -> str | None:
    return unpack_response(reply, DIM).code


def rounds_on_record(found: Party, name: str = "north") -> list[int]:
    path = found.folder / name / "runs" / found.proposal.hash / "ledger.jsonl"
    return [record.round for record in LedgerFile.read(path).records]


def facts(**more: object) -> dict[str, str]:
    return {"fedpriv": json.dumps({"plan": "x", "round": 0, "code": None, "notices": [], "counter": None, **more})}


def most_memory(act: Callable[[], object]) -> int:
    """Bytes that Python has allocated during an act, at most."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# a server that is not what it should be, before a site


def test_corrupted_request_charges_at_most_once(found: Party) -> None:
    """A changed bit of a number makes another valid request; any other corrupted request is refused."""
    good = question(found, 0)
    randomly = random.Random(0)
    for _ in range(300):
        data = bytearray(good)
        if randomly.random() < 0.5:
            del data[randomly.randrange(len(data)) :]
        else:
            data[randomly.randrange(300)] ^= 1 << randomly.randrange(8)
        reply = code(found.sites[NORTH].answer(bytes(data)))
        # a changed bit of a number is another question, and may be asked; anything else is refused
        assert reply in ("malformed", "other_plan", "other_round", None)
        if reply is None:
            break
    assert len(rounds_on_record(found)) <= 1


def test_oversized_request_refused_unread(found: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    site = found.sites[NORTH]
    site.prepare()
    monkeypatch.setattr("fedpriv.sites.responder.unpack_request", None)  # it would fail to be called
    huge = save({"row": torch.zeros(5_000_000)}, facts())
    long = struct.pack("<Q", 2**60) + b"{}" * 10_000_000
    replies: list[bytes] = []
    assert most_memory(lambda: replies.extend([site.answer(huge), site.answer(long)])) < 1_000_000
    assert [code(reply) for reply in replies] == ["malformed"] * 2
    assert len(question(found, 0)) < compute_request_limit(DIM, 4)


def test_header_with_too_large_size_refused(found: Party) -> None:
    for size in (2**63, 2**40, 10**6):
        assert code(found.sites[NORTH].answer(struct.pack("<Q", size) + b"{}")) == "malformed"
    header = json.dumps({"row": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
    assert code(found.sites[NORTH].answer(struct.pack("<Q", len(header)) + header)) == "malformed"


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_nonfinite_row_refused_by_site_and_server(found: Party, value: float) -> None:
    row = torch.zeros(DIM)
    row[17] = value
    plan = found.proposal.hash
    assert code(found.sites[NORTH].answer(save({"row": row}, facts(plan=plan)))) == "malformed"
    found.transport.spoil = lambda site, reply: save({"row": row}, facts(plan=plan)) if site == 1 else reply
    assert next(iter(found.federation)).absent == {"east": "malformed"}


@pytest.mark.parametrize("shape", [(DIM - 1,), (DIM + 1,), (1, DIM), (0,), ()])
def test_wrong_shape_refused_by_site_and_server(found: Party, shape: tuple[int, ...]) -> None:
    plan = found.proposal.hash
    assert code(found.sites[NORTH].answer(save({"row": torch.zeros(shape)}, facts(plan=plan)))) == "malformed"
    found.transport.spoil = lambda site, reply: (
        save({"row": torch.zeros(shape)}, facts(plan=plan)) if site == 1 else reply
    )
    assert next(iter(found.federation)).absent == {"east": "malformed"}
    assert not rounds_on_record(found) or rounds_on_record(found) == [0]


def test_repeated_request_same_reply(found: Party) -> None:
    site = found.sites[NORTH]
    first = site.answer(question(found, 1))
    assert code(first) is None
    assert site.answer(question(found, 1)) == first
    assert code(site.answer(question(found, 1, 0.5))) == "other_point"
    assert code(site.answer(question(found, 0))) == "other_round"
    site.close()
    found.sites[NORTH] = Site(found.folder / "north")
    assert found.sites[NORTH].answer(question(found, 1)) == first
    assert rounds_on_record(found) == [1]


def test_different_models_per_site_planned_cost(tmp_path: Path) -> None:
    """A server can send each site another model; the noise and privacy cost of a site are those of its plan."""
    found = party(tmp_path, *GD, PAIRS)
    planned = found.federation.resolved_plan.plan.spent().epsilon
    for number, site in found.sites.items():
        for at in range(4):
            assert code(site.answer(question(found, at, 0.1 * number))) is None
            assert code(site.answer(question(found, at, 0.1 * number + 1))) == "other_point"
        assert site.spent().epsilon == pytest.approx(planned, rel=1e-6)
    found.close()


def test_split_roster_plan_refused(found: Party) -> None:
    """A plan of half of the sites has another fingerprint, which the owners compare."""
    config = config_of(FEDAVG)
    halves = [
        propose(config, [found.sites[number].card for number in numbers], public_info(config))
        for numbers in ((0, 1), (2, 3))
    ]
    for half in halves:
        assert code(found.sites[NORTH].answer(question(found, 0, plan=half.hash))) == "other_plan"
        assert half.fingerprint != found.proposal.fingerprint
    # a site that would accept a half as well pays for both, from one budget, with other noise in each
    found.sites[NORTH].join(halves[0].text, halves[0].fingerprint)
    one = unpack_response(found.sites[NORTH].answer(question(found, 0)), DIM).message
    two = unpack_response(found.sites[NORTH].answer(question(found, 0, plan=halves[0].hash)), DIM).message
    assert one is not None
    assert two is not None
    assert float((one - two).abs().max()) > 0
    once = found.federation.resolved_plan.plan.records
    assert found.sites[NORTH].spent().epsilon > 0
    assert len(once) == 4
    assert rounds_on_record(found) == [0]


def test_forged_absence_notice_refused(tmp_path: Path) -> None:
    found = party(tmp_path, *GD, PAIRS)
    plan = found.proposal.hash
    signed = found.sites[3].declare_absence(plan, 2, 2)
    lies = {
        "of a site that signed nothing": AbsenceNotice.signed(
            found.sites[1]._folder.signing_key, plan, 2, 1, 1, "away"
        ),
        "in another round": signed,
        "for more rounds": signed.model_copy(update={"first": 1}),
    }
    for why, notice in lies.items():
        asked = pack(TrainRequest(plan, 1, torch.zeros(DIM), (notice,)))
        assert code(found.sites[NORTH].answer(asked)) == "bad_notice", why
    # what is not shown to one is not left out by it: it pays the plan's price, and the answer is not given again
    first = found.sites[NORTH].answer(question(found, 2))
    shown = pack(TrainRequest(plan, 2, torch.zeros(DIM), (signed,)))
    assert code(first) is None
    assert code(found.sites[NORTH].answer(shown)) == "other_point"
    assert code(found.sites[1].answer(shown)) is None
    assert rounds_on_record(found) == [2]
    found.close()


def test_two_servers_one_reply_per_round(found: Party, tmp_path: Path) -> None:
    """Sites do not answer the second server, which has another model: they never answer at two points."""
    second = Federation(found.proposal, found.transport, tmp_path / "second")
    first_rounds = iter(found.federation)
    second_rounds = iter(second)
    assert next(first_rounds).absent == {}
    assert next(second_rounds).absent == {}  # the first question is the same: the same bytes
    assert torch.equal(second.model, found.federation.model)
    second.progress = replace(second.progress, received=second.progress.received + 1)  # from now on at other points
    assert next(first_rounds).absent == {}
    with pytest.raises(StopIteration):
        next(second_rounds)
    assert second.ended is not None
    assert "other_point" in second.ended
    assert rounds_on_record(found) == [0, 1]
    second.close()


def test_concurrent_servers_one_reply(found: Party) -> None:
    points = [0.0, 0.1, 0.2, 0.3]
    replies: dict[float, list[bytes]] = {value: [] for value in points}

    def ask(value: float) -> None:
        for _ in range(5):
            replies[value].append(found.sites[NORTH].answer(question(found, 0, value)))

    threads = [threading.Thread(target=ask, args=[value]) for value in points]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answered = [value for value in points if code(replies[value][0]) is None]
    assert len(answered) == 1
    assert len({*replies[answered[0]]}) == 1
    assert rounds_on_record(found) == [0]


def test_request_flood_keeps_replies_and_logs_party(found: Party) -> None:
    site = found.sites[NORTH]
    first = site.answer(question(found, 0))
    kinds = (
        question(found, 0),
        question(found, 0, 1.0),
        question(found, 7),
        question(found, 1, plan="0" * 64),
        question(found, 1)[:-5],
        b"\x00" * 2000,
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with run_operator_services(site):
        for number in range(6000):
            reply = site.answer(kinds[number % len(kinds)], f"stranger-{number % 500}")
            if number % len(kinds) == 0:
                assert reply == first
        for _ in range(1000):
            site.answer(kinds[1], "coordinator.example.org")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB
    assert rounds_on_record(found) == [0]
    assert code(site.answer(question(found, 1))) is None
    events = read_log(found.folder / "north", "refused", 10_000)
    worst = [event["times"] for event in events if event["party"] == "coordinator.example.org"]
    assert worst == [1, 10, 100, 1000]
    assert len(events) < 2500
    totals = site.activity.totals()
    assert totals.refused == {"other_point": 2000, "other_round": 1000, "other_plan": 1000, "malformed": 2000}
    assert totals.answered == {found.proposal.hash: 1002}


# a site that is not what it should be, before the server


class Replaying(InMemory):
    """Brings the replies of the round before, and of other sites."""

    def ask(self, questions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        before = dict(self.last) if hasattr(self, "last") else {}
        self.last = dict(super().ask(questions))
        return {**self.last, 1: before.get(1, b""), 2: self.last[3]}


def test_replayed_or_foreign_reply_refused(found: Party) -> None:
    transport = Replaying(found.transport.sites)
    federation = Federation(found.proposal, transport, found.folder / "second")
    reports = list(federation)
    assert [dict(report.absent) for report in reports] == [{"east": "malformed", "south": "malformed"}] * 4
    federation.close()


@pytest.mark.parametrize("size", [0, 1, 8, 100, 2000])
def test_truncated_reply_refused(found: Party, size: int) -> None:
    found.transport.spoil = lambda site, reply: reply[:size] if site == 1 else reply
    assert next(iter(found.federation)).absent == {"east": "malformed"}


def test_oversized_reply_refused_unread(found: Party) -> None:
    huge = save({"row": torch.zeros(5_000_000)}, facts())
    found.transport.spoil = lambda site, reply: huge if site == 1 else reply
    rounds = iter(found.federation)
    reports: list[SiteRound] = []
    assert most_memory(lambda: reports.append(next(rounds))) < 10_000_000  # of the other sites
    assert reports[0].absent == {"east": "malformed"}


def test_reply_signed_by_other_site_refused(found: Party) -> None:
    plan = found.proposal.hash
    key = found.sites[3]._folder.signing_key

    def spoil(site: int, reply: bytes) -> bytes:
        if site != 1:
            return reply
        at = found.federation.progress.round
        counter = ReplyCounter.signed(key, plan, 1, records=at + 1, notices=0)
        return pack(TrainResponse(plan, at, torch.zeros(DIM), None, (), counter))

    found.transport.spoil = spoil
    assert next(iter(found.federation)).absent == {"east": "malformed"}
