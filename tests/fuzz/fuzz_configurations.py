"""A grammar of configurations, and what may go wrong in one."""

from __future__ import annotations

import copy
import random
from typing import Any

import yaml
from fuzz_harness import Case

Path = tuple[Any, ...]

PENALTY = {"scale": 1.0, "growth": 1.2, "period": 10.0}
STRATEGIES: list[dict[str, Any]] = [
    {"name": "iadmm_prox", "eta": {"scale": 1.0, "power": 0.5}, "rho": PENALTY, "weight_decay": 0.01, "average": 1.0},
    {
        "name": "iadmm_trust",
        "radius": {"scale": 0.1, "power": 0.0},
        "norm": "linf",
        "feasible": {"kind": "box", "bound": 9.0},
    },
    {"name": "iadmm_output", "rho": {"scale": 2.0}, "linearize_at": "received"},
    {"name": "fedavg", "learning_rate": 0.5, "local_steps": 2, "server_momentum": 0.9},
    {"name": "fedprox", "learning_rate": 0.5, "proximal_mu": 0.1},
    {"name": "fedopt", "learning_rate": 0.5, "server_optimizer": "yogi", "beta1": 0.9, "tau": 0.001},
    {"name": "scaffold", "learning_rate": 0.5, "local_steps": 2},
    {"name": "dp_gd", "smoothness": 0.25, "momentum": 0.5, "output": "average", "average": 1.0},
    {"name": "dp_svrg", "epoch_length": 3, "learning_rate": 0.1, "regularizer": {"l2": {"lam": 0.01}}},
    {"name": "dp_svrg_plus_plus", "epoch_length": 2, "anchor_share": 1.0},
    {"name": "dp_accmd", "radius": 3.0, "ball": "l1"},
]
GOSSIP: list[dict[str, Any]] = [
    {"name": "dual_averaging", "regularizer": {"l1": {"lam": 0.01}}, "gamma": 0.1},
    {"name": "gradient_tracking", "step_size": {"scale": 0.1, "power": 0.5}, "gradient_at": "mixed"},
    {"name": "gradient_tracking_pair", "step_size": {"scale": 0.1, "ratio": 0.99}},
    {"name": "decentralized_sgd", "step_size": {"scale": 0.1}, "average": 0.0},
    {"name": "dpop", "gamma": 0.1, "q1": 0.97, "q2": 0.99},
]
TOPOLOGIES: list[Any] = [
    "ring",
    {"name": "grid", "rows": 2},
    {"name": "erdos_renyi", "p": 0.9, "seed": 3},
    {"name": "random_regular", "degree": 3},
    {"name": "watts_strogatz", "neighbours": 2, "rewire": 0.2},
    {"name": "barabasi_albert", "links": 2, "seed": 1},
    "exponential",
]
ACTIVITIES: list[Any] = [
    "always",
    {"name": "random_edges", "count": 2},
    {"name": "random_nodes", "rate": 0.5},
    {"name": "exact_nodes", "count": 2},
]
DATA: list[dict[str, Any]] = [
    {"name": "digits", "flat": True, "seed": 1},
    {"name": "breast_cancer", "variant": "diagnostic", "bias": False, "features": [1, 2, 3]},
]
PARTITIONS: list[dict[str, Any]] = [
    {"kind": "iid", "n_clients": 6, "seed": 2},
    {"kind": "in_order", "n_clients": 4},
    {"kind": "by_label", "n_clients": 4, "labels_per_client": 2},
    {"kind": "dirichlet", "n_clients": 4, "alpha": 0.9, "min_examples": 1},
    {"kind": "stratified", "n_clients": 6},
]
SAMPLING: list[Any] = ["full", {"poisson": {"rate": 0.3}}, {"fixed_size": {"size": 5}}]
# of a kind that no field of this kind takes
NOT_A_NUMBER = ["true", "'3'", "fast", "[1]", "{a: 1}", ".nan", "yes", "0x10", "1:20", "1_0", "007", "9" * 5000]
NOT_A_TRUTH = ["1", "'true'", "yes", "off", "2.5", "[true]", "{a: true}", "maybe"]
NOT_A_NAME = ["3", "true", "[digits]", "1.5", "zzqqxx", "'os:system'", "'sys:exit'", "'../x'", "''", "'a b'"]
EXTREME = ["0", "-1", "1", "2", "0.5", "1e-5", "1e-300", "1e300", "-1e300", ".inf", "-.inf", "1e15", "null"]
EXTREME += [str(2**63), str(-(2**63)), "9" * 99]
DEEP = ["[" * 3000, "{a: " * 500, "- " * 200, "&a [*a]", "!!python/name:os.system ''", '"\\0"', '"\\uD800"']


def draw(rng: random.Random) -> Case:
    """A configuration with up to three faults; nonsense if one of them cannot be meant."""
    config = _sound(rng)
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        rng.choice((_extreme, _extreme, _restructure))(config, rng)
    # what cannot be meant comes last, so that nothing takes it away again
    last = rng.choice((_wrong_kind, _misname, _extreme, _extreme, _restructure, _scribble, _repeat))
    nonsense = last in (_wrong_kind, _misname, _repeat)
    if last in (_scribble, _repeat):
        return Case(last(_written(config), rng), nonsense)
    last(config, rng)
    return Case(_written(config), nonsense)


