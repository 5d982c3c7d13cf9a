"""A site that is killed or loses power while it answers repeats the same bytes and is charged once."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from faulty_disk import RecordingDisk
from sites_in_memory import Party, party

from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.sites import Site
from fedpriv.sites.messages import TrainRequest, pack, unpack_response
from fedpriv.sites.session import SiteSession
from fedpriv.storage import files
from fedpriv.storage.files import Appender

DIM = 640
OPTIONS = {
    "one answer": ("strategy={name: fedavg, learning_rate: .5}",),
    "several answers, pairs": (
        "strategy={name: fedavg, learning_rate: .5, local_steps: 2}",
        "privacy.trust={pairwise: {colluders: 1, ratio: 3.0}}",
    ),
}


@pytest.fixture(params=[*OPTIONS])
def found(request: pytest.FixtureRequest, tmp_path: Path):
    made = party(tmp_path, *OPTIONS[request.param])
    first = made.sites[0].answer(question(made, 0))
    assert unpack_response(first, DIM).code is None
    made.sites[0].close()
    yield made
    made.federation.close()


def question(found: Party, at: int) -> bytes:
    return pack(TrainRequest(found.proposal.hash, at, torch.full((DIM,), 0.01 * at)))


def charged(site: Site, found: Party) -> list[int]:
    """The round of each record."""
    path = site._folder.path / "runs" / found.proposal.hash / "ledger.jsonl"
    return [record.round for record in LedgerFile.read(path).records]


def resume_kind(folder: Path, found: Party, said: bytes | None) -> str:
    """What a site that is started from this folder makes of the question that it was killed in; which kind it is.

    Args:
        folder: The site's, as the crash left it.
        found: Its federation.
        said: What had left it.
    """
    site, steps = Site(folder), 2 if "local_steps: 2" in found.proposal.text else 1
    before = charged(site, found)
    reply = site.answer(question(found, 1))
    assert site.answer(question(found, 1)) == reply
    code = unpack_response(reply, DIM).code
    if said is not None:
        assert reply == said
    # a round that is on record without a reply is over, and paid for as far as it came
    assert code == ("other_round" if 1 in before and code else None)
    on_record = charged(site, found)
    assert on_record.count(1) == (steps if code is None else before.count(1)) > 0
    assert site.spent().epsilon <= found.federation.resolved_plan.plan.spent().epsilon
    assert unpack_response(site.answer(question(found, 2)), DIM).code is None
    assert charged(site, found).count(2) == steps
    site.close()
    return "refused" if code else "again" if 1 in before else "anew"


@pytest.mark.slow
def test_site_killed_at_each_disk_operation_resumes(
    found: Party, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "north"
    run = home / "runs" / found.proposal.hash
    site = Site(home)
    site.prepare()
    disk = RecordingDisk(run)
    with monkeypatch.context() as patched:
        patched.setattr(files, "disk", disk)
        ledger = site._plans.session(found.proposal.hash)._ledger._file
        assert ledger is not None  # it was opened before there was a disk that remembers
        disk._of_fd[ledger._fd] = "ledger.jsonl", disk._nodes[os.fstat(ledger._fd).st_ino]
        said = site.answer(question(found, 1))
    disk.end()
    site.close()
    kinds, tried = set[str](), set[tuple[tuple[str, bytes], ...]]()
    for number, moment in enumerate(disk.moments):
        last = moment.at == "end"
        for left in [moment.killed, *moment.power_cuts]:
            state = tuple(sorted(left.items()))
            if state in tried and not last:
                continue
            tried.add(state)
            again = tmp_path / f"again-{number}-{len(tried)}"
            shutil.copytree(home, again, ignore=shutil.ignore_patterns(found.proposal.hash, ".lock", "socket"))
            (again / "runs" / found.proposal.hash).mkdir(mode=0o700, parents=True)
            for name, content in left.items():
                (again / "runs" / found.proposal.hash / name).write_bytes(content)
            kinds.add(resume_kind(again, found, said if last else None))
            shutil.rmtree(again)
    assert kinds == {"anew", "refused", "again"}
    assert len(tried) > 10


POINTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the ledger": lambda patch: patch.setattr(Appender, "append", die),
    "after the ledger, before the reply is kept": lambda patch: patch.setattr(
        "fedpriv.sites.site_folder.SiteFolder.write_session_state", die
    ),
    "after the reply is kept, before it leaves": lambda patch: patch.setattr(SiteSession, "answer", then_die),
    "after it left": lambda patch: None,
}
_answer = SiteSession.answer


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def then_die(member: SiteSession, asked: TrainRequest) -> None:
    _answer(member, asked)
    die()


@pytest.mark.parametrize("point", [*POINTS])
def test_site_killed_by_sigkill_resumes(point: str, found: Party, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)
            site, patch = Site(tmp_path / "north"), pytest.MonkeyPatch()
            site.prepare()
            POINTS[point](patch)
            os.write(writer, site.answer(question(found, 1)))
            die()
        finally:
            os._exit(1)
    os.close(writer)
    said = b""
    while part := os.read(reader, 65536):
        said += part
    os.close(reader)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    kind = resume_kind(tmp_path / "north", found, said or None)
    assert (kind, bool(said)) == {
        "before the ledger": ("anew", False),
        "after the ledger, before the reply is kept": ("refused", False),
        "after the reply is kept, before it leaves": ("again", False),
        "after it left": ("again", True),
    }[point]
