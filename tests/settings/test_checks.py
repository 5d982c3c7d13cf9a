"""Values out of range raise the same error in Python and in YAML."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_type_hints

import networkx as nx
import numpy as np
import pytest
import torch

import fedpriv as fp
from fedpriv import data
from fedpriv.config import load_config
from fedpriv.config.strategies import STRATEGIES
from fedpriv.errors import ConfigError, DataError
from fedpriv.settings import checks
from fedpriv.settings.checks import Count, Finite, Positive, PositiveOrInfinite, Probability, Whole, validate_arguments
from fedpriv.strategies.proximal import L1, L2, ElasticNet, Simplex
from fedpriv.strategies.solvers import LBFGS

RUN = Path(__file__).parents[1] / "run.yaml"
NAN, INF = math.nan, math.inf
FEDAVG = "name: fedavg, learning_rate: 1"

# what YAML writes of a strategy, the same in Python, and the field at both
STRATEGY: dict[str, tuple[Callable[[], object], str]] = {
    "name: fedavg, learning_rate: .inf": (lambda: fp.fedavg(INF), "learning_rate"),
    "name: fedavg, learning_rate: true": (lambda: fp.fedavg(True), "learning_rate"),
    "name: fedavg, learning_rate: '0.1'": (lambda: fp.fedavg("0.1"), "learning_rate"),
    "name: fedavg, learning_rate: [1]": (lambda: fp.fedavg([1]), "learning_rate"),
    f"{FEDAVG}, average: -1": (lambda: fp.fedavg(1, average=-1), "average"),
    f"{FEDAVG}, local_steps: 1.5": (lambda: fp.fedavg(1, 1.5), "local_steps"),
    f"{FEDAVG}, local_steps: 1.0": (lambda: fp.fedavg(1, 1.0), "local_steps"),
    f"{FEDAVG}, local_steps: 0": (lambda: fp.fedavg(1, 0), "local_steps"),
    f"{FEDAVG}, server_momentum: 1": (lambda: fp.fedavg(1, server_momentum=1), "server_momentum"),
    f"{FEDAVG}, weighting: client": (lambda: fp.fedavg(1, weighting="client"), "weighting"),
    f"{FEDAVG}, adaptive_clip: {{initial: -1}}": (
        lambda: fp.adaptive_clipping(fp.fedavg(1), -1),
        "adaptive_clip.initial",
    ),
    f"{FEDAVG}, adaptive_clip: {{share: 1}}": (
        lambda: fp.adaptive_clipping(fp.fedavg(1), share=1),
        "adaptive_clip.share",
    ),
    "name: fedprox, learning_rate: 1, proximal_mu: -1": (lambda: fp.fedprox(1, -1), "proximal_mu"),
    "name: fedopt, learning_rate: 1, server_optimizer: sgd": (
        lambda: fp.fedopt(1, server_optimizer="sgd"),
        "server_optimizer",
    ),
    "name: fedopt, learning_rate: 1, beta2: 1": (lambda: fp.fedopt(1, beta2=1), "beta2"),
    "name: scaffold, learning_rate: 1, average: -1": (lambda: fp.scaffold(1, average=-1), "average"),
    "name: scaffold, learning_rate: 1, control_rate: 2": (lambda: fp.scaffold(1, control_rate=2), "control_rate"),
    "name: iadmm_prox, weight_decay: -1": (lambda: fp.inexact_admm(weight_decay=-1), "weight_decay"),
    "name: iadmm_prox, linearize_at: x": (lambda: fp.inexact_admm(linearize_at="x"), "linearize_at"),
    "name: iadmm_prox, linearize_at: 1": (lambda: fp.inexact_admm(linearize_at=1), "linearize_at"),
    "name: iadmm_prox, feasible: {kind: box, bound: -1}": (lambda: fp.BoxSet(-1), "feasible.bound"),
    "name: iadmm_prox, feasible: {kind: ball, radius: .inf}": (lambda: fp.BallSet(INF), "feasible.radius"),
    "name: iadmm_prox, eta: {scale: 0}": (lambda: fp.Decay(0), "eta.scale"),
    "name: iadmm_prox, eta: {power: .inf}": (lambda: fp.Decay(power=INF), "eta.power"),
    "name: iadmm_prox, rho: {scale: -1}": (lambda: fp.Penalty(-1), "rho.scale"),
    "name: iadmm_prox, rho: {period: 0}": (lambda: fp.Penalty(period=0), "rho.period"),
    "name: iadmm_trust, norm: l1": (lambda: fp.Trust(norm="l1"), "norm"),
    "name: proximal_al, rho: .inf": (lambda: fp.proximal_al(rho=INF), "rho"),
    "name: proximal_al, beta: 0": (lambda: fp.Outer(0), "beta"),
    "name: proximal_al, inner_decay: 1": (lambda: fp.proximal_al(inner_decay=1), "inner_decay"),
    "name: private_al, measurements: 0": (lambda: fp.private_al(9, measurements=0), "measurements"),
    "name: private_al, max_multiplier: .inf": (lambda: fp.private_al(9, max_multiplier=INF), "max_multiplier"),
    "name: dual_averaging, gamma: -1": (lambda: fp.dual_averaging(gamma=-1), "gamma"),
    "name: dual_averaging, inactive: none": (lambda: fp.dual_averaging(inactive="none"), "inactive"),
    "name: dual_averaging, regularizer: {l2: {lam: .inf}}": (lambda: L2(INF), "regularizer.l2.lam"),
    "name: dual_averaging, regularizer: {l1: {lam: 0}}": (lambda: L1(0), "regularizer.l1.lam"),
    "name: dp_gd, regularizer: {elastic_net: {l1: 1, l2: -1}}": (
        lambda: ElasticNet(1, -1),
        "regularizer.elastic_net.l2",
    ),
    "name: dp_gd, regularizer: {simplex: {total: true}}": (lambda: Simplex(True), "regularizer.simplex.total"),
    "name: dp_gd, momentum: 1": (lambda: fp.gradient_descent(1, momentum=1), "momentum"),
    "name: gradient_tracking, step_size: {scale: -1}": (lambda: fp.StepSize(-1), "step_size.scale"),
    "name: gradient_tracking, step_size: {ratio: .inf}": (lambda: fp.StepSize(ratio=INF), "step_size.ratio"),
    "name: gradient_tracking, beta: -1": (lambda: fp.gradient_tracking(beta=-1), "beta"),
    "name: gradient_tracking, gradient_at: x": (lambda: fp.gradient_tracking(gradient_at="x"), "gradient_at"),
    "name: decentralized_sgd, average: .inf": (lambda: fp.decentralized_sgd(average=INF), "average"),
    "name: dp_svrg_plus_plus, epoch_length: 0": (lambda: fp.svrg(1, 0), "epoch_length"),
    "name: dp_svrg_plus_plus, learning_rate: .inf": (lambda: fp.svrg(INF, 1), "learning_rate"),
    "name: dp_gd, output: random, seed: 1.0": (lambda: fp.gradient_descent(1, random_iterate=3, seed=1.0), "seed"),
    "name: dp_accmd, radius: -1": (lambda: fp.L1Ball(-1), "radius"),
    "name: dp_accmd, radius: 1, smoothness: 0": (
        lambda: fp.accelerated_mirror_descent(fp.L1Ball(1), 0),
        "smoothness",
    ),
}

# the same for other sections
SECTION: dict[str, tuple[Callable[[], object], str]] = {
    "privacy.epsilon=-1": (lambda: fp.Privacy(epsilon=-1), "privacy.epsilon"),
    "privacy.epsilon=true": (lambda: fp.Privacy(epsilon=True), "privacy.epsilon"),
    "privacy.delta=1": (lambda: fp.Privacy(epsilon=1, delta=1), "privacy.delta"),
    "privacy.unit=row": (lambda: fp.Privacy(epsilon=1, unit="row"), "privacy.unit"),
    "privacy.fsync=1": (lambda: fp.Privacy(epsilon=1, fsync=1), "privacy.fsync"),
    "privacy.clip.bound=.inf": (lambda: fp.Clip(INF), "privacy.clip.bound"),
    "privacy.clip.norm=linf": (lambda: fp.Clip(1, "linf"), "privacy.clip.norm"),
    "privacy.sampling.poisson.rate=2": (lambda: fp.Poisson(2), "privacy.sampling.poisson.rate"),
    "privacy.sampling.fixed_size.size=1.5": (lambda: fp.FixedSize(1.5), "privacy.sampling.fixed_size.size"),
    "privacy.trust.secure_aggregation.min_honest=0": (
        lambda: fp.SecureAggregation(0),
        "privacy.trust.secure_aggregation.min_honest",
    ),
    "privacy.trust.central.cohort_rate=0": (lambda: fp.Central(0), "privacy.trust.central.cohort_rate"),
    "privacy.schedule.geometric.ratio=.inf": (lambda: fp.Geometric(INF), "privacy.schedule.geometric.ratio"),
    "privacy.statistics.share=1": (lambda: fp.Statistics(share=1), "privacy.statistics.share"),
    "privacy.statistics.public_counts=1": (
        lambda: fp.Statistics(public_counts=1),
        "privacy.statistics.public_counts",
    ),
    "network.activity={name: random_edges, count: 0}": (lambda: fp.RandomEdges(0), "network.activity.count"),
    "network.activity={name: random_links, rate: 0}": (lambda: fp.RandomLinks(0), "network.activity.rate"),
    "network.outages=[{node: -1}]": (lambda: fp.Outage(-1), "network.outages.0.node"),
    "network={topology: ring, mixing_steps: 0}": (
        lambda: fp.Graph(nx.cycle_graph(5), mixing_steps=0),
        "network.mixing_steps",
    ),
    "network={topology: ring, mixing_steps: 1001}": (
        lambda: fp.Graph(nx.cycle_graph(5), mixing_steps=1001),
        "network.mixing_steps",
    ),
    "network.cohort.fixed=11": (lambda: fp.Star(10, fp.FixedCohort(11)), "network.cohort.fixed"),
    "compute.backend=fast": (lambda: fp.Compute("fast"), "compute.backend"),
    "compute.dtype=float16": (lambda: fp.Compute(dtype="float16"), "compute.dtype"),
    "compute.max_physical_batch_size=1.5": (
        lambda: fp.Compute(max_physical_batch_size=1.5),
        "compute.max_physical_batch_size",
    ),
    "compute.threads=0": (lambda: fp.Compute(threads=0), "compute.threads"),
    "compute.threads=2000": (lambda: fp.Compute(threads=2000), "compute.threads"),
    "data.partition.n_clients=0": (lambda: divided("iid", 0), "data.partition.n_clients"),
    "data.partition.n_clients=1.5": (lambda: divided("in_order", 1.5), "data.partition.n_clients"),
    "data.partition={kind: dirichlet, n_clients: 2, alpha: 0}": (
        lambda: divided("dirichlet", 2, alpha=0),
        "data.partition.alpha",
    ),
    "data.partition={kind: dirichlet, n_clients: 2, min_examples: 0}": (
        lambda: divided("dirichlet", 2, min_examples=0),
        "data.partition.min_examples",
    ),
    "data.partition={kind: by_label, n_clients: 2, labels_per_client: 1.5}": (
        lambda: divided("by_label", 2, labels_per_client=1.5),
        "data.partition.labels_per_client",
    ),
    "data.partition={kind: by_writer, n_clients: -1}": (
        lambda: divided("by_writer", -1, writers=torch.arange(6)),
        "data.partition.n_clients",
    ),
    "problem.constraints=[{name: loss_at_most, bound: .inf}]": (
        lambda: fp.LossAtMost(INF),
        "problem.constraints.bound",
    ),
    "problem.constraints=[{name: group_loss_gap, feature: 0, at_most: -1}]": (
        lambda: fp.GroupLossGap(0, -1),
        "problem.constraints.at_most",
    ),
}


def divided(kind: str, n_clients: object, **options: object) -> object:
    return data.partition(kind, torch.arange(6) % 2, n_clients, torch.Generator(), **options)


def refused(entry_point: Callable[[], object]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        entry_point()
    return caught.value


@pytest.mark.parametrize("given", STRATEGY)
def test_bad_strategy_option_python_yaml_same_error(given: str):
    call, field = STRATEGY[given]
    python, yaml = refused(call), refused(lambda: load_config(RUN, [f"strategy={{{given}}}"]))
    assert python.fix == yaml.fix
    assert yaml.field == f"strategy.{field}"
    assert python.field.split(".")[-1] == field.split(".")[-1]


@pytest.mark.parametrize("given", SECTION)
def test_bad_setting_python_yaml_same_error(given: str):
    call, field = SECTION[given]
    python, yaml = refused(call), refused(lambda: load_config(RUN, [given]))
    assert python.fix == yaml.fix
    assert yaml.field == field
    assert python.field.split(".")[-1] == field.split(".")[-1]


@pytest.mark.parametrize("name", [name for name, row in STRATEGIES.items() if row.variants.published])
def test_published_variant_bad_epsilon_raises(name: str):
    """Called in Python with a number out of range."""
    published = STRATEGIES[name].variants.published
    assert published is not None
    options = {"rounds": 5, "examples": 9, "n_examples": 9, "epoch_length": 3, "learning_rate": 1.0, "radius": 1.0}
    asked = published.__annotations__
    given = {option: value for option, value in options.items() if option in asked}
    published(epsilon_bar=1.0, **given)
    assert refused(lambda: published(epsilon_bar=-1.0, **given)).field == "strategy.epsilon_bar"


@validate_arguments("thing")
@dataclass(frozen=True)
class Thing:
    rate: Positive
    count: Count = 1
    word: Literal["a", "b", "c"] = "a"
    solver: LBFGS | L2 = LBFGS()
    label: int | None = None


class Speaks(Protocol):
    def say(self) -> str: ...


@validate_arguments("call")
def call(x: Finite, *, whole: Whole = 0, flag: bool = False, name: str = "", speaker: Speaks | None = None) -> float:
    return x


@pytest.mark.parametrize(
    ("entry_point", "message"),
    [
        (lambda: Thing(-1), "thing.rate = -1: must be a positive, finite number"),
        (lambda: Thing(NAN), "must be a positive, finite number"),
        (lambda: Thing(10**400), "must be a positive, finite number"),
        (lambda: Thing(torch.tensor(1.0)), "must be a positive, finite number"),
        (lambda: Thing(1, True), "thing.count = True: must be a whole number, at least 1"),
        (lambda: Thing(1, word="d"), "thing.word = 'd': is unknown; choose 'a', 'b' or 'c'"),
        (lambda: Thing(1, word=["a"]), "choose 'a', 'b' or 'c'"),
        (
            lambda: Thing(1, solver="lbfgs"),
            "thing.solver = 'lbfgs': must be created with fedpriv.strategies.solvers.LBFGS()",
        ),
        (lambda: Thing(1, solver=3), "solvers.LBFGS() or fedpriv.strategies.proximal.L2(lam=3)"),
        (lambda: Thing(1, label=1.0), "thing.label = 1.0: must be a valid integer"),
        (lambda: call("1"), "call.x = '1': is text: write the number 1, without quotes"),
        (lambda: call("one"), "call.x = 'one': must be a finite number"),
        (lambda: call(1, whole=-1), "must be a whole number, at least 0"),
        (lambda: call(1, flag=1), "call.flag = 1: must be a valid boolean"),
        (lambda: call(1, name=3), "must be a valid string"),
        (lambda: call(1, speaker=3), "call.speaker = 3: is not a Speaks: it has no say"),
    ],
)
def test_annotated_argument_out_of_range_raises(entry_point: Callable[[], object], message: str):
    assert message in str(refused(entry_point))


def test_valid_arguments_pass():
    """Numbers of numpy are numbers; None where it is allowed."""
    assert Thing(np.float32(0.5), np.int64(3), "c", L2(1.0), 4).label == 4
    assert Thing(1).rate == 1
    assert call(0, whole=0, flag=True, speaker=None) == 0
    assert checks.describe_error(PositiveOrInfinite, INF) is None and checks.describe_error(Probability, 1) is None


def of_two(first: int, second: int = 2) -> object:
    return first, second


def of_names(first: int, *, second: int = 2) -> object:
    return first, second


def of_any(first: int, **others: int) -> object:
    return first, others


@pytest.mark.parametrize("function", [of_two, of_names, of_any])
@pytest.mark.parametrize("arguments", [(), (1,), (1, 3), (1, 3, 5)])
@pytest.mark.parametrize("options", [{}, {"second": 3}, {"first": 1}, {"second": 3, "first": 1}, {"third": 3}])
def test_checked_call_accepts_same_signature(
    function: Callable[..., object], arguments: tuple[int, ...], options: dict[str, int]
) -> None:
    try:
        expected = function(*arguments, **options)
    except TypeError:
        refused(lambda: validate_arguments("")(function)(*arguments, **options))
    else:
        assert validate_arguments("")(function)(*arguments, **options) == expected


def test_nonfinite_values_raise_with_client():
    checks.check_finite(torch.zeros(3, 2), "gradient")
    with pytest.raises(DataError, match="client 1: the gradient is"):
        checks.check_finite(torch.tensor([0.0, NAN, INF]), "gradient")


def test_minimum_in_message_is_accepted() -> None:
    """The message "at least 2" must include 2."""
    fp.private_al(2)
    with pytest.raises(ConfigError, match=r"strategy.rounds = 1: must be a whole number, at least 2"):
        fp.private_al(1)
    entries = [
        entry for one in STRATEGIES.values() for entry in (one.build, one.variants.published) if entry is not None
    ]
    hints = [hint for entry in entries for hint in get_type_hints(entry, include_extras=True).values()]
    bounds = [part for hint in hints for part in getattr(hint, "__metadata__", ()) if isinstance(part, checks.Bound)]
    named = [(bound, found) for bound in bounds if (found := re.search(r"at least (\d+)", bound.words))]
    assert named
    for bound, found in named:
        assert bound.describe_error(float, int(found[1])) is None, bound.words


def test_published_scale_0_is_non_private() -> None:
    assert fp.Published(INF, scale=0.0).why_not == "exact query results, no noise"
    with pytest.raises(ConfigError, match=r"privacy\.published\.scale = 0"):
        fp.Published(1.0, scale=0.0)
