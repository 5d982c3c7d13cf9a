"""Several organisations release statistics together: answers, policy, columns, budgets, ledgers and statements."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from sites_in_memory import InMemory
from statistics_sites import (
    ASKED,
    DATA,
    NAMES,
    PAIRWISE,
    SIZES,
    asked,
    exact_mean,
    join,
    make_site,
    make_sites,
    plan_of,
    table,
)

import fedpriv as fp
from fedpriv.config.statistics import join_sections
from fedpriv.errors import BudgetExhausted, ConfigError, FedprivError
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.reports.pages import render_markdown
from fedpriv.sites import Federation, Site
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.plan_filter import single_site_record
from fedpriv.sites.proposals import offer
from fedpriv.sites.recording import record_federation
from fedpriv.sites.site_status import site_status
from fedpriv.sites.statement import site_statement
from fedpriv.sites.statistics_policy import StatisticsPolicy
from fedpriv.statistics.description import JoinedStatistics, noise_deviation


def close(sites: dict[int, Site]) -> None:
    for site in sites.values():
        site.close()


@pytest.mark.parametrize("trust", ["local", PAIRWISE])
def test_sites_release_what_one_process_describes(trust: str, tmp_path: Path) -> None:
    """The noise in the released mean has the deviation of `fedpriv.describe` with the same settings."""
    config = asked(trust=yaml.safe_load(trust))
    sites = make_sites(tmp_path)
    plan = plan_of(sites, config)
    join([*sites.values()], plan)
    federation = Federation(plan, InMemory(sites), tmp_path / "server")
    assert federation.describe() is None
    (report,) = record_federation(federation, tmp_path / "server")
    assert (report.answered, federation.ended) == (NAMES, "rounds")
    found = federation.describe()
    assert found is not None
    privacy = fp.Privacy(epsilon=0.2, delta=1e-5, trust=fp.Pairwise(1, 100.0) if "pairwise" in trust else fp.Local())
    assert found.deviation == pytest.approx(
        noise_deviation(join_sections(config.statistics).check_privacy(privacy), SIZES), rel=1e-6
    )
    noise = -federation.model.double().numpy() - exact_mean()
    # 66 entries: the mean of their squares is within 70 % of the variance in all but one of 10^4 draws
    assert 0.4 < np.square(noise).mean() / found.deviation**2 < 1.7
    assert found.n_rows == SIZES and found.spent.epsilon <= 0.2
    stored = json.loads((tmp_path / "server" / "statistics.json").read_text())
    assert stored == json.loads(json.dumps(found.to_json()))
    assert not (tmp_path / "server" / "model.pt").exists()
    federation.close()
    close(sites)


def test_one_process_with_seeds_of_sites_has_same_answers(tmp_path: Path) -> None:
    """With the noise of all sites, one process releases the same numbers."""
    from sites_in_memory import AllSiteStreams

    from fedpriv.clients import make_clients
    from fedpriv.clients.population import Population
    from fedpriv.network.local import Star
    from fedpriv.network.rounds import initial_state, run_rounds
    from fedpriv.oracle.backend_selection import select_backend
    from fedpriv.oracle.clipped_sums import ClippedSums
    from fedpriv.oracle.data_query_engine import data_oracle
    from fedpriv.privacy.accounting.accountant import Accountant
    from fedpriv.privacy.ledger import Ledger
    from fedpriv.sites.resolved_plan import ResolvedPlan

    sites = make_sites(tmp_path)
    plan = plan_of(sites, asked(trust=yaml.safe_load(PAIRWISE)))
    join([*sites.values()], plan)
    federation = Federation(plan, InMemory(sites), tmp_path / "server")
    list(federation)
    resolved_plan = ResolvedPlan.of(plan)
    members = [site._plans.session(resolved_plan.hash) for site in sites.values()]
    streams = tuple(member._randomness for member in members)
    secrets = tuple(member.agreed_secrets() for member in members)
    randomness = AllSiteStreams(resolved_plan.seed, 0, 0, resolved_plan.hash, sites=streams, secrets=secrets)
    assert resolved_plan.statistics is not None
    data = [resolved_plan.statistics.examples(table(k, n), "sample").tensors for k, n in enumerate(SIZES)]
    examples = [torch.utils.data.TensorDataset(x.float(), y) for x, y in data]
    population = Population(
        make_clients(resolved_plan.statistics.make_model(), resolved_plan.statistics.make_loss(), examples)
    )
    start = population.reset_models(resolved_plan.start)
    sums = ClippedSums(select_backend("auto", population).backend, 4, torch.device("cpu"))
    oracle = data_oracle(population, sums, resolved_plan.plan.privacy, Ledger(Accountant(4, 1e-5)), randomness)
    progress = initial_state(resolved_plan.strategy, start.expand(4, -1))
    for done in run_rounds(resolved_plan.strategy, oracle, Star(4), progress, randomness, rounds=1):
        progress = done.progress
    torch.testing.assert_close(federation.model, progress.models.mean(0), rtol=1e-6, atol=1e-6)
    federation.close()
    close(sites)


def test_missing_site_gives_no_answers_and_costs_nothing_twice(tmp_path: Path) -> None:
    """The server waits for every site; when it asks again, the others repeat their replies byte for byte."""
    sites = make_sites(tmp_path)
    plan = plan_of(sites)
    join([*sites.values()], plan)
    away = sites.pop(2)
    federation = Federation(plan, InMemory(sites), tmp_path / "server")
    list(record_federation(federation, tmp_path / "server"))
    assert federation.ended == "absent: south (no_reply)" and federation.describe() is None
    assert not (tmp_path / "server" / "statistics.json").exists()
    before = sites[0].spent().epsilon
    federation.close()
    transport = InMemory({**sites, 2: away})
    again = Federation(plan, transport, tmp_path / "server")
    list(record_federation(again, tmp_path / "server"))
    assert again.ended == "rounds" and again.describe() is not None
    assert sites[0].spent().epsilon == before <= 0.2
    assert len(LedgerFile.read(tmp_path / "north" / "runs" / plan.hash / "ledger.jsonl").records) == 1
    again.close()
    close({**sites, 2: away})


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (None, "policy.statistics = None: the site's owner allows no statistics"),
        ({"columns": ["age", "sex"]}, "policy.statistics.columns = 'chol'.* only of age, sex"),
        ({"max_epsilon": 0.1}, "policy.statistics.max_epsilon = '0.2'.*at most 0.1"),
        ({"max_bins": 59}, "policy.statistics.max_bins = '60 of age'.*at most 59"),
    ],
)
def test_statistics_outside_policy_raise(policy: dict | None, words: str, tmp_path: Path) -> None:
    allowed = {"statistics": {"columns": ["age", "chol", "sex"], "max_epsilon": 0.2}}
    if policy is None:
        allowed = {}
    else:
        allowed["statistics"] |= policy
    sites = {**{k: make_site(tmp_path, k) for k in (1, 2, 3)}, 0: make_site(tmp_path, 0, policy=allowed)}
    plan = plan_of({number: sites[number] for number in range(4)})
    with pytest.raises(ConfigError, match=words):
        sites[0].join(plan.text, plan.fingerprint)
    assert not sites[0].plans and sites[0].spent().epsilon == 0
    join([sites[1]], plan)
    close(sites)


def test_statistic_of_a_plugin_outside_policy() -> None:
    """Its number of bins is unknown, so a policy that limits bins cannot allow it."""

    class Plugin:
        columns, name = ("age",), "age"

    policy = StatisticsPolicy(columns=("age",), max_epsilon=1)
    with pytest.raises(ConfigError, match=r"'Plugin'.* is not a statistic of fedpriv"):
        policy.check(JoinedStatistics((Plugin(),)))


def test_other_limits_apply_to_statistics_too(tmp_path: Path) -> None:
    allowed = {"statistics": {"columns": ["age", "chol", "sex"], "max_epsilon": 0.2}, "min_noise_multiplier": 1e6}
    sites = {0: make_site(tmp_path, 0, policy=allowed)}
    plan = plan_of(sites)
    with pytest.raises(ConfigError, match=r"policy\.min_noise_multiplier"):
        sites[0].join(plan.text, plan.fingerprint)
    close(sites)


def test_number_of_statistics_a_month_limited(tmp_path: Path) -> None:
    allowed = {"statistics": {"columns": ["age", "chol", "sex"], "max_epsilon": 0.2, "max_per_month": 2}}
    sites = {0: make_site(tmp_path, 0, policy=allowed, budget={"epsilon": 5.0, "delta": 1e-5})}
    plans = [plan_of(sites) for _ in range(3)]
    join([*sites.values()] * 2, plans[0])  # a second time is no second plan
    join([*sites.values()], plans[1])
    with pytest.raises(ConfigError, match=r"policy\.statistics\.max_per_month = 3: .*at most 2 .*within 30 days"):
        join([*sites.values()], plans[2])
    long_ago = time.time() - 31 * 24 * 3600
    os.utime(tmp_path / "north" / "runs" / plans[0].hash / "plan.yaml", (long_ago, long_ago))
    join([*sites.values()], plans[2])
    close(sites)


@pytest.mark.parametrize(
    ("data", "drop", "words"),
    [
        ({}, "chol", "chol.* is not a column of"),
        (
            {"numbers": {"age": [0, 100], "chol": [0, 15]}},
            "",
            "'chol': the plan has the range 0, 640 and .*another unit",
        ),
        ({"numbers": {"age": [1000, 2000], "chol": [0, 600]}}, "", "'age': the plan has the range"),
        ({"categories": {"sex": ["1", "2"]}}, "", "'sex': the plan has the categories f, m, and site.yaml 1, 2"),
        (
            {"categories": {"sex": ["f", "m"], "age": ["30", "31"]}, "numbers": {"chol": [0, 600]}},
            "",
            "'age': the plan reads this column as a number",
        ),
        ({"categories": {}, "numbers": {"sex": [0, 1]}}, "", "'sex': the plan reads this column as categories"),
    ],
)
def test_site_with_other_columns_raises_before_any_release(
    data: dict, drop: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, declared types and declared ranges are compared; no value decides."""
    sites = make_sites(tmp_path)
    plan = plan_of(sites)
    join([sites[1], sites[2], sites[3]], plan)
    path = tmp_path / "north" / "site.yaml"
    settings = yaml.safe_load(path.read_text())
    if drop:
        rows = [line.split(",") for line in (tmp_path / "north.csv").read_text().splitlines()]
        at = rows[0].index(drop)
        (tmp_path / "north.csv").write_text("\n".join(",".join(row[:at] + row[at + 1 :]) for row in rows) + "\n")
        settings["data"] |= {"numbers": {"age": [0, 100]}, "missing": {}}
    settings["data"] |= data
    path.write_text(yaml.safe_dump(settings))
    sites[0].close()
    monkeypatch.setattr("fedpriv.sites.site_data.load_section", _loaded_before(tmp_path))
    sites[0] = Site(tmp_path / "north")
    with pytest.raises(ConfigError, match=words):
        sites[0].join(plan.text, plan.fingerprint)
    transport = InMemory(sites)
    federation = Federation(plan, transport, tmp_path / "server")
    list(federation)
    assert federation.ended == "absent: north (other_plan)"
    federation.close()
    close(sites)


