"""Whether constraints hold is said wherever a result is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from plain_torch import rows
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.evaluation.verdict import format_constraint_verdict


def clients(at_most: float) -> list[fp.Client]:
    draw = torch.Generator().manual_seed(0)
    data = [rows(torch.randn(30, 4, generator=draw), torch.arange(30) % 3) for _ in range(2)]
    problem = fp.Problem(constraints=(fp.ClassLossAtMost(1, at_most),))
    torch.manual_seed(0)
    return fp.make_clients(nn.Linear(4, 3), nn.CrossEntropyLoss(), data, problem)


def test_exact_run_reports_constraints_hold() -> None:
    result = fp.train(clients(0.9), fp.proximal_al(), fp.Privacy(noise_on="none"), rounds=40)
    assert "constraints hold: largest violation" in str(result)
    assert f"largest multiplier {torch.tensor(result.measures['multipliers']).abs().max():.3g}" in str(result)
    assert "constraints hold" in result._repr_html_()


def test_exact_run_reports_violated_constraints() -> None:
    result = fp.train(clients(1e-3), fp.proximal_al(), fp.Privacy(noise_on="none"), rounds=3)
    assert result.measures["constraints"] == "violated"
    assert "constraints are violated: largest violation" in str(result)


@pytest.mark.parametrize(
    ("at_most", "verdict", "words"),
    [
        (2.9, "hold", "constraints hold, with a margin larger than the noise"),
        (0.02, "violated", "constraints are violated by more than the noise"),
    ],
)
def test_private_run_verdict_depends_on_noise(at_most: float, verdict: str, words: str) -> None:
    statistics = fp.Statistics(bound=3.0, public_counts=True)
    privacy = fp.Privacy(noise_multiplier=1e-3, statistics=statistics)
    result = fp.train(clients(at_most), fp.private_al(beta=0.01), privacy, rounds=4, seed=0, secret_seed=0)
    assert result.measures["constraints"] == verdict
    assert words in str(result)
    hidden = fp.Privacy(noise_multiplier=1e3, statistics=statistics)
    unclear = fp.train(clients(at_most), fp.private_al(beta=0.01), hidden, rounds=4, seed=0, secret_seed=0)
    assert "unclear because of noise whether constraints hold" in str(unclear)


def test_strategy_rounds_default_to_run() -> None:
    """A strategy with another number of rounds still raises."""
    privacy = fp.Privacy(noise_multiplier=1.0, statistics=fp.Statistics(public_counts=True))
    runs = [
        fp.train(clients(1.0), strategy, privacy, rounds=4, seed=0, secret_seed=0)
        for strategy in (fp.private_al(beta=0.1), fp.private_al(4, beta=0.1))
    ]
    assert torch.equal(runs[0].params, runs[1].params)
    assert runs[0].measures["estimates_of_reported_model"]
    with pytest.raises(fp.ConfigError, match="exceeds the 3 rounds for which private_al was created"):
        fp.train(clients(1.0), fp.private_al(3), privacy, rounds=4)


def test_cli_and_tensorboard_report_constraints(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(
        "data: {name: digits, partition: {kind: iid, n_clients: 3}}\nmodel: softmax\nloss: cross_entropy\n"
        "problem: {constraints: [{name: class_loss_at_most, label: 1, bound: 2.0}]}\n"
        "strategy: proximal_al\nprivacy: {noise_on: none}\nrounds: 5\nlog: {tensorboard: true}\n"
    )
    done = CliRunner().invoke(app, ["train", str(config), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "largest multiplier" in done.output
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "run")]).output
    assert "largest violation" in shown
    events = EventAccumulator(str(tmp_path / "run" / "tb")).Reload()
    texts = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("constraints/text_summary")]
    assert len(texts) == 1
    assert "largest multiplier" in texts[0]


def test_no_constraints_no_verdict() -> None:
    assert format_constraint_verdict({"test_accuracy": 0.9}) == ""
