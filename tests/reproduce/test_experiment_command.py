"""`python benchmarks/reproduce`: its list, its files, and an interrupted experiment that continues."""

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from experiment import Bench, Experiment, Findings, Row, number
from experiments import EXPERIMENTS

ROOT = Path(__file__).parents[2]


def squares(number: int, log: str) -> int:
    with open(log, "a") as file:
        file.write(f"{number}\n")
    if number == 3 and Path(log).read_text().count("3") == 1:
        raise KeyboardInterrupt
    return number**2


def bench_of(folder: Path, jobs: int = 1) -> Bench:
    return Bench("default", folder, jobs)


def test_interrupted_experiment_computes_missing_points_only(tmp_path):
    log = str(tmp_path / "log")
    settings = [(n, log) for n in (1, 2, 3, 4)]
    with pytest.raises(KeyboardInterrupt):
        bench_of(tmp_path).each(squares, settings)
    assert bench_of(tmp_path).each(squares, settings) == [1, 4, 9, 16]
    assert Path(log).read_text().split() == ["1", "2", "3", "3", "4"]


def test_two_processes_keep_order(tmp_path):
    settings = [(n, 10) for n in range(6)]
    assert bench_of(tmp_path, 2).each(pow, settings) == [n**10 for n in range(6)]


def test_finish_writes_table_result_picture_and_removes_points(tmp_path):
    bench = bench_of(tmp_path)
    values = bench.each(pow, [(2, 3), (2, 5)])
    row = Row.of("powers", values, paper=19.5, stated="1 per round", true=float("inf"))
    found = Findings(
        "a number", [row], "The paper's number holds.", lambda figure: figure.subplots().plot(values), ["made up"]
    )
    bench.finish(
        Experiment("powers", "Nobody (2020)", "table 1", "powers", (), (None,) * 3, lambda bench: found), found
    )
    table = (tmp_path / "table.md").read_text()
    assert "| powers | 20.00 ± 16.97 | 19.50 | 1 per round | inf (not private) |  |" in table
    assert "**The paper's number holds.**" in table and "* made up" in table
    assert json.loads((tmp_path / "result.json").read_text())["rows"][0]["ours"] == 20
    assert (tmp_path / "picture.png").stat().st_size > 1000
    assert not list((tmp_path / "points").glob("*.json"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7.844, "7.84"),
        (21.788, "21.79"),
        (91.05, "91.05"),
        (0.00071, "7.10e-04"),
        (353.2, "353"),
        (0.0, "0"),
        (18446.44, "18446"),
    ],
)
def test_number_has_paper_digits(value, text):
    assert number(value) == text


def test_true_epsilon_rounds_up():
    assert Row("noisy", 1.0, true=1.65011544).cells()[4] == "1.651"
    assert Row("noisy", 1.0, true=144_943.2).cells()[4] == "145000"


def test_page_has_largest_size_of_each_paper(tmp_path):
    entry = Experiment("powers", "Nobody (2020)", "table 1", "powers", (), (None,) * 3, lambda bench: findings)
    other = replace(entry, name="roots")
    for name, size, value in (
        ("powers-quick", "quick", 1.5),
        ("powers", "default", 2.5),
        ("roots-quick", "quick", 3.5),
    ):
        row = Row("powers", value, paper=19.5, true=float("inf"))
        findings = Findings("a number", [row], "It holds.", lambda figure: figure.subplots().plot([1]), ["made up"])
        Bench(size, tmp_path / name).finish(entry, findings)
    door = runpy.run_path(str(ROOT / "benchmarks" / "reproduce" / "__main__.py"))
    page = door["page"](tmp_path, {"powers": entry, "roots": other, "absent": replace(entry, name="absent")})
    assert "| powers | 2.50 | 19.50 |  | inf (not private) |  |" in page and "1.50" not in page
    assert page.count("## Nobody (2020)") == 1 and "absent" not in page
    assert "### roots" in page and "| powers | 3.50 |" in page and "with `--quick`" in page


def test_names_unique_and_described():
    names = [one.name for one in EXPERIMENTS]
    assert len(set(names)) == len(names)
    assert all(one.paper and one.part and one.question and len(one.minutes) == 3 for one in EXPERIMENTS)


def test_unknown_name_suggests_known_one(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["reproduce", EXPERIMENTS[0].name + "x"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "benchmarks" / "reproduce"), run_name="__main__")
    assert EXPERIMENTS[0].name in capsys.readouterr().err
