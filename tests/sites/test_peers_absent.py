"""Nodes that are killed, late, cut off or out of budget: the others continue, and both ends of each link agree."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from peers_in_memory import TRACKING, Peers, in_one_process, peers
from sites_in_memory import NAMES

from fedpriv.sites.policy import SitePolicy

NORTH, EAST, SOUTH, WEST = range(4)
LONG = "rounds=12"


class Mean:
    """Sum of the rows of all nodes before and after the mixing of each node: equal while the ends of links agree."""

    def __init__(self, found: Peers) -> None:
        self.found = found
        self.drift: dict[int, torch.Tensor] = {}  # by node: what its mixing has added to the sum of rows so far
        for number in found.nodes:
            self.watch(number)

    def watch(self, number: int) -> None:
        node = self.found.nodes[number]
        close = node._close

        def watched(status):
            row = node._row if node._row is not None else node._progress.received[0]
            before = node.round
            close(status)
            if node.round > before:
                change = node._progress.received[0].double() - row.double()
                self.drift[number] = self.drift.get(number, 0) + change

        node._close = watched

    @property
    def total(self) -> float:
        """How far the sum of all rows is from what nodes have released."""
        return float(torch.stack(list(self.drift.values())).sum(0).abs().max())


def assert_links_agree(found: Peers) -> None:
    """In every round both ends of each link have counted it, or neither has."""
    for index in range(found.resolved_plan.rounds):
        up = found.up(index)
        assert up == {(b, a) for a, b in up}, f"round {index}"


def assert_charged_once(found: Peers) -> None:
    for number in found.sites:
        rounds = [record.round for record in found.ledger(number)]
        assert len(rounds) == len({*rounds})


def check_same_run(found: Peers) -> None:
    models, _ = in_one_process(found)
    for number, node in found.nodes.items():
        torch.testing.assert_close(node.model, models[number], rtol=1e-5, atol=1e-5)


def test_killed_node_rejoins(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = peers(tmp_path, TRACKING, LONG)
    found.run(until=lambda: found.nodes[SOUTH].round == 3)
    found.kill(SOUTH)
    found.run(until=lambda: found.nodes[EAST].round == 8)
    assert "south does not respond: rounds continue without this neighbour" in caplog.text
    found.start(SOUTH)
    found.run()
    assert "south responds again" in caplog.text
    statuses = [report.status for report in found.reports[SOUTH]]
    assert len(statuses) == 12
    assert statuses.count("passed") >= 4
    assert statuses[-1] == "released"
    assert len(found.ledger(SOUTH)) == 12 - statuses.count("passed")  # a round that nobody can use costs nothing
    assert {node.ended for node in found.nodes.values()} == {"finished"}
    assert_links_agree(found)
    assert_charged_once(found)
    check_same_run(found)
    found.close()


def test_lost_node_reported_missing(tmp_path: Path) -> None:
    found = peers(tmp_path, TRACKING, LONG)
    found.run(until=lambda: found.nodes[WEST].round == 4)
    found.kill(WEST)
    began = found.now
    found.run()
    assert found.now - began < 25  # one wait, not one a round
    for number in (NORTH, SOUTH):
        west = found.nodes[number].neighbours["west"]
        assert west.is_missing
        assert west.last_up in (4, 5)
        assert found.reports[number][-1].down == {"west": "no_reply"}
    assert "west" not in found.nodes[EAST].neighbours
    found.close()


def test_node_never_started_left_out_after_wait(tmp_path: Path) -> None:
    found = peers(tmp_path, TRACKING)
    found.kill(EAST)
    found.run(until=lambda: found.now > 55)
    # it could show what its neighbours have signed, so they release nothing before; west waits for them
    assert {number: node.round for number, node in found.nodes.items()} == {NORTH: 0, SOUTH: 0, WEST: 0}
    assert [len(found.ledger(number)) for number in (NORTH, SOUTH, WEST)] == [0, 0, 1]
    found.run()
    assert not any("west" in report.down for number in (NORTH, SOUTH) for report in found.reports[number])
    assert found.nodes[NORTH].neighbours["east"].last_up == 0
    found.close()


def test_isolated_node_releases_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = peers(tmp_path, TRACKING, LONG)
    found.run(until=lambda: found.nodes[NORTH].round == 3)
    found.kill(EAST)
    found.kill(WEST)
    with pytest.raises(TimeoutError):
        found.run(sweeps=600)
    for number in (NORTH, SOUTH):  # its neighbours are gone
        assert len(found.ledger(number)) <= 5
        assert not found.nodes[number].ended
    found.start(EAST)
    found.start(WEST)
    found.run()
    assert {node.ended for node in found.nodes.values()} == {"finished"}
    assert_links_agree(found)
    check_same_run(found)
    assert "neither does any other neighbour: this node waits" in caplog.text
    found.close()


def test_spent_node_ends_without_delay(tmp_path: Path) -> None:
    found = peers(tmp_path, TRACKING, LONG, "privacy.epsilon=4", epsilon=(50.0, 50.0, 3.0, 50.0))
    began = found.now
    found.run()
    assert found.now - began < 20
    assert found.nodes[SOUTH].ended == "over_budget"
    n_released = len(found.ledger(SOUTH))
    assert 0 < n_released < 12
    assert found.sites[SOUTH].spent().epsilon <= 3.0
    assert {found.nodes[number].ended for number in (NORTH, EAST, WEST)} == {"finished"}
    assert found.reports[EAST][-1].down == {"south": "over_budget"}
    assert found.nodes[WEST].neighbours["south"].away == "over_budget"
    assert found.nodes[WEST].neighbours["south"].last_up == n_released
    assert_links_agree(found)
    found.close()


def test_lost_reply_link_settled_and_corrected(tmp_path: Path) -> None:
    found = peers(tmp_path, TRACKING, LONG)
    mean = Mean(found)
    cut = {"is": False}
    # north decides, and its decisions do not arrive: not even one of those that west asks for again
    found.wire.loses = lambda sender, receiver, data, is_reply: (
        cut["is"] and (sender, receiver) == (NORTH, WEST) and b'\\"kind\\": \\"up\\"' in data
    )
    found.run(until=lambda: found.nodes[WEST].round == 3)
    cut["is"] = True
    found.run(until=lambda: found.nodes[WEST].round == 6)
    assert found.nodes[WEST].neighbours["north"].is_unsettled
    assert "west" in found.reports[NORTH][3].up
    assert found.reports[WEST][3].down == {"north": "unsettled"}
    assert mean.total > 1e-3
    # in doubt nothing else is asked, so that a link is never one-sided in more than one round
    assert [report.down["north"] for report in found.reports[WEST][4:6]] == ["unsettled", "unsettled"]
    assert not any("west" in report.up for report in found.reports[NORTH][4:])
    cut["is"] = False
    found.run()
    assert not found.nodes[WEST].neighbours["north"].is_unsettled
    assert sum(report.corrected == ("north",) for report in found.reports[WEST]) == 1
    assert mean.total < 1e-4
    assert_charged_once(found)
    found.close()


def test_network_partition_heals(tmp_path: Path) -> None:
    found = peers(tmp_path, TRACKING, "rounds=16")
    mean = Mean(found)
    cut = {"is": False}
    sides = {NORTH: 0, EAST: 0, SOUTH: 1, WEST: 1}
    found.wire.loses = lambda sender, receiver, data, is_reply: cut["is"] and sides[sender] != sides[receiver]
    found.run(until=lambda: found.nodes[EAST].round == 4)
    cut["is"] = True
    found.run(until=lambda: min(node.round for node in found.nodes.values()) == 8)
    cut["is"] = False
    found.run()
    assert {node.ended for node in found.nodes.values()} == {"finished"}
    assert not any(each.is_unsettled for node in found.nodes.values() for each in node.neighbours.values())
    assert len(found.reports[SOUTH][-1].up) == 2
    assert mean.total < 1e-4
    assert_charged_once(found)
    found.close()


def test_slow_node_left_out_and_catches_up(tmp_path: Path) -> None:
    found = peers(tmp_path, TRACKING, LONG)
    found.run(until=lambda: found.nodes[EAST].round == 3)
    advance = found.nodes[EAST].advance
    found.nodes[EAST].advance = lambda: False  # it answers, and does not move
    found.run(until=lambda: found.nodes[NORTH].round == 6)
    found.nodes[EAST].advance = advance
    found.run()
    assert {node.ended for node in found.nodes.values()} == {"finished"}
    assert found.reports[NORTH][-1].up == ("east", "west")
    assert_links_agree(found)
    check_same_run(found)
    found.close()


def test_node_outside_hours_releases_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = peers(tmp_path, TRACKING)
    is_open = False
    monkeypatch.setattr(SitePolicy, "is_open", lambda policy, now=None: is_open)
    found.run(until=lambda: found.now > 5)
    assert not any(found.ledger(number) for number in found.sites)
    is_open = True
    found.run()
    assert {node.ended for node in found.nodes.values()} == {"finished"}
    assert all(len(found.ledger(number)) == 4 for number in found.sites)
    found.close()


@pytest.mark.parametrize("sweep", range(0, 24, 2))
@pytest.mark.parametrize("victim", [NORTH, SOUTH, WEST])
def test_node_killed_at_each_step_same_run(victim: int, sweep: int, tmp_path: Path) -> None:
    found = peers(tmp_path, TRACKING, "rounds=6")
    steps = 0

    def stop() -> bool:
        nonlocal steps
        steps += 1
        return steps > 20 + sweep

    found.run(until=stop)
    found.kill(victim)
    found.start(victim)
    found.run()
    assert {node.ended for node in found.nodes.values()} == {"finished"}
    assert_links_agree(found)
    assert_charged_once(found)
    check_same_run(found)
    assert all(report.status == "released" for report in found.reports[victim])
    found.close()


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[] if n < 3 else pytest.mark.distributed) for n in range(30)])
def test_random_losses_and_kills_keep_mean(seed: int, tmp_path: Path) -> None:
    """Messages are lost and nodes killed at random; then the network works again."""
    draws = random.Random(seed)
    found = peers(tmp_path, TRACKING, "rounds=30")
    mean = Mean(found)
    loss = {"rate": 0.3}
    found.wire.loses = lambda sender, receiver, data, is_reply: draws.random() < loss["rate"]
    for _ in range(8):
        sweeps = draws.randrange(10, 120)
        try:
            found.run(until=lambda: any(node.round > 24 for node in found.nodes.values()), sweeps=sweeps)
        except TimeoutError:
            victim = draws.randrange(4)
            if victim in found.nodes:
                found.kill(victim)
            else:
                found.start(victim)
                mean.watch(victim)
    loss["rate"] = 0.0
    for number in set(range(4)) - set(found.nodes):
        found.start(number)
        mean.watch(number)
    found.run()
    assert_charged_once(found)
    assert {node.ended for node in found.nodes.values()} <= {"finished", "alone"}
    unsettled = [name for node in found.nodes.values() for name, each in node.neighbours.items() if each.is_unsettled]
    if not unsettled:
        assert mean.total < 1e-4
    assert all(len(found.reports[number]) >= 20 for number in found.nodes), NAMES
    found.close()
