"""The plans of a site share one budget in any order of joins, queries, stops and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from site_plans import BUDGET, FEDAVG, PAIRS, Plans, plans_of

from fedpriv.privacy.accounting.spent import round_up
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.record import Record
from fedpriv.sites import Site
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.site_folder import SiteFolder
from fedpriv.sites.site_records import SessionState
from fedpriv.sites.statement import site_statement


def test_plans_in_sequence_share_budget(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 2)
    found.join(0)
    found.join(1)
    codes = [found.ask(0) for _ in range(4)] + [found.ask(1) for _ in range(4)]
    assert codes[:4] == [None] * 4
    assert "over_budget" in codes[4:]
    assert found.epsilon() <= BUDGET
    found.site.close()


def test_interleaved_plans_share_budget(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 5)
    for number in range(5):
        found.join(number)
    codes = [found.ask(number) for _ in range(4) for number in range(5)]
    assert codes[0] is None
    assert codes[-1] == "over_budget"
    assert 0.9 * BUDGET < found.epsilon() <= BUDGET
    found.site.close()


def test_later_plan_shares_budget(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 2)
    found.join(0)
    assert [found.ask(0), found.ask(0)] == [None, None]
    found.join(1)
    for _ in range(4):
        found.ask(1)
    assert [found.ask(0), found.ask(0)] == ["over_budget", "over_budget"]
    assert found.epsilon() <= BUDGET
    found.site.close()


def test_restarted_plans_share_budget(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 2)
    found.join(0)
    assert [found.ask(0), found.ask(0)] == [None, None]
    found.restart()
    found.join(1)
    found.site.prepare()
    for number in (1, 0, 1, 0, 1, 1):
        found.ask(number)
    assert found.epsilon() <= BUDGET
    found.site.close()


def test_site_spent_composes_plans(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 2, budget=50.0)
    for number in (0, 1):
        found.join(number)
        for _ in range(4):
            assert found.ask(number) is None
    whole = found.epsilon()
    assert whole > 2.5
    assert found.site.spent().epsilon == pytest.approx(whole, rel=1e-9)
    found.restart()
    assert found.site.spent().epsilon == pytest.approx(whole, rel=1e-9)
    found.site.close()
    text = str(site_statement(found.folder))
    assert f"epsilon={round_up(whole)}" in text


def test_spent_site_refuses_after_restart(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 2)
    found.join(0)
    found.join(1)
    for number in (0, 0, 0, 0, 1, 1, 1, 1):
        found.ask(number)
    found.restart()
    found.site.prepare()
    before = found.released()
    found.next_round = {1: 3}
    assert found.ask(1) == "over_budget"
    assert found.released() == before
    found.site.close()


def test_lowered_budget_site_starts_and_refuses(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 1)
    found.join(0)
    assert [found.ask(0), found.ask(0)] == [None, None]
    found.site.close()
    settings_file = found.folder / "site.yaml"
    text = settings_file.read_text()
    assert "epsilon: 2.2" in text
    settings_file.write_text(text.replace("epsilon: 2.2", "epsilon: 0.5"))
    found.site = Site(found.folder)
    assert found.site.spent().epsilon > 0.5
    assert found.ask(0) == "over_budget"
    assert len(found.released()) == 2
    found.site.close()


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


def kill(found: Plans, number: int, place: str) -> None:
    """Asks, and ends the process in the middle of the answer; then the site is started again."""
    append, keep = Ledger._append, SiteFolder.write_session_state

    def append_killed(ledger: Ledger, record: Record) -> None:
        if place == "after the ledger line":
            append(ledger, record)
        raise Killed

    def keep_killed(folder: SiteFolder, proposal: FederationPlan, kept: SessionState) -> None:
        if place == "after the saved reply":
            keep(folder, proposal, kept)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        if "ledger" in place:
            patch.setattr(Ledger, "_append", append_killed)
        else:
            patch.setattr(SiteFolder, "write_session_state", keep_killed)
        try:
            found.ask(number)
        except Killed:
            found.restart()


PLACES = (
    "before the ledger line",
    "after the ledger line",
    "before the saved reply",
    "after the saved reply",
)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 2)),
        st.tuples(st.just("ask"), st.integers(0, 2)),
        st.tuples(st.just("ask"), st.integers(0, 2)),
        st.tuples(st.sampled_from(["restart", "prepare"]), st.just(0)),
        st.tuples(st.sampled_from(PLACES), st.integers(0, 2)),
    ),
    min_size=4,
    max_size=18,
)


@pytest.mark.parametrize("overrides", [FEDAVG, PAIRS], ids=["local", "pairs"])
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS)
def test_any_order_of_plans_and_kills_within_budget(
    tmp_path_factory: pytest.TempPathFactory, overrides: Sequence[str], steps: list[tuple[str, int]]
) -> None:
    found = plans_of(tmp_path_factory.mktemp("site"), 3, rounds=3, overrides=overrides)
    found.join(0)  # so that the first questions have an answer
    for step, number in steps:
        if step == "join":
            found.join(number)
        elif step == "restart":
            found.restart()
        elif step == "prepare":
            found.site.prepare()
        elif number in found.joined and step == "ask":
            found.ask(number)
        elif number in found.joined:
            kill(found, number, step)
        assert found.epsilon() <= BUDGET
        # exact, since a refused answer and a forecast count nothing, and a kill is followed by a start
        assert found.site.spent().epsilon == pytest.approx(found.epsilon(), rel=1e-9)
    found.restart()
    found.site.prepare()
    assert found.site.spent().epsilon == pytest.approx(found.epsilon(), rel=1e-9)
    assert f"epsilon={round_up(found.epsilon())}" in str(site_statement(found.folder)) or not found.released()
    found.site.close()
