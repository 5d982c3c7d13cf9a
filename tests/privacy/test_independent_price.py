"""From settings to records to epsilon, each step a second time: nothing of the price hangs on one piece of code.

Every strategy runs under every unit, relation, sampling and trust that it is valid for. What its records should say
follows from the settings by the few lines of `expected_record`. Their privacy cost follows from the file alone, by
`second_accountant`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from second_accountant import epsilons_of
from strategy_options import EXACT, OPTIONS
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.config import load_config
from fedpriv.config.strategies import STRATEGIES
from fedpriv.models import SoftmaxRegression
from fedpriv.privacy.pairwise import Links
from fedpriv.privacy.settings import Sampling, Trust
from fedpriv.strategies.base import Strategy

SIZES, BATCH, RATE, ROUNDS, DECAY = (4, 6, 9), 5, 0.3, 3, 0.8
NOISE, BOUND, SHARE = 2.5, 0.7, 0.3
ROUNDING = 1 + 2**-10
TRUSTS: dict[str, Trust] = {
    "local": fp.Local(),
    "secure": fp.SecureAggregation(2),
    "central": fp.Central(),
    "secret cohort": fp.Central(0.4),
    "pairs": fp.Pairwise(1, 2.0, Links(((2, 1), (0, 1), (0, 2)))),
}
SAMPLINGS: dict[str, Sampling] = {"full": fp.FullBatch(), "poisson": fp.Poisson(RATE), "fixed": fp.FixedSize(BATCH)}
RELATIONS = ("replace_one", "add_remove")
PLACES = (("sample", "gradient"), ("client", "gradient"), ("client", "message"))
PRIVATE = sorted(set(STRATEGIES) - EXACT)
# strategies of which each has a kind of question or memory that the others lack
REPRESENTATIVE = ("dp_accmd", "dp_svrg", "fedavg", "iadmm_prox", "private_al")


def strategy_of(name: str) -> Strategy:
    words = [f"strategy={{name: {name}, {OPTIONS.get(name, '')}}}", f"rounds={ROUNDS}"]
    return load_config(Path(__file__).parents[1] / "run.yaml", words).recipe().strategy


def settings(law: str = "gaussian") -> Iterator[fp.Privacy]:
    """All that can be written down; what contradicts itself is left out by hand, not because it raises."""
    for (unit, at), relation, sampling, trust in product(PLACES, RELATIONS, SAMPLINGS, TRUSTS):
        if (unit, relation, sampling) == ("sample", "add_remove", "fixed"):
            continue  # no sound price is known
        if unit == "sample" and trust == "secret cohort":
            continue  # says nothing about one example
        if law == "laplace" and trust == "pairs":
            continue  # has no price
        yield fp.Privacy(
            noise_multiplier=NOISE,
            clip=fp.Clip(BOUND, "l1" if law == "laplace" else "l2"),
            mechanism=fp.Laplace() if law == "laplace" else fp.Gaussian(),
            unit=unit,
            noise_on=at,
            relation=relation,
            sampling=SAMPLINGS[sampling],
            trust=TRUSTS[trust],
            schedule=fp.Geometric(DECAY),
            statistics=fp.Statistics(share=SHARE),
        )


def clients_of(strategy: Strategy) -> list[fp.Client]:
    generator = torch.Generator().manual_seed(0)
    data = [TensorDataset(torch.randn(m, 3, generator=generator), torch.arange(m) % 2) for m in SIZES]
    constraints = (
        (fp.ClassLossAtMost(1, 0.3, fraction=0.4), fp.LossAtMost(0.5)) if strategy.name == "private_al" else ()
    )
    problem = fp.Problem(constraints=constraints)
    return fp.make_clients(SoftmaxRegression(3, 2), nn.CrossEntropyLoss(), data, problem)


def training_of(strategy: Strategy, privacy: fp.Privacy, folder: Path, network: fp.Star | None = None) -> fp.Training:
    options = {"rounds": ROUNDS, "seed": 2, "secret_seed": 2, "network": network}
    return fp.Training(clients_of(strategy), strategy, privacy, folder=folder, **options)


def expected_record(privacy: fp.Privacy, record: dict[str, Any]) -> dict[str, Any]:
    """What a record must say for these settings, given who was asked what in which round."""
    query = record["query"]
    noise, bound = NOISE / DECAY ** record["round"], BOUND
    if query.startswith("statistic:"):
        odds = SHARE / (1 - SHARE)
        noise, bound = noise / (odds if privacy.clip.norm == "l1" else math.sqrt(odds)), 1.0
    elif query == "gradient_difference":
        bound = record["bound"] / ROUNDING
        assert 0 < bound <= 2 * BOUND
    sampling: tuple[str, Any] = ("full", 1.0)
    if privacy.unit == "sample" and query != "full_gradient":
        fractions = [min(1.0, BATCH / m) for m in SIZES]
        sampling = {"poisson": ("poisson", RATE), "fixed": ("without_replacement", fractions), "full": sampling}[
            next(name for name, one in SAMPLINGS.items() if one == privacy.sampling)
        ]
    elif privacy.trust == TRUSTS["secret cohort"]:
        sampling = ("poisson", 0.4)
    pairs: Any = None
    if isinstance(privacy.trust, fp.Pairwise):
        pairs = {
            "ratio": privacy.trust.ratio,
            "colluders": privacy.trust.colluders,
            "secrets": record["pairs"]["secrets"],
        }
        if query.startswith("statistic:"):
            pairs["ratio"] = 0.0
        else:
            noise = own_noise(privacy, query, noise)
    return {
        "pairs": pairs,
        "mechanism": "laplace" if privacy.clip.norm == "l1" else "gaussian",
        "norm": privacy.clip.norm,
        "noise_multiplier": pytest.approx(noise, rel=1e-12),
        "bound": pytest.approx(bound * ROUNDING, rel=1e-12),
        "sampling": sampling[0],
        "rate": pytest.approx(sampling[1], rel=1e-12),
        "unit": privacy.unit,
        "relation": privacy.relation,
        "clients": None,
        "non_private": None,
        "trust": str(privacy.trust),
    }


def own_noise(privacy: fp.Privacy, query: str, effective: float) -> Any:
    """Noise of a client's own over its sensitivity. Of three who all share secrets one colludes, and two are left:
    the inverse of [[1 + r^2, -r^2], [-r^2, 1 + r^2]] has (1 + r^2) / (1 + 2 r^2) on its diagonal, 5/9 for r = 2.
    """
    effective *= math.sqrt(5 / 9)
    sensitivity = [1.0] * 3
    if privacy.unit == "sample":
        taken = {"poisson": [RATE * m for m in SIZES], "fixed": [min(BATCH, m) for m in SIZES], "full": SIZES}
        sampled = taken[
            "full" if query == "full_gradient" else next(k for k, v in SAMPLINGS.items() if v == privacy.sampling)
        ]
        whole = query in ("client_gradient", "lagrangian_gradient")
        sensitivity = [(1 if whole else m) / batch for m, batch in zip(SIZES, sampled, strict=True)]
    each = [effective * max(sensitivity) / one for one in sensitivity]
    return each if max(each) > min(each) * (1 + 1e-9) else each[0]


def check(strategy: Strategy, privacy: fp.Privacy, folder: Path) -> bool:
    """Run it and price it twice; False where the strategy is refused these settings."""
    try:
        training = training_of(strategy, privacy, folder)
    except fp.ConfigError:
        assert privacy.trust not in (TRUSTS["local"], TRUSTS["pairs"]) or privacy.unit == "client"
        return False
    list(training)
    spent, path = training.spent(), folder / "ledger.jsonl"
    records = [{"pairs": None, **json.loads(line)} for line in path.read_text().splitlines()[1:]]
    assert len(records) >= ROUNDS
    for record in records:
        assert {name: record[name] for name in expected_record(privacy, record)} == expected_record(privacy, record)
    assert (spent.unit, spent.delta, spent.trust) == (privacy.unit, privacy.delta, str(privacy.trust))
    assert spent.relation.split("(")[0] == privacy.relation
    second = epsilons_of(path, len(SIZES), privacy.delta)
    assert list(spent.per_client) == pytest.approx(second, rel=1e-3)
    assert spent.epsilon == pytest.approx(max(second), rel=1e-3)
    return True


def accepted_settings(name: str, every: list[fp.Privacy], root: Path) -> list[tuple[str, str, str]]:
    strategy, accepted = strategy_of(name), []
    for number, privacy in enumerate(every):
        (root / str(number)).mkdir()
        if check(strategy, privacy, root / str(number)):
            accepted.append((privacy.unit, privacy.noise_on, str(privacy.trust)))
    return accepted


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_records_and_epsilon_equal_reference(name: str, tmp_path: Path) -> None:
    accepted = accepted_settings(name, list(settings()), tmp_path)
    assert ("sample", "gradient", "local") in accepted
    if name == "fedavg":  # one local step, of which only the sum is used: it fits everywhere
        assert {trust for _, _, trust in accepted} == {str(trust) for trust in TRUSTS.values()}


@pytest.mark.parametrize("name", sorted(set(PRIVATE) - set(REPRESENTATIVE)))
def test_other_strategies_epsilon_equals_reference(name: str, tmp_path: Path) -> None:
    assert accepted_settings(name, list(settings())[PRIVATE.index(name) % 3 :: 3], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_all_strategies_all_settings_equal_reference(name: str, law: str, tmp_path: Path) -> None:
    assert accepted_settings(name, list(settings(law)), tmp_path)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_laplace_epsilon_with_and_without_delta(sampling: str, delta: float, tmp_path: Path) -> None:
    privacy = next(p for p in settings("laplace") if p.sampling == SAMPLINGS[sampling])
    assert check(strategy_of("fedavg"), replace(privacy, delta=delta), tmp_path)


def test_laplace_l2_clip_epsilon_above_reference(tmp_path: Path) -> None:
    privacy = fp.Privacy(noise_multiplier=NOISE, clip=fp.Clip(BOUND), mechanism=fp.Laplace())
    training = training_of(strategy_of("fedavg"), privacy, tmp_path)
    list(training)
    # the library looks at fewer orders, so that it may only be larger
    (first, *_), claimed = epsilons_of(tmp_path / "ledger.jsonl", len(SIZES), privacy.delta), training.spent().epsilon
    assert first <= claimed <= first * (1 + 1e-3)


@pytest.mark.parametrize(
    "changes",
    [{}, {"sampling": fp.Poisson(RATE)}, {"sampling": fp.FixedSize(BATCH)}, {"unit": "client", "noise_on": "message"}],
    ids=str,
)
def test_calibrated_noise_meets_target(changes: dict[str, Any], tmp_path: Path) -> None:
    privacy = fp.Privacy(epsilon=2.0, schedule=fp.Geometric(DECAY), **changes)
    training = training_of(strategy_of("fedavg"), privacy, tmp_path)
    list(training)
    assert max(epsilons_of(tmp_path / "ledger.jsonl", len(SIZES), 1e-5)) == pytest.approx(2.0, rel=2e-3)


def test_public_cohort_epsilon_equals_reference(tmp_path: Path) -> None:
    """Public cohorts: the records name their clients, and fixed sizes give each its own rate."""
    for name, sampling in SAMPLINGS.items():
        folder = tmp_path / name
        folder.mkdir()
        privacy = fp.Privacy(noise_multiplier=NOISE, sampling=sampling)
        network = fp.Star(len(SIZES), fp.FixedCohort(2))
        training = training_of(strategy_of("fedavg"), privacy, folder, network)
        list(training)
        second = epsilons_of(folder / "ledger.jsonl", len(SIZES), 1e-5)
        assert list(training.spent().per_client) == pytest.approx(second, rel=1e-3)
        assert len(set(second)) > 1
