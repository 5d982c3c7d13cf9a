"""What a run's folder says when it is read back."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path

import pytest
import yaml
from matplotlib import image
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config import build, load_config, to_yaml
from fedpriv.config.recovered_plan import recover_plan
from fedpriv.errors import FedprivError
from fedpriv.reports import comparison
from fedpriv.reports.picture import draw
from fedpriv.reports.report import Run
from fedpriv.runs.line_files import MetricsFile
from fedpriv.storage.files import disk

DIGITS = Path(__file__).parents[1] / "run.yaml"


def half_a_run(folder: Path, *overrides: str, rounds: int = 4) -> Run:
    """A run that stopped, as its folder shows it."""
    folder.mkdir()
    config = load_config(DIGITS, ["data.partition.n_clients=3", *overrides])
    (folder / "config.yaml").write_text(to_yaml(config))
    for report in build(config, folder):
        if report.round == rounds:
            break
    return Run.read(folder)


def test_unfinished_run_epsilon_from_ledger(tmp_path: Path):
    run = half_a_run(tmp_path / "run")
    facts = run.to_json()
    assert (facts["finished"], facts["rounds"]) == (False, 4)
    assert 0 < facts["epsilon"] < 3
    assert facts["epsilon"] == run.spent.epsilon <= run.metrics[-1]["epsilon"]
    rows = run.rows()
    assert rows["rounds"] == "4 so far; the run is not finished"
    assert "whole plan" in rows["if abandoned now"]
    assert rows["privacy"] == str(run.spent)
    assert rows["test accuracy"] == f"{run.metrics[-1]['test_accuracy']:.2%}"


@pytest.mark.parametrize(
    "overrides",
    [[], ["privacy.noise_on=none"], ["privacy={noise_multiplier: 20}"], ["log.evaluate_every=50"], ["model.bias=true"]],
    ids=["target", "no privacy", "no target", "nothing measured yet", "other model"],
)
def test_picture_drawn_for_any_run(overrides: list[str], tmp_path: Path):
    run = half_a_run(tmp_path / "run", *overrides)
    draw(run, tmp_path / "report.png")
    pixels = image.imread(tmp_path / "report.png")
    assert pixels.shape[:2] == (930, 1200)
    assert pixels[..., :3].std() > 0.05, "something is drawn"


def test_picture_drawn_before_first_round(tmp_path: Path):
    run = half_a_run(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    draw(Run.read(run.folder), tmp_path / "report.png")
    assert Run.read(run.folder).rounds == 0


def test_torn_metrics_line_skipped(tmp_path: Path):
    run = half_a_run(tmp_path / "run")
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "eps')
    assert Run.read(run.folder).rounds == 4


@pytest.mark.parametrize("name", ["config.yaml", "result.json", "metrics.jsonl", "ledger.jsonl"])
@pytest.mark.parametrize("text", ["", "a: [", "[3]\n", "3\n", "{}\n"])
def test_damaged_run_file_raises_with_name(name: str, text: str, tmp_path: Path):
    run = half_a_run(tmp_path / "run", rounds=1)
    if (name, text) == ("metrics.jsonl", ""):
        return  # a run before its first round
    (run.folder / name).write_text(text + "\n" if text else "")
    with pytest.raises(FedprivError, match=rf"{name}.*(is damaged|is not the header of a ledger)"):
        print(Run.read(run.folder).spent)


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("result.json", "epsilon", "3", r"epsilon = '3'"),
        ("result.json", "epsilon", float("nan"), "epsilon = nan"),
        ("result.json", "per_client_epsilon", 3, "per_client_epsilon = 3"),
        ("result.json", "rounds", None, "rounds = None"),
        ("result.json", "rounds", -1, "rounds = -1"),
        ("result.json", "not_covered", "all", "not_covered = 'all'"),
        ("result.json", "kkt", {"max": "a"}, "kkt.max"),
        ("result.json", "releases", ..., r"written by an earlier fedpriv \(it has no releases\); .*or delete it"),
        ("result.json", "ended", ..., r"it has no ended"),
        ("metrics.jsonl", "round", "1", "round = '1'"),
        ("metrics.jsonl", "epsilon", [], r"epsilon = \[\]"),
        ("metrics.jsonl", "releases", 1.5, "releases = 1.5"),
        ("metrics.jsonl", "round", ..., "it has no round"),
        ("config.yaml", "strategy", "fedavg", "strategy = 'fedavg'"),
        ("config.yaml", "privacy", ..., "it has no privacy"),
        ("config.yaml", "network", {"topology": {"name": 3}}, "network.topology.name = 3"),
    ],
)
def test_run_field_of_wrong_type_raises_with_name(name: str, field: str, value: object, message: str, finished: Path):
    whole = (finished / name).read_text()
    read = yaml.safe_load if name == "config.yaml" else json.loads
    lines = [whole] if name != "metrics.jsonl" else whole.splitlines()
    facts = read(lines[0]) | {field: value}
    if value is ...:
        del facts[field]
    lines[0] = json.dumps(facts)
    (finished / name).write_text("\n".join(lines) + "\n")
    try:
        with pytest.raises(FedprivError, match=rf"{name}.* is damaged.*{message}"):
            Run.read(finished)
    finally:
        (finished / name).write_text(whole)
    assert Run.read(finished).rows()["privacy"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    command = ["train", str(DIGITS), "--out", str(folder), "data.partition.n_clients=3", "rounds=2"]
    assert CliRunner().invoke(app, command).exit_code == 0
    return folder


@pytest.mark.parametrize("how", [[], ["--json"]])
def test_show_read_only_folder(finished: Path, how: list[str], monkeypatch: pytest.MonkeyPatch):
    def refused(path: Path, flags: int) -> int:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(disk, "open", refused)
    done = CliRunner().invoke(app, ["show", str(finished), *how])
    assert done.exit_code == 0, done.stderr
    assert "epsilon" in done.stdout
    assert "picture" not in done.stdout
    assert "no picture" in done.stderr and "Read-only file system" in done.stderr


def test_show_infinite_results(finished: Path):
    """A run that diverged."""
    whole = (finished / "result.json").read_text()
    (finished / "result.json").write_text(json.dumps(json.loads(whole) | {"test_loss": "inf", "test_accuracy": None}))
    try:
        run = Run.read(finished)
        assert run.rows()["test loss"] == "inf"
        assert "inf" in comparison.format_table([run, run])[1]
    finally:
        (finished / "result.json").write_text(whole)


def test_resume_damaged_metrics_file_raises(tmp_path: Path):
    run = half_a_run(tmp_path / "run")
    lines = (run.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run.folder / "metrics.jsonl").write_text("".join([lines[0], "garbage\n", *lines[2:]]))
    with pytest.raises(FedprivError, match=r"metrics\.jsonl, line 2 is damaged; restore the file from a copy"):
        MetricsFile(run.folder / "metrics.jsonl", keep=4)


def test_read_folder_without_run_raises(tmp_path: Path):
    with pytest.raises(FedprivError, match=r"contains no run \(no ledger\.jsonl\)"):
        Run.read(tmp_path)


def test_comparison_table_and_total_cost(tmp_path: Path):
    runs = [half_a_run(tmp_path / "one"), half_a_run(tmp_path / "other", "privacy.epsilon=1", "privacy.delta=1e-6")]
    heading, *lines = comparison.format_table(runs)
    assert heading.split()[:3] == ["run", "what", "rounds"]
    for run, line in zip(runs, lines, strict=True):
        assert line.startswith(str(run.folder))
        assert f"{run.metrics[-1]['test_accuracy']:.2%}" in line
        assert "4 so far" in line
        # every column starts where its heading does
        assert line[heading.index("unit") :].startswith("sample ")
    plans = [recover_plan(run.files) for run in runs]
    differing, total, *unfinished = comparison.collect_notes(runs, plans)
    assert [note.partition(" ")[0] for note in unfinished] == [str(run.folder) for run in runs]
    assert differing == "these epsilons are not comparable: the runs differ in delta"
    together, least, epsilon, delta = (float(number) for number in re.findall(r"(?:epsilon|delta)=([\d.e-]+)", total))
    charged = [float(run.config["privacy"]["epsilon"]) for run in runs]  # of the whole plan, since both were left
    sum_of_epsilons = sum(charged)
    assert max(charged) < together < sum_of_epsilons
    assert least == 1e-6
    assert sum_of_epsilons == pytest.approx(epsilon, rel=1e-3)
    assert 1.1e-5 <= delta <= 1.102e-5


@pytest.mark.parametrize(
    ("overrides", "notes"),
    [
        (["data.transforms=[center]"], ["accuracies are not comparable", "together"]),
        (["data.partition.seed=3"], ["together"]),
        (["privacy.relation=add_remove"], ["the runs differ in relation"]),
        (["privacy.noise_on=none"], []),
    ],
    ids=["other test data", "other clients", "other neighbours", "not private"],
)
def test_comparison_notes_differences(overrides: list[str], notes: list[str], tmp_path: Path):
    runs = [half_a_run(tmp_path / "one", rounds=1), half_a_run(tmp_path / "other", *overrides, rounds=1)]
    plans = [recover_plan(run.files) for run in runs]
    found = [note for note in comparison.collect_notes(runs, plans) if "is not finished" not in note]
    assert len(found) == len(notes)
    assert all(words in note for words, note in zip(notes, found, strict=True))
