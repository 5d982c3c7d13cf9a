"""`fedpriv report`: one page that loads nothing, with the numbers of the runs, also in a browser if there is one."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from commands import error_line, fedpriv, trained
from PIL import Image

SHORT = ("data.partition.n_clients=4", "rounds=6")
ON_A_GRAPH = "strategy={name: decentralized_sgd, step_size: 0.5}"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BLUE, VERMILION = (0, 114, 178), (213, 94, 0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        "a": trained(folder / "a", "privacy.epsilon=1", *SHORT),
        "b": trained(folder / "b", "privacy.epsilon=4", *SHORT),
        "ring": trained(folder / "ring", ON_A_GRAPH, "network.topology=ring", *SHORT),
        "exact": trained(folder / "exact", "privacy={noise_on: none}", *SHORT),
    }


def report(path: Path, *folders: Path) -> str:
    done = fedpriv("report", *map(str, folders), "--out", str(path))
    assert done.exit_code == 0, done.stderr
    return path.read_text()


class Reader(HTMLParser):
    """Collects the elements of a page, and checks that each is closed."""

    EMPTY = {"meta", "img", "br", "link", "input"}  # noqa: RUF012 - a constant

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def elements(page: str) -> list[tuple[str, dict[str, str | None]]]:
    reader = Reader()
    reader.feed(page)
    assert not reader.open
    assert len(reader.ids) == len(set(reader.ids))
    targets = {(attrs.get("href") or "").removeprefix("#") for tag, attrs in reader.elements if tag == "a"}
    assert targets <= {*reader.ids}, "a link leads nowhere"
    return reader.elements


def pictures(page: str) -> list[str]:
    """The SVG of every picture."""
    found: list[str] = []
    for tag, attrs in elements(page):
        if tag == "img":
            head, content = (attrs["src"] or "").split(",", 1)
            assert head == "data:image/svg+xml;base64"
            assert attrs["alt"]
            found.append(base64.b64decode(content).decode())
    return found


def words(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<style.*?</style>", "", page, flags=re.S))).split())


def test_report_contains_results_and_statement(runs: dict[str, Path], tmp_path: Path):
    page = report(tmp_path / "a.html", runs["a"])
    result = json.loads((runs["a"] / "result.json").read_text())
    text = words(page)
    assert f"{100 * result['test_accuracy']:.2f}%" in text
    assert result["head"] in text
    assert "epsilon=1 (delta=1e-5, unit=sample, relation=replace_one, trust=local, accountant=gaussian)" in text
    for title in ("Whose data, and what of them is protected?", "Who could learn what?", "How can this be verified?"):
        assert title in text
    assert "all 6" not in text
    spent = [json.loads(line)["epsilon"] for line in (runs["a"] / "metrics.jsonl").read_text().splitlines()]
    rounds = re.findall(r"<tr><td>(\d+)</td><td>([\d.]+)</td>", page)
    assert [int(number) for number, _ in rounds[:6]] == [1, 2, 3, 4, 5, 6]
    assert all(float(shown) >= true for (_, shown), true in zip(rounds, spent, strict=False)), "rounded down"
    config = (runs["a"] / "config.yaml").read_text()
    assert config.strip() in html.unescape(page)


@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("ring",), ("exact",)])
def test_report_loads_nothing(names: tuple[str, ...], runs: dict[str, Path], tmp_path: Path):
    page = report(tmp_path / "r.html", *(runs[name] for name in names))
    tags = {tag for tag, _ in elements(page)}
    assert not tags & {"script", "link", "iframe", "object", "video", "audio", "form"}
    for _, attrs in elements(page):
        for name in ("src", "href", "srcset", "action"):
            assert re.match(r"data:|#|$", attrs.get(name) or "")
    assert "url(" not in page and "@import" not in page
    assert "default-src 'none'" in page
    for picture in pictures(page):
        root = ElementTree.fromstring(picture)
        assert root.tag.endswith("svg")
        links = [value for node in root.iter() for name, value in node.attrib.items() if name.endswith("href")]
        assert all(link.startswith("#") for link in links)


def test_report_compares_several_runs(runs: dict[str, Path], tmp_path: Path):
    page = report(tmp_path / "ab.html", runs["a"], runs["b"])
    text = words(page)
    assert text.startswith("2 runs compared")
    assert "together" in text and "if these runs read the same private data" in text
    assert len(pictures(page)) == 3, "one of both runs, one of each"


def test_report_draws_graph_but_no_star(runs: dict[str, Path], tmp_path: Path):
    assert "Who sends to whom" in words(report(tmp_path / "ring.html", runs["ring"]))
    assert "Who sends to whom" not in words(report(tmp_path / "a.html", runs["a"]))


def test_report_non_private_run(runs: dict[str, Path], tmp_path: Path):
    text = words(report(tmp_path / "exact.html", runs["exact"]))
    assert "Not private: epsilon=inf" in text and "infinite not private" in text


def test_report_escapes_texts(runs: dict[str, Path], tmp_path: Path):
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    shutil.copytree(runs["a"], folder)
    page = report(tmp_path / "r.html", folder)
    assert "onerror" not in {name for _, attrs in elements(page) for name in attrs}


def test_report_altered_run_or_suffix_raises(runs: dict[str, Path], tmp_path: Path):
    broken = tmp_path / "broken"
    shutil.copytree(runs["a"], broken)
    ledger = broken / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"bound":1.0', '"bound":0.5', 1))
    message = error_line("report", str(broken), "--out", str(tmp_path / "r.html"))
    assert "altered" in message or "does not match the lines before it" in message or "changed" in message
    assert not (tmp_path / "r.html").exists()
    assert "ends in .html" in error_line("report", str(runs["a"]), "--out", str(tmp_path / "r.pdf"))


@pytest.mark.skipif(BROWSER is None, reason="no browser")
def test_report_renders_in_browser(runs: dict[str, Path], tmp_path: Path):
    report(tmp_path / "ab.html", runs["a"], runs["b"])
    picture = tmp_path / "ab.png"
    usual = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    window = ["--window-size=1000,1400", f"--screenshot={picture}", "--enable-logging=stderr"]
    command = [str(BROWSER), *usual, *window, (tmp_path / "ab.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert picture.exists(), done.stderr
    assert "Refused to" not in done.stderr and "Content Security Policy" not in done.stderr
    colours = dict(map(reversed, Image.open(picture).convert("RGB").getcolors(1 << 24)))
    assert colours.get(BLUE, 0) > 200 and colours.get(VERMILION, 0) > 200, "the curves are not drawn"


@pytest.mark.skipif(BROWSER is None, reason="no browser")
def test_report_prints_on_few_pages(runs: dict[str, Path], tmp_path: Path):
    report(tmp_path / "a.html", runs["a"])
    usual = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    printed = tmp_path / "a.pdf"
    command = [str(BROWSER), *usual, f"--print-to-pdf={printed}", (tmp_path / "a.html").as_uri()]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    pages = len(re.findall(rb"/Type\s*/Page\b", printed.read_bytes()))
    assert 2 <= pages <= 6
