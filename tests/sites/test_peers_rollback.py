"""A node with a folder restored from an old copy releases nothing: its neighbours show its signed counter."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from peers_in_memory import TRACKING, Peers, peers
from sites_in_memory import NAMES

from fedpriv.errors import FedprivError
from fedpriv.sites import Site
from fedpriv.sites.absence_notice import new_key, public_key
from fedpriv.sites.counter_store import COUNTERS, CounterStore
from fedpriv.sites.peers.messages import PeerMessage
from fedpriv.sites.reply_counter import ReplyCounter
from fedpriv.sites.site_records import RolledBack
from fedpriv.sites.statement import site_statement

NORTH, EAST, SOUTH, WEST = range(4)
DIM = 640


def copy(found: Peers, name: str) -> Path:
    """Stops the node of south and copies its folder."""
    found.kill(SOUTH)
    return Path(shutil.copytree(found.folder / "south", found.folder / name))


def restore(found: Peers, source: Path) -> None:
    shutil.rmtree(found.folder / "south")
    shutil.copytree(source, found.folder / "south")


def work(found: Peers, sweeps: int) -> None:
    with pytest.raises(TimeoutError):
        found.run(sweeps=sweeps)


def check_refused(found: Peers, n_signed: int) -> None:
    """The started node of south finds out what it has signed, and releases nothing, then or after a restart."""
    before = len(found.ledger(SOUTH))
    assert before < n_signed
    with pytest.raises((RolledBack, FedprivError), match="is an older copy"):
        work(found, 60)
    assert len(found.ledger(SOUTH)) == before
    found.kill(SOUTH)
    with pytest.raises(RolledBack, match=f"has signed {n_signed} record"):
        Site(found.folder / "south")
    with pytest.raises(RolledBack, match="is an older copy"):
        site_statement(found.folder / "south")


def test_restored_node_folder_releases_nothing(tmp_path: Path) -> None:
    """The node continues when its newest folder is restored."""
    found = peers(tmp_path, TRACKING, "rounds=5")
    copies = [copy(found, "copy-0")]
    for index in range(1, 5):
        found.start(SOUTH)
        found.run(until=lambda index=index: len(found.ledger(SOUTH)) >= index and found.nodes[SOUTH].round >= index)
        copies.append(copy(found, f"copy-{index}"))
        n_signed = len(found.ledger(SOUTH))
        for old in copies[:-1]:
            restore(found, old)
            if len(found.ledger(SOUTH)) == n_signed:
                continue  # nothing was released in between
            found.start(SOUTH)
            check_refused(found, n_signed)
        restore(found, copies[-1])
    found.start(SOUTH)
    found.run()
    assert {node.ended for node in found.nodes.values()} == {"finished"}
    rounds = [record.round for record in found.ledger(SOUTH)]
    assert len(rounds) == len({*rounds})
    found.close()


def test_node_waits_for_all_neighbour_counters(tmp_path: Path) -> None:
    """East was absent while south released rows to west, so the counter of east is old."""
    found = peers(tmp_path, TRACKING, "rounds=12")
    found.run(until=lambda: found.nodes[SOUTH].round == 2)
    old = copy(found, "old")
    found.kill(EAST)
    found.start(SOUTH)
    found.run(until=lambda: found.nodes[SOUTH].round == 5)
    n_signed = len(found.ledger(SOUTH))
    found.kill(SOUTH)
    west = found.wire.nodes[WEST]
    restore(found, old)
    found.start(EAST)
    found.start(SOUTH)
    # for a while west is out of reach: south knows east's word alone, and waits
    found.wire.nodes[WEST] = None
    before = len(found.ledger(SOUTH))
    work(found, 40)
    assert len(found.ledger(SOUTH)) == before
    found.wire.nodes[WEST] = west
    check_refused(found, n_signed)
    found.sites.pop(SOUTH, None)
    found.run()
    assert {node.ended for node in found.nodes.values()} == {"finished"}
    found.close()


def test_counter_saved_before_round_ends(tmp_path: Path) -> None:
    """West is killed when it has received south's row, before its round ends; the counter is on the disk."""
    found = peers(tmp_path, TRACKING)
    old = copy(found, "old")
    found.start(SOUTH)
    row_arrived = False

    def loses(sender: int, receiver: int, data: bytes, is_reply: bool) -> bool:
        nonlocal row_arrived
        message = found.nodes[receiver]._codec.unpack(data)
        row_arrived |= (sender, receiver) == (SOUTH, WEST) and message.row is not None
        return (sender, receiver) == (NORTH, WEST) and message.row is not None  # so that west's round is not over

    found.wire.loses = loses
    found.run(until=lambda: row_arrived)
    assert found.nodes[WEST].round == 0
    found.wire.loses = lambda sender, receiver, data, is_reply: False
    for number in (WEST, EAST):
        found.kill(number)
    found.kill(SOUTH)
    restore(found, old)
    found.start(WEST)
    found.start(SOUTH)
    check_refused(found, 1)
    found.sites.pop(SOUTH, None)
    found.close()