def _loaded_before(folder: Path):
    """The examples of the file before its settings changed: what a declared unit says is the point here."""
    from fedpriv.config.base import check
    from fedpriv.config.building import load_section
    from fedpriv.config.schema import DataSection

    whole = {"kind": "iid", "n_clients": 1}
    file = str(folder / "east.csv")
    section = check(DataSection, {**DATA, "train": file, "test": file, "partition": whole})
    return lambda _: load_section(section)


def test_proposed_statistics_of_other_columns_answered_with_a_word(tmp_path: Path, caplog) -> None:
    """The sender learns that the columns differ; which one stays in the site's log."""
    from fedpriv.sites import proposals

    sites = make_sites(tmp_path)
    plan = plan_of(sites, asked(ASKED.replace("column: chol", "column: weight")))
    allowed = {"statistics": {"columns": ["age", "weight", "sex"], "max_epsilon": 0.2}}
    path = tmp_path / "north" / "site.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"policy": allowed}))
    sites[0].close()
    sites[0] = Site(tmp_path / "north")
    words = offer(InMemory(sites), plan)
    assert words == {"north": "other_columns", **dict.fromkeys(NAMES[1:], "not_allowed")}
    assert proposals.ProposalBox(tmp_path / "north").proposals == []
    assert any("weight" in str(record.facts) for record in caplog.records if hasattr(record, "facts"))
    close(sites)


