"""The page of a site is counted from its own ledgers, also while it is at work."""

from __future__ import annotations

from pathlib import Path

import pytest
from sites_in_memory import NAMES, Party, party
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.errors import FedprivError
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.sites import Site
from fedpriv.sites.statement import statement_of_site


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    found = party(tmp_path_factory.mktemp("party"), "strategy={name: fedavg, learning_rate: 0.5}")
    list(found.federation)
    yield found
    found.close()


def test_the_page_of_a_site_says_what_it_has_spent_and_with_whom(trained: Party):
    done = CliRunner().invoke(app, ["statement", str(trained.folder / "east")])
    assert done.exit_code == 0, done.output
    text, plan = done.stdout, trained.proposal
    spent = trained.sites[1].spent(plan.hash)
    head = LedgerFile.read(trained.folder / "east" / "runs" / _run(trained, "east") / "ledger.jsonl")
    answers = {
        "whose data": "the site east; others are told of",
        "how well": f"| guarantee | {spent}",
        "with whom": ", ".join(NAMES),
        "what left": "4 x gradient, gaussian noise of",
        "what was planned": "of 4 that the plan has",
        "what is simulated": "Nothing was simulated.",
        "the budget": "epsilon=50 at delta=1e-5: an answer that would pass it is refused",
        "what another would cost": "and with one more like the last",
        "the plan that all compared": plan.fingerprint,
        "the ledger": f"4 records in a chain, head {head.head(4)}",
    }
    for question, answer in answers.items():
        assert answer in text, f"{question}: {text}"


def _run(found: Party, name: str) -> str:
    (run,) = (found.folder / name / "runs").iterdir()
    return run.name


def test_its_epsilon_is_that_of_its_accountant(trained: Party):
    page = statement_of_site(trained.folder / "north")
    spent = trained.sites[0].spent(trained.proposal.hash)
    assert str(spent) in dict(page.sections[0].rows)["guarantee"]


def test_an_altered_ledger_has_no_page_nor_has_a_site_that_joined_nothing(trained: Party, tmp_path: Path):
    ledger = trained.folder / "south" / "runs" / _run(trained, "south") / "ledger.jsonl"
    whole = ledger.read_text()
    ledger.write_text(whole.replace('"rate":1.0', '"rate":0.5', 1))
    with pytest.raises(FedprivError, match="altered"):
        statement_of_site(trained.folder / "south")
    ledger.write_text(whole)
    site = Site.create(tmp_path / "new", trained.folder / "west.yaml")
    site.close()
    with pytest.raises(FedprivError, match="joined no federation"):
        statement_of_site(tmp_path / "new")
