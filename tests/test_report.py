"""What a run's folder says when it is read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib import image

from fedpriv.config import build, load_config, to_yaml
from fedpriv.errors import FedprivError
from fedpriv.report import Run, draw
from fedpriv.sinks import Jsonl

DIGITS = Path(__file__).with_name("run.yaml")


def half_a_run(folder: Path, *overrides: str, rounds: int = 4) -> Run:
    """A run that stopped, as its folder shows it."""
    folder.mkdir()
    config = load_config(DIGITS, ["data.partition.n_clients=3", *overrides])
    (folder / "config.yaml").write_text(to_yaml(config))
    sink = Jsonl(folder / "metrics.jsonl")
    for report in build(config, folder):
        sink.write(report)
        if report.round == rounds:
            break
    return Run.read(folder)


def test_an_unfinished_run_is_counted_from_its_ledger(tmp_path: Path):
    run = half_a_run(tmp_path / "run")
    facts = run.to_json()
    assert (facts["finished"], facts["rounds"]) == (False, 4)
    assert 0 < facts["epsilon"] < 3
    assert facts["epsilon"] == run.spent.epsilon <= run.metrics[-1]["epsilon"]
    rows = run.rows()
    assert rows["rounds"] == "4 so far; the run is not finished"
    assert rows["privacy"] == str(run.spent)
    assert rows["test accuracy"] == f"{run.metrics[-1]['test_accuracy']:.2%}"


@pytest.mark.parametrize(
    "overrides",
    [[], ["privacy.at=none"], ["privacy={noise_multiplier: 20}"], ["log.evaluate_every=50"], ["model.bias=true"]],
    ids=["target", "no privacy", "no target", "nothing measured yet", "other model"],
)
def test_a_picture_of_any_run(overrides: list[str], tmp_path: Path):
    run = half_a_run(tmp_path / "run", *overrides)
    draw(run, tmp_path / "report.png")
    pixels = image.imread(tmp_path / "report.png")
    assert pixels.shape[:2] == (930, 1200)
    assert pixels[..., :3].std() > 0.05, "something is drawn"


def test_a_picture_before_the_first_round(tmp_path: Path):
    run = half_a_run(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    draw(Run.read(run.folder), tmp_path / "report.png")
    assert Run.read(run.folder).rounds == 0


def test_a_torn_metrics_line_is_left_out(tmp_path: Path):
    run = half_a_run(tmp_path / "run")
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "eps')
    assert Run.read(run.folder).rounds == 4


def test_what_is_no_run(tmp_path: Path):
    with pytest.raises(FedprivError, match=r"holds no run \(no ledger\.jsonl\)"):
        Run.read(tmp_path)
