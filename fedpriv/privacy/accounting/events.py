"""A ledger record, reduced to the facts that its epsilon depends on.

An ``Event`` contains the facts of one noisy release that determine its privacy cost for one client. Equal events have
the same cost, for any round, query or clip bound. So a long run consists of a few events, each with the number of times
that it occurs.

The table shows the dominating pair of distributions, or the privacy curve, of each event. ``s`` is the noise scale
divided by the sensitivity, and ``q`` the sampling rate.

=====================  ============================  ==========================================================
sampling               add_remove                    replace_one
=====================  ============================  ==========================================================
full                   shift by 1/s                  shift by 1/s
poisson, Gaussian      ``(1-q) N(0) + q N(1)``       ``(1-q) N(0) + q N(1)`` against ``(1-q) N(0) + q N(-1)``,
                       against ``N(0)``, both ways   standard deviation 2s (Lebeda, Regehr, Kamath, Steinke 2025)
poisson, Laplace       the same with Laplace         amplified: ``delta(log(1 + q (e^eps - 1))) = q delta_s(eps)``
without_replacement    refused: no bound is known    amplified (Balle, Barthe, Gaboardi 2018, theorem 8 and joint
                       that ignores the set's size   convexity)
allocation, Gaussian   a whole epoch: ``mean_i N(    a whole epoch: ``mean_i N(e_i)`` against ``mean_i N(-e_i)``,
                       e_i)`` against ``N(0)``       deviation 2s (docs/design/0010-allocation.md)
=====================  ============================  ==========================================================

If pairs of clients add noise that cancels, s is the effective noise, which is computed from the record
(`accounting.pairwise`). If noise is correlated between rounds, the whole run is one Gaussian release. The event of a
record is then the part that its round adds to the rounds before it (`fedpriv.privacy.correlated`), so that the events
of rounds 0 to t together have exactly the cost of these rounds. For Laplace noise with scale b under an l2 clip, the
cost is ``zcdp`` with rho = 1/(2 s^2), which is at most the cost of Gaussian noise with standard deviation b.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, NamedTuple

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting.pairwise import compute_exposure

if TYPE_CHECKING:
    from fedpriv.privacy.correlated import CorrelatedNoise
    from fedpriv.privacy.record import NoiseDistributionName, Record

    Law = Literal[NoiseDistributionName, "zcdp", "none"]
Selection = Literal["full", "poisson", "poisson_replace", "amplified", "allocation", "allocation_replace"]


class Event(NamedTuple):
    """The facts that determine the privacy cost of one noisy release for one client; with random allocation, of a whole
    epoch of releases.

    Attributes:
        law: Distribution of the noise. ``"zcdp"`` is Laplace noise under an l2 clip, ``"none"`` an exact release.
        noise: Noise scale divided by sensitivity.
        selection: How the client's examples (or the client) were sampled; see the table of this module.
        rate: Sampling rate in (0, 1]; 1 if ``selection`` is full. For random allocation, 1 divided by the number of
            batches.
        group: Number of units that are protected together, each drawn independently with ``rate``; see
            `accounting.groups`.
    """

    law: Law
    noise: float
    selection: Selection = "full"
    rate: float = 1.0
    group: int = 1

    @property
    def composes_exactly(self) -> bool:
        """True for Gaussian noise without sampling. Any number of such events can be merged exactly into one (Dong,
        Roth, Su, 2022).
        """
        return self.law == "gaussian" and self.selection == "full"

    @property
    def is_epoch(self) -> bool:
        """True if the event is a whole epoch of random allocation."""
        return self.selection in ("allocation", "allocation_replace")

    @property
    def batches(self) -> int:
        """Number of batches of an epoch of random allocation."""
        return round(1 / self.rate)

    @property
    def shift(self) -> float:
        """Largest change of the release divided by its noise scale."""
        return self.group / self.noise

    @property
    def inclusion_rate(self) -> float:
        """Probability that at least one unit of the group is drawn."""
        if self.group == 1:
            return self.rate
        return -math.expm1(self.group * math.log1p(-self.rate))


EXACT = Event("none", 0.0)
FREE = Event("gaussian", math.inf)
History = Mapping[Event, int]
MOST_LEVELS = 250
_WIDEST_CELL = 1.0  # in the logarithm of the noise


@dataclass(frozen=True)
class PrivacyCost:
    """The cost of a record, and the clients that it concerns.

    Attributes:
        clients: The clients that the cost concerns; None means all.
        events: One event for all of these clients, or one for each.
    """

    clients: tuple[int, ...] | None
    events: tuple[Event, ...]


def compute_cost(record: Record, n_clients: int) -> PrivacyCost:
    """Reduces a record to its cost and the clients that it concerns.

    For a record of random allocation, the cost is the cost of its whole epoch, and concerns all clients. `epochs`
    counts each epoch once.

    Raises:
        ConfigError: If a field is out of range, names a client that does not exist, or is a kind of sampling for which
            no sound bound is known.
    """
    clients = record.clients
    if clients is None:
        count = n_clients
    else:
        count = len(clients)
    if clients is not None and (len(set(clients)) != count or not all(0 <= c < n_clients for c in clients)):
        raise ConfigError("record.clients", clients, f"must list clients 0..{n_clients - 1}, each at most once")
    if record.non_private is not None or record.mechanism == "none":
        return PrivacyCost(clients, (EXACT,))
    noises = _effective_noise(record, _each(record.noise_multiplier, "record.noise_multiplier", count), n_clients)
    rates = _each(record.rate, "record.rate", count)
    pairs = zip(noises * (len(rates) // len(noises) or 1), rates * (len(noises) // len(rates) or 1), strict=True)
    events = tuple(_event(record, noise, rate) for noise, rate in pairs)
    if len(set(events)) == 1:
        events = events[:1]
    if record.batches is not None and clients is not None:
        if len(events) > 1:
            fix = "random allocation with different noise multipliers for the clients needs all clients in every round"
            raise ConfigError("record.clients", clients, fix)
        clients = None  # all clients that take part later in the epoch are charged with its first release
    return PrivacyCost(clients, events)


def _effective_noise(record: Record, noises: tuple[float, ...], n_clients: int) -> tuple[float, ...]:
    """Returns the independent noise that would have the same cost, for noise that cancels between pairs of clients or
    over time.
    """
    if record.time is not None:
        noises = _noise_over_rounds(record, record.time, noises)
    if record.pairs is None:
        return noises
    if record.mechanism != "gaussian":
        fix = "noise that cancels between pairs has a known privacy cost only if it is Gaussian: use Gaussian noise"
        raise ConfigError("record.mechanism", record.mechanism, fix)
    growth = 1 / math.sqrt(compute_exposure(record.pairs, record.clients, n_clients))
    return tuple(noise * growth for noise in noises)


def _noise_over_rounds(record: Record, time: CorrelatedNoise, noises: tuple[float, ...]) -> tuple[float, ...]:
    """Returns noise levels for this round such that the events of all rounds so far compose to the cost of these
    rounds.

    All rounds with correlated noise are one Gaussian release. Its squared ratio of sensitivity to noise grows with each
    round; the event of a round gets this growth.
    """
    fixed = record.clients is None and record.sampling in ("full", "poisson")
    if record.mechanism != "gaussian" or not fixed:
        fix = (
            "correlated noise has a known privacy cost only if it is Gaussian, all clients take part in every round, "
            "and batches contain all examples or are Poisson draws"
        )
        raise ConfigError("record.time", record.mechanism, fix)
    if record.sampling == "full":
        share = time.share(record.round)
    else:
        share = time.sampled_share(record.round)
    return tuple(noise / math.sqrt(share) if share > 0 else math.inf for noise in noises)


def _each(value: float | tuple[float, ...], field: str, count: int) -> tuple[float, ...]:
    """Returns a tuple of one number for all clients, or of exactly one for each of the `count` clients."""
    if not isinstance(value, tuple):
        return (value,)
    if len(value) != count:
        raise ConfigError(field, value, f"must be one number, or one number for each of the {count} clients")
    return value or (1.0,)  # no participant: any number is correct


def _event(record: Record, noise: float, rate: float) -> Event:
    """Returns the event of a client with this noise multiplier and sampling rate."""
    if math.isnan(noise) or noise < 0:
        raise ConfigError(
            "record.noise_multiplier", noise, "must be 0 or more: the noise scale divided by the sensitivity"
        )
    if not 0 <= rate <= 1:
        raise ConfigError("record.rate", rate, "must be a sampling rate between 0 and 1")
    if record.batches is not None and rate != 1 / record.batches:
        raise ConfigError(
            "record.rate", rate, f"must be {1 / record.batches}, the sampling rate of {record.batches} batches"
        )
    if noise == 0:
        return EXACT
    if record.sampling == "allocation" and record.mechanism != "gaussian":
        fix = (
            "random allocation has a known privacy cost only for Gaussian noise: use Gaussian noise, or Poisson batches"
        )
        raise ConfigError("record.mechanism", record.mechanism, fix)
    if record.mechanism == "laplace" and record.norm == "l2":
        law: Law = "zcdp"
    else:
        law = record.mechanism
    if record.sampling == "full" or rate == 1:
        return Event(law, noise)
    if rate == 0 or math.isinf(noise):
        return Event(law, math.inf)
    return Event(law, noise, _selection(record, law), rate)


def _selection(record: Record, law: Law) -> Selection:
    """Returns the kind of cost of a sampled record; see the table of this module."""
    if record.sampling == "without_replacement" and record.relation == "add_remove":
        raise ConfigError(
            "record.sampling",
            record.sampling,
            "no bound on the privacy cost of fixed-size batches is known for add_remove: use replace_one, or poisson "
            "batches",
        )
    if record.sampling == "allocation":
        if record.relation == "add_remove":
            return "allocation"
        return "allocation_replace"
    if record.sampling == "without_replacement" or law == "zcdp":
        return "amplified"
    if record.relation == "add_remove":
        return "poisson"
    if law == "gaussian":
        return "poisson_replace"
    return "amplified"


def covers(planned: Event, event: Event, slack: float = 0.0) -> bool:
    """True if an event is of the planned kind, with at least its noise, and at most its sampling rate and group."""
    return (
        planned.law == event.law
        and planned.selection == event.selection
        and planned.group >= event.group
        and event.noise >= planned.noise * (1 - slack)
        and event.rate <= planned.rate
    )


def round_noise_levels(history: History, max_levels: int = MOST_LEVELS, width: float = 0.008) -> dict[Event, int]:
    """Rounds noise levels down to fewer ones, if a history has more than `max_levels` events.

    Guarantee: the rounded history costs at least as much, since less noise costs more.

    Noise levels that together have a low cost are rounded more coarsely: their logarithm is rounded by ``width /
    sqrt(s)``, where s is the share of the total of all squared shifts ``1 / noise^2`` that belongs to this level and
    all larger levels. As a result, the total of squared shifts grows by a relative ``2 width`` or so, and about ``1 /
    width`` levels remain, for any range of levels.

    Args:
        history: Events with their counts.
        max_levels: A history with at most this number of events is returned unchanged.
        width: Relative width of a cell of levels; see above.
    """
    if len(history) <= max_levels:
        return dict(history)
    kinds: dict[tuple[str, str, float, int], list[Event]] = {}
    for event in sorted(history, key=lambda event: event.noise, reverse=True):
        kinds.setdefault((event.law, event.selection, event.rate, event.group), []).append(event)
    total = math.fsum(count / event.noise**2 for event, count in history.items())
    result: Counter[Event] = Counter()
    for events in kinds.values():
        shares = accumulate(history[event] / event.noise**2 / total for event in events)
        # from the least noise on: `first` is the level that all levels up to `end` are rounded down to
        first, end = events[-1], 0.0
        for event, share in zip(reversed(events), reversed(list(shares)), strict=True):
            if event.noise > end:
                first = event
                end = event.noise * math.exp(min(width / math.sqrt(share), _WIDEST_CELL))
            result[first] += history[event]
    return dict(result)


def group_histories(charges: Mapping[PrivacyCost, int], n_clients: int) -> list[tuple[list[int], dict[Event, int]]]:
    """Groups the clients that have the same events.

    Returns:
        Pairs (clients, events with their counts); every client is in exactly one pair.
    """
    common: Counter[Event] = Counter()
    individual: dict[int, Counter[Event]] = {}
    for charge, count in charges.items():
        if charge.clients is None and len(charge.events) == 1:
            common[charge.events[0]] += count
            continue
        if charge.clients is None:
            clients: Iterable[int] = range(n_clients)
        else:
            clients = charge.clients
        for client, event in zip(clients, _spread(charge.events, n_clients), strict=False):
            individual.setdefault(client, Counter())[event] += count
    groups: dict[frozenset[tuple[Event, int]], list[int]] = {}
    # the first group are the clients without any event of their own, in large populations most of them
    if len(individual) < n_clients:
        groups[frozenset()] = [client for client in range(n_clients) if client not in individual]
    for client in sorted(individual):
        groups.setdefault(frozenset(individual[client].items()), []).append(client)
    return [(members, dict(common + Counter(dict(extra)))) for extra, members in groups.items()]


def _spread(events: Sequence[Event], n_clients: int) -> Sequence[Event]:
    """Returns one event for each client, or more events if fewer clients took part."""
    if len(events) == 1:
        return list(events) * n_clients
    return events
