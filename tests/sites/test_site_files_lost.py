"""A site with lost or damaged ledgers, plans or folders raises: its spent budget is unknown."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from site_plans import BUDGET, Plans, plans_of

from fedpriv.errors import LedgerError
from fedpriv.sites import Site
from fedpriv.sites.budget_picture import draw_site
from fedpriv.sites.statement import site_statement


def remove_ledger(found: Plans) -> None:
    found.ledger(0).unlink()


def remove_last_line(found: Plans) -> None:
    lines = found.ledger(0).read_bytes().splitlines(keepends=True)
    found.ledger(0).write_bytes(b"".join(lines[:-1]))


def remove_plan(found: Plans) -> None:
    found.ledger(0).with_name("plan.yaml").unlink()


def remove_folder(found: Plans) -> None:
    shutil.rmtree(found.ledger(0).parent)


def remove_ledger_and_state(found: Plans) -> None:
    found.ledger(0).unlink()
    found.ledger(0).with_name("state.pt").unlink()


@pytest.mark.parametrize(
    "remove", [remove_ledger, remove_last_line, remove_plan, remove_folder, remove_ledger_and_state]
)
def test_site_with_missing_file_raises(tmp_path: Path, remove: Callable[[Plans], None]) -> None:
    found = plans_of(tmp_path, 2)
    found.join(0)
    found.join(1)
    assert [found.ask(0) for _ in range(4)] == [None] * 4
    found.site.close()
    content = {path: path.read_bytes() for path in found.ledger(0).parent.iterdir()}
    remove(found)
    with pytest.raises(LedgerError, match="unknown"):
        Site(found.folder)
    with pytest.raises(LedgerError, match="unknown"):
        site_statement(found.folder)
    with pytest.raises(LedgerError, match="unknown"):
        draw_site(found.folder, tmp_path / "site.png")
    found.ledger(0).parent.mkdir(exist_ok=True)
    for path, bytes_before in content.items():
        path.write_bytes(bytes_before)
    found.site = Site(found.folder)
    assert "over_budget" in [found.ask(1) for _ in range(4)]
    assert found.epsilon() <= BUDGET
    found.site.close()


def test_failed_open_releases_lock(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 1)
    found.join(0)
    found.ask(0)
    found.site.close()
    content = found.ledger(0).read_bytes()
    found.ledger(0).unlink()
    with pytest.raises(LedgerError) as refusal:
        Site(found.folder)
    found.ledger(0).write_bytes(content)
    code = f"from fedpriv.sites import Site; print(Site({str(found.folder)!r}).spent().epsilon)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(other.stdout) == pytest.approx(found.epsilon(), rel=1e-9)
    assert refusal.value is not None  # its traceback keeps the site that was not opened in memory


def test_damaged_ledger_stops_all_plans(tmp_path: Path) -> None:
    """The spent budget of the plan is unknown, so no other plan may spend more."""
    found = plans_of(tmp_path, 2)
    found.join(0)
    found.join(1)
    assert found.ask(0) is None
    assert found.ask(0) is None
    found.site.close()
    path = found.folder / "runs" / found.plans[0].hash / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], *lines[2:]]))
    with pytest.raises(LedgerError):
        Site(found.folder)
