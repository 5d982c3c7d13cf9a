"""`fedpriv site` and `fedpriv federate`, up to where a transport begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.errors import LedgerError
from fedpriv.privacy.budget import Budget
from fedpriv.sites import FederationPlan, Site
from fedpriv.sites.messages import TrainRequest, pack
from fedpriv.sites.over_zenoh.certificates import make_pin

RUNNER = CliRunner()
DIGITS = "{name: digits, flat: true, partition: {kind: iid, n_clients: 2}}"
CONFIG = f"""
data: {DIGITS}
model: softmax
strategy: {{name: fedavg, learning_rate: 2.0}}
privacy: {{epsilon: 3, trust: {{pairwise: {{colluders: 0, ratio: 3.0}}}}}}
rounds: 4
"""


def fedpriv(*words: object) -> str:
    found = RUNNER.invoke(app, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    return found.output


def refused(*words: object) -> str:
    found = RUNNER.invoke(app, [str(word) for word in words])
    assert found.exit_code == 2
    return " ".join(found.output.split())


def test_site_init_plan_and_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(CONFIG)
    for number, name in enumerate(("north", "south")):
        Path(f"{name}.yaml").write_text(f"name: {name}\nclient: {number}\ndata: {DIGITS}\nbudget: {{epsilon: 2}}\n")
        assert "fedpriv site keys" in fedpriv("site", "init", name, f"{name}.yaml")
    assert "is not empty" in refused("site", "init", "north", "north.yaml")
    printed = fedpriv("federate", "plan", "run.yaml", "north/card.json", "south/card.json", "--out", "fed")
    proposal = FederationPlan.read(Path("fed/plan.yaml").read_text())
    assert proposal.fingerprint in printed
    assert "use another folder" in refused("federate", "plan", "run.yaml", "north/card.json", "--out", "fed")
    assert Path("fed/plan.yaml").read_text() == proposal.text
    shown = fedpriv("site", "join", "north", "fed/plan.yaml")
    assert "epsilon=3 (delta=1e-5" in shown
    assert "X25519" in shown
    assert "compare the plan's fingerprint" in shown
    site = Site("north")
    assert not site.plans
    site.close()
    assert "is not the fingerprint of a plan here" in refused(
        "site", "join", "north", "fed/plan.yaml", "--accept", "0000 0000"
    )
    fedpriv("site", "join", "north", "fed/plan.yaml", "--accept", proposal.fingerprint)
    site = Site("north")
    assert [*site.plans] == [proposal.hash]
    site.close()


def test_federate_run_without_tls_raises(tmp_path: Path) -> None:
    assert "root-certificates" in refused("federate", "run", tmp_path, "--superlink", "example.org:8000")
    assert "--keys" in refused("federate", "run", tmp_path, "--listen", "tls/0.0.0.0:7447")


def test_certificates_signed_and_pinned_by_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(CONFIG)
    authority, server = fedpriv("federate", "authority", "ca"), "server-keys"
    assert "anyone with this folder can sign in your name" in authority
    assert "give the host name" in refused("federate", "keys", server)
    fedpriv("federate", "keys", server, "--host", "server.example.org")
    requests = [f"{server}/request.pem"]
    for number, name in enumerate(("north", "south")):
        Path(f"{name}.yaml").write_text(f"name: {name}\nclient: {number}\ndata: {DIGITS}\nbudget: {{epsilon: 9}}\n")
        fedpriv("site", "init", name, f"{name}.yaml")
        assert "which now names this certificate" in fedpriv("site", "keys", name)
        assert "to replace the key, delete the file first" in refused("site", "keys", name)
        requests.append(f"{name}/tls/request.pem")
    assert "add --certificate" in refused("site", "keys", "north", "--authority", "ca/authority.pem")
    signed = fedpriv("federate", "sign", "ca", *requests)
    assert "server.example.org" in signed
    assert signed.count("none (this party makes only outgoing connections)") == 2
    cards = "north/card.json", "south/card.json"
    assert "certificates" in refused("federate", "plan", "run.yaml", *cards, "--out", "half")  # no server's
    fedpriv("federate", "plan", "run.yaml", *cards, "--out", "fed", "--keys", server)
    plan = FederationPlan.read(Path("fed/plan.yaml").read_text())
    installed = "--authority", "ca/authority.pem", "--certificate"
    assert "another private key" in refused("site", "keys", "north", *installed, "ca/south.pem")
    shown = fedpriv("site", "keys", "north", *installed, "ca/north.pem")
    assert "for the server" not in shown  # the plan names it already
    fedpriv("federate", "keys", server, *installed, "ca/coordinator.pem")
    pins = [plan.document.coordinator, *(card.certificate for card in plan.cards)]
    assert [pin.common_name for pin in pins if pin] == ["coordinator", "north", "south"]
    assert make_pin(Path("north/tls/certificate.pem")) == pins[1]
    fedpriv("site", "join", "north", "fed/plan.yaml", "--accept", plan.fingerprint)
    assert "need TLS: write addresses as tls/HOST:PORT" in refused("site", "run", "north")
    assert "is on another machine" in refused("site", "run", "north", "--superlink", "example.org:8000")
    assert "tls/HOST:PORT" in refused("site", "run", "north", "--connect", "tls/example.org")


def test_folder_without_site_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan").write_text("a: 1")
    assert "is not the folder of a site; create a site: fedpriv site init" in refused(
        "site", "join", tmp_path, tmp_path / "plan"
    )
    monkeypatch.chdir(tmp_path)
    Path("north").mkdir()
    Path("north/site.yaml").touch()
    for command in (["status"], ["log"], ["approve", "0" * 32], ["refuse", "0" * 32], ["join", "plan"]):
        shown = refused("site", command[0], ".", *command[1:])
        assert f"{tmp_path} is not the folder of a site, but contains sites: give the folder of one of north" in shown


def test_bad_site_name_raises_in_words(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(f"name: North Hospital\ndata: {DIGITS}\nbudget: {{epsilon: 2}}\n")
    shown = refused("site", "init", tmp_path / "north", tmp_path / "site.yaml")
    assert "site.name = 'North Hospital': must be a lower-case letter" in shown
    assert "[a-z]" not in shown


def test_bad_card_raises(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG)
    (tmp_path / "card.json").write_text('{"name": 3}')
    plan = "federate", "plan", tmp_path / "run.yaml", "--out", tmp_path / "fed"
    assert "card.json.name = 3: must be a valid string" in refused(*plan, tmp_path / "card.json")
    assert "give the path of a site's card.json" in refused(*plan, tmp_path / "none.json")
    assert "name the card.json of each site" in refused(*plan, "rounds=3")


def test_tables_need_no_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each site has its own table; settings may follow the cards, and a few digits select a plan."""
    monkeypatch.chdir(tmp_path)
    table = "age,ill\n" + "".join(f"{age},{age % 2}\n" for age in range(20, 60))
    Path("table.csv").write_text(table)
    data = "{name: csv, train: table.csv, test: table.csv, label: ill, classes: [0, 1], numbers: {age: [0, 100]}}"
    Path("run.yaml").write_text(CONFIG.replace(DIGITS, data))
    for name in ("north", "south"):
        Path(f"{name}.yaml").write_text(f"name: {name}\ndata: {data}\nbudget: {{epsilon: 9}}\n")
        fedpriv("site", "init", name, f"{name}.yaml")
    fedpriv("federate", "plan", "run.yaml", "north/card.json", "south/card.json", "rounds=3", "--out", "fed")
    plan = FederationPlan.read(Path("fed/plan.yaml").read_text())
    assert plan.config().rounds == 3
    join = "site", "join", "north", "fed/plan.yaml", "--accept"
    assert "only 8 of the 32 digits" in refused(*join, plan.fingerprint[:9])
    fedpriv(*join, plan.fingerprint.upper())
    assert "is absent in rounds 2" in " ".join(
        fedpriv("site", "absent", "north", "2", "--plan", plan.fingerprint[:4]).split()
    )
    assert "data.partition" in refused("plan", "run.yaml")


