"""A plan goes over TLS to sites that name its server, waits for the owner, and is then answered."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from parties import free_port, until
from signed import Authority
from sites_in_memory import config_of, public_info, sites_of
from typer.testing import CliRunner
from zenoh_party import FEDAVG, stranger

from fedpriv.cli import app
from fedpriv.config import to_yaml
from fedpriv.errors import ConfigError
from fedpriv.sites import FederationPlan, Site, propose
from fedpriv.sites.messages import TrainRequest, pack
from fedpriv.sites.over_zenoh.coordinator import OverZenoh
from fedpriv.sites.over_zenoh.proposing import offer_over_zenoh, proposal_key
from fedpriv.sites.over_zenoh.site_server import SiteServer
from fedpriv.sites.proposals import pack_proposal
from fedpriv.sites.resolved_plan import ResolvedPlan

RUNNER = CliRunner()


@pytest.fixture
def offered(tmp_path: Path):
    """Four sites with certificates; north and east name the server `coordinator`; no site accepted the plan."""
    config = config_of(FEDAVG)
    authority = Authority(tmp_path / "authority")
    sites = sites_of(tmp_path, config)
    for number, name in enumerate(("north", "east", "south", "west")):
        authority.site(sites[number], tmp_path / name)
        sites[number].close()
        settings = tmp_path / name / "site.yaml"
        policy = {"proposers": ["coordinator"] if number < 2 else ["somebody else"]}
        settings.write_text(yaml.safe_dump({**yaml.safe_load(settings.read_text()), "policy": policy}))
        sites[number] = Site(tmp_path / name)
    coordinator = authority.server(tmp_path / "keys")
    plan = propose(config, [site.card for site in sites.values()], public_info(config), coordinator)
    (tmp_path / "fed").mkdir()
    (tmp_path / "fed" / "plan.yaml").write_text(plan.text)
    (tmp_path / "fed" / "config.yaml").write_text(to_yaml(config))
    yield tmp_path, plan, sites, authority
    for site in sites.values():
        site.close()


def fedpriv(*words: object) -> str:
    done = RUNNER.invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


def test_proposal_over_zenoh_approved_and_answered(
    offered: tuple[Path, FederationPlan, dict[int, Site], Authority],
) -> None:
    folder, plan, sites, _ = offered
    address = f"tls/127.0.0.1:{free_port()}"
    servers = [SiteServer(site, [address], folder / site.card.name / "tls") for site in sites.values()]
    try:
        shown = fedpriv(
            "federate", "propose", folder / "fed", "--listen", address, "--keys", folder / "keys", "--wait", 5
        )
    finally:
        for server in servers:
            server.close()
    words = dict(line.split(None, 1) for line in shown.splitlines())
    assert words["fingerprint"].strip() == plan.fingerprint
    assert {name: words[name].strip() for name in ("north", "east", "south", "west")} == {
        "north": "pending",
        "east": "pending",
        "south": "no_reply",
        "west": "no_reply",
    }
    assert not (folder / "south" / "proposals").exists()
    assert "from coordinator" in fedpriv("site", "status", folder / "north")
    fedpriv("site", "approve", folder / "north", plan.fingerprint)
    sites[0].close()
    sites[0] = Site(folder / "north")
    sites[0].prepare()
    received = ResolvedPlan.of(plan).begin().received[0].float()
    with (
        SiteServer(sites[0], [address], folder / "north" / "tls"),
        OverZenoh(plan, [address], folder / "keys", wait=60, grace=60) as server,
    ):
        assert [*server.ask({0: pack(TrainRequest(plan.hash, 0, received))})] == [0]
    assert sites[0].activity.totals().answered == {plan.hash: 1}


def test_running_site_answers_plan_after_approval(
    offered: tuple[Path, FederationPlan, dict[int, Site], Authority],
) -> None:
    folder, plan, sites, _ = offered
    north, east = sites[0], sites[1]
    address = f"tls/127.0.0.1:{free_port()}"
    east.join(plan.text, plan.fingerprint)
    received = ResolvedPlan.of(plan).begin().received[0].float()

    def question(index: int) -> bytes:
        return pack(TrainRequest(plan.hash, index, received))

    with (
        SiteServer(north, [address], folder / "north" / "tls") as server,
        SiteServer(east, [address], folder / "east" / "tls"),
        OverZenoh(plan, [address], folder / "keys", wait=60, grace=60) as coordinator,
    ):
        north.answer(pack_proposal(plan.text), "coordinator")
        assert [*coordinator.ask({1: question(0)})] == [1]
        assert server.served == []
        fedpriv("site", "approve", folder / "north", plan.fingerprint)
        until(lambda: server.served, "the approved plan is not answered")
        assert server.served == [plan.fingerprint]
        # the other site answers as before, and both are asked at once
        assert sorted(coordinator.ask({0: question(1), 1: question(1)})) == [0, 1]
    assert north.activity.totals().answered == {plan.hash: 1}


def test_request_on_proposal_key_no_reply(
    offered: tuple[Path, FederationPlan, dict[int, Site], Authority],
) -> None:
    """Requests on this key are not signed, so a site must not answer them."""
    folder, plan, sites, _ = offered
    sites[0].join(plan.text, plan.fingerprint)
    address = f"tls/127.0.0.1:{free_port()}"
    question = pack(TrainRequest(plan.hash, 0, ResolvedPlan.of(plan).begin().received[0].float()))
    key = proposal_key("north")
    with (
        SiteServer(sites[0], [address], folder / "north" / "tls"),
        stranger(folder / "keys", listen=address, asks={"north": [key]}) as session,
    ):
        querier = session.declare_querier(key)
        while not querier.matching_status.matching:
            pass
        assert not [reply for reply in session.get(key, payload=question, timeout=5) if reply.ok is not None]
    assert sites[0].spent().epsilon == 0


def test_site_without_proposers_needs_plan(
    offered: tuple[Path, FederationPlan, dict[int, Site], Authority],
) -> None:
    folder, plan, sites, _ = offered
    settings = folder / "north" / "site.yaml"
    sites[0].close()
    settings.write_text(yaml.safe_dump({**yaml.safe_load(settings.read_text()), "policy": {}}))
    sites[0] = Site(folder / "north")
    with pytest.raises(ConfigError, match="accepted no open plan"):
        SiteServer(sites[0], ["tls/127.0.0.1:1"], folder / "north" / "tls")
    with pytest.raises(ConfigError, match="names no certificates"):
        offer_over_zenoh(_bare(plan), ["tls/127.0.0.1:1"], folder / "keys", 1)


def _bare(plan: FederationPlan) -> FederationPlan:
    document = yaml.safe_load(plan.text)
    document["coordinator"] = None
    for card in document["sites"]:
        card["certificate"] = None
    return FederationPlan.read(yaml.safe_dump(document))
