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


def test_sizes_that_were_not_declared_stand_in_the_relation() -> None:
    """A true size tells whether there is one example more; a declared one does not, even where it is the true one."""
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


@pytest.mark.parametrize(("fraction", "said"), [("", "replace_one(within group)"), (", fraction: 0.1", "replace_one")])
def test_counts_that_are_public_stand_in_the_relation(fraction: str, said: str) -> None:
    counted = f"problem.constraints=[{{name: class_loss_at_most, label: 1, bound: 0.3{fraction}}}]"
    strategy = "strategy={name: private_al, beta: 2}"
    config = load_config(CONFIG, [*SMALL, "rounds=6", counted, strategy, "privacy.statistics.public_counts=true"])
    training = build(config)
    list(training)
    assert f"relation={said}, trust" in str(training.result().spent)
    assert forecast(config).spent.relation == said == account(training.ledger.records, 3, 1e-5).relation


def test_ledgers_of_different_neighbours_do_not_add_up() -> None:
    plain = fp.Privacy(noise_multiplier=10.0, delta=1e-3, relation="add_remove")
    runs = [
        fp.Training(clients(declared=sizes), fp.fedavg(0.5), plain, rounds=1) for sizes in ((1, 1, 1), (1, 1, None))
    ]
    records = [record for run in runs for record in run.plan.records]
    with pytest.raises(fp.PrivacyError, match="sizes public"):
        account(records, 3, 1e-3)


def test_an_exact_gap_to_the_optimum_stands_beside_the_epsilon(tmp_path: Path) -> None:
    done = cli("train", str(CONFIG), *SMALL, "log.optimum=0.1", "--out", str(tmp_path))
    assert "gap to it, computed on the training data without noise" in done.stderr.split("round 1/")[0]
    assert "; not covered: the optimality gap, exact)" in done.stdout
    assert json.loads((tmp_path / "result.json").read_text())["not_covered"] == ["the optimality gap, exact"]
    shown = cli("show", str(tmp_path)).stdout
    assert "not covered: the optimality gap, exact" in shown
    plain = fp.train(clients(), fp.fedavg(0.5), fp.Privacy(epsilon=1, delta=1e-3), rounds=1)
    assert "not covered" not in str(plain.spent)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, ("the set of labels, read from y",)),
        ({"classes": [0, 1]}, ()),
        ({"classes": [0, 1], "random_state": 7}, ("anyone who guesses random_state",)),
        ({"classes": [0, 1], "random_state": 2**127 + 5}, ()),
    ],
    ids=["labels", "nothing", "small seed", "long seed"],
)
def test_what_an_estimator_tells_besides_stands_beside_its_epsilon(given: dict[str, Any], said: tuple[str]) -> None:
    rows = np.random.default_rng(0).uniform(-1, 1, (200, 2))
    model = PrivateLogisticRegression(epsilon=1, delta=1e-3, max_iter=3, **given).fit(rows, rows[:, 0] > 0)
    assert model.spent_.not_covered == said
    assert ("; not covered: " + ", ".join(said) + ")" in str(model.spent_)) == bool(said)
