"""Many private runs of one strategy at once, with common topology and batches, and separate noise for each.

A run is a block of columns, `[nodes, runs * dim]`: dual averaging with l2 or l1 processes each column separately, so
blocks are independent. `Blocks` returns the same results as fedpriv's oracle (a test checks this); noise comes from the
library's plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import networkx as nx
import numpy as np
import torch
from scipy import sparse
from svm_problem import Problem
from torch import Tensor

import fedpriv as fp
from fedpriv.algorithms.dual_averaging import DualMap, Duals, DualStep, WeightedPrimals
from fedpriv.network.activity import Activity, Always, OnePeerExponential
from fedpriv.network.mixing import Weights, metropolis
from fedpriv.network.rounds import initial_state, run_rounds
from fedpriv.oracle.oracle import Oracle, RoundContext
from fedpriv.oracle.query import Query, QueryBuilder
from fedpriv.oracle.synthetic import ZeroEngine
from fedpriv.planning.plan import make_plan
from fedpriv.privacy.accounting.calibration import calibrate
from fedpriv.privacy.record import Record
from fedpriv.privacy.release import Answer
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.proximal import L1, L2

NODES, DELTA, WEIGHT = 20, 1e-5, 5e-4


@cache
def _metropolis(links: frozenset[tuple[int, int]], nodes: int) -> Weights:
    graph = nx.empty_graph(nodes)
    graph.add_edges_from(links)
    return metropolis(graph)


@dataclass(frozen=True)
class ColumnMap(DualMap):
    """`DualMap` with a positive gamma for each column, `[1, columns]`: a tensor, without a number's checks."""

    gamma: Tensor = field(default_factory=lambda: torch.ones(1, 1))

    def __post_init__(self) -> None:
        """Skips the checks."""


@dataclass(frozen=True)
class Method:
    """The active nodes and links; with `batch` below 1 in smaller batches, and in as many more rounds."""

    name: str
    activity: Activity
    batch: float = 1.0

    @cached_property
    def graph(self) -> fp.Graph:
        """Returns a complete graph, as in the paper; few links have few shapes, so their weights are cached."""

        def weights(graph: nx.Graph) -> Weights:
            return _metropolis(frozenset(graph.edges), len(graph))

        return fp.Graph(nx.complete_graph(NODES), weights, activity=self.activity)

    @property
    def fraction(self) -> float:
        """iota."""
        return self.graph.active_fraction

    def strategy(self, regularizer: str, gammas: Tensor) -> fp.Strategy:
        """Returns the paper's schedules: a_t = t and constant gamma for l2, a_t = 1 and gamma sqrt(t) for l1."""
        h, powers = (L2(WEIGHT), (1.0, 0.0)) if regularizer == "l2" else (L1(WEIGHT), (0.0, 0.5))
        dual_map = ColumnMap(h, powers[0], gammas, powers[1], self.fraction)
        return fp.Strategy(DualStep(dual_map), Duals(), WeightedPrimals(dual_map), "dual_averaging")


METHODS = (
    Method("none", Always()),
    Method("none, one peer each", OnePeerExponential()),
    Method("none, 1/10 batches", OnePeerExponential(), 0.1),
    Method("2 links (19 %)", fp.RandomEdges(2)),
    Method("1 link (10 %)", fp.RandomEdges(1)),
)


@dataclass(frozen=True)
class Cell:
    """One private run: `view` is the adversary, `reading` the quantity that equals the run without sampling."""

    view: str
    reading: str
    epsilon: float
    rounds: int
    noise_multiplier: float


@dataclass(frozen=True)
class Prices:
    """Noise multipliers from the library's own plans, for batches of a rate; they do not depend on the data."""

    rate: float
    rounds: int
    epsilons: tuple[float, ...]

    def of(self, method: Method) -> Prices:
        """Returns the multipliers for the method's own batches."""
        return replace(self, rate=self.rate * method.batch, rounds=round(self.rounds / method.batch))

    def cells(self, method: Method) -> list[Cell]:
        """Returns all runs of a method: equal rounds and, if nodes are sampled, equal gradient evaluations."""
        readings = {"rounds": self.rounds}
        if method.fraction < 1:
            readings["gradients"] = round(self.rounds / method.fraction)
        planned = self._records(method, max(readings.values()))
        found: list[Cell] = []
        for reading, rounds in readings.items():
            views = {"messages": [record for record in planned if record.round < rounds]}
            if method.fraction < 1:
                views["final model"] = self._argued(method.fraction, rounds)
            for view, records in views.items():
                for epsilon in self.epsilons:
                    noise = calibrate(records, NODES, epsilon, DELTA) if np.isfinite(epsilon) else 0.0
                    found.append(Cell(view, reading, epsilon, rounds, noise))
        return found

    @property
    def privacy(self) -> fp.Privacy:
        """Returns the privacy settings, with unit noise."""
        return fp.Privacy(noise_multiplier=1.0, delta=DELTA, sampling=fp.Poisson(self.rate))

    def _records(self, method: Method, rounds: int) -> tuple[Record, ...]:
        sizes, streams = [1] * NODES, Randomness(0)
        strategy = method.strategy("l2", torch.ones(1, 1))
        return make_plan(strategy, self.privacy, sizes, method.graph, rounds=rounds, randomness=streams).records

    def _argued(self, fraction: float, rounds: int) -> list[Record]:
        """Returns the paper's assumed records: all nodes add noise every round, and use a record more rarely."""
        every = self._records(METHODS[0], 1)[0]
        return [replace(every, round=k, rate=self.rate * fraction) for k in range(rounds)]


