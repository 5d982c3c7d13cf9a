"""Settings of noise that is correlated between rounds: what a configuration says, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from correlated_runs import PRIVACY, training_of

import fedpriv as fp
from fedpriv.config import build, forecast, load_config
from fedpriv.errors import ConfigError
from fedpriv.privacy.correlated import CorrelatedNoise, Factor
from fedpriv.runs.integrity import _check_turns, find_problems
from fedpriv.runs.run_files import RunFiles

# --- what a configuration says ---------------------------------------------------------------------------------

CONFIG = """
model: softmax
data: {name: digits, partition: {kind: iid, n_clients: 3}}
strategy: {name: fedavg, learning_rate: .5}
privacy: {epsilon: 2, sampling: {cyclic: {blocks: 3}}, noise: {correlated: {bsr: {band: 3}}}}
rounds: 6
seed: 1
"""


def test_correlated_noise_from_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "config.yaml")
    assert config.promise(3).noise == fp.BSR(3) and config.promise(3).sampling == fp.Cyclic(3)
    assert build(config, tmp_path / "run").plan.privacy.over_time == CorrelatedNoise(fp.BSR(3).factor(6, 3), 3)


def test_edited_blocks_reported_as_finding(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    list(build(load_config(tmp_path / "config.yaml"), tmp_path / "run"))
    folder = RunFiles.read(tmp_path / "run")
    asked = {"privacy": {"sampling": {"cyclic": {"blocks": 3}}}}
    assert not find_problems(replace(folder, config=None, settings=None)) and not [
        *_check_turns(replace(folder, settings=asked))
    ]
    for edited in ({"sampling": {"cyclic": {"blocks": 2}}}, {"sampling": "full"}, {}):
        (found,) = _check_turns(replace(folder, settings={"privacy": edited}))
        assert "cyclic blocks, but the ledger" in found.text


# --- what is refused -------------------------------------------------------------------------------------------


CLIENT = {"unit": "client", "sampling": fp.FullBatch()}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "poisson": ({"sampling": fp.Poisson(0.1)}, {}, "privacy.sampling"),
    "fixed size": ({"sampling": fp.FixedSize(2)}, {}, "privacy.sampling"),
    "laplace": ({"mechanism": fp.Laplace(), "clip": fp.Clip(1.0, "l1")}, {}, "privacy.mechanism"),
    "schedule": ({"schedule": fp.Geometric(0.9)}, {}, "privacy.schedule"),
    "secret cohort": ({**CLIENT, "trust": fp.Central(0.5)}, {}, "privacy.trust.cohort_rate"),
    "random cohort": ({}, {"network": fp.Star(4, fp.FixedCohort(2))}, "network.cohort"),
    "random cohort of clients": (CLIENT, {"network": fp.Star(4, fp.PoissonCohort(0.5))}, "network.cohort"),
    "random nodes": ({}, {"network": fp.Graph(nx.cycle_graph(4), activity=fp.RandomNodes(0.5))}, "network.cohort"),
    "cyclic single clients": (CLIENT, {"network": fp.Star(4, fp.CyclicCohort(2))}, "network.cohort"),
    "cyclic batches and clients": ({}, {"network": fp.Star(4, fp.CyclicCohort(2))}, "network.cohort"),
    "two queries": ({}, {"strategy": fp.fedavg(0.5, local_steps=2)}, "privacy.noise"),
    "differences": ({}, {"strategy": fp.svrg(0.1, epoch_length=2)}, "privacy.noise"),
    "scaffold": ({}, {"strategy": fp.scaffold(0.1, local_steps=2)}, "privacy.noise"),
    "custom separation": ({"noise": CorrelatedNoise(Factor((0.5,)), 8)}, {}, "privacy.noise"),
    "custom matrix, random cohort": (
        {"noise": CorrelatedNoise(Factor(), 1), **CLIENT},
        {"network": fp.Star(4, fp.PoissonCohort(0.5))},
        "network.cohort",
    ),
    "no privacy": ({"noise_on": "none"}, {}, "privacy.noise"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_correlated_noise_unsupported_settings_raise(name: str) -> None:
    privacy, options, field = REFUSED[name]
    with pytest.raises(ConfigError) as error:
        training_of(replace(PRIVACY, **privacy), **options)
    assert error.value.field == field


@pytest.mark.parametrize("name", ["two queries", "differences", "random cohort", "laplace"])
def test_cyclic_batches_unsupported_settings_raise(name: str) -> None:
    privacy, options, field = REFUSED[name]
    with pytest.raises(ConfigError) as error:
        training_of(replace(PRIVACY, noise=fp.Independent(), **privacy), **options)
    # noise over time is not set, so the batches are the unsupported setting
    assert error.value.field == field.replace("privacy.noise", "privacy.sampling")


def test_plan_states_noise_memory(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    found = forecast(load_config(tmp_path / "config.yaml"))
    kept = 2 * 3 * found.parameters * 8 / 1e6
    assert (
        found.over_time
        == f"cancels over rounds, needs {kept:.3g} MB of memory; each sample takes part in one of 3 rounds"
    )
    assert found.batches == "3 fixed blocks of each client's examples, one per round in turn (cyclic)"
    independent = load_config(tmp_path / "config.yaml", ["privacy.noise=independent"])
    assert forecast(independent).over_time == "independent; each sample takes part in one of 3 rounds"


@pytest.mark.parametrize("factor", [Factor((0.5, 0.25)), Factor((), (0.3,), (0.9,))], ids=["banded", "exponential"])
def test_factor_column_prefix_of_longer(factor: Factor) -> None:
    whole = factor.column(6)
    assert whole[0] == 1
    for rounds in range(1, 6):
        assert factor.column(rounds).tolist() == whole[:rounds].tolist()


@pytest.mark.parametrize("number", [1e3 + 1, math.inf, math.nan, -1e3 - 1])
def test_factor_numbers_above_thousand_raise(number: float) -> None:
    """Sums of such numbers would be rounded."""
    assert Factor((1e3, -1e3)).band == (1e3, -1e3)
    with pytest.raises(ValueError, match="not a factor"):
        Factor((0.5, number))
    with pytest.raises(ValueError, match="not a factor"):
        Factor((), (number,), (0.5,))
