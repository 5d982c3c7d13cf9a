"""Plans of rounds whose queries repeat, and of cohorts that are all different."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import networkx as nx
import pytest

import fedpriv as fp
from fedpriv.algorithms.dpsgd import Descend
from fedpriv.algorithms.dual_averaging import DualStep
from fedpriv.algorithms.tracking import ImplicitTracking, TwoVariableTracking
from fedpriv.planning.plan import make_plan
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.accounting.gaussian import compute_epsilon
from fedpriv.privacy.accounting.plan_filter import PlanFilter, UnplannedRelease, count_within_limit
from fedpriv.randomness.streams import Randomness
from fedpriv.runs.planned_releases import PlannedReleases

SIZES = [100, 120, 90, 100, 80, 70]
PRIVACY = fp.Privacy(epsilon=1, sampling=fp.Poisson(0.1))
STRATEGIES: dict[str, tuple[Callable[[], fp.Strategy], type]] = {
    "dual_averaging": (fp.dual_averaging, DualStep),
    "gradient_tracking": (fp.gradient_tracking, ImplicitTracking),
    "gradient_tracking_pair": (fp.gradient_tracking_pair, TwoVariableTracking),
    "decentralized_sgd": (fp.decentralized_sgd, Descend),
}


def graph(activity: object = None, outages: tuple[fp.Outage, ...] = ()) -> fp.Graph:
    return fp.Graph(nx.complete_graph(6), activity=activity, outages=outages)


@pytest.mark.parametrize(
    "activity",
    [fp.RandomEdges(2), fp.RandomNodes(0.5), fp.RandomNodes(0.05), fp.ExactNodes(2), fp.OnePeerExponential()],
    ids=str,
)
@pytest.mark.parametrize("outages", [(), (fp.Outage(1, 3, 9),)])
def test_periodic_plan_equals_round_by_round(activity, outages, monkeypatch):
    """Compares twenty rounds, queried one by one, with one round and the cohorts of the others; some are empty."""
    for schedule in (fp.Uniform(), fp.Geometric(0.9)):
        privacy = fp.Privacy(epsilon=1, sampling=fp.Poisson(0.1), schedule=schedule)
        made = fp.dual_averaging(), privacy, SIZES, graph(activity, outages)
        quick = make_plan(*made, rounds=20)
        assert len({record.clients for record in quick.records}) > 1 or isinstance(activity, fp.OnePeerExponential)
        with monkeypatch.context() as patch:
            patch.delattr(DualStep, "period")
            slow = make_plan(*made, rounds=20)
        assert quick == slow


@pytest.mark.parametrize("count", [1, 3])
def test_exact_nodes_pay_for_each_active_round(count):
    """No amplification: the most active node composes its rounds, as if it knew that it was drawn."""
    privacy = fp.Privacy(noise_multiplier=8.0, delta=1e-5)
    network = graph(fp.ExactNodes(count))
    plan = make_plan(fp.dual_averaging(), privacy, SIZES, network, rounds=30)
    drawn = [network.active(k, Randomness(0)) for k in range(30)]
    most = max(sum(node in nodes for nodes in drawn) for node in range(6))
    assert most > 30 * count / 6
    assert plan.spent().epsilon == pytest.approx(compute_epsilon(math.sqrt(most) / 8.0, 1e-5), rel=1e-3)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize(
    "sampling", [fp.Poisson(0.1), fp.FixedSize(5), fp.Allocation(5), fp.FullBatch()], ids=lambda sampling: str(sampling)
)
def test_period_of_each_strategy_and_sampling(name, sampling, monkeypatch):
    build, step = STRATEGIES[name]
    privacy = fp.Privacy(noise_multiplier=2.0, sampling=sampling)
    made = build(), privacy, SIZES, graph(fp.RandomNodes(0.6))
    quick = make_plan(*made, rounds=15)
    with monkeypatch.context() as patch:
        patch.delattr(step, "period")
        slow = make_plan(*made, rounds=15)
    assert quick == slow
    assert list(quick.records) == list(slow.records)
    assert quick.spent() == slow.spent()


def test_pairs_are_priced_for_each_cohort(monkeypatch):
    """The price of pairwise noise depends on who else takes part."""
    trust = fp.Pairwise(ratio=3.0, colluders=1)
    privacy = fp.Privacy(noise_multiplier=2.0, trust=trust, sampling=fp.Poisson(0.1))
    made = fp.decentralized_sgd(), privacy, SIZES, graph(fp.RandomEdges(3))
    quick = make_plan(*made, rounds=8)
    with monkeypatch.context() as patch:
        patch.delattr(Descend, "period")
        assert quick == make_plan(*made, rounds=8)
    assert all(kind.clients != () for kind in quick.records.kinds)


def test_schedule_that_fails_late_is_found_by_the_plan():
    def schedule(t: int) -> float:
        return 0.1 / (t - 7)

    with pytest.raises(fp.ConfigError, match="schedule"):
        make_plan(fp.decentralized_sgd(schedule), PRIVACY, SIZES, graph(), rounds=10)
    with pytest.raises(fp.ConfigError, match="outside the floating-point range"):
        make_plan(fp.decentralized_sgd(fp.StepSize(ratio=1e99)), PRIVACY, SIZES, graph(), rounds=10)


def test_cohorts_are_one_kind():
    plan = make_plan(fp.dual_averaging(), PRIVACY, SIZES, graph(fp.RandomNodes(0.5)), rounds=60)
    assert len({record.clients for record in plan.records}) > 20
    assert len(plan.records.kinds) <= 2  # some nodes, and all nodes
    by_round = {record.round: record for record in plan.records}
    release = plan.releases.find(3, "gradient", 0)
    assert release is not None
    assert release.record == by_round[3]
    assert tuple(release.clients) == by_round[3].clients


def test_filter_refuses_other_cohort():
    plan = make_plan(fp.dual_averaging(), PRIVACY, SIZES, graph(fp.RandomEdges(1)), rounds=9)
    planned = plan.records[4]
    others = tuple(sorted({*range(6)} - {*(planned.clients or ())})[:2])
    plan_filter = PlanFilter(plan.records, Accountant(6, 1e-5))
    with pytest.raises(UnplannedRelease, match="no such query"):
        plan_filter.admit(planned.changed(clients=others))
    plan_filter.admit(planned)
    assert {client for cost in plan_filter.accountant.charges for client in cost.clients or ()} == {*planned.clients}


@pytest.mark.parametrize("limit", [0.2, 0.5, 0.9])
def test_limit_counts_cohorts_as_single_records(limit):
    """The number of releases within a limit is that of the same records, counted one by one."""
    plan = make_plan(fp.dual_averaging(), PRIVACY, SIZES, graph(fp.RandomNodes(0.5)), rounds=40)
    accountant = Accountant(6, 1e-5)
    within = count_within_limit(accountant, plan.records, limit)
    by_record = [n for n in range(len(plan.records) + 1) if _epsilon(plan.records[:n]) <= limit]
    assert within == max(by_record)


def _epsilon(records):
    accountant = Accountant(6, 1e-5)
    for record in records:
        accountant.count(record)
    return accountant.spent().epsilon


def test_plan_with_cohorts_survives_its_checkpoint():
    plan = make_plan(fp.dual_averaging(), PRIVACY, SIZES, graph(fp.RandomNodes(0.5)), rounds=30)
    planned = PlannedReleases.of(plan)
    header = SimpleNamespace(secrets=None, factor=None)
    assert PlannedReleases.unpacked(planned.packed(), header) == planned