def test_site_absent_signs_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(CONFIG)
    for number, name in enumerate(("north", "south")):
        Path(f"{name}.yaml").write_text(f"name: {name}\nclient: {number}\ndata: {DIGITS}\nbudget: {{epsilon: 9}}\n")
        fedpriv("site", "init", name, f"{name}.yaml")
    printed = fedpriv("federate", "plan", "run.yaml", "north/card.json", "south/card.json", "--out", "fed")
    assert "if one site is absent without a signed notice, the mean of the others has 3.2 times" in " ".join(
        printed.split()
    )
    assert "if 5% of the sites are absent without notice, the mean has 122% of the noise of trust: local" in " ".join(
        printed.split()
    )
    plan = FederationPlan.read(Path("fed/plan.yaml").read_text())
    assert "this site has accepted 0; print them" in refused("site", "absent", "north", "2")
    fedpriv("site", "join", "north", "fed/plan.yaml", "--accept", plan.fingerprint)
    assert "north is absent in rounds 2 to 3" in " ".join(fedpriv("site", "absent", "north", "2-3").split())
    assert "'4-5': must be rounds that are not over, from 1 to 4" in refused(
        "site", "absent", "north", "4-5", "--plan", plan.fingerprint
    )
    assert "such as 7-9" in refused("site", "absent", "north", "two")
    assert "this site has accepted 1; print them" in refused("site", "absent", "north", "2", "--plan", "0000")
    assert "signed notice of absence in rounds 2 to 3 (away)" in fedpriv("statement", "north")


