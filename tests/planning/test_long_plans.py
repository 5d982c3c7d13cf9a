"""Plans of rounds whose questions repeat."""

from __future__ import annotations

import networkx as nx
import pytest

import fedpriv as fp
from fedpriv.algorithms.dual_averaging import DualStep
from fedpriv.planning.plan import make_plan


@pytest.mark.parametrize("activity", [fp.RandomEdges(2), fp.RandomNodes(0.5), fp.OnePeerExponential()], ids=str)
@pytest.mark.parametrize("outages", [(), (fp.Outage(1, 3, 9),)])
def test_periodic_plan_equals_round_by_round(activity, outages, monkeypatch):
    """Twenty rounds asked one by one, and one round asked, with the cohorts of the others."""
    network = fp.Graph(nx.complete_graph(6), activity=activity, outages=outages)
    for schedule in (fp.Uniform(), fp.Geometric(0.9)):
        privacy = fp.Privacy(epsilon=1, sampling=fp.Poisson(0.1), schedule=schedule)
        made = fp.dual_averaging(), privacy, [100, 120, 90, 100, 80, 70], network
        quick = make_plan(*made, rounds=20)
        assert len({record.clients for record in quick.records}) > 1 or isinstance(activity, fp.OnePeerExponential)
        with monkeypatch.context() as patch:
            patch.delattr(DualStep, "period")
            slow = make_plan(*made, rounds=20)
        assert quick == slow
