"""The library itself passes its audit: every strategy, whatever is protected, whoever is trusted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from audit_targets import SIZES, TWO_OF_A_KIND, audit_target
from strategy_options import EXACT, OPTIONS

import fedpriv as fp
from fedpriv.audit import audit, running
from fedpriv.config import load_config
from fedpriv.config.strategies import STRATEGIES

UNITS = (
    "{unit: sample}",
    "{unit: client}",
    "{unit: client, noise_on: message}",
    "{unit: sample, relation: add_remove}",
)
TRUSTS = ("local", "{secure_aggregation: {min_honest: 2}}", "{central: {}}", "{pairwise: {colluders: 1, ratio: 3}}")
OF_EXAMPLES_ALONE = ("private_al", UNITS[1])  # values of constraints cannot be made private for whole clients
QUICK = {
    ("fedavg", UNITS[0], TRUSTS[3]),
    ("iadmm_prox", UNITS[1], TRUSTS[0]),
    ("fedopt", UNITS[2], TRUSTS[1]),
    ("dp_svrg", UNITS[0], TRUSTS[2]),  # its messages are half as long as what it hears
    (*OF_EXAMPLES_ALONE, TRUSTS[0]),
}


def cases() -> Iterator[object]:
    for name, unit, trust in product(sorted(set(STRATEGIES) - EXACT), UNITS, TRUSTS):
        quick = (name, unit, trust) in QUICK
        yield pytest.param(name, unit, trust, id=f"{name}-{unit}-{trust}", marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("name", "unit", "trust"), list(cases()))
def test_strategies_pass_audit(name: str, unit: str, trust: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [f"strategy={{name: {name}, {OPTIONS.get(name, '')}}}", "rounds=4"]
    settings += [f"privacy={{epsilon: 3, trust: {trust}, {unit[1:]}"]
    checks = {key: check for key, check in running.CHECKS.items() if key not in ("canaries", "interaction")}
    monkeypatch.setattr(running, "CHECKS", checks)  # guesses are tested by themselves, and models are no strategies
    try:
        config = load_config(Path(__file__).parents[1] / "run.yaml", settings)
        problem = TWO_OF_A_KIND if name == "private_al" else None
        made = audit_target(config.recipe(len(SIZES)).strategy, rounds=4, problem=problem)
        made = type(made).of(made.clients, made.strategy, config.promise(len(SIZES)), rounds=4)
        made.plan()
    except fp.ConfigError:
        assert trust != "local" or "message" in unit or "add_remove" in unit or (name, unit) == OF_EXAMPLES_ALONE
        return  # refused before any data are read
    found = audit(made)
    assert found.status == 0, [one for one in found.findings if one.verdict != "held"]