def test_proposed_statistics_wait_for_the_owner(tmp_path: Path) -> None:
    sites = {0: make_site(tmp_path, 0)}
    plan = plan_of(sites)
    assert offer(InMemory(sites), plan) == {"north": "pending"}
    assert "pending" in str(site_status(tmp_path / "north")["proposals"])
    close(sites)


def test_budget_ledger_and_statement_have_statistics_and_training(tmp_path: Path) -> None:
    """Statistics at .2, then training at .8: one budget of 1 and one statement, whose epsilon is the joint one."""
    sites = make_sites(tmp_path, budget={"epsilon": 1.0, "delta": 1e-5})
    look = plan_of(sites)
    join([*sites.values()], look)
    federation = Federation(look, InMemory(sites), tmp_path / "look")
    list(federation)
    federation.close()
    train = train_plan(sites, 0.8)
    join([*sites.values()], train)
    federation = Federation(train, InMemory(sites), tmp_path / "train")
    list(federation)
    assert federation.ended == "rounds"
    federation.close()
    close(sites)
    records = []
    for plan in (look, train):
        ledger = LedgerFile.read(tmp_path / "north" / "runs" / plan.hash / "ledger.jsonl")
        records += [single_site_record(record, 0, 4) for record in ledger.records]
    joint = account(records, 1, 1e-5).epsilon
    statement = site_statement(tmp_path / "north")
    assert statement.spent.epsilon == pytest.approx(joint, rel=1e-6)
    # composed as one: less than the sum of both, more than the larger one
    assert 0.8 < joint < 0.2 + 0.8
    text = render_markdown(statement).decode()
    assert "statistics, asked once: mean, deviation and quantiles (25 %, 50 %, 75 %) of age in 60 bins from 0" in text
    assert "numbers of rows by sex (f, m)" in text and "training a model of type logistic_regression" in text
    assert "1 x mean vector of all statistics, gaussian noise" in text
    status = site_status(tmp_path / "north")
    assert any("numbers of rows by sex" in str(rows) for rows in status.values())


