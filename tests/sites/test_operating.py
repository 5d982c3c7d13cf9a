"""What an operator has of a running site: its log, its metrics, its status, and proposals that wait for a decision."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from prometheus_client.parser import text_string_to_metric_families
from sites_in_memory import InMemory, Party, party, public_info
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.errors import FedprivError
from fedpriv.privacy.budget import Budget
from fedpriv.sites import Site, propose
from fedpriv.sites import site as site_module
from fedpriv.sites.activity import Activity
from fedpriv.sites.messages import TrainRequest, pack, unpack_response
from fedpriv.sites.operating import run_operator_services
from fedpriv.sites.operator_log import LogSettings, print_log, read_log, write_log
from fedpriv.sites.plan_review import review_within
from fedpriv.sites.proposals import MAX_PROPOSAL_BYTES, offer, pack_proposal

DIM = 640
FEDAVG = "strategy={name: fedavg, learning_rate: .5}"
RUNNER = CliRunner()


@pytest.fixture
def found(tmp_path: Path):
    made = party(tmp_path, FEDAVG, "privacy.epsilon=2", metrics={"port": 0})
    yield made
    made.close()


def question(found: Party, at: int) -> bytes:
    return pack(TrainRequest(found.proposal.hash, at, torch.zeros(DIM)))


def fedpriv(*words: object) -> str:
    done = RUNNER.invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_log_lines_json_with_party_and_code(found: Party) -> None:
    site = found.sites[0]
    with run_operator_services(site):
        site.answer(question(found, 1), "coordinator.example.org")
        site.answer(question(found, 0), "coordinator.example.org")
        site.answer(b"\xff" * 100, "stranger.example.org")
    site.answer(question(found, 2), "coordinator.example.org")  # after the end of the log
    log = found.folder / "north" / "log.jsonl"
    assert log.stat().st_mode & 0o077 == 0
    events = [(line["level"], line["event"], line.get("party"), line.get("code")) for line in lines(log)]
    assert events == [
        ("info", "started", None, None),
        ("info", "answered", "coordinator.example.org", None),
        ("warning", "refused", "coordinator.example.org", "other_round"),
        ("warning", "refused", "stranger.example.org", "malformed"),
        ("info", "stopped", None, None),
    ]
    assert {"time", "level", "logger", "text"} <= {*lines(log)[0]}
    assert read_log(found.folder / "north", "refused", 1)[0]["party"] == "stranger.example.org"


def test_log_size_bounded(tmp_path: Path) -> None:
    activity = Activity()
    with write_log(tmp_path, LogSettings(level="warning", max_megabytes=1)):
        for number in range(20_000):
            activity.count_answer("coordinator", "a" * 64, number)
            activity.count_refusal(f"party {number}", "b" * 100_000, number, "other_plan")
    files = sorted(tmp_path.iterdir())
    assert files[0].name == "log.jsonl"
    assert len(files) <= 5
    assert sum(path.stat().st_size for path in files) <= 5e6
    assert {line["event"] for path in files for line in lines(path)} == {"refused"}
    # strangers with ever new names are counted together
    assert activity.totals().refused == {"other_plan": 20_000}
    assert len(activity._refused) <= 1001


def test_prometheus_metrics_without_budget(found: Party) -> None:
    site = found.sites[0]
    site.answer(question(found, 1))
    site.answer(question(found, 0))
    with run_operator_services(site) as rows:
        assert rows["metrics"].startswith("http://127.0.0.1:")
        with urllib.request.urlopen(rows["metrics"], timeout=60) as reply:
            text = reply.read().decode()
    values = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    plan = ("plan", found.proposal.hash[:32])
    assert values["fedpriv_answers_total", (plan, ("site", "north"))] == 1
    assert values["fedpriv_refusals_total", (("code", "other_round"), ("site", "north"))] == 1
    assert values["fedpriv_answered_rounds", (plan, ("site", "north"))] == 2
    assert values["fedpriv_planned_rounds", (plan, ("site", "north"))] == 4
    assert {name for name, _ in values} == {
        "fedpriv_answers_total",
        "fedpriv_refusals_total",
        "fedpriv_last_answer_timestamp_seconds",
        "fedpriv_answered_rounds",
        "fedpriv_planned_rounds",
    }
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(rows["metrics"], timeout=60)


def test_metrics_off_by_default(tmp_path: Path) -> None:
    made = party(tmp_path, FEDAVG)
    with run_operator_services(made.sites[0]) as rows:
        assert [*rows] == ["log"]
    made.close()


def test_status_shows_budget_plans_refusals(found: Party) -> None:
    folder = found.folder / "north"
    with run_operator_services(found.sites[0]):
        found.sites[0].answer(question(found, 0), "coordinator")
        found.sites[0].answer(question(found, 0)[:-9], "coordinator")
        shown = fedpriv("site", "status", folder)
    spent = found.sites[0].spent().epsilon
    assert f"epsilon={spent:.4g} by the replies so far; epsilon={50 - spent:.4g} is left" in shown
    assert f"plan {found.proposal.fingerprint}" in shown
    assert "1 of 4 answered" in shown
    assert "east, south, west" in shown
    assert re.search(r"last answer .*; coordinator; plan .*, round 1", shown)
    assert re.search(r"coordinator; malformed, 1 times", shown)


def test_status_explains_epsilon_of_statement(found: Party) -> None:
    """A plan that was begun is counted whole in a statement; the status shows both numbers."""
    folder = found.folder / "north"
    found.sites[0].answer(question(found, 0), "coordinator")
    spent = found.sites[0].spent().epsilon
    shown = fedpriv("site", "status", folder)
    (in_statement,) = re.findall(
        r"in a statement +epsilon=([0-9.]+): `fedpriv statement` charges each begun plan in full", shown
    )
    assert float(in_statement) > spent
    page = fedpriv("statement", folder)
    assert f"reveals at most epsilon={in_statement} " in page
    assert "as printed by `fedpriv site status`" in page


def test_log_readable_and_json_on_request(found: Party) -> None:
    folder = found.folder / "north"
    with run_operator_services(found.sites[0]):
        found.sites[0].answer(question(found, 1), "coordinator")
        found.sites[0].answer(question(found, 0), "coordinator")
    (line,) = [line for line in fedpriv("site", "log", folder).splitlines() if "refused" in line]
    assert re.match(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d warning: a request was refused party=coordinator code=other_round", line
    )
    assert len(fedpriv("site", "log", folder, "--lines", 1).splitlines()) == 1
    events = [json.loads(text)["event"] for text in fedpriv("site", "log", folder, "--json").splitlines()]
    assert events == ["started", "answered", "refused", "stopped"]


def test_printed_log_has_no_traceback(tmp_path: Path) -> None:
    """A traceback may hold data: it stays in the site's folder."""
    stream = io.StringIO()
    with print_log(stream), write_log(tmp_path, LogSettings(level="error")):
        try:
            raise ValueError("row 7")
        except ValueError:
            logging.getLogger("fedpriv.sites").exception("a request was not answered")
        logging.getLogger("fedpriv.sites").info("connected: north", extra={"facts": {"event": "connected"}})
    assert [line.partition(" ")[2].partition(" ")[2] for line in stream.getvalue().splitlines()] == [
        "error: a request was not answered",
        "info: connected: north",
    ]
    assert [line["level"] for line in lines(tmp_path / "log.jsonl")] == ["error"]
    assert "row 7" in (tmp_path / "log.jsonl").read_text()


