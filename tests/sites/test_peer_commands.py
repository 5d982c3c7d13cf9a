"""`fedpriv federate plan`, `site join` and `site peer` of a plan on a graph, and the statement of a site."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked_commands import ForkedCommand
from parties import free_port, until
from PIL import Image
from test_site_commands import fedpriv, refused

from fedpriv.reports.pages import render_markdown
from fedpriv.sites import FederationPlan, Site
from fedpriv.sites.statement import site_statement

DIGITS = "{name: digits, flat: true, partition: {kind: iid, n_clients: 3}}"
CONFIG = f"""
data: {DIGITS}
model: softmax
strategy: {{name: decentralized_sgd, step_size: .5}}
privacy: {{epsilon: 3}}
network: {{topology: path}}
rounds: 4
"""
NAMES = ("north", "middle", "south")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FederationPlan:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(CONFIG)
    for number, name in enumerate(NAMES):
        Path(f"{name}.yaml").write_text(f"name: {name}\nclient: {number}\ndata: {DIGITS}\nbudget: {{epsilon: 9}}\n")
        fedpriv("site", "init", name, f"{name}.yaml")
    told = fedpriv("federate", "plan", "run.yaml", *(f"{name}/card.json" for name in NAMES), "--out", "fed")
    assert "graph.png: 2 links, no server" in told
    return FederationPlan.read(Path("fed/plan.yaml").read_text())


def test_graph_plan_lists_and_draws_links(plan: FederationPlan) -> None:
    assert plan.is_graph
    assert plan.document.settings["network"]["topology"] == {"name": "links", "pairs": [[0, 1], [1, 2]]}
    with Image.open("fed/graph.png") as picture:
        assert min(picture.size) > 300
    shown = " ".join(fedpriv("site", "join", "south", "fed/plan.yaml").split())
    assert "no server: this site sends its rows to middle only" in shown
    told = fedpriv("site", "join", "south", "fed/plan.yaml", "--accept", plan.fingerprint)
    assert "fedpriv site peer south" in told


def test_unusable_peer_options_raise(plan: FederationPlan) -> None:
    assert "use --listen" in refused("site", "peer", "south")
    assert (
        "must be the fingerprint of one open plan on a graph that this site has accepted, but 0 plans match"
        in refused("site", "peer", "south", "--listen", "tcp/127.0.0.1:1")
    )
    fedpriv("site", "join", "south", "fed/plan.yaml", "--accept", plan.fingerprint)
    assert "is not limited to this machine" in refused("site", "peer", "south", "--connect", "tcp/example.org:1")
    assert "names no certificates" in refused("site", "peer", "south", "--connect", "tls/example.org:1")
    assert "fedpriv site peer" in refused("site", "run", "south")
    assert "without --keys" in refused_plan_with_a_server()


def refused_plan_with_a_server() -> str:
    fedpriv("federate", "keys", "keys", "--host", "localhost")
    cards = [f"{name}/card.json" for name in NAMES]
    return refused("federate", "plan", "run.yaml", *cards, "--out", "other", "--keys", "keys")


def test_three_peer_processes_train(plan: FederationPlan, tmp_path: Path) -> None:
    ports = {name: free_port() for name in NAMES}
    running: list[ForkedCommand] = []
    for number, name in enumerate(NAMES):
        fedpriv("site", "join", name, "fed/plan.yaml", "--accept", plan.fingerprint)
        words = ["site", "peer", name, "--listen", f"tcp/127.0.0.1:{ports[name]}", "--wait", "20"]
        if number:
            words += ["--connect", f"tcp/127.0.0.1:{ports[NAMES[number - 1]]}"]
        log = tmp_path / f"{name}.log"
        running.append(ForkedCommand(words, tmp_path, log, log))
    try:
        codes = [process.wait(240) for process in running]
    finally:
        for process in running:
            process.kill()
    said = [(tmp_path / f"{name}.log").read_text() for name in NAMES]
    assert codes == [0, 0, 0], said
    assert "round 4/4; mixed with north, south" in said[1]
    folder = Path("middle/runs") / plan.hash
    result = json.loads((folder / "result.json").read_text())
    assert (result["ended"], result["rounds"]) == ("finished", 4)
    assert result["neighbours"]["south"]["last_up"] == 4
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 4
    page = render_markdown(site_statement(Path("middle"))).decode()
    assert "without a server" in page
    assert "the server" not in page


def test_second_process_of_site_refused(plan: FederationPlan, tmp_path: Path) -> None:
    """Two processes would each count only a part of the spent budget; the error explains which command to use."""
    Path("star.yaml").write_text(
        CONFIG.replace("decentralized_sgd, step_size", "fedavg, learning_rate").replace("network: {topology: path}", "")
    )
    fedpriv("federate", "plan", "star.yaml", *(f"{name}/card.json" for name in NAMES), "--out", "star")
    star = FederationPlan.read(Path("star/plan.yaml").read_text())
    for folder, proposal in (("fed", plan), ("star", star)):
        fedpriv("site", "join", "south", f"{folder}/plan.yaml", "--accept", proposal.fingerprint)
    address, log = f"tcp/127.0.0.1:{free_port()}", tmp_path / "node.log"
    node = ForkedCommand(["site", "peer", "south", "--listen", address], tmp_path, log, log)
    try:
        until(lambda: log.exists() and "neighbours" in log.read_text(), "the node does not start")
        words = refused("site", "run", "south", "--connect", address)
        assert f"south is in use by process {node.pid} on " in words
        assert "`fedpriv site run` answers all plans with a server, `fedpriv site peer` one plan on a graph" in words
    finally:
        node.kill()
    # whoever comes next has the plans of both kinds, and counts both
    site = Site("south")
    site.prepare()
    assert {*site.open_plans} == {plan.hash, star.hash}
    site.close()