def test_spent_budget_refuses_statistics(tmp_path: Path) -> None:
    sites = make_sites(tmp_path, budget={"epsilon": 0.1, "delta": 1e-5})
    plan = plan_of(sites)
    join([*sites.values()], plan)
    federation = Federation(plan, InMemory(sites), tmp_path / "server")
    list(federation)
    assert federation.ended is not None and "over_budget" in federation.ended
    assert federation.describe() is None and sites[0].spent().epsilon == 0
    federation.close()
    close(sites)


def test_lifetime_budget_of_the_data_reserves_statistics(tmp_path: Path) -> None:
    fp.Budget.create(tmp_path / "north.jsonl", epsilon=0.3, delta=1e-5, data="north")
    budget = {"epsilon": 1.0, "delta": 1e-5, "file": str(tmp_path / "north.jsonl")}
    sites = {0: make_site(tmp_path, 0, budget=budget)}
    plan, second = plan_of(sites), plan_of(sites)
    join([sites[0]], plan)
    assert fp.Budget(tmp_path / "north.jsonl").balance().spent.epsilon == pytest.approx(0.2, rel=1e-3)
    join([sites[0]], second)  # .2 and .2 are together less than .3
    with pytest.raises(BudgetExhausted):
        join([sites[0]], plan_of(sites))
    close(sites)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"unit": "client"}, ConfigError, r"privacy\.unit.*single rows"),
        ({"sampling": {"poisson": {"rate": 0.1}}}, ConfigError, r"privacy\.sampling"),
        ({"clip": {"bound": 2.0}}, ConfigError, r"privacy\.clip"),
        ({"mechanism": "laplace"}, FedprivError, r"privacy\.mechanism"),
        ({"trust": "central"}, ConfigError, r"privacy\.trust"),
        ({"budget": "b.jsonl"}, ConfigError, r"privacy\.budget"),
        ({"noise_on": "none", "epsilon": None}, FedprivError, r"privacy\.noise_on|need noise"),
    ],
)
def test_settings_without_a_guarantee_between_sites_raise(changes, error, words, tmp_path: Path) -> None:
    sites = {0: make_site(tmp_path, 0), 1: make_site(tmp_path, 1)}
    with pytest.raises(error, match=words):
        plan_of(sites, asked(**changes))
    close(sites)


