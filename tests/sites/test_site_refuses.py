"""A site answers only what its plan and budget allow, for any request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save
from sites_in_memory import Party, config_of, party, public_info, sites_of
from torch.utils.data import TensorDataset

from fedpriv.errors import ConfigError, DataError, FedprivError
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.sites import Federation, FederationPlan, Site, propose
from fedpriv.sites.messages import TrainRequest, TrainResponse, pack, unpack_response
from fedpriv.sites.resolved_plan import ResolvedPlan
from fedpriv.sites.site_data import load_site_data

DIM = 640
FEDAVG = "strategy={name: fedavg, learning_rate: .5}"
GRAPH = {"topology": {"name": "links", "pairs": [[0, 1], [1, 2], [2, 3]]}}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory):
    made = party(tmp_path_factory.mktemp("party"), FEDAVG, "rounds=8")
    yield made
    made.close()


def say(found: Party, at: int, heard: torch.Tensor, plan: str | None = None, site: int = 0) -> bytes:
    return found.sites[site].answer(pack(TrainRequest(plan or found.proposal.hash, at, heard)))


def code(reply: bytes) -> str | None:
    return unpack_response(reply, DIM).code


def releases(found: Party, site: str = "north") -> int:
    return len(LedgerFile.read(found.folder / site / "runs" / found.proposal.hash / "ledger.jsonl").records)


def test_repeated_request_charged_once(found: Party) -> None:
    first = say(found, 0, torch.zeros(DIM), site=1)
    spent = found.sites[1].spent().epsilon
    assert unpack_response(first, DIM).message is not None
    assert say(found, 0, torch.zeros(DIM), site=1) == first
    assert releases(found, "east") == 1
    assert found.sites[1].spent().epsilon == spent
    assert code(say(found, 0, torch.full((DIM,), 1e-3), site=1)) == "other_point"
    assert releases(found, "east") == 1


def test_past_or_unplanned_round_refused(found: Party) -> None:
    assert code(say(found, 3, torch.zeros(DIM))) is None
    before = releases(found)
    for at in (0, 2, 8, 1000, 2**62):
        assert code(say(found, at, torch.zeros(DIM))) == "other_round"
    assert code(say(found, 4, torch.zeros(DIM), plan="0" * 64)) == "other_plan"
    assert releases(found) == before


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 9,
        b"\xff" * 64,
        pack(TrainResponse("0" * 64, 1, torch.zeros(DIM), None)),
        save(
            {"row": torch.full((DIM,), float("nan"))},
            {"fedpriv": json.dumps({"plan": "x", "round": 5, "code": None, "notices": [], "counter": None})},
        ),
        save(
            {"row": torch.zeros(DIM)},
            {"fedpriv": json.dumps({"plan": "x", "round": -1, "code": None, "notices": [], "counter": None})},
        ),
        save(
            {"row": torch.zeros(DIM)},
            {"fedpriv": json.dumps({"plan": "x", "round": True, "code": None, "notices": [], "counter": None})},
        ),
        save(
            {"row": torch.zeros(DIM)},
            {"fedpriv": json.dumps({"plan": ["x"], "round": 1, "code": None, "notices": [], "counter": None})},
        ),
        save({"row": torch.zeros(DIM)}, {"fedpriv": "[" * 100_000}),
        save({"row": torch.zeros(DIM)}, {"fedpriv": json.dumps({"plan": "x", "round": 1, "code": None})}),
        save(
            {"row": torch.zeros(DIM)},
            {"fedpriv": json.dumps({"plan": "x", "round": 1, "code": None, "notices": [{}], "counter": None})},
        ),
        save({"row": torch.zeros(DIM)}),
        save(
            {"row": torch.zeros(DIM, dtype=torch.float64)},
            {"fedpriv": json.dumps({"plan": "x", "round": 1, "code": None, "notices": [], "counter": None})},
        ),
        save(
            {"row": torch.zeros(DIM), "more": torch.zeros(1)},
            {"fedpriv": json.dumps({"plan": "x", "round": 1, "code": None, "notices": [], "counter": None})},
        ),
    ],
)
def test_malformed_request_refused_briefly(found: Party, data: bytes) -> None:
    assert code(found.sites[2].answer(data)) in ("malformed", "other_plan")
    assert len(found.sites[2].answer(data)) < 500


def test_invalid_query_point_refused(found: Party) -> None:
    for heard in (torch.zeros(DIM + 1), torch.zeros(0), torch.full((DIM,), torch.inf), torch.zeros(1)):
        assert code(say(found, 5, heard, site=2)) == "malformed"
    assert code(say(found, 5, torch.full((DIM,), 1e38), site=2)) is None  # any point has its price


def test_restarted_site_repeats_saved_reply_only(tmp_path: Path) -> None:
    found = party(tmp_path, FEDAVG)
    first, other = say(found, 1, torch.zeros(DIM)), torch.ones(DIM)
    found.sites[0].close()
    found.sites[0] = Site(tmp_path / "north")
    assert say(found, 1, torch.zeros(DIM)) == first
    assert code(say(found, 1, other)) == "other_point"
    assert code(say(found, 0, other)) == "other_round"
    # it was killed after its ledger was written, and before its state was
    state = tmp_path / "north" / "runs" / found.proposal.hash / "state.pt"
    before = state.read_bytes()
    second = say(found, 2, torch.zeros(DIM))
    found.sites[0].close()
    state.write_bytes(before)
    found.sites[0] = Site(tmp_path / "north")
    assert code(say(found, 2, other)) == "other_round"
    assert code(say(found, 2, torch.zeros(DIM))) == "other_round"
    third = say(found, 3, torch.zeros(DIM))
    assert code(third) is None
    assert third != second
    assert releases(found) == 3
    found.close()


def test_site_stops_at_own_budget(tmp_path: Path) -> None:
    config = config_of(FEDAVG, "privacy.epsilon=2")
    sites = sites_of(tmp_path, config, (50.0, 2.2, 50.0, 50.0))
    cards = [site.card for site in sites.values()]
    answered: list[int] = []
    for number in range(2):
        proposal = propose(config, cards, public_info(config))
        for site in sites.values():
            site.join(proposal.text, proposal.fingerprint)
        for at in range(4):
            question = pack(TrainRequest(proposal.hash, at, torch.zeros(DIM)))
            assert code(sites[0].answer(question)) is None
            if code(sites[1].answer(question)) is None:
                answered.append(4 * number + at)
            else:
                assert code(sites[1].answer(question)) in ("over_budget", "other_round")
        assert sites[1].spent().epsilon <= 2.2
    assert answered == [0, 1, 2, 3]
    assert sites[0].spent().epsilon > 2.5
    for site in sites.values():
        site.close()


def test_changed_data_stop_site(tmp_path: Path) -> None:
    """The plan covers one data set: later noise must hide the same data as earlier noise."""
    found = party(tmp_path, FEDAVG)
    assert code(say(found, 0, torch.zeros(DIM))) is None
    found.sites[0].close()
    again = Site(tmp_path / "north")
    found.sites[0] = again
    dataset, split = load_site_data(again._folder.settings.data, again._folder.settings.client)
    inputs, labels = (torch.stack([torch.as_tensor(dataset[i][k]) for i in range(len(dataset))]) for k in (0, 1))
    labels[3] = (labels[3] + 1) % 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedpriv.sites.site_data.load_site_data", lambda *_: (TensorDataset(inputs, labels), split))
        assert code(say(found, 1, torch.zeros(DIM))) == "failed"
        with pytest.raises(DataError, match="examples have changed since it accepted plan"):
            again.prepare()
    assert code(say(found, 1, torch.zeros(DIM))) is None
    again.close()
    (noted,) = (tmp_path / "north").rglob("data_digest")
    noted.unlink()
    found.sites[0] = Site(tmp_path / "north")
    with pytest.raises(DataError, match="data_digest is missing"):
        found.sites[0].prepare()
    found.close()


def changed(text: str, **more: object) -> str:
    document = yaml.safe_load(text)
    for path, value in more.items():
        section = document
        *above, last = path.split("__")
        for name in above:
            section = section[name]
        section[last] = value
    return yaml.safe_dump(document)


def test_edited_plan_not_accepted(found: Party, tmp_path: Path) -> None:
    site, text = found.sites[3], found.proposal.text
    for more, words in (
        ({"settings__privacy__noise_multiplier": 0.01}, "do not accept this plan"),
        ({"settings__privacy__noise_multiplier": None}, "a plan must have a value for this setting"),
        ({"settings__privacy__trust": {"secure_aggregation": {"min_honest": 2}}}, "would receive each site's message"),
        ({"settings__privacy__trust": "central"}, "would receive each site's message"),
        ({"settings__privacy__noise_on": "none"}, "only private query results"),
        ({"settings__privacy__fsync": False}, "before it replies"),
        ({"settings__privacy__budget": "/etc/passwd"}, "names no files"),
        (
            {"settings__privacy__sampling": {"cyclic": {"blocks": 2}}},
            "privacy cost of correlated noise and of cyclic batches would be unknown",
        ),
        (
            {"settings__privacy__sampling": {"allocation": {"batches": 4}}},
            "privacy cost of random allocation is not known between organisations",
        ),
        ({"settings__network__topology": {"name": "ring"}}, "a plan must list its links"),
        ({"settings__network__topology": {"name": "edge_list", "file": "/etc/passwd"}}, "a plan must list its links"),
        ({"settings__network__topology": {"name": "links", "pairs": [[0, 1]]}}, "cannot be reached"),
        (
            {"settings__network": {**GRAPH, "mixing": {"name": "file", "file": "/etc/passwd"}}},
            "must not name a file or code",
        ),
        ({"settings__network": {**GRAPH, "activity": "one_peer_exponential"}}, "go one way"),
        ({"settings__network": {**GRAPH, "mixing_steps": 2}}, "sites without a link to their sender"),
        ({"settings__network": GRAPH}, "needs a server"),
        ({"settings__model__weights": {"file": "/etc/passwd", "exclude": []}}, "a plan contains no files"),
        ({"settings__strategy": {"name": "os:system"}}, "plugins"),
        ({"settings__privacy__schedule": {"function": "os:abs"}}, "plugins"),
        ({"settings__seed": None}, "settings.seed = None: a plan must have a value"),
        ({"sites": yaml.safe_load(text)["sites"][:3]}, "under its present name and key"),
        ({"sites": yaml.safe_load(text)["sites"] + yaml.safe_load(text)["sites"][:1]}, "needs its own name"),
    ):
        other = changed(text, **more)
        with pytest.raises(FedprivError, match=words):
            site.join(other, FederationPlan.read(other).fingerprint if "needs its own name" not in words else "")
    with pytest.raises(ConfigError, match="not the fingerprint of a plan here"):
        site.join(text, "0000 " * 8)
    assert [*site.plans] == [found.proposal.hash]


def test_site_files_readable_by_owner_only(found: Party) -> None:
    for path in (found.folder / "north").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    found.sites[3].close()
    for name in ("private_key", "signing_key"):
        (found.folder / "west" / name).chmod(0o640)
        with pytest.raises(FedprivError, match="can be read by other users"):
            Site(found.folder / "west")
        (found.folder / "west" / name).chmod(0o600)
    found.sites[3] = Site(found.folder / "west")


def test_newest_site_object_invalidates_older(found: Party) -> None:
    found.sites[0]._folder.check()
    again = Site(found.folder / "north")  # in one process the newest has it
    assert code(say(found, 7, torch.zeros(DIM))) == "failed"
    assert releases(found) == 1
    found.sites[0] = again


def test_error_text_stays_at_site(found: Party, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    resolved_plan = found.sites[1]._plans.session(found.proposal.hash).resolved_plan

    def fail(*_: object) -> None:
        raise ValueError("patient 4711 has label 9")

    monkeypatch.setattr(type(resolved_plan.strategy.local_step), "__call__", fail)
    reply = say(found, 6, torch.zeros(DIM), site=1)
    assert code(reply) == "failed"
    assert b"4711" not in reply
    assert "4711" in caplog.text


def test_malformed_replies_leave_other_sites(tmp_path: Path) -> None:
    found = party(tmp_path, FEDAVG)
    plan, lost = found.proposal.hash, []

    def spoil(site: int, reply: bytes) -> bytes | None:
        at = found.federation.progress.round
        if site == 0 and not lost and at == 1:
            lost.append(site)
            return None
        huge, other = torch.full((DIM,), 1e30), torch.zeros(DIM)
        nonsense = {
            0: save(
                {"row": torch.full((DIM,), torch.nan)},
                {"fedpriv": json.dumps({"plan": plan, "round": 0, "code": None, "notices": [], "counter": None})},
            ),
            1: pack(TrainResponse(plan, at, huge, None)),
            2: pack(TrainResponse(plan, at, torch.zeros(DIM - 1), None)),
            3: pack(TrainResponse(plan, at + 1, other, None)),
        }
        return nonsense[at] if site == 3 else reply

    found.transport.spoil = spoil
    reports = list(found.federation)
    assert [report.absent for report in reports] == [{"west": "malformed"}] * 4
    assert lost == [0]  # asked again, it said the same
    assert bool(torch.isfinite(found.federation.model).all())
    found.close()


def test_restarted_server_resumes_with_absent_site(tmp_path: Path) -> None:
    found = party(tmp_path, FEDAVG)
    rounds = iter(found.federation)
    next(rounds)
    del found.transport.sites[2]
    assert next(rounds).absent == {"south": "no_reply"}
    model = found.federation.model
    found.federation.close()
    again = Federation(found.proposal, found.transport, tmp_path / "server")
    torch.testing.assert_close(again.model, model)
    found.transport.sites[2] = found.sites[2]
    assert [report.round for report in again] == [3, 4]
    assert again.ended == "rounds"
    found.federation = again
    found.close()
    assert ResolvedPlan.of(found.proposal).rounds == 4
