"""What configurations refuse: by field, value and fix, and before the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import nn

from fedpriv.config import Config, build, forecast, load_config
from fedpriv.errors import ConfigError, DataError

pytestmark = pytest.mark.usefixtures("allow_plugins")
DIGITS = Path(__file__).parents[1] / "run.yaml"
PUBLISHED = ["strategy={name: iadmm_trust, variant: published}", "privacy={epsilon_bar: 0.05}"]


def digits(*overrides: str) -> Config:
    return load_config(DIGITS, overrides)


BAD = {
    # given: what the message must say
    "rounds=-3": "rounds = -3: must be a whole number from 1 to 1 000 000",
    "round=3": "round = 3: is unknown; did you mean 'rounds'?",
    "strategy.rho.scal=1": "strategy.rho.scal = 1: is unknown; did you mean 'scale'? (all names: growth, offset, ",
    "strategy.rh.scale=1": "strategy.rh = {'scale': 1}: is unknown; did you mean 'rho'?",
    "strategy.name=iadm_prox": "strategy = 'iadm_prox': is unknown; did you mean 'iadmm_prox'",
    "strategy={name: fedavg, learning_rate: fast}": "strategy.learning_rate = 'fast': must be a positive",
    "strategy=fedavg": "strategy.learning_rate = None: is required",
    "strategy.feasible={kind: bal, radius: 1}": "did you mean 'ball'",
    "strategy.feasible={kind: box, bound: -1}": "strategy.feasible.bound = -1: must be a positive, finite number",
    "strategy.variant=published": "set the paper's epsilon per round",
    "strategy={name: iadmm_prox, variant: published, eta: 1}": "it is called scale here: write strategy.scale: 1",
    "strategy={name: fedavg, variant: published}": "does not exist for fedavg: leave it out, or use one of",
    "strategy=tests:nothing": "strategy = 'tests:nothing'",
    "strategy=own_code:not_a_strategy": "return annotation int: declare it as def not_a_strategy(...) -> Strategy",
    "model=mnist_cn": "model = 'mnist_cn': is unknown; did you mean 'mnist_cnn'",
    "model.bias=perhaps": "model.bias = 'perhaps': must be a valid boolean",
    "model=own_code:Tinny": "did you mean 'Tiny'",
    "data.name=digitz": "data = 'digitz': is unknown; did you mean 'digits'",
    "data.flt=true": "data.flt = True: is unknown; did you mean 'flat'",
    "data.partition.n_clients=0": "data.partition.n_clients = 0: must be a whole number, at least 1",
    "strategy={fedavg: {learning_rate: 1}}": "write {name: fedavg, ...}, and list its options next to name",
    "data.partition={n_clients: 3}": "data.partition.kind = None: is required",
    "data.partition={kind: iid}": "data.partition.n_clients = None: is required",
    "privacy.noise={correlated: bsr}": "privacy.noise.correlated.bsr.band = None: is required",
    "strategy.rho={cosine: {peak: 1, rounds: 3, warmup: 4}}": "strategy.rho.cosine.warmup = 4: must be less",
    "strategy.rho={function: 'a:b'}": "strategy.rho.function = 'a:b': module 'a' was not found",
    "log.metrics=[rmse]": "log.metrics = ['rmse']: must be a mapping, e.g. {name: value}",
    "data.partition.alpha=3": "data.partition.alpha = 3: is unknown; it is a setting of another part: write",
    "data.partition.kind=dirichlt": "data.partition.kind = 'dirichlt': is unknown; did you mean 'dirichlet'",
    "data.transforms=unit": "data.transforms = 'unit': must be a list, e.g. [value]",
    "problem.constraints={name: loss_at_most}": "problem.constraints = {'name': 'loss_at_most'}: must be a list",
    "model={name: 'own_code:WithBatchNorm', width: 3}": "model.width = 3: is unknown; there are no options here",
    "privacy.clip.bound=0": "privacy.clip.bound = 0: must be a positive, finite number",
    "privacy.clip.bound=.inf": "privacy.clip.bound = inf: must be a positive, finite number",
    "privacy.delta=0": "privacy.delta = 0: Gaussian noise needs delta > 0",
    "privacy.delta=1": "privacy.delta = 1: must be a number in [0, 1)",
    "privacy.epsilon=-1": "privacy.epsilon = -1: must be positive and finite; for no noise, set privacy.noise_on to",
    "privacy.epsilon=null": "privacy.epsilon = None",
    "privacy.epsilon_bar=1": "privacy.epsilon_bar = 1.0: is only for strategy.variant: published",
    "privacy.mechanism=laplac": "privacy.mechanism = 'laplac': is unknown; choose 'gaussian' or 'laplace'",
    "privacy.sampling=ful": "privacy.sampling = 'ful': is unknown; did you mean 'full'",
    "privacy.sampling.poisson.rate=2": "privacy.sampling.poisson.rate = 2: must be a number in (0, 1]",
    "privacy.sampling={poisson: {rate: .1}, fixed_size: {size: 3}}": "must set only one of poisson, allocation",
    "privacy.trust=locl": "privacy.trust = 'locl': is unknown; did you mean 'local'",
    "privacy.noise_on=message": "privacy.unit = 'sample': with noise_on 'message', whole messages are clipped",
    "privacy.schedule.function=own_code:nothing": "privacy.schedule.function = 'own_code:nothing'",
    "network.cohort.fixed=20": "network.cohort.fixed = 20: must be at most 10, the number of clients",
    "compute.backend=fast": "compute.backend = 'fast': is unknown; choose 'auto', 'loop', 'vmap', 'ghost' or 'linear'",
    "privacy=3": "privacy = 3: must be a mapping, e.g. {name: value}",
    "rounds": "override = 'rounds': must have the form section.field=value",
    "rounds={": "is not YAML",
}


@pytest.mark.parametrize("override", BAD)
def test_invalid_setting_names_field_value_fix(override: str):
    with pytest.raises(ConfigError) as caught:
        digits(override)
    assert BAD[override] in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [PUBLISHED[0], "privacy={epsilon: 3}"],
            "privacy.epsilon_bar = None: is required by strategy.variant: published",
        ),
        ([*PUBLISHED, "privacy.epsilon=3"], "privacy.epsilon = 3.0: cannot be used with strategy.variant: published"),
        (["strategy.name=iadmm_output", "privacy.schedule.geometric.ratio=.9"], "this strategy sets its own schedule"),
        (["strategy.rho.scale=1", "strategy=null"], "strategy = None"),
    ],
)
def test_contradictory_settings_raise(overrides: list[str], message: str):
    with pytest.raises(ConfigError) as caught:
        digits(*overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize("entry_point", [build, forecast], ids=["train", "plan"])
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=own_code:TakesFive"], "model = 'own_code:TakesFive': cannot process inputs of shape (1, 8, 8)"),
        (["model=own_code:GivesTwo"], "loss = 'cross_entropy': cannot compare outputs of shape (2,) with label 9"),
        (["model=own_code:WithBatchNorm"], "it normalises over the batch"),
        (["data.partition.n_clients=5000"], "data.partition.n_clients = 5000: must be between 1 and 1437"),
        (
            ["problem.constraints=[{name: loss_at_most, bound: 1}]"],
            "iadmm_prox minimises the mean loss and would ignore",
        ),
        (["problem.objective={name: class_loss, label: 1}"], "problem = 'ClassLossAtMost': iadmm_prox minimises"),
        (
            ["privacy.trust.secure_aggregation.min_honest=11", "strategy.linearize_at=received"],
            "min_honest = 11: must be at most 10, the largest number of participants",
        ),
        (
            [
                "strategy={name: fedavg, learning_rate: 1}",
                "privacy.trust.secure_aggregation.min_honest=5",
                "network.cohort.fixed=4",
            ],
            "min_honest = 5: must be at most 4, the largest number of participants",
        ),
    ],
)
def test_unworkable_settings_raise_before_run(
    entry_point: Callable[[Config], object], overrides: list[str], message: str
):
    with pytest.raises(ConfigError) as caught:
        entry_point(digits(*overrides))
    assert message in str(caught.value)


@pytest.mark.parametrize("device", ["cuda:99", "abacus"])
def test_unknown_device_raises(device: str):
    with pytest.raises(ConfigError, match=rf"compute\.device = '{device}': cannot be used here .*; use auto or cpu"):
        build(digits(f"compute.device={device}"))


def test_invalid_config_file_raises(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nothing\.yaml': this file does not exist"):
        load_config(tmp_path / "nothing.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    bad = tmp_path / "bad.yaml"
    for text, message in (("[1, 2]", "mapping of sections"), ("a: {b", "is not YAML"), ("rounds: 3", "is required")):
        bad.write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_config(bad)


def test_config_batch_norm_raises_and_is_fixed():
    with pytest.raises(ConfigError, match="--fix-model"):
        build(digits("model=own_code:WithBatchNorm"))
    model = build(digits("model={name: 'own_code:WithBatchNorm', fix: true}")).population.model
    assert any(isinstance(layer, nn.GroupNorm) for layer in model.modules())


def test_settings_unsuitable_for_data_raise(tmp_path: Path):
    with pytest.raises(DataError, match="nowhere"):
        build(digits(f"data={{name: mnist, root: {tmp_path / 'nowhere'}, partition: {{kind: iid, n_clients: 10}}}}"))
    with pytest.raises(ConfigError, match=r"data\.partition\.n_clients = 5000: must be between 1 and 1437"):
        build(digits("data.partition.n_clients=5000"))
    with pytest.raises(ConfigError, match=r"data\.partition\.writers"):
        build(digits("data.partition={kind: by_writer}"))
