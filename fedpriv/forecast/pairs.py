"""Forecasts of pairwise noise: its remainder in models, and epsilon if more clients collude than declared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedpriv.errors import ConfigError, format_count
from fedpriv.network import Graph, RoundNetwork
from fedpriv.planning import Plan, align_columns
from fedpriv.privacy import Pairs, Pairwise, Record
from fedpriv.privacy.accounting import (
    MOST_WORK,
    PrivacySpent,
    account,
    compute_exposure,
    estimate_work,
    make_adjacency,
    make_covariance,
)
from fedpriv.randomness import Randomness

Array = NDArray[np.float64]
RATIOS = (0.3, 1.0, 3.0, 10.0)
_MOST_NODES = 1000  # for which mixing is computed as a matrix
_MOST_SETS = 5000  # of colluders, tested for each line: less than half a second
_ENOUGH = 1.05  # times the least noise of a mean: a ratio within this factor is large enough


@dataclass(frozen=True)
class NoiseLeft:
    """Standard deviations of one round's noise, each relative to local trust at the same epsilon.

    Attributes:
        colluders: Number of colluders.
        ratio: Deviation of a pair's noise over the deviation of a client's individual noise.
        in_mean: In the mean over clients with equal weights. FedAvg and SCAFFOLD with several local steps weight
            clients of unequal sizes by their examples, after the noise: pairs then do not cancel completely.
        in_message: In one message.
        in_node: In a node's own model after the round's mixing; None on a star, where all get the mean, and on graphs
            with more than a thousand nodes.
        if_one_drops: In the mean of the other clients if a client, the worst one, fails after they added their part.
    """

    colluders: int
    ratio: float
    in_mean: float
    in_message: float
    in_node: float | None
    if_one_drops: float


@dataclass(frozen=True)
class CollusionCost:
    """The cost of a whole run if more or fewer clients collude than declared.

    Attributes:
        colluders: The number of clients that collude.
        spent: The run's epsilon; None if no bound is known.
    """

    colluders: int
    spent: PrivacySpent | None


@dataclass(frozen=True)
class PairsForecast:
    """The effect of pairwise noise on a run.

    Attributes:
        participants: Number of clients in the usual round, to which the noise below belongs.
        left: For 0, the declared number, a tenth and a third of them as colluders, and several ratios.
        left_out: Numbers of colluders without lines: there are too many sets of them to test in a plan, and secrets are
            too sparse for the bound that needs no test.
        suggested: The best ratio in `left`, at the declared number of colluders: on a graph, the one with the least
            noise in a node's own model; on a star, the smallest one with noise in the mean at most a twentieth above
            the best. None without a line to choose from.
        if_others: Epsilon against an adversary with all messages and no colluder, and if one or two more clients
            collude than declared.
    """

    participants: int
    left: tuple[NoiseLeft, ...]
    left_out: tuple[int, ...]
    suggested: float | None
    if_others: tuple[CollusionCost, ...]

    def lines(self) -> list[str]:
        """Formats `left` as a table: a heading, and a line for each number of colluders and each ratio."""
        at_nodes = any(line.in_node is not None for line in self.left)
        heads = ["colluders", "ratio", "in the mean", "in a message", *(["in a node's model"] if at_nodes else [])]
        cells = [[*heads, "in the mean if a client drops out"]]
        for line in self.left:
            deviations = [line.in_mean, line.in_message, *([line.in_node or 0.0] if at_nodes else [])]
            numbers = [f"{value:.3g}" for value in (*deviations, line.if_one_drops)]
            cells.append([str(line.colluders), f"{line.ratio:g}", *numbers])
        unit = "standard deviation relative to trust: local at the same epsilon"
        lines = [f"noise of a round of {self.participants}, {unit}", *(f"  {text}" for text in align_columns(cells))]
        if self.left_out:
            *smaller, largest = self.left_out
            numbers = " or ".join([*map(str, smaller), format_count(largest, "colluder")])
            why = "too many sets of colluders to test, and shared secrets too sparse for a bound"
            lines.append(f"  not computed for {numbers}: {why}")
        if self.suggested is not None:
            reason = "the smallest ratio in this table with at most 5 % more noise in the mean than the best"
            if at_nodes:
                reason = "with the least noise in a node's own model after the mixing of a round"
            lines.append(f"  suggested: ratio {self.suggested:g}, {reason}")
        return lines


@dataclass(frozen=True)
class _UsualRound:
    """A round with the usual number of participants, and the noise in it.

    Attributes:
        pairs: The pairs of clients that share secrets.
        participants: Their indices, as in a record; None for all clients.
        n_clients: Number of clients of the run.
        partners: Number of participants with which each participant shares a secret, `[k]`.
        local: Variance of each row under local trust, `[k]`, relative to the largest row.
        node_variances: Average variance in nodes' models of individual noise, pair noise with ratio 1, and under local
            trust.
    """

    pairs: Pairs
    participants: tuple[int, ...] | None
    n_clients: int
    partners: Array
    local: Array
    node_variances: tuple[float, float, float] | None

    def noise_left(self, colluders: int, ratio: float) -> NoiseLeft | None:
        """Returns the noise of a round; None if no bound is known for it, or only one that takes long to compute."""
        pairs = replace(self.pairs, colluders=colluders, ratio=ratio)
        count = len(self.partners)
        all_sets_are_tried = pairs.edges is not None and estimate_work(count, colluders) <= MOST_WORK
        if all_sets_are_tried and math.comb(count, colluders) > _MOST_SETS and pairs != self.pairs:
            return None
        try:
            inflation = compute_exposure(pairs, self.participants, self.n_clients)
        except ConfigError:
            return None
        rows = self.local.sum()
        others = rows - self.local
        variances = [
            inflation * count / rows,
            inflation * (1 + ratio**2 * self.partners.mean()) * count / rows,
            inflation * ((count - 1 + ratio**2 * self.partners) / others).max(),
        ]
        in_mean, in_message, dropped = (float(variance) ** 0.5 for variance in variances)
        node = None
        if self.node_variances is not None:
            own_noise, pair_noise, under_local = self.node_variances
            node = (inflation * (own_noise + ratio**2 * pair_noise) / under_local) ** 0.5
        return NoiseLeft(colluders, ratio, in_mean, in_message, node, dropped)


def forecast_pairs(plan: Plan, network: RoundNetwork, randomness: Randomness) -> PairsForecast | None:
    """Returns the forecast of pairwise noise for a planned run; None if the run has no such noise.

    Args:
        plan: The run's releases.
        network: The communication network.
        randomness: The run's public random streams, which draw links.
    """
    trust = plan.privacy.trust
    usual_round = _usual_round(plan, network, randomness)
    if not isinstance(trust, Pairwise) or usual_round is None:
        return None
    count = len(usual_round.partners)
    declared = trust.colluders
    numbers = sorted({0, declared, count // 10, count // 3} & {*range(max(count, declared + 1))})
    ratios = sorted({*RATIOS, trust.ratio})
    lines = {q: [usual_round.noise_left(q, ratio) for ratio in ratios] for q in numbers}
    noises_left = tuple(line for of_number in lines.values() for line in of_number if line is not None)
    missing = tuple(q for q, of_number in lines.items() if None in of_number)
    others = sorted({0, declared + 1, declared + 2} & {*range(plan.n_clients)} - {declared})
    if_others = tuple(_compute_collusion_cost(plan, trust, number) for number in others)
    suggested = _suggested_ratio([line for line in noises_left if line.colluders == declared])
    return PairsForecast(count, noises_left, missing, suggested, if_others)


def _usual_round(plan: Plan, network: RoundNetwork, randomness: Randomness) -> _UsualRound | None:
    """Returns the round with the median number of participants; None if not even two take part in it."""
    records = [r for r in plan.records if r.pairs is not None and not r.query.startswith("statistic:")]
    records.sort(key=lambda r: plan.n_clients if r.clients is None else len(r.clients))
    if not records:
        return None
    record = records[(len(records) - 1) // 2]
    if record.clients is None:
        clients = tuple(range(plan.n_clients))
    else:
        clients = record.clients
    if record.pairs is None or len(clients) < 2:
        return None
    pairs = record.pairs
    n_clients = plan.n_clients
    noise = np.broadcast_to(np.asarray(record.noise_multiplier), len(clients))
    local = (noise.min() / noise) ** 2
    mixing = _mixing(network, record, randomness)
    if mixing is None:
        node_variances = None
    else:
        node_variances = _node_variances(mixing, pairs, clients, local, n_clients)
    partners = _count_partners(pairs, clients, n_clients)
    return _UsualRound(pairs, record.clients, n_clients, partners, local, node_variances)


def _count_partners(pairs: Pairs, clients: Sequence[int], n_clients: int) -> Array:
    """Counts the clients with which each client shares a secret, `[k]`."""
    if pairs.edges is None:
        return np.full(len(clients), len(clients) - 1.0)
    ends = np.asarray(pairs.edges, dtype=np.int64).reshape(-1, 2)
    inner_edges = ends[np.isin(ends, clients).all(1)]
    return np.bincount(inner_edges.ravel(), minlength=n_clients)[list(clients)].astype(float)


def _mixing(network: RoundNetwork, record: Record, randomness: Randomness) -> Array | None:
    """Returns the mixing matrix of the participants, `[k, k]`; None on a star, and on graphs that are too large."""
    if not isinstance(network, Graph) or network.n_clients > _MOST_NODES:
        return None
    cohort = network.participants(record.round, randomness)
    return network.mix(torch.eye(len(cohort), dtype=torch.float64)).numpy()


def _node_variances(
    mixing: Array, pairs: Pairs, clients: Sequence[int], local: Array, n_clients: int
) -> tuple[float, float, float]:
    """Returns `_UsualRound.node_variances`."""
    if pairs.edges is None:
        everyone = ~np.eye(n_clients, dtype=bool)
    else:
        everyone = make_adjacency(pairs.edges, n_clients)
    laplacian = make_covariance(everyone[np.ix_(clients, clients)], 1.0) - np.eye(len(clients))
    squares = mixing**2
    own_noise = float(squares.sum()) / len(clients)
    pair_noise = float(np.sum((mixing @ laplacian) * mixing)) / len(clients)
    under_local = float((squares @ local).sum()) / len(clients)
    return own_noise, pair_noise, under_local


def _suggested_ratio(lines: Sequence[NoiseLeft]) -> float | None:
    """Returns `PairsForecast.suggested`."""
    if not lines:
        return None
    at_nodes = [(line.in_node, line.ratio) for line in lines if line.in_node is not None]
    if at_nodes:
        return min(at_nodes)[1]
    least = min(line.in_mean for line in lines)
    return min(line.ratio for line in lines if line.in_mean <= _ENOUGH * least)


def _compute_collusion_cost(plan: Plan, trust: Pairwise, colluders: int) -> CollusionCost:
    trusted = replace(plan.privacy, trust=replace(trust, colluders=colluders)).trusted

    def with_colluders(record: Record) -> Record:
        if record.pairs is None:
            return record
        return replace(record, pairs=replace(record.pairs, colluders=colluders), trust=trusted)

    try:
        records = [with_colluders(record) for record in plan.records]
        return CollusionCost(colluders, account(records, plan.n_clients, plan.privacy.delta))
    except ConfigError:  # too many sets of colluders to test, and no bound without the test
        return CollusionCost(colluders, None)
