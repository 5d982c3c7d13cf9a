"""A site's plans share one budget, whichever order they are accepted, asked, stopped and started again in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sites_in_memory import config_of, like, sites_of

from fedpriv.errors import LedgerError, PrivacyError
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.spent import up
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.sites import Site, propose
from fedpriv.sites.guard import of_one
from fedpriv.sites.messages import Question, pack, unpack_reply
from fedpriv.sites.plan import Proposal
from fedpriv.sites.statement import statement_of_site

DIM = 640
BUDGET = 2.2
NORTH = 0


@dataclass
class Plans:
    """A site with a small budget, and plans of epsilon 2 that it may accept."""

    folder: Path
    site: Site
    plans: Sequence[Proposal]
    joined: set[int] = field(default_factory=set)
    next_round: dict[int, int] = field(default_factory=dict)

    def join(self, number: int) -> None:
        plan = self.plans[number]
        self.site.join(plan.text, plan.fingerprint)
        self.joined.add(number)

    def ask(self, number: int) -> str | None:
        """Asks the plan's next round; returns the code of the refusal, None for an answer."""
        at = self.next_round.get(number, 0)
        self.next_round[number] = at + 1
        question = pack(Question(self.plans[number].hash, at, torch.zeros(DIM)))
        return unpack_reply(self.site.answer(question), DIM).code

    def restart(self) -> None:
        self.site.close()
        self.site = Site(self.folder)

    def released(self) -> list[tuple[int, int]]:
        """Plan and round of every line of the site's ledgers."""
        lines = []
        for number, plan in enumerate(self.plans):
            path = self.folder / "runs" / plan.hash / "ledger.jsonl"
            if path.exists():
                lines += [(number, record.round) for record in LedgerFile.read(path).records]
        return lines

    def epsilon(self) -> float:
        """What all ledgers of the site cost together, counted without its accountant."""
        records = []
        for plan in self.plans:
            path = self.folder / "runs" / plan.hash / "ledger.jsonl"
            if path.exists():
                records += [of_one(record, NORTH, 4) for record in LedgerFile.read(path).records]
        return account(records, 1, 1e-5).epsilon if records else 0.0


def plans_of(folder: Path, count: int, budget: float = BUDGET, rounds: int = 4) -> Plans:
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of("strategy={name: fedavg, learning_rate: .5}", "privacy.epsilon=2", f"rounds={rounds}")
    sites = sites_of(folder, config, (budget, 50.0, 50.0, 50.0))
    cards = [site.card for site in sites.values()]
    proposals = [propose(config, cards, like(config)) for _ in range(count)]
    for number, site in sites.items():
        if number != NORTH:
            site.close()
    return Plans(folder / "north", sites[NORTH], proposals)


def test_two_plans_accepted_together_and_run_in_turn(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 2)
    found.join(0)
    found.join(1)
    codes = [found.ask(0) for _ in range(4)] + [found.ask(1) for _ in range(4)]
    assert codes[:4] == [None] * 4
    assert "over_budget" in codes[4:]
    assert found.epsilon() <= BUDGET
    found.site.close()


def test_five_plans_asked_in_turn_round_by_round(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 5)
    for number in range(5):
        found.join(number)
    codes = [found.ask(number) for _ in range(4) for number in range(5)]
    assert codes[0] is None
    assert codes[-1] == "over_budget"
    assert 0.9 * BUDGET < found.epsilon() <= BUDGET
    found.site.close()


def test_a_plan_accepted_while_another_is_under_way(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 2)
    found.join(0)
    assert [found.ask(0), found.ask(0)] == [None, None]
    found.join(1)
    for _ in range(4):
        found.ask(1)
    assert [found.ask(0), found.ask(0)] == ["over_budget", "over_budget"]
    assert found.epsilon() <= BUDGET
    found.site.close()


def test_a_restart_between_two_plans(tmp_path: Path) -> None:
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


def test_what_the_site_says_it_has_spent_is_that_of_all_its_plans(tmp_path: Path) -> None:
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
    text = str(statement_of_site(found.folder))
    assert f"epsilon={up(whole)}" in text


def test_a_spent_site_starts_again_and_refuses(tmp_path: Path) -> None:
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


def test_a_budget_that_was_lowered_leaves_a_site_that_starts_and_refuses(tmp_path: Path) -> None:
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


def test_plans_that_protect_different_units_do_not_share_a_budget(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 1)
    found.join(0)
    other = config_of(
        "strategy={name: fedavg, learning_rate: .5}", "privacy={epsilon: 2, unit: client, at: message}", "rounds=4"
    )
    cards = list(found.plans[0].cards)
    proposal = propose(other, cards, like(other))
    with pytest.raises(PrivacyError, match="do not add up"):
        found.site.join(proposal.text, proposal.fingerprint)
    assert found.ask(0) is None
    found.site.close()


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


STEPS = st.lists(
    st.tuples(st.sampled_from(["join", "ask", "ask", "ask", "restart", "prepare", "kill"]), st.integers(0, 2)),
    min_size=4,
    max_size=16,
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS, after_line=st.booleans())
def test_no_order_of_plans_restarts_and_kills_passes_the_budget(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], after_line: bool
) -> None:
    found = plans_of(tmp_path_factory.mktemp("site"), 3, rounds=3)
    append = Ledger._append

    def killed(ledger: Ledger, record: object) -> None:
        if after_line:
            append(ledger, record)  # type: ignore[arg-type]
        raise Killed

    for step, number in steps:
        if step == "join":
            found.join(number)
        elif step == "ask" and number in found.joined:
            found.ask(number)
        elif step == "restart":
            found.restart()
        elif step == "prepare":
            found.site.prepare()
        elif step == "kill" and number in found.joined:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Ledger, "_append", killed)
                try:
                    found.ask(number)
                except Killed:
                    found.restart()
        assert found.epsilon() <= BUDGET
    found.restart()
    found.site.prepare()
    assert found.site.spent().epsilon <= BUDGET or not found.released()
    found.site.close()


def test_a_damaged_ledger_of_one_plan_stops_all_of_them(tmp_path: Path) -> None:
    """What was spent there is unknown, so nothing more may be spent elsewhere."""
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
