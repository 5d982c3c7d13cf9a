"""`fedpriv tune` on real runs: its cost, a kill, what it refuses, and what stays hidden."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from commands import DIGITS, error_line, fedpriv

import fedpriv as fp
from fedpriv.config import load_config
from fedpriv.errors import BudgetExhausted, ConfigError, FedprivError, PrivacyError
from fedpriv.privacy.accounting import gaussian
from fedpriv.tuning import Search, SearchSettings, Space

QUICK = ["data.partition.n_clients=3", "rounds=3", "seed=0", "compute.threads=1", "log.checkpoint_every=1"]
RHO = {"strategy.rho.scale": {"low": 0.01, "high": 10.0, "log": True}}


def search(*overrides: str, space: object = RHO, **settings: object) -> Search:
    return Search(
        load_config(DIGITS, [*QUICK, *overrides]), Space.of(space), SearchSettings(**{"trials": 3, **settings})
    )


def central(**settings: object) -> Search:
    config = yaml.safe_load(Path(DIGITS).read_text()) | {"strategy": {"name": "fedavg", "learning_rate": 0.5}}
    config |= {"rounds": 2, "privacy": {"epsilon": 1, "delta": 1e-5, "trust": "central"}}
    made = fp.config.base.check(fp.config.Config, config)
    space = Space.of({"strategy.learning_rate": {"low": 0.01, "high": 1.0}})
    return Search(made, space, SearchSettings(**{"trials": 3, "sampler": "random", **settings}))


def quiet(number: int, report: object) -> None:
    """Watches nothing."""


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_tune_cost_composes_all_trials(sampler: str):
    """Three runs of epsilon 3, unsampled Gaussian."""
    cost = search(sampler=sampler).cost
    mu = gaussian.compute_ratio(3.0, 1e-5)
    assert cost.one_trial.epsilon == pytest.approx(3, rel=1e-3)
    assert cost.spent.epsilon == pytest.approx(gaussian.compute_epsilon(3**0.5 * mu, 1e-5), rel=1e-3)


def test_tune_uncovered_values_listed_and_budget_raises(tmp_path: Path):
    """Each trial releases the exact gap to the given optimum."""
    cost = search("log.optimum=0.1").cost
    for spent in (cost.spent, cost.one_trial):
        assert str(spent).endswith("; not covered: the optimality gap, exact)")
    budget = fp.Budget.create(tmp_path / "budget", epsilon=7.0, delta=1e-5)
    made = search("log.optimum=0.1", f"privacy.budget={tmp_path / 'budget'}")
    with pytest.raises(PrivacyError, match="which epsilon does not cover"):
        made.run(tmp_path / "a", quiet)
    assert not budget.balance().entries
    assert not search().cost.spent.not_covered
    hidden = central(secret_trials="geometric")
    with_gap = hidden.base.model_copy(update={"log": hidden.base.log.model_copy(update={"optimum": 0.1})})
    assert not Search(with_gap, hidden.space, hidden.settings).cost.spent.not_covered  # only a model is published


def test_tune_random_trials_may_differ_in_cost():
    space = {"rounds": [2, 4], "privacy.noise_multiplier": [20.0, 40.0]}
    found = search("privacy.epsilon=null", "privacy.noise_multiplier=20", space=space, sampler="random", trials=6)
    chosen = found._choices(6)
    mu2 = sum(one["rounds"] / one["privacy.noise_multiplier"] ** 2 for one in chosen)
    assert len({tuple(one.values()) for one in chosen}) > 1
    assert found.cost.spent.epsilon == pytest.approx(gaussian.compute_epsilon(mu2**0.5, 1e-5), rel=1e-3)
    learning = search("privacy.epsilon=null", "privacy.noise_multiplier=20", space=space, trials=6)
    with pytest.raises(ConfigError, match="all trials cost the same"):
        assert learning.cost


def test_killed_search_resumes_and_charges_once(tmp_path: Path):
    """The search is killed in the second trial, between two checkpoints."""
    whole, broken = search("log.checkpoint_every=2"), search("log.checkpoint_every=2")

    def run_and_kill(number: int, report: fp.RoundReport) -> None:
        if (number, report.round) == (1, 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken.run(tmp_path / "a", run_and_kill)
    begun = json.loads((tmp_path / "a" / "trials" / "trials.json").read_text())["trials"]
    found = broken.run(tmp_path / "a", quiet)
    assert [one.chosen for one in found.trials[:2]] == [one["chosen"] for one in begun]
    released = [
        (path.parent.name, line["round"])
        for path in sorted((tmp_path / "a").glob("trials/*/ledger.jsonl"))
        for line in map(json.loads, path.read_text().splitlines())
        if "query" in line
    ]
    assert len(released) == len(set(released)) == 3 * 3
    folders = [str(path.parent) for path in sorted((tmp_path / "a").glob("trials/*/result.json"))]
    counted = json.loads(fedpriv("account", *folders, "--json").stdout)
    assert counted["epsilon"] == pytest.approx(whole.cost.spent.epsilon, rel=1e-9)
    again = broken.run(tmp_path / "a", run_and_kill)  # finished: nothing runs
    assert again.best == found.best and again.score == max(one.score for one in found.trials)


def test_tune_command_plans_and_searches(tmp_path: Path):
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(RHO))
    words = ["tune", DIGITS, str(tmp_path / "space.yaml"), *QUICK, "--trials", "2", "--out", str(tmp_path / "out")]
    planned = json.loads(fedpriv(*words, "--plan", "--json").stdout)
    assert not (tmp_path / "out").exists()
    done = fedpriv(*words, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["epsilon"] == planned["epsilon"] > found["one_trial"] and found["score"] > 0
    assert (tmp_path / "out" / "trials.png").stat().st_size > 10_000
    assert set(found["chosen"]) == {"strategy.rho.scale"} and Path(found["best"], "model.pt").exists()
    assert "contains a search with other settings" in error_line(*words[:-4], "--trials", "3", *words[-2:])
    assert "would cost epsilon=" in error_line(*words[:-1], str(tmp_path / "b"), "--epsilon", "3.5")
    assert not (tmp_path / "b").exists()


def test_secret_trials_leave_best_model_only(tmp_path: Path):
    made = central(secret_trials="geometric")
    one, cost = made.cost.one_trial.epsilon, made.cost
    assert one < cost.spent.epsilon and cost.spent.accountant == "rdp" and "only the best" in cost.rests_on

    def received(number: int, report: object) -> None:
        raise AssertionError("a hidden trial was told")

    found = made.run(tmp_path, received)
    assert found.trials == () and found.best == tmp_path / "best"
    assert {path.name for path in tmp_path.iterdir()} <= {"best", "search.json", ".lock"}
    assert {path.name for path in found.best.iterdir()} == {"best.json", "model.pt", "config.yaml"}
    assert "number" not in (tmp_path / "search.json").read_text()
    assert made.run(tmp_path, received) == found


def test_secret_trials_without_central_trust_raise():
    with pytest.raises(PrivacyError, match="trust: local"):
        assert search(sampler="random", secret_trials="poisson").cost
    with pytest.raises(ConfigError, match="would reveal the number"):
        search("privacy.budget=b", sampler="random", secret_trials="poisson")
    with pytest.raises(ConfigError, match="do not depend on earlier trials"):
        SearchSettings(5, secret_trials="poisson")
    with pytest.raises(ConfigError, match="must be more than 1 and at most"):
        SearchSettings(1, sampler="random", secret_trials="geometric")


def test_search_reserves_all_trials_in_budget(tmp_path: Path):
    budget = fp.Budget.create(tmp_path / "budget", epsilon=7.0, delta=1e-5)
    made = search(f"privacy.budget={tmp_path / 'budget'}")
    assert made.cost.spent.epsilon < 7
    made.run(tmp_path / "a", quiet)
    made.run(tmp_path / "a", quiet)
    entries = budget.balance().entries
    assert [one.state for one in entries] == ["rounds"]
    assert budget.balance().spent.epsilon == pytest.approx(made.cost.spent.epsilon, rel=1e-6)
    with pytest.raises(BudgetExhausted):
        search(f"privacy.budget={tmp_path / 'budget'}").run(tmp_path / "b", quiet)
    assert not list((tmp_path / "b").glob("trials/0*"))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "must be a mapping of fields to ranges"),
        ({"data.partition.n_clients": [2, 3]}, "cannot be changed by a search"),
        ({"privacy.delta": [1e-5, 1e-6]}, "cannot be changed by a search"),
        ({"rounds": {"low": 5, "high": 5}}, "must have low below high"),
        ({"rounds": {"low": 0, "high": 5, "log": True}}, "above 0"),
        ({"rounds": {"low": 1, "hihg": 5}}, "high"),
        ({"rounds": []}, "must be a list of plain values"),
        ({"rounds": [2, 2]}, "each once"),
        ({"rounds": 5}, "mapping"),
    ],
)
def test_invalid_search_space_raises(space: object, message: str):
    with pytest.raises(ConfigError, match=message):
        Space.of(space)


@pytest.mark.parametrize("metric", ["train_accuracy", "optimality_gap", "accuracy"])
def test_score_on_private_data_raises(metric: str):
    with pytest.raises(ConfigError, match="reveal"):
        SearchSettings(5, metric=metric)


def test_tune_with_secret_seed_raises():
    with pytest.raises(ConfigError, match="same noise"):
        search("secret_seed=1")


def test_tune_unknown_metric_raises(tmp_path: Path):
    with pytest.raises(FedprivError, match="not a metric of these runs"):
        search(metric="test_rmse", better="lower", trials=1).run(tmp_path, quiet)
