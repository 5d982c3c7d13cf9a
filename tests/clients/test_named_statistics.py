"""What a private run takes from its data without noise is named: statistics that it ships, partitions by label."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from fedpriv.cli import app


class Scaled(nn.Module):
    """Subtracts a mean that somebody computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.register_buffer("mean", torch.full((64,), 0.3))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs - self.mean)


CONFIG = {
    "data": {"name": "digits", "flat": True, "partition": {"kind": "dirichlet", "n_clients": 5}},
    "model": "test_named_statistics:Scaled",
    "strategy": {"name": "fedavg", "learning_rate": 1.0},
    "privacy": {"epsilon": 3},
    "rounds": 2,
}


@pytest.mark.usefixtures("allow_plugins")
@pytest.mark.parametrize("command", ["plan", "train"])
def test_private_run_warns_of_buffers_and_label_partition(tmp_path: Path, command: str) -> None:
    """A model's buffers are released as they are, and one label can change a partition by label."""
    (tmp_path / "run.yaml").write_text(json.dumps(CONFIG))

    def message(*changes: str) -> str:
        # a run's folder is new each time
        places = ["--out", str(tmp_path / "-".join(["run", *changes]).replace("=", ""))] if command == "train" else []
        found = CliRunner().invoke(app, [command, str(tmp_path / "run.yaml"), *changes, *places])
        assert found.exit_code == 0, found.output
        return " ".join(found.output.split())

    private = message()
    assert "warning: the model has buffers (mean) that are released unchanged with it and that epsilon" in private
    assert "warning: data.partition.kind = dirichlet divides the examples by their labels" in private
    quiet = message("privacy={noise_on: none}")
    assert "buffers" not in quiet
    assert "divides the examples by their labels" not in quiet


@pytest.mark.parametrize(("kind", "looks"), [("by_label", True), ("stratified", True), ("iid", False)])
def test_label_partition_warns(tmp_path: Path, kind: str, looks: bool) -> None:
    (tmp_path / "run.yaml").write_text(json.dumps(CONFIG))
    change = [f"data.partition.kind={kind}", "model=softmax"]
    found = CliRunner().invoke(app, ["plan", str(tmp_path / "run.yaml"), *change])
    assert found.exit_code == 0, found.output
    assert ("divides the examples by their labels" in found.output) == looks
    assert "buffers" not in found.output