def test_status_reports_missing_ledger(found: Party) -> None:
    found.sites[0].close()
    (found.folder / "north" / "runs" / found.proposal.hash / "ledger.jsonl").unlink()
    shown = fedpriv("site", "status", found.folder / "north")
    assert "unknown, so the site does not reply" in shown
    assert "ledger.jsonl, the ledger of an accepted plan, is missing" in shown
    done = RUNNER.invoke(app, ["site", "status", str(found.folder)])
    assert done.exit_code == 2


def test_status_watch_repeats(found: Party) -> None:
    words = [sys.executable, "-m", "fedpriv", "site", "status", str(found.folder / "north"), "--watch"]
    process = subprocess.Popen(
        [*words, "--interval", "0.1"],
        stdout=subprocess.PIPE,
        text=True,
        # a shell that starts tests in the background has them ignore it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    count = 0
    for line in process.stdout:
        count += "over all plans" in line
        if count == 3:
            process.send_signal(signal.SIGINT)
            break
    process.communicate(timeout=120)
    assert process.returncode == 130


def proposed(found: Party, tmp_path: Path):
    """A plan of the same sites that has arrived at north alone, and the transport that brought it."""
    plan = propose(found.config, [site.card for site in found.sites.values()], public_info(found.config))
    found.sites[0]._proposals._last_read = -1e9  # each test has its own clock
    carrier = InMemory({0: found.sites[0]})
    return plan, carrier


def test_proposal_accepted_after_approval(found: Party, tmp_path: Path) -> None:
    plan, carrier = proposed(found, tmp_path)
    folder = found.folder / "north"
    assert offer(carrier, plan) == {"north": "pending", "east": "no_reply", "south": "no_reply", "west": "no_reply"}
    assert offer(carrier, plan)["north"] == "pending"
    asked = pack(TrainRequest(plan.hash, 0, torch.zeros(DIM)))
    assert unpack_response(found.sites[0].answer(asked), DIM).code == "other_plan"
    assert f"{plan.fingerprint}  pending" in fedpriv("site", "status", folder)
    # the owner types what the owners have compared
    done = RUNNER.invoke(app, ["site", "approve", str(folder), "0000 " * 8])
    assert done.exit_code == 2
    assert "compare the fingerprint with the other owners" in " ".join(done.output.split())
    assert "costs" in fedpriv("site", "approve", folder, plan.fingerprint)
    assert plan.hash not in found.sites[0].plans
    assert unpack_response(found.sites[0].answer(asked), DIM).code is None
    assert offer(carrier, plan)["north"] == "accepted"
    assert {*found.sites[0].plans} == {found.proposal.hash, plan.hash}


@pytest.mark.parametrize("section", ["loss", "strategy", "model"])
def test_proposal_executes_no_code(found: Party, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str) -> None:
    """Even if the owner allows plugins in other plans: naming a plugin imports it."""
    (tmp_path / f"sent_with_{section}.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n", encoding="utf-8"
    )
    # importable, here and in the process in which the site reviews proposals
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setenv("FEDPRIV_ALLOW_PLUGINS", "1")
    plan, _ = proposed(found, tmp_path)
    document = yaml.safe_load(plan.text)
    document["settings"][section] = {"name": f"sent_with_{section}:Made"}
    with fp.allow_plugins():
        word = found.sites[0].answer(pack_proposal(yaml.safe_dump(document, sort_keys=False)), "coordinator")
    assert word == b"not_allowed"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "settings",
    [{"rounds": 10**6}, {"strategy": {"name": "fedavg", "learning_rate": 0.5, "local_steps": 10**12}}],
    ids=["rounds", "local steps"],
)
def test_proposal_review_time_limit_refuses(
    found: Party, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    site = found.sites[0]
    assert site.settings.policy.max_rounds is None
    site._proposals._last_read = -1e9
    document = yaml.safe_load(found.proposal.text)
    document["settings"] |= settings
    review_within(found.proposal.text, site.card, site.settings.policy, 4)  # enough for an ordinary plan
    monkeypatch.setattr(site_module, "review_within", partial(review_within, seconds=4))
    word = site.answer(pack_proposal(yaml.safe_dump(document)), "coordinator")
    assert word == b"not_allowed"
    (record,) = [record for record in caplog.records if "plan was rejected" in record.message]
    reason = record.__dict__["facts"]["reason"]
    assert "plan.settings.rounds" in reason
    assert "more than 4 s of processor time" in reason
    assert "fewer rounds" in reason
    assert unpack_response(site.answer(question(found, 0)), DIM).code is None


def test_failed_review_refuses_proposal(found: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    found.sites[0]._proposals._last_read = -1e9
    document = yaml.safe_load(found.proposal.text)
    assert found.sites[0].answer(pack_proposal(yaml.safe_dump(document))) == b"not_allowed"
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(FedprivError, match="could not be reviewed"):
        review_within(found.proposal.text, found.sites[0].card, found.sites[0].settings.policy)


def test_approved_plan_accepted_at_start(found: Party, tmp_path: Path) -> None:
    plan, carrier = proposed(found, tmp_path)
    offer(carrier, plan)
    found.sites[0].close()
    fedpriv("site", "approve", found.folder / "north", plan.fingerprint)
    found.sites[0] = Site(found.folder / "north")
    found.sites[0].prepare()
    assert plan.hash in found.sites[0].plans


def test_refused_proposal_keeps_reason_local(found: Party, tmp_path: Path) -> None:
    plan, carrier = proposed(found, tmp_path)
    offer(carrier, plan)
    fedpriv("site", "refuse", found.folder / "north", plan.fingerprint, "--reason", "too many rounds")
    assert offer(carrier, plan)["north"] == "refused"
    assert b"too many" not in b"".join(reply for _, reply in carrier.sent)
    assert "too many rounds" in fedpriv("site", "status", found.folder / "north")
    asked = pack(TrainRequest(plan.hash, 0, torch.zeros(DIM)))
    assert unpack_response(found.sites[0].answer(asked), DIM).code == "other_plan"


def test_proposal_outside_policy_not_stored(tmp_path: Path) -> None:
    found = party(tmp_path, FEDAVG, policy={"max_rounds": 4})
    config = found.config.model_copy(update={"rounds": 5})
    plan = propose(config, [site.card for site in found.sites.values()], public_info(config))
    carrier = InMemory({0: found.sites[0]})
    assert offer(carrier, plan)["north"] == "not_allowed"
    assert not (tmp_path / "north" / "proposals").exists()
    found.close()


def test_proposal_flood_rate_limited(found: Party, tmp_path: Path) -> None:
    plan, carrier = proposed(found, tmp_path)
    site = found.sites[0]
    assert site.answer(pack_proposal("x" * (MAX_PROPOSAL_BYTES + 1))) == b"malformed"
    assert site.answer(pack_proposal(plan.text)[:16]) != b"pending"
    assert site.answer(b"fedpriv proposal\n\xff\xfe") == b"malformed"
    assert offer(carrier, plan)["north"] == "pending"
    began = time.monotonic()
    words = [site.answer(pack_proposal(f"{plan.text}# {number}\n")) for number in range(100)]
    in_ten_seconds_each = 1 + (time.monotonic() - began) // 10
    n_read = len(words) - words.count(b"later")
    assert n_read <= in_ten_seconds_each
    assert len(list((found.folder / "north" / "proposals").iterdir())) <= 1 + n_read


def test_unacceptable_approved_plan_refused_in_status(found: Party, tmp_path: Path) -> None:
    plan, carrier = proposed(found, tmp_path)
    offer(carrier, plan)
    Budget.create(tmp_path / "life.jsonl", epsilon=1, delta=1e-5)
    folder = found.folder / "north"
    settings = yaml.safe_load((folder / "site.yaml").read_text())
    settings["budget"]["file"] = str(tmp_path / "life.jsonl")
    (folder / "site.yaml").write_text(yaml.safe_dump(settings))
    found.sites[0].close()
    fedpriv("site", "approve", folder, plan.fingerprint)
    found.sites[0] = Site(folder)
    with pytest.raises(FedprivError, match="contains no reservation"):  # of the plan before
        found.sites[0].prepare()
    assert plan.hash not in found.sites[0].plans
    assert "Nothing was released" in fedpriv("site", "status", folder)


def test_edited_proposal_file_raises(found: Party, tmp_path: Path) -> None:
    plan, carrier = proposed(found, tmp_path)
    offer(carrier, plan)
    (path,) = (found.folder / "north" / "proposals").iterdir()
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "text": facts["text"].replace("rounds: 4", "rounds: 5")}))
    with pytest.raises(FedprivError, match="cannot be read"):
        found.sites[0]._proposals.named(plan.fingerprint)
