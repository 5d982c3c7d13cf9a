"""Small runs that one process makes, and several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import networkx as nx
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.config import load_config
from fedpriv.models import SoftmaxRegression
from fedpriv.network.mixing import lazy_metropolis
from fedpriv.network.sharding import gather_state
from fedpriv.privacy.record import Record
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.state import flatten_with_names

SIZES, ROUNDS = (9, 4, 12, 6, 7, 5, 8), 4
BARE = Path(__file__).parents[1] / "run.yaml"
PRIVACY: dict[str, dict[str, Any]] = {
    "batches": {"sampling": fp.Poisson(0.5)},
    "fixed batches": {"sampling": fp.FixedSize(4)},
    "clients": {"unit": "client", "noise_on": "message"},
    "sums": {"trust": fp.SecureAggregation(min_honest=2)},
    "client sums": {"unit": "client", "noise_on": "message", "trust": fp.SecureAggregation(min_honest=2)},
    "curator": {"unit": "client", "noise_on": "message", "trust": fp.Central(cohort_rate=0.6)},
    "curator of examples": {"trust": fp.Central()},
    "correlated noise": {"sampling": fp.Cyclic(3), "noise": fp.BSR(3)},
    "sums, correlated noise": {
        "sampling": fp.Cyclic(3),
        "noise": fp.BLT(2),
        "trust": fp.SecureAggregation(min_honest=2),
    },
    "drawn blocks": {"sampling": fp.Cyclic(2, 0.6), "noise": fp.BSR(2)},
    "cyclic clients": {
        "unit": "client",
        "noise_on": "message",
        "noise": fp.BSR(2),
        "trust": fp.SecureAggregation(min_honest=2),
    },
    "pairs": {"trust": fp.Pairwise(colluders=1, ratio=2.0)},
    "values": {"sampling": fp.Poisson(0.5), "statistics": fp.Statistics(bound=2.0)},
    "values of pairs": {
        "trust": fp.Pairwise(colluders=1, ratio=2.0),
        "statistics": fp.Statistics(bound=2.0, ratio=1.0),
    },
    "exact": {"noise_on": "none"},
    "pairs, correlated noise": {
        "trust": fp.Pairwise(colluders=1, ratio=2.0),
        "sampling": fp.Cyclic(3),
        "noise": fp.BLT(2),
    },
}
# clients have unequal numbers of constraints, and of their values
TWO = fp.Problem(constraints=(fp.ClassLossAtMost(1, 0.3, fraction=0.3), fp.GroupLossGap(0, 0.1, fraction=0.5)))
ONE = fp.Problem(constraints=(fp.LossAtMost(0.5),))
SERVER = fp.Problem(objective=None, constraints=(fp.LossAtMost(0.9),))
PROBLEMS = {"none": [fp.Problem()], "constraints": [ONE, ONE, ONE, SERVER, TWO]}
NETWORKS: dict[str, Callable[[], Any]] = {
    "star": lambda: fp.Star(5),
    "fixed": lambda: fp.Star(5, fp.FixedCohort(3)),
    "poisson": lambda: fp.Star(5, fp.PoissonCohort(0.6)),
    "turns": lambda: fp.Star(5, fp.CyclicCohort(2)),
    "ring": lambda: fp.Graph(nx.cycle_graph(5)),
    "line of seven": lambda: fp.Graph(nx.path_graph(7), mixing_steps=3),
    "random nodes": lambda: fp.Graph(nx.complete_graph(5), activity=fp.RandomNodes(0.5)),
    "random edges": lambda: fp.Graph(nx.cycle_graph(7), activity=fp.RandomEdges(2)),
    "random links": lambda: fp.Graph(nx.cycle_graph(5), activity=fp.RandomLinks(0.5), mixing_steps=2),
    "one peer": lambda: fp.Graph(nx.complete_graph(7), activity=fp.OnePeerExponential()),
    "outages": lambda: fp.Graph(nx.complete_graph(5), outages=[fp.Outage(3, 0, 2), fp.Outage(4, 1, 3)]),
    "all nodes absent": lambda: fp.Graph(nx.path_graph(5), outages=[fp.Outage(node, 1, 2) for node in range(5)]),
    "own matrix": lambda: fp.Graph(nx.path_graph(5), lazy_metropolis(nx.path_graph(5)).toarray()),
}


@dataclass(frozen=True)
class Case:
    """A run, in words that can be sent."""

    options: str
    privacy: str = "batches"
    network: str = "star"
    rounds: int = ROUNDS
    dtype: str = "float64"
    noise: Mapping[str, Any] = field(default_factory=lambda: {"noise_multiplier": 0.3})
    more: Mapping[str, Any] = field(default_factory=dict)
    problem: str = "none"

    def __str__(self) -> str:
        return f"{self.options}, {self.privacy}, {self.network}"


@cache
def strategy_of(options: str, rounds: int) -> Strategy:
    privacy = ["privacy={epsilon_bar: .5}"] if "variant: published" in options else []
    return load_config(BARE, [f"strategy={{{options}}}", f"rounds={rounds}", *privacy]).recipe().strategy


def clients(count: int = 5, problem: str = "none") -> list[fp.Client]:
    draw, sizes = torch.Generator().manual_seed(4), SIZES[:count]
    data = [TensorDataset(torch.rand(m, 3, generator=draw), torch.randint(3, (m,), generator=draw)) for m in sizes]
    made = fp.make_clients(SoftmaxRegression(3, 3), nn.CrossEntropyLoss(), data)
    problems = cycle(PROBLEMS[problem])
    return [fp.Client(one.model, one.loss, one.loader, problem=own) for one, own in zip(made, problems, strict=False)]


def test_data() -> TensorDataset:
    draw = torch.Generator().manual_seed(5)
    return TensorDataset(torch.rand(11, 3, generator=draw), torch.randint(3, (11,), generator=draw))


def training(case: Case, parallelism: str, **more: Any) -> fp.Training:
    compute = fp.Compute(parallelism=parallelism, dtype=case.dtype, device="cpu", timeout=60.0)  # pyright: ignore
    privacy = fp.Privacy(clip=fp.Clip(1.0), **case.noise, **PRIVACY[case.privacy])
    network = NETWORKS[case.network]()
    options = {"test": test_data(), "rounds": case.rounds, "seed": 5, "secret_seed": 6, "network": network}
    strategy = strategy_of(case.options, case.rounds)
    options |= {"compute": compute, **case.more, **more}
    return fp.Training(clients(network.n_clients, case.problem), strategy, privacy, **options)  # pyright: ignore


@dataclass(frozen=True)
class Outcome:
    """What a run gave, in one process."""

    state: dict[str, Any]
    records: list[Record] | None
    reports: tuple[dict[str, Any], ...]
    epsilon: float
    ended: str
    adopted: list[torch.Tensor]
    variance: torch.Tensor | None


def outcome(case: Case, parallelism: str = "clients") -> Outcome:
    """Train to the end."""
    return finished(training(case, parallelism))


def finished(run: fp.Training) -> Outcome:
    for _ in run:
        pass
    result, mesh = run.result(), run._mesh
    progress = gather_state(run.progress, run._data.shard, mesh)
    state = {"received": progress.received, "models": progress.models, "params": result.params}
    state |= {f"local.{name}": leaf for name, leaf in flatten_with_names(progress.local).items()}
    state |= {f"server.{name}": leaf for name, leaf in flatten_with_names(progress.server).items()}
    state |= {f"output.{name}": leaf for name, leaf in flatten_with_names(progress.output).items()}
    state["sent"] = progress.numbers_sent
    state |= dict(flat(result.measures)) if mesh.is_main else {}
    records = list(run.ledger.records) if mesh.is_main else None
    adopted = [parameter.detach().clone() for parameter in run.population.clients[0].model.parameters()]
    at_gradient = run.plan.privacy.private and run.plan.privacy.noise_on == "gradient"
    parts = mesh.clients.all_gather_object(run.oracle.noise_variance if at_gradient else torch.zeros(0))
    # where all participants have one answer, all processes have its variance
    variance = parts[0] if run.oracle.is_aggregate else torch.cat([*parts])
    return Outcome(state, records, result.reports, run.spent().epsilon, result.ended, adopted, variance)


def flat(found: Any, name: str = "measures") -> Iterator[tuple[str, Any]]:
    """The numbers of a result, and rows of numbers, by name."""
    if isinstance(found, dict):
        for key, value in found.items():
            yield from flat(value, f"{name}.{key}")
    elif not isinstance(found, str):
        yield name, torch.tensor(found)
