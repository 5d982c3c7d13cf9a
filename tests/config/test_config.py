"""Configurations: what they say, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import fedpriv
from fedpriv.config import Config, build, fingerprint, forecast, load_config, to_yaml
from fedpriv.errors import ConfigError, DataError
from fedpriv.strategies.outputs import Averaged

pytestmark = pytest.mark.usefixtures("allow_plugins")


ROOT = Path(__file__).parents[2]


DIGITS = Path(__file__).parents[1] / "run.yaml"


PUBLISHED = ["strategy={name: iadmm_trust, variant: published}", "privacy={epsilon_bar: 0.05}"]


def digits(*overrides: str) -> Config:
    return load_config(DIGITS, overrides)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_config_is_valid_and_reads_back(path: Path, tmp_path: Path):
    config = load_config(path)
    written = tmp_path / "config.yaml"
    written.write_text(to_yaml(config))
    assert load_config(written) == config
    assert fingerprint(load_config(written)) == fingerprint(config)


BAD = {
    # given: what the message must say
    "rounds=-3": "rounds = -3: must be a whole number, at least 1",
    "round=3": "round = 3: unknown; did you mean 'rounds'?",
    "strategy.rho.scal=1": "strategy.rho.scal = 1: unknown; did you mean 'scale'? (there are: growth, offset, period",
    "strategy.rh.scale=1": "strategy.rh = {'scale': 1}: unknown; did you mean 'rho'?",
    "strategy.name=iadm_prox": "strategy = 'iadm_prox': unknown; did you mean 'iadmm_prox'",
    "strategy={name: fedavg, learning_rate: fast}": "strategy.learning_rate = 'fast': must be a positive",
    "strategy=fedavg": "strategy.learning_rate = None: is required",
    "strategy.feasible={kind: bal, radius: 1}": "did you mean 'ball'",
    "strategy.feasible={kind: box, bound: -1}": "strategy.feasible.bound = -1: must be a positive, finite number",
    "strategy.variant=published": "unknown; choose one of preset, scale",
    "strategy={name: fedavg, variant: published}": "fedavg has no published variant; these have: iadmm_prox",
    "strategy=tests:nothing": "strategy = 'tests:nothing'",
    "strategy=own_code:not_a_strategy": "it returns int: it must be def not_a_strategy(...) -> Strategy",
    "model=mnist_cn": "model = 'mnist_cn': unknown; did you mean 'mnist_cnn'",
    "model.bias=perhaps": "model.bias = 'perhaps': must be a valid boolean",
    "model=own_code:Tinny": "did you mean 'Tiny'",
    "data.name=digitz": "data = 'digitz': unknown; did you mean 'digits'",
    "data.flt=true": "data.flt = True: unknown; did you mean 'flat'",
    "data.partition.n_clients=0": "data.partition.n_clients = 0: must be a whole number, at least 1",
    "strategy={fedavg: {learning_rate: 1}}": "write {name: fedavg, ...}, its options beside it",
    "data.partition={n_clients: 3}": "data.partition.kind = None: is required",
    "data.partition={kind: iid}": "data.partition.n_clients = None: is required",
    "privacy.noise={time: bsr}": "privacy.noise.time.bsr.band = None: is required",
    "strategy.rho={cosine: {peak: 1, rounds: 3, warmup: 4}}": "strategy.rho.cosine.warmup = 4: must be less",
    "strategy.rho={function: 'a:b'}": "strategy.rho.function = 'a:b': no module 'a'",
    "log.metrics=[rmse]": "log.metrics = ['rmse']: give a mapping",
    "data.partition.alpha=3": "data.partition.alpha = 3: unknown",
    "data.partition.kind=dirichlt": "data.partition.kind = 'dirichlt': unknown; did you mean 'dirichlet'",
    "data.transforms=unit": "data.transforms = 'unit': give a list, e.g. [value]",
    "problem.constraints={name: loss_at_most}": "problem.constraints = {'name': 'loss_at_most'}: give a list",
    "model={name: 'own_code:WithBatchNorm', width: 3}": "model.width = 3: unknown; there are no options here",
    "privacy.clip.bound=0": "privacy.clip.bound = 0: must be a positive, finite number",
    "privacy.clip.bound=.inf": "privacy.clip.bound = inf: must be a positive, finite number",
    "privacy.delta=0": "privacy.delta = 0: Gaussian noise needs delta > 0",
    "privacy.delta=1": "privacy.delta = 1: must be a number in [0, 1)",
    "privacy.epsilon=-1": "privacy.epsilon = -1: must be positive and finite; use at: none",
    "privacy.epsilon=null": "privacy.epsilon = None",
    "privacy.epsilon_bar=1": "privacy.epsilon_bar = 1.0: it belongs to strategy.variant: published",
    "privacy.mechanism=laplac": "privacy.mechanism = 'laplac': choose 'gaussian' or 'laplace'",
    "privacy.sampling=ful": "privacy.sampling = 'ful': unknown; did you mean 'full'",
    "privacy.sampling.poisson.rate=2": "privacy.sampling.poisson.rate = 2: must be a number in (0, 1]",
    "privacy.sampling={poisson: {rate: .1}, fixed_size: {size: 3}}": "choose one of poisson, fixed_size",
    "privacy.trust=locl": "privacy.trust = 'locl': unknown; did you mean 'local'",
    "privacy.at=message": "privacy.unit = 'sample': at: message clips whole messages",
    "privacy.schedule.function=own_code:nothing": "privacy.schedule.function = 'own_code:nothing'",
    "network.cohort.fixed=20": "network.cohort.fixed = 20: there are only 10 clients",
    "compute.backend=fast": "compute.backend = 'fast': choose 'auto', 'loop', 'vmap', 'ghost' or 'linear'",
    "privacy=3": "privacy = 3: give a mapping",
    "rounds": "override = 'rounds': write it as section.field=value",
    "rounds={": "is not YAML",
}


@pytest.mark.parametrize("override", BAD)
def test_bad_settings_name_field_value_and_fix(override: str):
    with pytest.raises(ConfigError) as caught:
        digits(override)
    assert BAD[override] in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([PUBLISHED[0], "privacy={epsilon: 3}"], "privacy.epsilon_bar = None: variant: published needs"),
        ([*PUBLISHED, "privacy.epsilon=3"], "privacy.epsilon = 3.0: variant: published makes no promise"),
        (["strategy.name=iadmm_output", "privacy.schedule.geometric.ratio=.9"], "the strategy sets the schedule"),
        (["strategy.rho.scale=1", "strategy=null"], "strategy = None"),
    ],
)
def test_settings_that_contradict_each_other(overrides: list[str], message: str):
    with pytest.raises(ConfigError) as caught:
        digits(*overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize("door", [build, forecast], ids=["train", "plan"])
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=own_code:TakesFive"], "model = 'own_code:TakesFive': cannot take inputs of shape (1, 8, 8)"),
        (["model=own_code:GivesTwo"], "loss = 'cross_entropy': cannot compare outputs of shape (2,) with label 9"),
        (["model=own_code:WithBatchNorm"], "it normalises over the batch"),
        (["data.partition.n_clients=5000"], "give between 1 and 1437"),
        (
            ["problem.constraints=[{name: loss_at_most, bound: 1}]"],
            "iadmm_prox minimises the mean loss and would ignore",
        ),
        (["problem.objective={name: class_loss, label: 1}"], "problem = 'ClassLossAtMost': iadmm_prox minimises"),
        (
            ["privacy.trust.secure_aggregation.min_honest=11", "strategy.linearize_at=received"],
            "min_honest = 11: a round has at most 10 participants",
        ),
        (
            [
                "strategy={name: fedavg, learning_rate: 1}",
                "privacy.trust.secure_aggregation.min_honest=5",
                "network.cohort.fixed=4",
            ],
            "min_honest = 5: a round has at most 4 participants",
        ),
    ],
)
def test_what_cannot_work_is_refused_at_the_door(door: Callable[[Config], object], overrides: list[str], message: str):
    with pytest.raises(ConfigError) as caught:
        door(digits(*overrides))
    assert message in str(caught.value)


def test_integer_inputs_reach_an_embedding():
    """The made-up example is of the kind that the data are."""
    own = ["data.name=own_code:words", "data.partition.n_clients=2", "model=own_code:Bag"]
    config = digits(*own, "strategy={name: fedavg, learning_rate: 1}")
    assert forecast(config).parameters == 7 * 3
    assert next(iter(build(config))).round == 1


@pytest.mark.parametrize("device", ["cuda:99", "abacus"])
def test_a_device_that_is_not_there(device: str):
    with pytest.raises(ConfigError, match=rf"compute\.device = '{device}': cannot be used here .*; say auto or cpu"):
        build(digits(f"compute.device={device}"))


def test_files_that_are_no_configuration(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "nothing.yaml")
    bad = tmp_path / "bad.yaml"
    for text, message in (("[1, 2]", "mapping of sections"), ("a: {b", "is not YAML"), ("rounds: 3", "is required")):
        bad.write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_config(bad)


def test_overrides_reach_into_short_forms():
    assert digits("model.bias=true").model.options == {"bias": True}
    assert digits("privacy.sampling.poisson.rate=1e-1").promise().sampling == fedpriv.Poisson(0.1)
    assert digits("privacy.delta=1e-6").privacy.delta == 1e-6
    assert digits("strategy.average=2").recipe().strategy.output == Averaged(2.0)
    assert digits("rounds=5", "rounds=7").rounds == 7


def test_every_choice_reaches_the_promise():
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
    assert digits("privacy.at=none").promise().epsilon is None
    output = digits("strategy={name: iadmm_output, rho: {scale: 3}}")
    assert output.promise().schedule == fedpriv.OutputNoise(fedpriv.Penalty(3.0), fedpriv.Decay())
    assert output.recipe().strategy.name == "iadmm_output"


def test_published_has_the_constants_of_the_paper():
    recipe = digits(*PUBLISHED, "strategy.preset=femnist").recipe()
    assert recipe.published == fedpriv.Published(0.05)
    rho = recipe.strategy.local_step.rho
    assert [rho(1), rho(2000)] == pytest.approx([0.005 + 0.05 / 0.05, 0.005 * 1.2 + 0.05 / 0.05])
    gaussian = digits("strategy={name: iadmm_output, variant: published}", "privacy={epsilon_bar: .inf}").recipe()
    assert gaussian.published == fedpriv.Published(math.inf, "gaussian")
    assert gaussian.strategy.local_step.rho(1) == 2.0, "no budget, no offset"


def test_fingerprint_names_what_must_not_change():
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


def test_a_users_model_and_strategy_by_name():
    config = digits("model={name: 'own_code:Tiny', width: 3}", "strategy={name: 'own_code:descent', learning_rate: 1}")
    training = build(config)
    assert training.population.dim == 64 * 3 + 3 + 3 * 10 + 10
    assert isinstance(training.strategy.output, Averaged)
    with pytest.raises(ConfigError, match=r"model\.widht = 3: unknown; did you mean 'width'"):
        digits("model={name: 'own_code:Tiny', widht: 3}")


def test_batch_norm_is_refused_and_can_be_fixed():
    with pytest.raises(ConfigError, match="--fix-model"):
        build(digits("model=own_code:WithBatchNorm"))
    model = build(digits("model={name: 'own_code:WithBatchNorm', fix: true}")).population.model
    assert any(isinstance(layer, nn.GroupNorm) for layer in model.modules())


def test_the_first_model_follows_the_seed():
    def first(*overrides: str) -> torch.Tensor:
        return build(digits("model=own_code:Tiny", *overrides)).population.params[0].clone()

    assert torch.equal(first(), first())
    assert not torch.equal(first(), first("seed=1"))


def test_what_only_the_data_can_tell(tmp_path: Path):
    with pytest.raises(DataError, match="nowhere"):
        build(digits(f"data={{name: mnist, root: {tmp_path / 'nowhere'}, partition: {{kind: iid, n_clients: 10}}}}"))
    with pytest.raises(ConfigError, match=r"data\.partition\.n_clients = 5000: give between 1 and 1437"):
        build(digits("data.partition.n_clients=5000"))
    with pytest.raises(ConfigError, match=r"data\.partition\.writers"):
        build(digits("data.partition={kind: by_writer}"))


@pytest.mark.parametrize(
    "kind", ["iid", "in_order", "{kind: by_label, labels_per_client: 3}", "{kind: dirichlet, alpha: 1}"]
)
def test_partitions(kind: str):
    options = kind if kind.startswith("{") else f"{{kind: {kind}}}"
    training = build(digits(f"data.partition={options}", "data.partition.n_clients=4"))
    assert len(training.population) == 4
    assert int(training.population.part.sizes.sum()) == 1437


def test_initial_parameters_do_not_show_a_part_of_a_seed_too_large_to_guess():
    """Torch keeps 32 bits of a seed: whoever sees the first model could try them all, and has half of it."""
    settings = ["model={name: mnist_cnn, channels: [2]}", "data.partition.n_clients=2"]

    def start(seed: int) -> torch.Tensor:
        training = build(load_config(DIGITS, [*settings, f"seed={seed}"]))
        return training.population.params[0].clone()

    assert torch.equal(start(2**40 + 7), start(2**40 + 7))
    assert not torch.equal(start(2**40 + 7), start(2**41 + 7))  # the same low bits
    assert not torch.equal(start(2**40 + 7), start(7))
    assert start(2**100).isfinite().all()


def test_an_infinite_setting_is_read_as_it_was_written(tmp_path: Path):
    found = load_config(Path(__file__).parents[1] / "run.yaml", ["strategy={name: iadmm_trust}"])
    (tmp_path / "config.yaml").write_text(to_yaml(found))
    assert load_config(tmp_path / "config.yaml") == found
    assert found.recipe().strategy.local_step.step.radius.scale == float("inf")
