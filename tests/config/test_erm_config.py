"""The configurations of private ERM and of the federated family, as the command line reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedpriv.algorithms.svrg import Epochs
from fedpriv.config import forecast, load_config
from fedpriv.config.strategies import STRATEGIES
from fedpriv.errors import ConfigError

SMALL = Path(__file__).parents[2] / "configs" / "digits_iadmm.yaml"
PUBLISHED = Path(__file__).parents[2] / "configs" / "covertype_svrg_published.yaml"
SOUND = ["privacy={epsilon: 1, delta: 1e-3}"]
BASE = """
data: {name: digits, partition: {kind: iid, n_clients: 4}}
model: softmax
strategy: STRATEGY
privacy: {epsilon: 3, delta: 1e-5PRIVACY}
rounds: 6
"""
CASES = {
    "dp_gd": ("{name: dp_gd, regularizer: {l2: {lam: 1e-3}}, output: average}", ""),
    "dp_gd momentum": ("{name: dp_gd, learning_rate: 1, momentum: 0.9, output: average, average: 4}", ""),
    "dp_gd random": ("{name: dp_gd, output: random}", ""),
    "dp_svrg": ("{name: dp_svrg, epoch_length: 3, anchor_share: 4}", ", sampling: {poisson: {rate: 0.2}}"),
    "dp_svrg with the paper's epochs": ("{name: dp_svrg, smoothness: 0.5, regularizer: {l2: {lam: 0.5}}}", ""),
    "dp_svrg, epochs of other lengths": ("{name: dp_svrg, epoch_length: [1, 2, 3]}", ""),
    "dp_svrg, steps by Barzilai and Borwein": (
        "{name: dp_svrg, epoch_length: 3, barzilai_borwein: true, regularizer: {l2: {lam: 0.1}}}",
        "",
    ),
    "dp_svrg_plus_plus": ("{name: dp_svrg_plus_plus, epoch_length: 1}", ", sampling: {poisson: {rate: 0.2}}"),
    "dp_accmd": ("{name: dp_accmd, radius: 2, ball: l1}", ""),
    "fedavg": ("{name: fedavg, learning_rate: 0.5, server_momentum: 0.9}", ""),
    "fedavg adaptive": (
        "{name: fedavg, learning_rate: 0.5, local_steps: 2, adaptive_clip: {initial: 0.3}}",
        ", noise_on: message, unit: client",
    ),
    "fedprox": ("{name: fedprox, learning_rate: 0.5, proximal_mu: 0.1, local_steps: 2}", ""),
    "fedopt": ("{name: fedopt, learning_rate: 0.5, server_optimizer: yogi}", ""),
    "scaffold": ("{name: scaffold, learning_rate: 0.5, local_steps: 2}", ", noise_on: message, unit: client"),
}


@pytest.mark.parametrize("case", CASES)
def test_erm_plans_meet_target_epsilon(case: str, tmp_path: Path):
    strategy, privacy = CASES[case]
    path = tmp_path / "run.yaml"
    path.write_text(BASE.replace("STRATEGY", strategy).replace("PRIVACY", privacy))
    config = load_config(path)
    found = forecast(config)
    assert config.strategy.name in STRATEGIES and found.strategy == config.strategy.name
    assert 0.9 < found.spent.epsilon <= 3


@pytest.mark.parametrize(
    ("length", "rounds", "message"),
    [(3, 6, ""), (7, 6, "first epoch ends after round 7,"), (4, 6, "after round 4 and after round 8, so the last 2 ")],
)
def test_plan_warns_of_rounds_without_epoch_end(length: int, rounds: int, message: str):
    """The anchor is reported, and it changes at the end of an epoch."""
    strategy = f"strategy={{name: dp_svrg, epoch_length: {length}}}"
    warnings = forecast(load_config(SMALL, [strategy, f"rounds={rounds}"])).warnings
    assert len(warnings) == bool(message) and message in "".join(warnings)


def test_option_of_other_report_raises():
    for option, report in (("average: 4", "average"), ("seed: 4", "random")):
        with pytest.raises(ConfigError, match=f"set output: {report}"):
            load_config(SMALL, [f"strategy={{name: dp_gd, {option}}}"]).recipe()


@pytest.mark.parametrize(
    ("name", "options", "total"),
    [("dp_svrg", "epoch_length: 50, learning_rate: 0.1", None), ("dp_accmd", "radius: 3", "inf")],
)
def test_published_erm_variant_is_not_private(name: str, options: str, total: str | None, tmp_path: Path):
    path = tmp_path / "run.yaml"
    text = BASE.replace("STRATEGY", f"{{name: {name}, variant: published, n_examples: 1437, {options}}}")
    path.write_text(text.replace("epsilon: 3, delta: 1e-5PRIVACY", "epsilon_bar: 0.2"))
    found = forecast(load_config(path))
    assert found.claim is not None and found.claim.stated_epsilon == 0.2
    assert found.spent.epsilon == float("inf")
    assert found.claim.tight_total > 100
    assert any("the whole run" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ("[]", 1.9e4),
        ("[strategy.name=dp_svrg_plus_plus, strategy.epoch_length=10, rounds=655355]", 1.3e4),
        ("[privacy.epsilon_bar=1]", 4.7e5),
        ("[strategy.name=dp_svrg_plus_plus, strategy.epoch_length=10, rounds=655355, privacy.epsilon_bar=1]", 3.2e5),
    ],
)
def test_published_experiment_total_epsilon(options: str, total: float):
    """Wang, Ye, Xu (2017, appendix A) with c = 1, as `fedpriv plan` says it; the expected totals are independent."""
    config = load_config(PUBLISHED, yaml.safe_load(options))
    claim = config.recipe().claim
    assert claim is not None
    assert claim(config.privacy.delta).tight_total == pytest.approx(total, rel=0.05)


def test_svrg_defaults_match_paper():
    """192 L / mu + 1 steps of 1 / (48 L), near the 5000 of the paper's experiment; SVRG++: 1 / (13 L), from 10."""
    svrg = load_config(PUBLISHED, ["strategy={name: dp_svrg, regularizer: {l2: {lam: 0.01}}}", *SOUND]).recipe()
    step = svrg.strategy.aggregator
    assert (step.learning_rate, step.epochs) == (1 / 12, Epochs(4801))
    svrg = load_config(PUBLISHED, ["strategy={name: dp_svrg_plus_plus}", *SOUND]).recipe()
    step = svrg.strategy.aggregator
    assert (step.learning_rate, step.epochs) == (4 / 13, Epochs(10, True))
    with pytest.raises(ConfigError, match=r"epoch_length.*strongly convex"):
        load_config(PUBLISHED, ["strategy={name: dp_svrg}", *SOUND]).recipe()