def test_chosen_number_of_rows_raises(tmp_path: Path) -> None:
    sites = {0: make_site(tmp_path, 0, public_size=250), 1: make_site(tmp_path, 1)}
    with pytest.raises(ConfigError, match=r"statistics\.sites = 'north': .*true number"):
        plan_of(sites)
    close(sites)


def test_forged_plan_raises(tmp_path: Path) -> None:
    """A plan with less noise than its epsilon costs, or with settings of training, is not accepted."""
    sites = {0: make_site(tmp_path, 0)}
    document = yaml.safe_load(plan_of(sites).text)
    document["settings"]["privacy"]["noise_multiplier"] /= 2
    quiet = FederationPlan.read(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match="do not accept this plan"):
        join([sites[0]], quiet)
    document["settings"]["rounds"] = 3
    with pytest.raises(ConfigError, match="exactly the sections privacy, network, seed"):
        FederationPlan.read(yaml.safe_dump(document))
    close(sites)


def test_graph_must_link_every_two_sites(tmp_path: Path) -> None:
    sites = make_sites(tmp_path)
    ring = "\nnetwork: {topology: ring}\n"
    with pytest.raises(ConfigError, match="must link every two sites"):
        plan_of(sites, asked(ASKED + ring))
    lazy = "\nnetwork: {topology: complete, mixing: lazy_metropolis}\n"
    with pytest.raises(ConfigError, match="plain mean"):
        plan_of(sites, asked(ASKED + lazy))
    close(sites)


def train_plan(sites: dict[int, Site], epsilon: float) -> FederationPlan:
    from fedpriv.clients import PublicDataInfo
    from fedpriv.config.base import check
    from fedpriv.config.building import load_data
    from fedpriv.config.schema import Config
    from fedpriv.sites import propose

    file = sites[0].settings.data.options["train"]
    raw = {
        "data": {**DATA, "train": file, "test": file, "partition": {"kind": "iid", "n_clients": 4}},
        "model": "logistic_regression",
        "loss": "logistic",
        "strategy": {"name": "dp_gd", "learning_rate": 1.0},
        "privacy": {"epsilon": epsilon, "delta": 1e-5},
        "rounds": 3,
    }
    config = check(Config, raw)
    split = load_data(config)
    return propose(config, [site.card for site in sites.values()], PublicDataInfo.of([split.test], split.n_classes))


def test_intervals_of_sites_cover(tmp_path: Path) -> None:
    """Intervals of the counts cover the exact ones about as often as they claim, over the noise of some plans."""
    sites = make_sites(tmp_path, budget={"epsilon": 50.0, "delta": 1e-5})
    exact = sum(table(k, n)["sex"].count("f") for k, n in enumerate(SIZES))
    hits = 0
    for repetition in range(12):
        plan = plan_of(sites)
        join([*sites.values()], plan)
        federation = Federation(plan, InMemory(sites), tmp_path / f"server{repetition}")
        list(federation)
        found = federation.describe()
        assert found is not None
        answer = found["sex"]["f"]
        assert math.isfinite(answer.low)
        hits += answer.low <= exact <= answer.high
        federation.close()
    assert hits >= 8  # at 95 %, fewer than once in 10^4
    close(sites)
