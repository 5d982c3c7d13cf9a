"""Configurations: what they say, and what is built of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import fedpriv
from fedpriv.config import Config, build, fingerprint, forecast, load_config, to_yaml
from fedpriv.errors import ConfigError
from fedpriv.strategies.outputs import Averaged

pytestmark = pytest.mark.usefixtures("allow_plugins")
ROOT = Path(__file__).parents[2]
DIGITS = Path(__file__).parents[1] / "run.yaml"
PUBLISHED = ["strategy={name: iadmm_trust, variant: published}", "privacy={epsilon_bar: 0.05}"]


def digits(*overrides: str) -> Config:
    return load_config(DIGITS, overrides)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_round_trip(path: Path, tmp_path: Path):
    config = load_config(path)
    written = tmp_path / "config.yaml"
    written.write_text(to_yaml(config))
    assert load_config(written) == config
    assert fingerprint(load_config(written)) == fingerprint(config)


def test_integer_inputs_with_embedding():
    """The made-up example has the data type of the real data."""
    own = ["data.name=own_code:words", "data.partition.n_clients=2", "model=own_code:Bag"]
    config = digits(*own, "strategy={name: fedavg, learning_rate: 1}")
    assert forecast(config).parameters == 7 * 3
    assert next(iter(build(config))).round == 1


def test_overrides_of_short_forms():
    assert digits("model.bias=true").model.options == {"bias": True}
    assert digits("privacy.sampling.poisson.rate=1e-1").promise().sampling == fedpriv.Poisson(0.1)
    assert digits("privacy.delta=1e-6").privacy.delta == 1e-6
    assert digits("strategy.average=2").recipe().strategy.output == Averaged(2.0)
    assert digits("rounds=5", "rounds=7").rounds == 7


def test_config_choices_reach_privacy_settings():
    secure = digits(
        "privacy.trust.secure_aggregation.min_honest=4", "strategy.linearize_at=received", "network.cohort.poisson=.5"
    )
    assert secure.promise().trust == fedpriv.SecureAggregation(4)
    assert secure.network.cohort.build() == fedpriv.PoissonCohort(0.5)
    laplace = digits(
        "privacy={epsilon: 1, mechanism: laplace, delta: 0, schedule: {geometric: {ratio: 0.9}}}"
    ).promise()
    assert laplace.mechanism == fedpriv.Laplace()
    assert laplace.clip == fedpriv.Clip(1.0, "l1"), "the norm that suits the noise"
    assert laplace.schedule == fedpriv.Geometric(0.9)
    assert digits("privacy.schedule.function=own_code:halving").promise().schedule.share(2) == 0.25
    assert digits("privacy.noise_on=none").promise().epsilon is None
    output = digits("strategy={name: iadmm_output, rho: {scale: 3}}")
    assert output.promise().schedule == fedpriv.OutputNoise(fedpriv.Penalty(3.0), fedpriv.Decay())
    assert output.recipe().strategy.name == "iadmm_output"


def test_published_variants_use_paper_constants():
    recipe = digits(*PUBLISHED, "strategy.preset=femnist").recipe()
    assert recipe.published == fedpriv.Published(0.05)
    rho = recipe.strategy.local_step.rho
    assert [rho(1), rho(2000)] == pytest.approx([0.005 + 0.05 / 0.05, 0.005 * 1.2 + 0.05 / 0.05])
    gaussian = digits("strategy={name: iadmm_output, variant: published}", "privacy={epsilon_bar: .inf}").recipe()
    assert gaussian.published == fedpriv.Published(math.inf, "gaussian")
    assert gaussian.strategy.local_step.rho(1) == 0.2, "no budget, no offset; a tenth for the mean of ten clients"


@pytest.mark.parametrize(("power", "radius"), [(0, 3.0), (2, 0.75)])
def test_published_radius_and_penalty_from_yaml(power, radius):
    options = f"strategy={{name: iadmm_trust, variant: published, scale: 3, radius_power: {power}, rho: 7}}"
    local = digits(options, "privacy={epsilon_bar: 0.05}").recipe().strategy.local_step
    assert (local.step.radius(2), local.rho) == (radius, 7)


def test_published_output_forms_from_yaml():
    """The deviation on z in round 1 with m = 10, rho = 2: s^2, s and s / 10, where s = 2 c / (2 + 1/eta)."""
    width = 2 * math.sqrt(2 * math.log(1.25 / 1e-6))
    for form, inverse in (("code", 2.5), ("deviation", 2.5), ("corrected", 0.25)):
        options = (
            f"strategy={{name: iadmm_output, variant: published, form: {form}, examples: 10, n_clients: 4, rho: 2}}"
        )
        recipe = digits(options, "privacy={epsilon_bar: 1}").recipe()
        inverse += width / math.sqrt(2) * (0.1 if form == "corrected" else 1) / math.sqrt(1)
        on_sum = 2 + inverse
        step = recipe.strategy.local_step
        assert step.rho(1) + 1 / step.step.eta(1) == pytest.approx(on_sum / 4)
        s = width / on_sum
        expected = {"code": s**2, "deviation": s, "corrected": s / 10}[form]
        assert recipe.published.deviation(0) / on_sum == pytest.approx(expected)


def test_fingerprint_changes_with_noise_settings():
    same = ["log.csv=true", "log.checkpoint_every=7", "compute.backend=loop", "compute.threads=1"]
    assert fingerprint(digits(*same)) == fingerprint(digits())
    for override in (
        "seed=null",
        "seed=1",
        "rounds=31",
        "privacy.epsilon=2",
        "strategy.rho.scale=2.5",
        "data.partition.seed=1",
    ):
        assert fingerprint(digits(override)) != fingerprint(digits())


def test_custom_model_and_strategy_by_name():
    config = digits("model={name: 'own_code:Tiny', width: 3}", "strategy={name: 'own_code:descent', learning_rate: 1}")
    training = build(config)
    assert training.population.dim == 64 * 3 + 3 + 3 * 10 + 10
    assert isinstance(training.strategy.output, Averaged)
    with pytest.raises(ConfigError, match=r"model\.widht = 3: is unknown; did you mean 'width'"):
        digits("model={name: 'own_code:Tiny', widht: 3}")


def test_initial_model_depends_on_seed():
    def first(*overrides: str) -> torch.Tensor:
        return build(digits("model=own_code:Tiny", *overrides)).population.params[0].clone()

    assert torch.equal(first(), first())
    assert not torch.equal(first(), first("seed=1"))


@pytest.mark.parametrize(
    "kind", ["iid", "in_order", "{kind: by_label, labels_per_client: 3}", "{kind: dirichlet, alpha: 1}"]
)
def test_partitions_assign_all_examples(kind: str):
    options = kind if kind.startswith("{") else f"{{kind: {kind}}}"
    training = build(digits(f"data.partition={options}", "data.partition.n_clients=4"))
    assert len(training.population) == 4
    assert int(training.population.shard.sizes.sum()) == 1437


def test_initial_model_hides_large_seed():
    """Torch uses 32 bits of a seed: an observer of the initial model could enumerate these and learn half of it."""
    settings = ["model={name: mnist_cnn, channels: [2]}", "data.partition.n_clients=2"]

    def start(seed: int) -> torch.Tensor:
        training = build(load_config(DIGITS, [*settings, f"seed={seed}"]))
        return training.population.params[0].clone()

    assert torch.equal(start(2**40 + 7), start(2**40 + 7))
    assert not torch.equal(start(2**40 + 7), start(2**41 + 7))  # the same low bits
    assert not torch.equal(start(2**40 + 7), start(7))
    assert start(2**100).isfinite().all()


def test_infinite_setting_round_trips(tmp_path: Path):
    found = load_config(Path(__file__).parents[1] / "run.yaml", ["strategy={name: iadmm_trust}"])
    (tmp_path / "config.yaml").write_text(to_yaml(found))
    assert load_config(tmp_path / "config.yaml") == found
    assert found.recipe().strategy.local_step.step.radius.scale == float("inf")
