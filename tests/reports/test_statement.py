"""The page for a data-protection officer: it answers the ten questions, in every format, and only for sound runs."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from commands import error_line, fedpriv, trained
from officer import VERIFIER, epsilon_by_verifier

from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.reports.pages import WRITERS, render_html, render_markdown, render_pdf
from fedpriv.reports.statement import Statement

FEDAVG = "strategy={name: fedavg, learning_rate: 0.5}"
SHORT = ("data.partition.n_clients=4", "rounds=3")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs of epsilon 1 on the same data."""
    folder = tmp_path_factory.mktemp("runs")
    return [trained(folder / name, "privacy.epsilon=1", *SHORT) for name in ("1", "2")]


def page_of(*words: object) -> str:
    done = fedpriv("statement", *map(str, words))
    assert done.exit_code == 0, done.stderr
    return done.stdout


def text_of(content: bytes) -> str:
    """The words of a PDF, in order."""
    streams = re.findall(rb"stream\r?\n(.*?)endstream", content, re.DOTALL)
    plain = b"".join(
        zlib.decompress(base64.a85decode(s.strip(), adobe=s.strip().startswith(b"<~"))) for s in map(_a85, streams)
    )
    return " ".join(
        re.sub(r"\\(.)", r"\1", part.decode("latin-1")) for part in re.findall(rb"\((.*?)(?<!\\)\) Tj", plain)
    )


def _a85(stream: bytes) -> bytes:
    return b"<~" + stream.strip() if not stream.strip().startswith(b"<~") else stream


def test_statement_answers_officer_questions(runs: list[Path]):
    text, head = page_of(runs[0]), json.loads((runs[0] / "result.json").read_text())["head"]
    answers = {
        "whose data": "4 data holders with 359 to 360 records each, 1437 in all",
        "what is protected": "one record (a row, an image) of one data holder; with any other value in its place",
        "how well": "reveals at most epsilon=1 (delta=1e-5) about one record",
        "how sure": "can become at most 73.2 % certain of one",
        "who could see what": "| anyone who sees messages | all that travels between data holders and server | 1 [a] |",
        "a person with several records": "epsilon of 10 records of one person",
        "what was released": "3 x gradient, gaussian noise of 6.46 times what one record can change",
        "what is simulated": "All data holders were SIMULATED by one operator",
        "what is not protected": "the number of data holders, how many records each has",
        "what must be kept secret": "No stored file can reproduce the noise",
        "what another run would cost": "| with one more like the last | epsilon=1.466 at delta=1e-5 |",
        "how to verify": f"3 records in a chain, head {head}",
    }
    for question, answer in answers.items():
        assert answer in text, f"{question}: {text}"
    assert re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d to 20\d\d-\d\d-\d\d \d\d:\d\d", text)
    assert "none was set" in text


def test_statement_ledger_matches_verifier(runs: list[Path]):
    assert epsilon_by_verifier(page_of(runs[0])) == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "answer", "reason"),
    [
        (
            ("privacy.sampling={allocation: {batches: 3}}",),
            "unknown or missing fields: ['batches']",
            "random allocation",
        ),
        (
            ("privacy.mechanism=laplace", "privacy.clip={norm: l2, bound: 1}"),
            "laplace noise under a clip of l2",
            "laplace noise under a clip of l2",
        ),
        (
            (
                "privacy.sampling={cyclic: {blocks: 2, rate: 0.5}}",
                "privacy.noise={correlated: {banded: {band: 2}}}",
                FEDAVG,
            ),
            "correlated noise with secret draws",
            "secret draws with correlated noise",
        ),
    ],
    ids=["allocation", "laplace", "noise over time"],
)
def test_statement_omits_verifier_for_unsupported_ledger(
    settings: tuple[str, ...], answer: str, reason: str, tmp_path: Path
):
    run = trained(tmp_path / "a", *SHORT, *settings)
    counted = subprocess.run(
        [sys.executable, VERIFIER, run / "ledger.jsonl"], capture_output=True, text=True, check=False
    )
    assert counted.stderr == f"refused: {answer}\n"
    assert counted.returncode == 1
    text = page_of(run)
    assert f"the small verifier does not support {reason}, and rejects this ledger" in text
    assert "fedpriv_verify" not in text


