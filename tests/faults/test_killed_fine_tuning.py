"""The head of a ResNet-18 and adapters of a transformer, trained by commands: a killed run ends as one that was not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from processes import rounds, running, wait
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config import build, load_config

ROOT = Path(__file__).parents[2]
LOG = "log={checkpoint_every: 2, evaluate_every: 4, csv: true, tensorboard: false}"
FEW = ["rounds=5", "secret_seed=3", "privacy.sampling.poisson.rate=0.1", LOG]
FILES = ("ledger.jsonl", "metrics.jsonl", "metrics.csv", "model.pt")
CONFIGURATIONS = {
    "a head": ("configs/digits_resnet_head.yaml", ["model.width=8"], {"fc.weight", "fc.bias"}),
    "adapters": ("tests/vit_lora.yaml", ["model.width=8", "model.heads=2", "model.train=[head.*]"], {"head", "lora_"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_a_killed_run_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    path, small, trained = CONFIGURATIONS[kind]
    config, words = str(ROOT / path), [*small, *FEW]
    with running("train", config, "--out", str(tmp_path / "killed"), *words) as run:
        wait(lambda: rounds(tmp_path / "killed") >= 3, run)
        run.kill()
        run.wait()
    assert not (tmp_path / "killed" / "result.json").exists()
    for command in (["resume", str(tmp_path / "killed")], ["train", config, "--out", str(tmp_path / "whole"), *words]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.stderr
    killed, whole = ({name: (tmp_path / run / name).read_bytes() for name in FILES} for run in ("killed", "whole"))
    assert killed == whole
    results = [json.loads((tmp_path / run / "result.json").read_bytes()) for run in ("killed", "whole")]
    assert {**results[0], "seconds": None} == {**results[1], "seconds": None}
    assert 2.9 < results[0]["epsilon"] <= 3

    start = build(load_config(Path(config), words)).population.model.state_dict()
    end = torch.load(tmp_path / "killed" / "model.pt")
    moved = {name for name, value in end.items() if not torch.equal(value, start[name])}
    assert len(killed["ledger.jsonl"].splitlines()) == 1 + 5
    assert moved == {name for name in end if any(part in name for part in trained)}
    assert moved != set(end)
