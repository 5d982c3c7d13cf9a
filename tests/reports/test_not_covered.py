"""What stands beside an epsilon: sizes and counts that are public, a gap that is exact, what an estimator tells."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reported_runs import CONFIG, SMALL, cli, clients

import fedpriv as fp
from fedpriv.config import build, forecast, load_config
from fedpriv.estimators.logistic_regression import PrivateLogisticRegression
from fedpriv.privacy.accounting.accountant import account


def relation(privacy: fp.Privacy, owners: list[fp.Client]) -> str:
    return fp.train(owners, fp.fedavg(0.5), privacy, rounds=2).spent.relation


def test_undeclared_sizes_stated_in_relation() -> None:
    """A true size reveals whether one example was added; a declared size does not, even if it equals the true one."""
    added = fp.Privacy(epsilon=1, delta=1e-3, relation="add_remove")
    assert relation(added, clients()) == "add_remove(sizes public)"
    assert relation(added, clients(declared=(40, 40, None))) == "add_remove(sizes public)"
    assert relation(added, clients(declared=(40, 40, 40))) == relation(added, clients(declared=(50, 40, 30)))
    assert relation(added, clients(declared=(50, 40, 30))) == "add_remove"
    assert relation(replace(added, relation="replace_one"), clients()) == "replace_one"
    whole = replace(added, unit="client", delta=1e-2)
    assert relation(whole, clients(declared=(50, 40, 30))) == "add_remove(sizes public)", "so many clients there are"
    assert relation(replace(whole, relation="replace_one"), clients()) == "replace_one(sizes public)"
    assert relation(replace(whole, relation="replace_one"), clients(declared=(50, 40, 30))) == "replace_one"


@pytest.mark.parametrize(
    ("fraction", "message"), [("", "replace_one(within group)"), (", fraction: 0.1", "replace_one")]
)
def test_public_counts_stated_in_relation(fraction: str, message: str) -> None:
    counted = f"problem.constraints=[{{name: class_loss_at_most, label: 1, bound: 0.3{fraction}}}]"
    strategy = "strategy={name: private_al, beta: 2}"
    config = load_config(CONFIG, [*SMALL, "rounds=6", counted, strategy, "privacy.statistics.public_counts=true"])
    training = build(config)
    list(training)
    assert f"relation={message}, trust" in str(training.result().spent)
    assert forecast(config).spent.relation == message == account(training.ledger.records, 3, 1e-5).relation


def test_different_relations_do_not_compose() -> None:
    plain = fp.Privacy(noise_multiplier=10.0, delta=1e-3, relation="add_remove")
    runs = [
        fp.Training(clients(declared=sizes), fp.fedavg(0.5), plain, rounds=1) for sizes in ((1, 1, 1), (1, 1, None))
    ]
    records = [record for run in runs for record in run.plan.records]
    with pytest.raises(fp.PrivacyError, match="sizes public"):
        account(records, 3, 1e-3)


def test_exact_optimality_gap_listed_as_not_covered(tmp_path: Path) -> None:
    done = cli("train", str(CONFIG), *SMALL, "log.optimum=0.1", "--out", str(tmp_path))
    assert "gap to the optimum, computed on the training data without noise" in done.stderr.split("round 1/")[0]
    assert "; not covered: the optimality gap, exact)" in done.stdout
    assert json.loads((tmp_path / "result.json").read_text())["not_covered"] == ["the optimality gap, exact"]
    shown = cli("show", str(tmp_path)).stdout
    assert "not covered: the optimality gap, exact" in shown
    plain = fp.train(clients(), fp.fedavg(0.5), fp.Privacy(epsilon=1, delta=1e-3), rounds=1)
    assert "not covered" not in str(plain.spent)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, ("the set of labels, read from y",)),
        ({"classes": [0, 1]}, ()),
        ({"classes": [0, 1], "random_state": 7}, ("anyone who guesses random_state",)),
        ({"classes": [0, 1], "random_state": 2**127 + 5}, ()),
    ],
    ids=["labels", "nothing", "small seed", "long seed"],
)
def test_estimator_lists_what_epsilon_excludes(given: dict[str, Any], message: tuple[str]) -> None:
    rows = np.random.default_rng(0).uniform(-1, 1, (200, 2))
    model = PrivateLogisticRegression(epsilon=1, delta=1e-3, max_iter=3, **given).fit(rows, rows[:, 0] > 0)
    assert model.spent_.not_covered == message
    assert ("; not covered: " + ", ".join(message) + ")" in str(model.spent_)) == bool(message)