def _sound(rng: random.Random) -> dict[str, Any]:
    gossips = rng.random() < 0.35
    data = copy.deepcopy(rng.choice(DATA)) | {"partition": copy.deepcopy(rng.choice(PARTITIONS))}
    config: dict[str, Any] = {
        "data": data,
        "model": rng.choice(["softmax", {"name": "softmax", "bias": True}]),
        "strategy": copy.deepcopy(rng.choice(GOSSIP if gossips else STRATEGIES)),
        # a noise is priced at once, an epsilon is searched for
        "privacy": {rng.choice(("noise_multiplier",) * 4 + ("epsilon",)): 3.0, "delta": 1e-5},
        "rounds": rng.choice((1, 2, 3, 4)),
        "compute": {"backend": "auto", "device": "cpu", "max_physical_batch_size": 512, "threads": 1},
        "log": {"evaluate_every": 1, "checkpoint_every": 2, "tensorboard": False, "csv": True},
    }
    config["privacy"]["sampling"] = copy.deepcopy(rng.choice(SAMPLING))
    if rng.random() < 0.5:
        config["seed"] = rng.choice((0, 7, 2**40))
    if rng.random() < 0.5:
        config["privacy"] |= rng.choice(
            [
                {"unit": "client", "noise_on": "message", "clip": {"bound": 0.5}},
                {"mechanism": "laplace", "delta": 0.0, "clip": {"norm": "l1", "bound": 1.0}},
                {"relation": "add_remove", "clip": {"norm": "l2", "bound": 2.0}},
                {"trust": {"central": {"cohort_rate": 0.5}}, "unit": "client"},
                {"trust": {"secure_aggregation": {"min_honest": 2}}},
                {"schedule": {"geometric": {"ratio": 0.9}}, "secure": True},
                {"noise_on": "none", "epsilon": None},
                {"statistics": {"bound": 4.0, "share": 0.2}},
            ]
        )
    if gossips:
        config["network"] = {
            "topology": copy.deepcopy(rng.choice(TOPOLOGIES)),
            "mixing": rng.choice(["metropolis", "lazy_metropolis", "max_degree"]),
            "mixing_steps": 2,
            "activity": copy.deepcopy(rng.choice(ACTIVITIES)),
            "outages": [{"node": 1, "start": 1, "stop": 2}],
        }
    elif rng.random() < 0.3:
        config["network"] = {"cohort": rng.choice([{"poisson": 0.5}, {"fixed": 2}, "everyone"])}
    return config


class _Raw(str):
    """Written as it stands."""


def _leaves(value: Any, at: Path = ()) -> list[Path]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [leaf for key, part in parts for leaf in _leaves(part, (*at, key))] or ([at] if at else [])


def _get(config: Any, at: Path) -> Any:
    for key in at:
        config = config[key]
    return config


def _put(config: Any, at: Path, value: Any) -> None:
    _get(config, at[:-1])[at[-1]] = value


def _wrong_kind(config: dict[str, Any], rng: random.Random) -> None:
    sound = [at for at in _leaves(config) if type(_get(config, at)) in (bool, int, float, str)]
    at = rng.choice(sound)
    old = _get(config, at)
    wrong = NOT_A_TRUTH if isinstance(old, bool) else NOT_A_NAME if isinstance(old, str) else NOT_A_NUMBER
    _put(config, at, _Raw(rng.choice(DEEP if rng.random() < 0.1 else wrong)))


def _extreme(config: dict[str, Any], rng: random.Random) -> None:
    numbers = [at for at in _leaves(config) if type(_get(config, at)) in (int, float)]
    if numbers:
        _put(config, rng.choice(numbers), _Raw(rng.choice(EXTREME)))


def _misname(config: dict[str, Any], rng: random.Random) -> None:
    inside = _get(config, rng.choice(_sections(config)))
    inside[rng.choice(("sead", "Rounds", f"{next(iter(inside))}x", "", "\u00e9", "x" * 3000))] = 1


def _restructure(config: dict[str, Any], rng: random.Random) -> None:
    inside = _get(config, rng.choice(_sections(config)))
    key = rng.choice(list(inside))
    match rng.randrange(3):
        case 0:
            inside[key] = copy.deepcopy(_get(config, rng.choice(_sections(config))))
        case 1:
            inside[key] = None
        case _:
            del inside[key]


def _sections(config: dict[str, Any]) -> list[Path]:
    return [at[:-1] for at in _leaves(config) if isinstance(at[-1], str)]


def _scribble(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    match rng.randrange(3):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + rng.choice("{}[]:,#&*!|>'\"%@`\t\n\r\x00\ufeff\u2028 -?") + text[at:]
        case _:
            return text[:at] + text[at + rng.randrange(1, 9) :]


def _repeat(text: str, rng: random.Random) -> str:
    """A top level key once more."""
    keys = [line.split(":")[0] for line in text.splitlines() if line[:1].isalpha()]
    return f"{text}{rng.choice(keys)}: 1\n"


def _written(config: dict[str, Any]) -> str:
    raw: list[_Raw] = []

    def placed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: placed(part) for key, part in value.items()}
        if isinstance(value, list):
            return [placed(part) for part in value]
        if isinstance(value, _Raw):
            raw.append(value)
            return f"zzplace{len(raw) - 1}zz"
        return value

    text = yaml.dump(placed(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)
    for number, value in enumerate(raw):
        text = text.replace(f"zzplace{number}zz", value)
    return text


class _Dumper(yaml.SafeDumper):
    """Writes a value that occurs twice twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
