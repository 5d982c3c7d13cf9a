"""A site's plans share one budget, whichever order they are accepted, asked, stopped and started again in."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sites_in_memory import config_of, like, sites_of

from fedpriv.errors import FedprivError, LedgerError, PrivacyError
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.spent import round_up
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.record import Record
from fedpriv.sites import Site, propose
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.messages import TrainRequest, pack, unpack_response
from fedpriv.sites.on_record import SessionState
from fedpriv.sites.plan_filter import single_site_record
from fedpriv.sites.site_folder import SiteFolder
from fedpriv.sites.statement import draw_site, site_statement

DIM = 640
BUDGET = 2.2
NORTH = 0


@dataclass
class Plans:
    """A site with a small budget, and plans of epsilon 2 that it may accept."""

    folder: Path
    site: Site
    plans: Sequence[FederationPlan]
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
        question = pack(TrainRequest(self.plans[number].hash, at, torch.zeros(DIM)))
        return unpack_response(self.site.answer(question), DIM).code

    def restart(self) -> None:
        self.site.close()
        self.site = Site(self.folder)

    def ledger(self, number: int) -> Path:
        return self.folder / "runs" / self.plans[number].hash / "ledger.jsonl"

    def released(self) -> list[tuple[int, int]]:
        """Plan and round of every line of the site's ledgers."""
        lines = []
        for number in range(len(self.plans)):
            path = self.ledger(number)
            if path.exists():
                lines += [(number, record.round) for record in LedgerFile.read(path).records]
        return lines

    def epsilon(self) -> float:
        """What all ledgers of the site cost together, counted without its accountant."""
        records = []
        for number in range(len(self.plans)):
            path = self.ledger(number)
            if path.exists():
                records += [single_site_record(record, NORTH, 4) for record in LedgerFile.read(path).records]
        return account(records, 1, 1e-5).epsilon if records else 0.0


FEDAVG = ("strategy={name: fedavg, learning_rate: .5}", "privacy.epsilon=2")
# a site with pairs foresees where its budget ends, and signs that it is absent from then on
PAIRS = ("strategy={name: dp_gd}", "privacy.epsilon=2", "privacy.trust={pairwise: {colluders: 1, ratio: 3.0}}")


def plans_of(
    folder: Path, count: int, budget: float = BUDGET, rounds: int = 4, overrides: Sequence[str] = FEDAVG
) -> Plans:
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(*overrides, f"rounds={rounds}")
    sites = sites_of(folder, config, (budget, 50.0, 50.0, 50.0))
    cards = [site.card for site in sites.values()]
    proposals = [propose(config, cards, like(config)) for _ in range(count)]
    for number, site in sites.items():
        if number != NORTH:
            site.close()
    return Plans(folder / "north", sites[NORTH], proposals)


def other_unit(found: Plans) -> FederationPlan:
    """A plan that protects whole clients, while those of `found` protect examples."""
    privacy = "privacy={epsilon: 2, unit: client, at: message}"
    config = config_of("strategy={name: fedavg, learning_rate: .5}", privacy, "rounds=4")
    return propose(config, [*found.plans[0].cards], like(config))


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
    text = str(site_statement(found.folder))
    assert f"epsilon={round_up(whole)}" in text


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
    other = other_unit(found)
    with pytest.raises(PrivacyError, match="do not add up"):
        found.site.join(other.text, other.fingerprint)
    assert found.ask(0) is None
    found.site.close()


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


def kill(found: Plans, number: int, place: str) -> None:
    """Asks, and ends the process in the middle of the answer; then the site is started again."""
    append, keep = Ledger._append, SiteFolder.write_session_state

    def append_killed(ledger: Ledger, record: Record) -> None:
        if place == "behind the line of the ledger":
            append(ledger, record)
        raise Killed

    def keep_killed(folder: SiteFolder, proposal: FederationPlan, kept: SessionState) -> None:
        if place == "behind the kept reply":
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
    "before the line of the ledger",
    "behind the line of the ledger",
    "before the kept reply",
    "behind the kept reply",
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
def test_no_order_of_plans_restarts_and_kills_passes_the_budget(
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


def test_a_forecast_of_one_plan_takes_nothing_from_another(tmp_path: Path) -> None:
    """The first forecast of plan 1 is that it has no room; plan 0 has all that it had before."""
    found = plans_of(tmp_path, 2, overrides=PAIRS)
    found.join(0)
    assert [found.ask(0), found.ask(0)] == [None, None]
    before = found.site.spent()
    found.join(1)
    assert [notice.why for notice in found.site.notices(found.plans[1].hash)] == ["over_budget"]
    assert found.site.spent() == before
    assert [found.ask(0), found.ask(0)] == [None, None]
    assert found.epsilon() <= BUDGET
    found.site.close()


def test_rounds_that_are_signed_away_are_left_out_of_the_forecast(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 1, budget=50.0, overrides=PAIRS)
    found.join(0)
    found.site.say_absent(found.plans[0].hash, 1, 1)
    found.site.close()
    enough_for_three_rounds = 1.8
    settings_file = found.folder / "site.yaml"
    settings_file.write_text(settings_file.read_text().replace("epsilon: 50.0", f"epsilon: {enough_for_three_rounds}"))
    found.site = Site(found.folder)
    found.site.prepare()
    assert [notice.why for notice in found.site.notices(found.plans[0].hash)] == ["away"]
    assert [found.ask(0) for _ in range(4)] == [None, "said_absent", None, None]
    assert 1.6 < found.epsilon() <= enough_for_three_rounds
    found.site.close()


def test_two_threads_ask_two_plans_at_once(tmp_path: Path) -> None:
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


def test_a_second_object_of_a_folder_takes_it_over_with_all_that_was_spent(tmp_path: Path) -> None:
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


def test_a_second_object_waits_for_a_release_that_is_being_written(tmp_path: Path) -> None:
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


def test_a_plan_of_another_unit_is_refused_also_before_the_first_was_asked(tmp_path: Path) -> None:
    """Otherwise both would be accepted, and neither could be answered after the next start."""
    found = plans_of(tmp_path, 1)
    found.join(0)
    found.restart()
    other = other_unit(found)
    with pytest.raises(PrivacyError, match="do not add up"):
        found.site.join(other.text, other.fingerprint)
    found.restart()
    found.site.prepare()
    assert found.ask(0) is None
    found.site.close()


def test_a_plan_that_could_not_be_kept_is_not_in_the_way_of_others(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 1)
    other = other_unit(found)

    def full(folder: SiteFolder, proposal: FederationPlan) -> None:
        raise OSError("no space")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiteFolder, "accept", full)
        with pytest.raises(OSError, match="no space"):
            found.site.join(other.text, other.fingerprint)
    found.join(0)
    assert found.ask(0) is None
    found.site.close()


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
def test_what_was_spent_is_not_forgotten_with_a_file(tmp_path: Path, remove: Callable[[Plans], None]) -> None:
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


def test_a_site_that_cannot_be_opened_is_not_held(tmp_path: Path) -> None:
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