def test_statement_composes_several_runs(runs: list[Path]):
    text = page_of(*runs)
    assert "reveals at most epsilon=1.466 (delta=1e-5)" in text
    assert "| if results chose later runs | epsilon=2 at delta=2e-5 |" in text
    assert "| with one more like the last | epsilon=1.835 at delta=1e-5 |" in text
    assert all(f"{run}: ledger" in text for run in runs)


def test_statement_formats_agree_and_are_private(runs: list[Path], tmp_path: Path):
    places = [tmp_path / f"page{end}" for end in WRITERS]
    page = page_of(runs[0], *(word for place in places for word in ("--out", place)))
    assert "reveals at most epsilon=1" in page
    md, web, paper = (place.read_bytes() for place in places)
    for wanted in (
        "SIMULATED",
        "epsilon of one record",
        "How can this be verified?",
        "epsilon=1.466",
        "fedpriv_verify",
    ):
        assert wanted in md.decode() and wanted in web.decode(), wanted
    words = text_of(paper)
    assert "SIMULATED" in words and "epsilon=1.466 at delta=1e-5" in words and "73.2 %" in words
    assert len(re.findall(rb"/Type /Page\b(?!s)", paper)) == 1, "one page"
    assert "<script" not in web.decode()
    assert {oct(place.stat().st_mode & 0o777) for place in places} == {"0o600"}
    assert "must end in one of .md, .html, .pdf" in error_line(
        "statement", str(runs[0]), "--out", str(tmp_path / "a.doc")
    )


def test_statement_altered_or_missing_run_raises(runs: list[Path], tmp_path: Path):
    shutil.copytree(runs[0], tmp_path / "altered")
    ledger = tmp_path / "altered" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"noise_multiplier":6', '"noise_multiplier":9', 1))
    assert "altered" in error_line("statement", str(tmp_path / "altered"))
    assert "contains no run" in error_line("statement", str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("privacy={noise_on: none}",), ["Not private: epsilon=inf", "no bound"]),
        (
            ("privacy={epsilon: 3, trust: {secure_aggregation: {min_honest: 4}}}", FEDAVG),
            [
                "All that was released, sums alone, reveals",
                "The protocol for that was SIMULATED",
                "the protocol was SIMULATED",
            ],
        ),
        (
            (
                "privacy={epsilon: 3, unit: client, noise_on: message, relation: add_remove, trust: central}",
                FEDAVG,
            ),
            [
                "All that left the trusted server reveals",
                "everything that one data holder has",
                "equally likely to be in the data",
            ],
        ),
    ],
)
def test_statement_states_trust_and_missing_noise(settings: tuple[str, ...], said: list[str], tmp_path: Path):
    text = page_of(trained(tmp_path / "run", *settings, *SHORT, "log.tensorboard=false"))
    for wanted in said:
        assert wanted in text, text


def test_statement_escapes_names():
    spent = PrivacySpent(1.0, 1e-5, "sample", "replace_one", "local", "pld", (1.0,), ())
    page = Statement(
        about="<i>t</i>",
        subject="s & t",
        spent=spent,
        data="<script>alert(1)</script> | 多",
        held_by="name|of <b>it</b>",
        used_for="<p>",
        cells=(),
        trust=("<p>",),
        secret="n",
        costs=[("<b>run</b>", spent)],
        budgets=(),
        checks=[("|", "<i>")],
        release_table=(("a", "b"), ("1", "|")),
    )
    web, text = render_html(page).decode(), render_markdown(page).decode()
    assert "<script>" not in web and "&lt;script&gt;" in web and "<i>" not in web and "<b>run" not in web
    assert "name\\|of" in text and "\\| 多" in text
    assert render_pdf(page).startswith(b"%PDF")


def test_statement_sections_same_order_in_formats(runs: list[Path]):
    page = json.loads(page_of(runs[0], "--json"))
    titles = [section["title"] for section in page["sections"]]
    assert len(titles) == len({*titles}) == 7
    for text in (page_of(runs[0]), html_of(runs[0])):
        places = [text.index(f"{number}. {title}") for number, title in enumerate(titles, start=1)]
        assert places == sorted(places)


def html_of(run: Path) -> str:
    page_of(run, "--out", run.parent / "one.html")
    return (run.parent / "one.html").read_text()
