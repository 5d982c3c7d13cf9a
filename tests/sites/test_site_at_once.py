"""Two threads, or two objects of one folder, at the same site: each release is counted once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import torch
from site_plans import BUDGET, DIM, plans_of

from fedpriv.errors import FedprivError
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.record import Record
from fedpriv.sites import Site
from fedpriv.sites.messages import TrainRequest, pack, unpack_response


def test_concurrent_requests_share_budget(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 2)
    found.join(0)
    found.join(1)
    with ThreadPoolExecutor(2) as pool:
        codes = [*pool.map(lambda number: [found.ask(number) for _ in range(4)], (0, 1))]
    assert codes[0].count(None) + codes[1].count(None) == len(found.released())
    assert len(found.released()) == 4  # a fifth one would bring them to 2.3
    assert found.epsilon() <= BUDGET
    assert found.site.spent().epsilon == pytest.approx(found.epsilon(), rel=1e-9)
    found.site.close()


def test_second_site_object_takes_over_spent_budget(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 2)
    found.join(0)
    found.join(1)
    assert [found.ask(0) for _ in range(3)] == [None] * 3
    first = found.site
    found.site = Site(found.folder)
    assert [found.ask(1), found.ask(1)] == [None, "over_budget"]
    question = pack(TrainRequest(found.plans[0].hash, 3, torch.zeros(DIM)))
    assert unpack_response(first.answer(question), DIM).code == "failed"
    with pytest.raises(FedprivError, match="taken over"):
        first.spent()
    assert found.epsilon() <= BUDGET
    found.site.close()


def test_second_site_object_waits_for_release(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 1)
    found.join(0)
    append, writing, taken = Ledger._append, Event(), Event()

    def slow(ledger: Ledger, record: Record) -> None:
        writing.set()
        taken.wait(0.5)  # as long as the other thread would need to read the ledgers, if it could
        append(ledger, record)

    def take_over() -> Site:
        writing.wait()
        made = Site(found.folder)
        taken.set()
        return made

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(Ledger, "_append", slow)
        second = pool.submit(take_over)
        found.ask(0)
        made = second.result()
    assert len(found.released()) == 1
    assert made.spent().epsilon == pytest.approx(found.epsilon(), rel=1e-9)
    made.close()