def test_forged_counter_does_not_stop_node(tmp_path: Path) -> None:
    found = peers(tmp_path, TRACKING)
    found.run(until=lambda: found.nodes[NORTH].round == 2)
    plan = found.proposal.hash
    facts = {"plan": plan, "sender": EAST, "receiver": NORTH, "round": 2, "at": 2, "is_ready": True}
    east = found.nodes[EAST]._codec
    true_count = found.nodes[EAST]._counters.largest(NORTH)
    assert true_count is not None
    for wrong in (
        true_count.model_copy(update={"records": 9}),
        ReplyCounter.signed(new_key(), plan, NORTH, records=9, notices=0),
        ReplyCounter.signed(found.sites[NORTH]._folder.signing_key, "0" * 64, NORTH, records=9, notices=0),
        found.nodes[NORTH]._counters.largest(EAST),
    ):
        assert not found.nodes[NORTH].answer(east.pack(PeerMessage("hello", shown=wrong, **facts)))
    # a row comes with a count, which its sender has signed
    row = torch.zeros(DIM)
    for wrong in (None, true_count, true_count.model_copy(update={"site": EAST})):
        assert not found.nodes[NORTH].answer(east.pack(PeerMessage("exchange", counter=wrong, row=row, **facts)))
    found.run()
    assert {node.ended for node in found.nodes.values()} == {"finished"}
    found.close()


def test_counter_store_reloads_and_refuses_edits(tmp_path: Path) -> None:
    key, plan = new_key(), "a" * 64

    def store(verifying_key: bytes = public_key(key)) -> CounterStore:
        return CounterStore(tmp_path, plan, {1: verifying_key}, lambda name, data: (tmp_path / name).write_bytes(data))

    counts = store()
    counts.save()
    assert not (tmp_path / COUNTERS).exists()
    assert not counts.take(1, ReplyCounter.signed(key, plan, 1, records=2, notices=0))
    counts.save()
    assert counts.take(1, ReplyCounter.signed(key, plan, 1, records=1, notices=0))
    again = store().largest(1)
    assert again is not None
    assert again.records == 2
    with pytest.raises(FedprivError, match="cannot be read, or belongs to another plan"):
        store(public_key(new_key()))
    (tmp_path / COUNTERS).write_bytes(b"[{}]")
    with pytest.raises(FedprivError, match="cannot be read"):
        store()


def test_neighbours_hold_newest_counter(tmp_path: Path) -> None:
    found = peers(tmp_path, TRACKING)
    found.run()
    for number, node in found.nodes.items():
        for name in node.neighbours:
            count = found.nodes[NAMES.index(name)]._counters.largest(number)
            assert count is not None
            assert count.records == len(found.ledger(number)) == 4
    found.close()
