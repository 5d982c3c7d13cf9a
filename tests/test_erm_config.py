"""The configurations of private ERM and of the federated family, as the command line reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpriv.config import forecast, load_config
from fedpriv.config.strategies import STRATEGIES

BASE = """
data: {name: digits, partition: {kind: iid, n_clients: 4}}
model: softmax
strategy: STRATEGY
privacy: {epsilon: 3, delta: 1e-5PRIVACY}
rounds: 6
"""
CASES = {
    "dp_gd": ("{name: dp_gd, regularizer: {l2: {lam: 1e-3}}, report: average}", ""),
    "dp_gd random": ("{name: dp_gd, report: random}", ""),
    "dp_svrg": ("{name: dp_svrg, epoch_length: 3, anchor_share: 4}", ", sampling: {poisson: {rate: 0.2}}"),
    "dp_svrg_plus_plus": ("{name: dp_svrg_plus_plus, epoch_length: 1}", ", sampling: {poisson: {rate: 0.2}}"),
    "dp_accmd": ("{name: dp_accmd, radius: 2, ball: l1}", ""),
    "fedavg": ("{name: fedavg, learning_rate: 0.5, server_momentum: 0.9}", ""),
    "fedavg adaptive": (
        "{name: fedavg, learning_rate: 0.5, local_steps: 2, adaptive_clip: {initial: 0.3}}",
        ", at: message, unit: client",
    ),
    "fedprox": ("{name: fedprox, learning_rate: 0.5, proximal: 0.1, local_steps: 2}", ""),
    "fedopt": ("{name: fedopt, learning_rate: 0.5, server: yogi}", ""),
    "scaffold": ("{name: scaffold, learning_rate: 0.5, local_steps: 2}", ", at: message, unit: client"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_plan_of_each_meets_its_target(case: str, tmp_path: Path):
    strategy, privacy = CASES[case]
    path = tmp_path / "run.yaml"
    path.write_text(BASE.replace("STRATEGY", strategy).replace("PRIVACY", privacy))
    config = load_config(path)
    found = forecast(config)
    assert config.strategy.name in STRATEGIES and found.strategy == config.strategy.name
    assert 0.9 < found.spent.epsilon <= 3


@pytest.mark.parametrize(
    ("name", "options", "total"),
    [("dp_svrg", "epoch_length: 50, learning_rate: 0.1", None), ("dp_accmd", "radius: 3", "inf")],
)
def test_published_variants_are_not_private_and_say_why(name: str, options: str, total: str | None, tmp_path: Path):
    path = tmp_path / "run.yaml"
    text = BASE.replace("STRATEGY", f"{{name: {name}, variant: published, n_examples: 1437, {options}}}")
    path.write_text(text.replace("epsilon: 3, delta: 1e-5PRIVACY", "epsilon_bar: 0.2"))
    found = forecast(load_config(path))
    assert found.claim is not None and found.claim.stated_epsilon == 0.2
    assert found.spent.epsilon == float("inf")
    assert found.claim.tight_total > 100
    assert any("the whole run" in warning for warning in found.warnings)
