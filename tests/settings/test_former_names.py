"""The error for an option of an earlier version suggests its present name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from error_texts import error_of
from typer.testing import CliRunner

import fedpriv as fp
from fedpriv.cli import app
from fedpriv.config import load_config

RUN = Path(__file__).parents[1] / "run.yaml"
IN_PYTHON: dict[str, tuple[Callable[[], object], str]] = {
    "at": (lambda: fp.Privacy(epsilon=1, at="message"), "noise_on='message'"),  # pyright: ignore[reportCallIssue]
    "durable": (lambda: fp.Privacy(epsilon=1, durable=False), "fsync=False"),  # pyright: ignore[reportCallIssue]
    "shared": (lambda: fp.Privacy(epsilon=1, shared="x"), "invariants='x'"),  # pyright: ignore[reportCallIssue]
    "chunk": (lambda: fp.Compute(chunk=8), "max_physical_batch_size=8"),  # pyright: ignore[reportCallIssue]
    "engine": (lambda: fp.Compute(engine="processes"), 'parallelism="clients"'),  # pyright: ignore[reportCallIssue]
    "state": (lambda: fp.Compute(state="disk"), 'client_state="disk"'),  # pyright: ignore[reportCallIssue]
    "pace": (lambda: fp.Compute(pace=2.0), "pad_seconds=2.0"),  # pyright: ignore[reportCallIssue]
    "least": (lambda: fp.Stop(least=0.1), "min_delta=0.1"),  # pyright: ignore[reportCallIssue]
    "chance": (lambda: fp.Flip(chance=0.1), "p=0.1"),  # pyright: ignore[reportCallIssue]
    "proximal": (lambda: fp.fedprox(0.1, proximal=0.2), "proximal_mu=0.2"),  # pyright: ignore[reportCallIssue]
    "server": (lambda: fp.fedopt(0.1, server="yogi"), "server_optimizer='yogi'"),  # pyright: ignore[reportCallIssue]
    "largest": (lambda: fp.private_al(largest=2.0), "max_multiplier=2.0"),  # pyright: ignore[reportCallIssue]
    "workers": (lambda: fp.count_examples(len, 3, workers=2), "num_workers=2"),  # pyright: ignore[reportCallIssue]
    "law": (lambda: fp.Published(1.0, law="laplace"), "mechanism='laplace'"),  # pyright: ignore[reportCallIssue]
}
IN_YAML = {
    "privacy.at=message": "privacy.noise_on=message",
    "privacy.durable=false": "privacy.fsync=false",
    "privacy.noise={time: {bsr: {band: 2}}}": "it is called correlated here",
    "privacy.noise={correlated: {banded: {band: 2, for: last}}}": "iterate: last",
    "compute.chunk=8": "compute.max_physical_batch_size=8",
    "compute.engine=processes": "compute.parallelism=clients",
    "compute={state: disk}": "compute.client_state: disk",
    "model.weights={file: a, without: [b]}": "exclude: [head.*]",
    "data.extractor={file: a.onnx, unit: false}": "normalize: false",
    "log.stop={metric: accuracy, least: 3}": "min_delta: 3",
    "problem.compare=true": "problem.compare_centralized=true",
}
OPTIONS = {
    "compare a.yaml --with rounds=2": "--variant",
    "tradeoff a.yaml epsilon=1 --stand-in data.train=b.csv": "--public-data",
    "tune a.yaml space.yaml --hidden geometric": "--secret-trials",
    "doctor --at runs": "--folder",
    "site refuse north 1234 --why reason": "--reason",
    "watch runs --every 2": "--interval",
    "budget b.jsonl --shared facts": "--invariants",
}


@pytest.mark.parametrize("name", IN_PYTHON)
def test_former_argument_suggests_present_name(name: str) -> None:
    call, wanted = IN_PYTHON[name]
    assert f"write {wanted}" in error_of(call)


@pytest.mark.parametrize("setting", IN_YAML)
def test_former_setting_suggests_present_name(setting: str) -> None:
    assert IN_YAML[setting] in error_of(lambda: load_config(RUN, [setting]))


@pytest.mark.parametrize("command", OPTIONS)
def test_former_flag_suggests_present_name(command: str) -> None:
    done = CliRunner().invoke(app, command.split(), env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert f"it is called {OPTIONS[command]}" in done.stderr
