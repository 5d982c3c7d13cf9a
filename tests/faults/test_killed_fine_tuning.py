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
FEW = ["rounds=5", "privacy.sampling.poisson.rate=0.1", LOG]
CONFIGURATIONS = {
    "a head": ("configs/digits_resnet_head.yaml", ["model.width=8"], {"fc.weight", "fc.bias"}),
    "adapters": ("tests/vit_lora.yaml", ["model.width=8", "model.heads=2", "model.train=[head.*]"], {"head", "lora_"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_killed_fine_tuning_resumes_same_parameters(kind: str, tmp_path: Path) -> None:
    path, small, trained = CONFIGURATIONS[kind]
    config, words = str(ROOT / path), [*small, *FEW]
    with running("train", config, "--out", str(tmp_path / "killed"), *words) as run:
        wait(lambda: rounds(tmp_path / "killed") >= 3, run)
        run.kill()
        run.wait()
    assert not (tmp_path / "killed" / "result.json").exists()
    done = CliRunner().invoke(app, ["resume", str(tmp_path / "killed")])
    assert done.exit_code == 0, done.stderr
    result = json.loads((tmp_path / "killed" / "result.json").read_bytes())
    assert (result["rounds"], result["ended"]) == (5, "rounds")
    assert 2.9 < result["epsilon"] <= 3

    start = build(load_config(Path(config), words)).population.model.state_dict()
    end = torch.load(tmp_path / "killed" / "model.pt")
    moved = {name for name, value in end.items() if not torch.equal(value, start[name])}
    assert len((tmp_path / "killed" / "ledger.jsonl").read_bytes().splitlines()) == 1 + 5
    assert moved == {name for name in end if any(part in name for part in trained)}
    assert moved != set(end)
