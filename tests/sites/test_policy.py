"""Plans outside the owner's policy are not accepted, and outside the owner's hours no query is answered."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
import yaml
from fake_clock import FakeClock
from sites_in_memory import Party, party

from fedpriv.errors import ConfigError
from fedpriv.settings import pace
from fedpriv.sites import Site
from fedpriv.sites import site as site_module
from fedpriv.sites.messages import TrainRequest, pack, unpack_response
from fedpriv.sites.policy import SitePolicy

DIM = 640
FEDAVG = "strategy={name: fedavg, learning_rate: .5}"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory):
    made = party(tmp_path_factory.mktemp("party"), FEDAVG, "privacy.epsilon=2")
    yield made
    made.close()


def with_policy(found: Party, **policy: object) -> Site:
    """The site north, which has accepted the plan, with another policy from now on."""
    path = found.folder / "north" / "site.yaml"
    settings = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**settings, "policy": policy}))
    found.sites[0].close()
    found.sites[0] = Site(found.folder / "north")
    return found.sites[0]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"algorithms": ["dp_gd"]}, "policy.algorithms.*fedavg.*allows only dp_gd"),
        ({"models": []}, "policy.models = 'softmax': the site's owner allows none"),
        ({"max_parameters": DIM - 1}, "policy.max_parameters.*at most 639"),
        ({"max_rounds": 3}, "policy.max_rounds.*at most 3"),
        ({"max_epsilon": 1.9}, "policy.max_epsilon.*at most 1.9"),
        ({"min_noise_multiplier": 1e4}, "policy.min_noise_multiplier.*at least 10000"),
    ],
)
def test_plan_outside_policy_raises(found: Party, policy: dict[str, object], words: str) -> None:
    site = with_policy(found, **policy)
    with pytest.raises(ConfigError, match=words):
        site.join(found.proposal.text, found.proposal.fingerprint)


def test_plan_within_policy_accepted(found: Party) -> None:
    site = with_policy(
        found,
        algorithms=["fedavg"],
        constraints=[],
        max_parameters=DIM,
        max_rounds=4,
        max_epsilon=2.001,
        min_noise_multiplier=0.1,
    )
    assert site.join(found.proposal.text, found.proposal.fingerprint) == found.proposal


def test_invalid_policy_raises(found: Party, tmp_path: Path) -> None:
    for wrong, words in (({"hours": ["8-20"]}, "is not a time window"), ({"algorithm": ["fedavg"]}, "algorithms")):
        with pytest.raises(ConfigError, match=words):
            with_policy(found, **wrong)
    with_policy(found)


@pytest.mark.parametrize(
    ("hours", "open_at", "closed_at"),
    [
        (("20:00-06:00",), ("20:00", "23:59", "00:00", "05:59"), ("06:00", "12:00", "19:59")),
        (("08:00-12:00", "13:00-13:30"), ("08:00", "13:29"), ("12:00", "12:30", "13:30", "00:00")),
    ],
)
def test_policy_hours_open_and_closed(
    hours: tuple[str, ...], open_at: tuple[str, ...], closed_at: tuple[str, ...]
) -> None:
    policy = SitePolicy(hours=hours)
    for moment in (*open_at, *closed_at):
        now = datetime.fromisoformat(f"2026-11-25T{moment}:00").replace(tzinfo=UTC)
        assert policy.is_open(now) == (moment in open_at)
    assert SitePolicy().is_open()


def test_site_outside_hours_answers_round_later(found: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    site = with_policy(found, hours=["20:00-06:00"])
    question = pack(TrainRequest(found.proposal.hash, 0, torch.zeros(DIM)))
    monkeypatch.setattr(SitePolicy, "is_open", lambda *_: False)
    assert unpack_response(site.answer(question), DIM).code == "closed"
    monkeypatch.setattr(SitePolicy, "is_open", lambda *_: True)
    assert unpack_response(site.answer(question), DIM).code is None


def test_paced_reply_delayed_and_unchanged(found: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(pace, "time", clock)
    monkeypatch.setattr(site_module, "time", clock)
    site = with_policy(found, pad_seconds=2.5)
    question = pack(TrainRequest(found.proposal.hash, 0, torch.zeros(DIM)))
    reply = site.answer(question)
    assert unpack_response(reply, DIM).code is None
    site.answer(b"no question")
    assert clock.slept == [2.5, 2.5]  # refusals, too
    assert with_policy(found).answer(question) == reply
    assert clock.slept == [2.5, 2.5]
