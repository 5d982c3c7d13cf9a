"""The page of a table user: all that it says is done, in its order, in an empty folder."""

from __future__ import annotations

import csv
import re
import runpy
import sys
from pathlib import Path

import pytest
from commands import fedpriv

PAGE = (Path(__file__).parents[1] / "docs/howto/statistics.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def joined(block: str) -> list[str]:
    """Returns the lines of a block; a line that ends with a backslash continues in the next one."""
    return re.sub(r" \\\n\s*", " ", block).splitlines()


def test_statistics_page_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    exec(blocks("python")[0], {})
    Path("run.yaml").write_text(blocks("yaml")[0])
    commands = [line[2:] for block in blocks("console") for line in joined(block) if line.startswith("$ ")]
    printed: dict[str, str] = {}
    for command in commands:
        words = command.split()
        if words[0] == "fedpriv":
            done = fedpriv(*words[1:])
            assert done.exit_code == 0, f"{command}: {done.output}"
            printed[words[1]] = done.output
        else:
            assert words[:3] == ["python", "-m", "fedpriv_verify"]
            monkeypatch.setattr(sys, "argv", words[2:])
            runpy.run_module("fedpriv_verify", run_name="__main__")
            printed["verify"] = capsys.readouterr().out
    assert [*printed] == ["describe", "plan", "tradeoff", "train", "show", "statement", "report", "verify", "predict"]

    # the noise and the attacker's bounds that the page prints; accuracies depend on secret seeds
    for line in blocks("text")[0].splitlines()[1:5]:
        *numbers, _, _, _ = re.split(r"\s{2,}", line)
        assert re.search(r"\s+".join(map(re.escape, numbers)), printed["tradeoff"])
    assert "epsilon=1 (delta=1e-5" in printed["show"] and "test auc" in printed["show"]
    epsilon = re.search(r"epsilon <= ([\d.]+)", printed["verify"])
    assert epsilon is not None and 0.99 < float(epsilon[1]) < 1.01
    assert Path("statement.pdf").read_bytes().startswith(b"%PDF") and "auc" in Path("report.html").read_text()
    with Path("predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 300
    assert all(abs(float(row["p(well)"]) + float(row["p(ill)"]) - 1) < 1e-3 for row in rows)
    assert all(row["predicted outcome"] == ("ill" if float(row["p(ill)"]) > 0.5 else "well") for row in rows)