def test_join_reserves_lifetime_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    budget = Budget.create("life.jsonl", epsilon=4, delta=1e-5)
    Path("run.yaml").write_text(CONFIG)
    for number, name in enumerate(("north", "south")):
        file = ", file: life.jsonl" if name == "north" else ""
        site_settings = f"name: {name}\nclient: {number}\ndata: {DIGITS}\nbudget: {{epsilon: 9{file}}}\n"
        Path(f"{name}.yaml").write_text(site_settings)
        fedpriv("site", "init", name, f"{name}.yaml")
    for number, costs in enumerate((3.0, 4.0)):
        fedpriv("federate", "plan", "run.yaml", "north/card.json", "south/card.json", "--out", f"fed{number}")
        plan = FederationPlan.read(Path(f"fed{number}/plan.yaml").read_text())
        accept = "site", "join", "north", f"fed{number}/plan.yaml", "--accept", plan.fingerprint
        if costs <= 3:
            fedpriv(*accept)
            fedpriv(*accept)  # again is once
            first = plan
        else:  # two of epsilon 3 cost more than 4 together
            assert "Nothing was released" in refused(*accept)
        assert budget.balance().spent.epsilon == pytest.approx(3.0, rel=1e-5)
    (entry,) = budget.balance().entries
    assert entry.run.startswith("site north, plan ")
    assert "X25519" in entry.trust
    site = Site("north")
    assert [*site.plans] == [first.hash]
    site.prepare()
    site.close()
    # a budget without the reservation is no budget for this plan
    Budget.create("other.jsonl", epsilon=4, delta=1e-5)
    settings = Path("north/site.yaml")
    settings.write_text(settings.read_text().replace("life.jsonl", "other.jsonl"))
    site = Site("north")
    with pytest.raises(LedgerError, match="accept the plan again"):
        site.prepare()
    question = pack(TrainRequest(first.hash, 0, torch.zeros(650)))
    assert b"failed" in site.answer(question)
    site.close()
