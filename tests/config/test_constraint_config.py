"""Constraints in a configuration: what a plan says of their noise, and that options are heard."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedpriv.algorithms.private_augmented_lagrangian import suggested_share
from fedpriv.config import Config, build, forecast, load_config, to_yaml
from fedpriv.config.building import list_start_warnings
from fedpriv.errors import ConfigError
from fedpriv.reports.report import Run
from fedpriv.strategies.advice import ConstraintNoise
from fedpriv.strategies.proximal import L2

TEXT = """
data: {name: digits, partition: {kind: iid, n_clients: 3}}
model: softmax
problem: {constraints: [{name: class_loss_at_most, label: 1, bound: 0.3, fraction: 0.1}]}
strategy: {name: private_al, beta: 2, max_multiplier: 5}
privacy: {epsilon: 3, delta: 1e-5, statistics: {bound: 3, share: 0.3}}
rounds: 10
seed: 0
"""


def config(tmp_path: Path, *overrides: str) -> Config:
    path = tmp_path / "run.yaml"
    path.write_text(TEXT)
    return load_config(path, list(overrides))


@pytest.mark.parametrize("privacy", ["clip.norm=l2", "{epsilon: 3, mechanism: laplace, clip: {norm: l1, bound: 1}}"])
def test_plan_states_constraint_noise_of_run(privacy: str, tmp_path: Path):
    found = config(tmp_path, f"privacy{'=' if privacy[0] == '{' else '.'}{privacy}")
    deviation = build(found).oracle.engine.statistic_deviation(0).max()
    assert f"standard deviation {deviation:.3g} at" in " ".join(forecast(found).warnings)


def test_plan_and_train_warn_of_large_beta(tmp_path: Path):
    deviation = float(build(config(tmp_path)).oracle.engine.statistic_deviation(0).max())
    for factor, expected in ((0.9, 0), (1.1, 1)):
        found = config(tmp_path, f"strategy.beta={factor * 5 / 10 / deviation}")
        planned = [note for note in forecast(found).warnings if "mostly noise" in note]
        assert len(planned) == expected
        assert [note for note in list_start_warnings(found, build(found)) if "mostly noise" in note] == planned
    counted = "problem.constraints=[{name: class_loss_at_most, label: 1, bound: 0.3}]"
    found = config(tmp_path, counted, "privacy.statistics.public_counts=true", "strategy.beta=50")
    assert "beta = 50 makes the multipliers mostly noise" in " ".join(list_start_warnings(found, build(found)))


def test_plan_and_run_raise_same_errors(tmp_path: Path):
    counted = "problem.constraints=[{name: class_loss_at_most, label: 1, bound: 0.3}]"
    declared = ("privacy.statistics.public_counts=true", "privacy.relation=add_remove")
    for more, message in (((), "public fraction"), (declared, "public counts reveal whether an example is present")):
        found = config(tmp_path, counted, *more)
        for entry_point in (forecast, build):
            with pytest.raises(ConfigError, match=message):
                entry_point(found)


def test_private_run_shows_worst_constraint_interval(tmp_path: Path):
    found, folder = config(tmp_path), tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(found))
    run = build(found, folder)
    list(run)
    (folder / "result.json").write_text(json.dumps(run.result().to_json()))
    worst = float(run.progress.local.measured.max())
    width = 1.96 * float(run.oracle.engine.statistic_deviation(0).max()) / 2  # four measurements
    shown = Run.read(folder).rows()["worst constraint value"]
    assert shown.startswith(f"{worst:.3g} ± {width:.2g} (95 %; the largest of 3 noisy ones")


def test_suggested_share_minimizes_step_noise(tmp_path: Path):
    """Of the gradient in all coordinates, and of the multipliers times a gradient of the clip's norm; the last round,
    which only measures, is one of many.
    """
    noise = {}
    for share in np.linspace(0.1, 0.9, 21):
        found = config(tmp_path, f"privacy.statistics.share={share}", "rounds=40")
        run = build(found)
        values, gradient = run.plan.records[:2]
        dim, clip, fewest = run.population.dim, run.plan.privacy.clip.bound, int(run.population.shard.sizes.min())
        sensitivity = 2 * clip / fewest
        of_values = 2 * float(run.oracle.engine.statistic_deviation(0).max()) * clip
        noise[share] = dim * (gradient.noise_multiplier * sensitivity) ** 2 + of_values**2
        assert values.query == "statistic:constraints"
    best = min(noise, key=lambda share: noise[share])
    share = suggested_share(2.0, ConstraintNoise(1.0, 3 / 2 / (0.1 * fewest), fewest, dim))
    assert share == pytest.approx(best, abs=0.03)
    assert any(f"suggested: {share:.0%}" in note for note in forecast(found).warnings)


@pytest.mark.parametrize("strategy", ["name: private_al", "name: proximal_al"])
def test_constrained_strategies_use_regularizer(strategy: str, tmp_path: Path):
    found = config(tmp_path, f"strategy={{{strategy}, regularizer: {{l2: {{lam: 0.1}}}}}}", "privacy={noise_on: none}")
    made = found.recipe().strategy
    assert made.regularizer == made.aggregator.regularizer == L2(0.1)
