"""The page of a site is counted from its own ledgers, also while it is at work."""

from __future__ import annotations

from pathlib import Path

import pytest
from officer import check_answers, epsilon_by_verifier
from sites_in_memory import NAMES, Party, party
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.errors import FedprivError
from fedpriv.privacy.accounting import gaussian
from fedpriv.privacy.accounting.spent import round_up
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.reports import picture
from fedpriv.runs.results import get_software_versions
from fedpriv.sites import Site
from fedpriv.sites.sealing import seal_site
from fedpriv.sites.statement import site_statement


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    found = party(tmp_path_factory.mktemp("party"), "strategy={name: fedavg, learning_rate: 0.5}")
    list(found.federation)
    yield found
    found.close()


PAIRS = "privacy={epsilon: 3, trust: {pairwise: {colluders: 1, ratio: 3}}}"


def page_of(found: Party, name: str) -> str:
    done = CliRunner().invoke(app, ["statement", str(found.folder / name)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_site_statement_answers_ten_questions(trained: Party):
    text, plan = page_of(trained, "east"), trained.proposal
    spent = trained.sites[1].spent()
    head = LedgerFile.read(trained.folder / "east" / "runs" / _run(trained, "east") / "ledger.jsonl").head(4)
    mu = gaussian.compute_ratio(spent.epsilon, 1e-5)
    assert epsilon_by_verifier(text) == pytest.approx(spent.epsilon, rel=0.01)
    twice, ten = (gaussian.compute_epsilon(factor * mu, 1e-5) for factor in (2**0.5, 10))
    check_answers(
        text,
        {
            1: [
                "the site east; others receive its number of records, 398 (the true number)",
                "with the algorithm fedavg, 4 rounds, with other sites",
            ],
            2: [
                "one record (a row, an image) of one data holder",
                "epsilon of one data holder",
                f"| guarantee | {spent}",
            ],
            3: [
                "All that left this site reveals at most epsilon=3 (delta=1e-5)",
                "about 1 in 100 000",
                "at most 96 % at 3",
            ],
            4: ["| 1 colluding data holder | their combined information | 3 [c]", "any number of others may collude"],
            5: ["epsilon of 10 records of one person", f"| {round_up(ten)} [a] |"],
            6: ["4 x gradient, gaussian noise of", "; the plan has 4 |", ", ".join(NAMES)],
            7: ["Nothing was simulated.", "any number of them", "settings were not chosen by trying them"],
            8: ["how many records each has", "The site's folder contains its keys"],
            9: [
                "epsilon=3 of 50 at delta=1e-5 is spent so far",
                f"one more like the last | epsilon={round_up(twice)} at",
            ],
            10: [
                plan.fingerprint,
                f"4 records in a chain, head {head}",
                f"| page created by | {get_software_versions()}",
            ],
        },
    )


def test_site_statement_no_bound_above_planned_colluders(tmp_path: Path):
    found = party(tmp_path, "strategy={name: fedavg, learning_rate: 0.5}", PAIRS)
    list(found.federation)
    found.close()
    text = page_of(found, "east")
    assert "| 1 colluding data holder | their combined information | 3 [" in text
    assert "| 2 colluding data holders | their combined information | no bound [" in text
    assert "Others may share all their information: at most 1 of them." in text


def _run(found: Party, name: str) -> str:
    (run,) = (found.folder / name / "runs").iterdir()
    return run.name


def test_site_statement_epsilon_matches_accountant(trained: Party):
    page = site_statement(trained.folder / "north")
    spent = trained.sites[0].spent()
    assert str(spent) in dict(page.sections[0].rows)["guarantee"]


def test_statement_altered_ledger_or_no_plan_raises(trained: Party, tmp_path: Path):
    ledger = trained.folder / "south" / "runs" / _run(trained, "south") / "ledger.jsonl"
    whole = ledger.read_text()
    ledger.write_text(whole.replace('"rate":1.0', '"rate":0.5', 1))
    with pytest.raises(FedprivError, match="altered"):
        site_statement(trained.folder / "south")
    ledger.write_text(whole)
    site = Site.create(tmp_path / "new", trained.folder / "west.yaml")
    site.close()
    with pytest.raises(FedprivError, match="joined no federation"):
        site_statement(tmp_path / "new")


def test_site_budget_picture_shows_spent_and_limit(trained: Party, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = dict[str, object]()
    whole = picture.draw_budget

    def watched(*drawn: object) -> None:
        seen.update(zip(("spent", "limit", "begins"), drawn, strict=False))
        whole(*drawn)  # pyright: ignore

    monkeypatch.setattr("fedpriv.sites.budget_picture.draw_budget", watched)
    done = CliRunner().invoke(app, ["statement", str(trained.folder / "east"), "--out", str(tmp_path / "east.png")])
    assert done.exit_code == 0, done.output
    spent = seen["spent"]
    assert isinstance(spent, dict)
    assert [*spent] == [0, 1, 2, 3, 4]
    assert [*spent.values()] == sorted(spent.values())
    assert spent[4] == pytest.approx(trained.sites[1].spent().epsilon, rel=1e-6)
    assert (seen["limit"], seen["begins"]) == (50.0, {0: f"plan {trained.proposal.fingerprint[:9]}"})
    assert (tmp_path / "east.png").read_bytes().startswith(b"\x89PNG")


def test_statement_picture_of_run_raises(tmp_path: Path):
    done = CliRunner().invoke(app, ["statement", str(tmp_path), "--out", str(tmp_path / "run.png")])
    assert done.exit_code == 2
    assert "must end in one of .md, .html, .pdf" in done.output


def test_plan_ended_early_charged_whole(tmp_path: Path):
    """The plan may have been ended because of query results, so a lower privacy cost would not hold."""
    found = party(tmp_path, "strategy={name: fedavg, learning_rate: 0.5}")
    next(iter(found.federation))
    so_far = found.sites[1].spent().epsilon
    found.close()
    assert so_far < 1.5
    at_work = page_of(found, "east")
    seal_site(tmp_path / "east", unfinished=True)
    for text in (at_work, page_of(found, "east")):
        assert "All that left this site reveals at most epsilon=3 (delta=1e-5)" in text
        assert "| 1 colluding data holder | their combined information | 3 [c]" in text
        assert "3 more were planned and are charged" in text
        assert f"epsilon={round_up(so_far)} of 50 at delta=1e-5 is spent so far" in text


def test_missed_round_charged_in_statement(tmp_path: Path):
    found = party(tmp_path, "strategy={name: fedavg, learning_rate: 0.5}")
    rounds = iter(found.federation)
    next(rounds)
    east = found.transport.sites.pop(1)
    next(rounds)
    found.transport.sites[1] = east
    list(rounds)
    found.close()
    text = page_of(found, "east")
    assert "at most epsilon=3 (delta=1e-5)" in text and "1 more were planned and are charged" in text
    assert "more were planned" not in page_of(found, "west")


def test_statement_charge_within_site_budget(tmp_path: Path):
    found = party(tmp_path, "strategy={name: fedavg, learning_rate: 0.5}", epsilon=(50.0, 2.0, 50.0, 50.0))
    rounds = iter(found.federation)
    next(rounds)
    found.close()
    first = site_statement(tmp_path / "east").summary
    (tmp_path / "whole").mkdir()
    found = party(tmp_path / "whole", "strategy={name: fedavg, learning_rate: 0.5}", epsilon=(50.0, 2.0, 50.0, 50.0))
    list(found.federation)
    spent = found.sites[1].spent().epsilon
    found.close()
    assert 1.0 < spent <= 2.0
    assert f"at most epsilon={round_up(spent)} " in first
    assert site_statement(tmp_path / "whole" / "east").summary == first
