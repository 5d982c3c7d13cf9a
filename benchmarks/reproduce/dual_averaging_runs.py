"""Algorithm 1 of Liu, Johansson and Shi (2023) as published: seeds and epsilons side by side in one tensor program.

A round's active nodes are `k` slots: the ends of the drawn links, or the drawn nodes. A node that is an end of two
links fills two slots; `first` marks the one that counts. Each active node draws one of its q records. Its x changes in
its active rounds only, as the paper prints it, so that the weighted average of x needs work for active nodes only.
`tests/reproduce/test_dual_averaging.py` compares these runs with the library's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.papers import claims

NODES, WEIGHT, DELTA_0, EPOCHS = 20, 5e-4, 0.01, 3
PAIRS = np.stack(np.triu_indices(NODES, 1), 1)  # all links of the complete graph
_CHUNK = 1000  # rounds that are drawn at a time


@dataclass(frozen=True)
class Rounds:
    """Drawn rounds of some seeds: `nodes`, `first` and `mixing` are `[rounds, seeds, k]`, `mixing` also `[.., k]`."""

    nodes: NDArray[np.int64]
    first: NDArray[np.bool_]
    mixing: NDArray[np.float32]


Draw = Callable[[np.random.Generator, int, int], Rounds]


def links(count: int) -> Draw:
    """Returns the draws of 1 or 2 links of the complete graph, with Metropolis weights."""

    def draw(generator: np.random.Generator, rounds: int, seeds: int) -> Rounds:
        first = generator.integers(len(PAIRS), size=(rounds, seeds))
        chosen = [first]
        if count == 2:
            other = generator.integers(len(PAIRS) - 1, size=(rounds, seeds))
            chosen.append(other + (other >= first))
        return of_links(np.stack([PAIRS[each] for each in chosen], 2))

    return draw


def of_links(pairs: NDArray[np.int64]) -> Rounds:
    """Returns rounds with at most two links, `[rounds, seeds, links, 2]`."""
    nodes = pairs.reshape(*pairs.shape[:2], -1)
    slots = nodes.shape[2]
    same = nodes[..., :, None] == nodes[..., None, :]
    place = same.argmax(-1)  # the first slot of the same node
    shared = place.max(-1) < slots - 1 if slots == 2 else (place != np.arange(slots)).any(-1)
    weight = np.where(shared, 1 / 3, 1 / 2)[..., None, None]
    unit = np.eye(slots)[place]  # [.., slot, first slot]
    mixing = unit.copy()
    for a in range(0, slots, 2):
        difference = unit[..., a, :] - unit[..., a + 1, :]
        mixing -= weight * (unit @ difference[..., None]) * difference[..., None, :]
    return Rounds(nodes, place == np.arange(slots), mixing.astype(np.float32))


def exact_nodes(count: int) -> Draw:
    """Returns the draws of exactly `count` nodes, all linked with each other (definition 2 on the complete graph)."""

    def draw(generator: np.random.Generator, rounds: int, seeds: int) -> Rounds:
        nodes = generator.random((rounds, seeds, NODES)).argpartition(count, -1)[..., :count]
        mixing = np.full((*nodes.shape, count), 1 / count, np.float32)
        return Rounds(nodes, np.ones(nodes.shape, bool), mixing)

    return draw


@dataclass(frozen=True)
class Method:
    """A way to choose the nodes of a round.

    Attributes:
        name: Its name in tables.
        iota: The fraction of active nodes that the paper states.
        draw: Draws rounds; None for the baseline [19], in which all nodes and links are active.
        longer: Factor on the number of rounds of three epochs.
    """

    name: str
    iota: float
    draw: Draw | None = None
    longer: float = 1.0

    def rounds(self, q: int) -> int:
        """T of three epochs over q records a node."""
        return round(EPOCHS * q / self.iota * self.longer)


METHODS = {
    "one": Method("1 link, iota 0.1", 0.1, links(1)),
    "two": Method("2 links, iota 0.2 (really 0.1905)", 0.2, links(2)),
    "four": Method("exactly 4 nodes, iota 0.2", 0.2, exact_nodes(4)),
    "all": Method("[19] in our reading, iota 1", 1.0),
    "all_longer": Method("[19] with as many rounds as iota 0.1", 1.0, longer=10.0),
}


@dataclass(frozen=True)
class Setting:
    """Schedules of the two problems: l2 has a_t = t and gamma_t = 20, l1 has a_t = 1 and gamma_t = 0.01 sqrt(t)."""

    regularizer: str
    iota: float
    gamma: float | None = None
    weight: float = WEIGHT

    def weights(self, rounds: int) -> NDArray[np.float64]:
        """a_1 .. a_(T+1)."""
        t = np.arange(1.0, rounds + 2)
        return t if self.regularizer == "l2" else np.ones_like(t)

    def curvature(self, t: int, total: float) -> float:
        """The number that divides -z in round t, where A_t = total."""
        if self.regularizer == "l2":
            return self.weight * self.iota * total + (20.0 if self.gamma is None else self.gamma)
        return (0.01 if self.gamma is None else self.gamma) * math.sqrt(t)

    def primal(self, z: Tensor, t: int, total: float) -> Tensor:
        """x from z by eq 6."""
        if self.regularizer == "l2":
            return z * (-1 / self.curvature(t, total))
        return torch.nn.functional.softshrink(z, self.weight * self.iota * total).mul_(-1 / self.curvature(t, total))


def noise(method: Method, epsilon: float, q: int, rounds: int) -> float:
    """Standard deviation of theorem 1 for L = 1."""
    return claims.dual_averaging_noise(epsilon, rounds, q, method.iota, DELTA_0)


def true_epsilon(method: Method, epsilon: float, q: int, rounds: int, active: int, delta: float = 1e-5) -> float:
    """Epsilon of the whole run, replace-one, against an observer of messages, of a node active in `active` rounds."""
    # the formula is its own inverse: another iota at an epsilon in proportion has the same noise
    share = active / rounds
    found = claims.dual_averaging(
        epsilon * share / method.iota, rounds, q, share, delta, sensitivity=2.0, delta0=DELTA_0
    )
    return found.messages


@dataclass(frozen=True)
class Data:
    """Rows of norm 1 `[rows, dim]`, labels -1 and 1, and the rows of each node, `[nodes, q]`."""

    x: Tensor
    y: Tensor
    owned: NDArray[np.int64]


Average = tuple[Tensor, int]  # mean over nodes of the weighted averages [seeds, sigmas, dim], most active rounds


def sampled(
    data: Data, setting: Setting, draws: Iterator[Rounds], sigmas: list[float], rounds: int, times: list[int], seed: int
) -> Iterator[Average]:
    """Runs rounds with active nodes, and yields the average at the times, with the most active rounds of a node."""
    generator, stream = np.random.default_rng([seed, 1]), torch.Generator().manual_seed(seed)
    weights = setting.weights(rounds)
    totals = np.cumsum(weights)
    scale = torch.tensor(sigmas)
    z = x = acc = last = counts = None
    t = 0
    for chunk in draws:
        count, seeds, k = chunk.nodes.shape
        if z is None or x is None or acc is None or last is None or counts is None:
            z = torch.zeros(seeds * NODES, len(sigmas), data.x.shape[1])
            x = torch.zeros_like(z)
            acc = torch.zeros(seeds, len(sigmas), data.x.shape[1], dtype=torch.float64)
            last, counts = np.zeros((seeds, NODES)), np.zeros((seeds, NODES), int)
        rows_of = np.arange(seeds)[:, None]
        records = data.owned[chunk.nodes, generator.integers(data.owned.shape[1], size=chunk.nodes.shape)]
        places = torch.from_numpy((chunk.nodes + NODES * rows_of).reshape(count, -1))
        mixing, picked = torch.from_numpy(chunk.mixing), torch.from_numpy(records.reshape(count, -1))
        labels = data.y[picked][:, :, None]
        for j in range(min(count, rounds - t)):
            nodes, a = chunk.nodes[j], float(weights[t])
            since = (totals[t] - last[rows_of, nodes]) * chunk.first[j]
            last[rows_of, nodes] = totals[t]
            counts[rows_of, nodes] += 1  # an end of two links counts once
            where, row, label = places[j], data.x.index_select(0, picked[j]), labels[j]  # [seeds k, dim]
            old = x.index_select(0, where)
            slope = (torch.bmm(old, row[:, :, None]).squeeze(2) * label < 1) * (label * -a)
            message = torch.baddbmm(z.index_select(0, where), slope[:, :, None], row[:, None])
            message.addcmul_(torch.randn(row.shape, generator=stream)[:, None], scale[None, :, None], value=a)
            new = torch.bmm(mixing[j], message.reshape(seeds, k, -1)).reshape(message.shape)
            acc += torch.bmm(torch.from_numpy(since).float()[:, None], old.reshape(seeds, k, -1)).reshape(acc.shape)
            t += 1
            z.index_copy_(0, where, new)
            x.index_copy_(0, where, setting.primal(new, t + 1, float(totals[t])))
            if t in times:
                rest = torch.from_numpy(totals[t - 1] - last)[:, :, None, None]
                found = acc + (rest * x.reshape(seeds, NODES, *x.shape[1:])).sum(1)
                yield found / (NODES * totals[t - 1]), int(counts.max())
        if t >= rounds:
            return


def everyone(
    data: Data, setting: Setting, sigmas: list[float], rounds: int, times: list[int], seeds: int, seed: int
) -> Iterator[Average]:
    """Runs rounds in which all nodes and links are active: a round averages exactly, so that all nodes are equal."""
    generator, stream = np.random.default_rng([seed, 1]), torch.Generator().manual_seed(seed)
    weights = setting.weights(rounds)
    totals, dim = np.cumsum(weights), data.x.shape[1]
    scale = torch.tensor(sigmas) / math.sqrt(NODES)
    z = torch.zeros(seeds, len(sigmas), dim)
    x, acc = torch.zeros_like(z), torch.zeros_like(z, dtype=torch.float64)
    for t in range(rounds):
        records = generator.integers(data.owned.shape[1], size=(seeds, NODES))
        picked = torch.from_numpy(data.owned[np.arange(NODES), records])
        row, label, a = data.x[picked], data.y[picked][:, None], float(weights[t])
        slope = label * (x @ row.mT * label < 1) * (-a / NODES)  # [seeds, sigmas, nodes]
        acc += x * a
        z = torch.baddbmm(z, slope, row)
        z += (a * scale)[:, None] * torch.randn(seeds, 1, dim, generator=stream)
        x = setting.primal(z, t + 2, float(totals[t + 1]))
        if t + 1 in times:
            yield acc / totals[t], t + 1


def run(
    data: Data,
    method: Method,
    setting: Setting,
    sigmas: list[float],
    rounds: int,
    times: list[int],
    seeds: int,
    seed: int,
) -> Iterator[Average]:
    """Runs a method; yields the mean over nodes of their averages at the times, and a node's most active rounds."""
    if method.draw is None:
        yield from everyone(data, setting, sigmas, rounds, times, seeds, seed)
        return
    generator, draw = np.random.default_rng([seed, 0]), method.draw
    draws = (draw(generator, _CHUNK, seeds) for _ in range(rounds // _CHUNK + 1))
    yield from sampled(data, setting, draws, sigmas, rounds, times, seed)