class Blocks(ZeroEngine):
    """Mean hinge subgradients on Poisson batches, with separate noise for each block of columns.

    Rows have norm at most 1, so a clip of 1 has no effect on subgradients.
    """

    def __init__(self, problem: Problem, prices: Prices, noise_multipliers: Sequence[float], seed: int) -> None:
        size, self.dim = len(problem.y) // NODES, problem.x.shape[1]
        super().__init__()
        self.queries = QueryBuilder(prices.privacy, [size] * NODES)
        self._per_node, self._rate, self._expected = size, prices.rate, prices.rate * size
        answer = Answer(0, 0, "gradient", [0], prices.privacy.clip)
        factors, scheme = [1 / self._expected], self.queries.scheme
        scale = scheme.noise_scales(scheme.price(answer, factors), factors)[0]
        self._scale = scale * torch.tensor(noise_multipliers, dtype=torch.float32)[:, None]
        dense = problem.x.shape[1] < 1000
        self._x = problem.x.toarray().astype(np.float32) if dense else problem.x
        self._y = problem.y.astype(np.float32)
        self._draws, self._noise = np.random.default_rng(seed), torch.Generator().manual_seed(seed)

    @property
    def oracle(self) -> Oracle[Blocks]:
        """Returns the oracle for a strategy."""
        return Oracle(self.queries, self, torch.empty(0))

    def gradients(self, query: Query, context: RoundContext, params: Tensor, anchor: Tensor | None) -> Tensor:
        """Returns gradients `[k, runs * dim]`."""
        answers = torch.empty_like(params)
        for row, node in enumerate(context.clients):
            points = params[row].reshape(-1, self.dim)  # runs, dim
            exact = self._batch_gradient(points, node)
            noise = torch.randn(points.shape, generator=self._noise) * self._scale
            answers[row] = (exact + noise).reshape(-1)
        return answers

    def _batch_gradient(self, points: Tensor, node: int) -> Tensor:
        chosen = (self._draws.random(self._per_node) < self._rate).nonzero()[0] + node * self._per_node
        picked = self._x[chosen]
        picked = picked.toarray().astype(np.float32) if sparse.issparse(picked) else picked
        x, y = torch.from_numpy(picked), torch.from_numpy(self._y[chosen])[:, None]
        slopes = -y * (y * (x @ points.T) < 1)  # examples, runs
        return slopes.T @ x / self._expected


def suboptimality(
    problem: Problem,
    method: Method,
    cells: Sequence[Cell],
    gammas: Sequence[float],
    prices: Prices,
    seed: int,
    points: int = 10,
) -> np.ndarray:
    """Returns `F(mean of the nodes' averages) - F*` at `points` times of each horizon: `[points, cells, gammas]`."""
    blocks = Blocks(problem, prices, [cell.noise_multiplier for cell in cells for _ in gammas], seed)
    each = torch.tensor(gammas, dtype=torch.float32).repeat(len(cells)).repeat_interleave(blocks.dim)
    strategy = method.strategy(problem.regularizer, each[None])
    start = initial_state(strategy, torch.zeros(NODES, len(each)))
    times = {h: [max(1, h * (k + 1) // points) for k in range(points)] for h in {cell.rounds for cell in cells}}
    gaps = np.full((points, len(cells), len(gammas)), np.nan)
    for done in run_rounds(strategy, blocks.oracle, method.graph, start, Randomness(0), rounds=max(times)):
        now = done.index + 1
        for rounds in [rounds for rounds, asked in times.items() if now in asked]:
            models = done.progress.models.double().mean(0).reshape(len(cells), -1, blocks.dim).numpy()
            mine = [index for index, cell in enumerate(cells) if cell.rounds == rounds]
            found = problem.objective(models[mine].reshape(-1, blocks.dim).T) - problem.best
            gaps[times[rounds].index(now), mine] = found.reshape(len(mine), -1)
    return gaps


def rows_sent(method: Method, rounds: int) -> float:
    """Returns the expected number of messages of a run."""
    return method.graph.expected_rows * rounds
