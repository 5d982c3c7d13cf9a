"""Ledger records and noise scales of answers: functions of settings and public sizes, never of data."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.privacy.accounting.pairwise import exposure
from fedpriv.privacy.clipping import ROUNDING, Clip
from fedpriv.privacy.correlated import INDEPENDENT, OverTime
from fedpriv.privacy.pairwise import Pairs, Pairwise
from fedpriv.privacy.record import PerClient, Record
from fedpriv.privacy.schedules import LEAST_SHARE
from fedpriv.privacy.settings import Cyclic, FixedSize, FullBatch, Poisson, Privacy, Sampling

# answers that use all of a client's examples, however batches are drawn
UNSAMPLED = frozenset({"message", "full_gradient"})
_OF_A_ROUND = frozenset({"gradient", "client_gradient", "message"})


class Pricing:
    """How much noise answers get, and what the ledger says of them.

    Args:
        privacy: The privacy settings.
        sizes: Public number of examples of each client.
    """

    def __init__(self, privacy: Privacy, sizes: Sequence[int]) -> None:
        self._privacy, self._sizes = privacy, sizes
        self.parties = privacy.trust.shares(len(sizes))
        self._pairs = pairs_of(privacy, len(sizes))

    def sampling_of(self, query: str) -> Sampling:
        """How the examples behind an answer are drawn."""
        return FullBatch() if query in UNSAMPLED else self._privacy.sampling

    def price(
        self,
        round_index: int,
        index: int,
        query: str,
        clients: Sequence[int],
        factors: Sequence[float],
        clip: Clip | None = None,
        share: float = 1.0,
        without: Collection[int] = (),
    ) -> tuple[Record, list[float]]:
        """The record of a noised answer and the noise scale of each row.

        Args:
            round_index: The round, from 0.
            index: Which answer of the round, from 0.
            query: What was asked, e.g. `"gradient"`.
            clients: Index of each row's client.
            factors: Public number by which each row is multiplied; row i then has the sensitivity
                `factors[i] * privacy.sensitivity_of(clip)`. Where only the sum over clients is released, all rows get
                the noise of the largest; so do they where pairs add noise, the same at both ends, and then each
                client pays by its own sensitivity.
            clip: How each unit's contribution was bounded; `privacy.clip` unless given.
            share: Budget share of this answer, where a gradient of the same round has share 1.
            without: Those of `clients` that have said beforehand that they do not answer. Their pairs hide nobody, so
                that the others need more noise of their own; the record is of the others alone. `factors` stay those
                of all, and so do the scales.

        Raises:
            ConfigError: there is no noise multiplier yet, or a share is out of range.
            PrivacyError: noise of pairs cancels over time, and not all clients take part; or pairs are left out and
                not every two clients share a secret.
        """
        privacy = self._privacy
        if privacy.noise_multiplier is None:
            raise ConfigError("privacy.noise_multiplier", None, "calibrate the run first (fedpriv.train does)")
        clip = clip or privacy.clip
        share *= privacy.schedule.share(round_index)
        if not LEAST_SHARE <= share <= 1 / LEAST_SHARE:
            fix = f"round {round_index} needs a share from {LEAST_SHARE:g} to {1 / LEAST_SHARE:g}; only ratios matter"
            raise ConfigError("privacy.schedule", share, fix)
        multiplier = privacy.noise_multiplier / share
        if privacy.over_time is not None:
            check_alone(query, index, privacy.over_time)
        pairs = self._pairs_of(query)
        if pairs is not None and privacy.over_time is not None and len(clients) < len(self._sizes):
            raise PrivacyError(
                f"round {round_index} has {len(clients)} of {len(self._sizes)} clients: noise of pairs that cancels "
                "over time has a price only if all take part in every round"
            )
        if without and (pairs is None or pairs.edges is not None):
            raise PrivacyError("only where every two clients share a secret may pairs be left out")
        answering = clients if not without else [client for client in clients if client not in without]
        multiplier *= math.sqrt(1.0 if pairs is None else exposure(pairs, answering, len(self._sizes)))
        alike = privacy.trust.sums_only or (pairs is not None and pairs.ratio > 0)
        largest = max(factors, default=1.0)
        reference = [largest] * len(factors) if alike else list(factors)
        scales = [multiplier * privacy.sensitivity_of(clip) * r for r in reference]
        if without:
            places = [place for place, client in enumerate(clients) if client not in without]
            reference, factors = ([values[place] for place in places] for values in (reference, factors))
        paid = multiplier if privacy.trust.sums_only else _own(multiplier, reference, factors)
        record = self._record(round_index, index, query, answering, multiplier)
        changes = {"norm": clip.norm, "bound": clip.bound * (1 + ROUNDING), "noise_multiplier": paid, "pairs": pairs}
        return replace(record, **changes), scales

    def _pairs_of(self, query: str) -> Pairs | None:
        """Who adds noise that cancels, and how much: statistics, which are used by themselves, have their own ratio."""
        if self._pairs is None or not query.startswith("statistic:"):
            return self._pairs
        return replace(self._pairs, ratio=self._privacy.statistics.ratio)

    def exact(self, round_index: int, index: int, query: str, clients: Sequence[int]) -> Record:
        """The record of an answer without noise, or with a paper's: its epsilon is infinite."""
        published = self._privacy.published
        reason = "exact answers, no noise" if published is None else published.why_not
        record = self._record(round_index, index, query, clients, 0.0)
        return replace(record, mechanism="none", sampling="full", rate=1.0, non_private=reason)

    def _record(self, round_index: int, index: int, query: str, clients: Sequence[int], multiplier: float) -> Record:
        privacy, sampling = self._privacy, self.sampling_of(query)
        kind, rate = "full", 1.0
        if privacy.unit == "sample" and isinstance(sampling, Poisson | Cyclic) and sampling.rate < 1:
            kind, rate = "poisson", sampling.rate
        elif privacy.unit == "sample" and isinstance(sampling, FixedSize):
            kind, rate = "without_replacement", _compact([min(1.0, sampling.size / self._sizes[c]) for c in clients])
        elif privacy.cohort_rate < 1:
            kind, rate = "poisson", privacy.cohort_rate
        over_time = privacy.over_time
        # noise of rounds in which a client is silent tells of those in which it was not
        everyone = len(clients) == len(self._sizes) or over_time is not None
        return Record(
            round=round_index,
            query=query,
            index=index,
            mechanism=privacy.mechanism.name,
            noise_multiplier=multiplier,
            unit=privacy.unit,
            relation=privacy.relation,
            shared=privacy.shared,
            clients=None if everyone else tuple(clients),
            norm=privacy.clip.norm,
            bound=privacy.clip.bound,
            sampling=kind,
            rate=rate,
            trust=privacy.trusted,
            time=None if over_time is None else over_time.at(round_index),
        )


def check_alone(query: str, index: int, noise: OverTime) -> None:
    """Refuse a question that noise over time, or cyclic batches, do not cover.

    Raises:
        ConfigError: it is not the only gradient or message of its round.
    """
    if query not in _OF_A_ROUND or (index > 0 and query != "message"):  # local steps come before a message
        asked = query if index == 0 else f"{query}, answer {index + 1} of a round"
        fix = "noise that is correlated between rounds, and cyclic batches, cover one gradient or message a round"
        independent = noise.factor == INDEPENDENT
        other = "poisson batches" if independent else "independent noise"
        setting = "privacy.sampling" if independent else "privacy.noise"
        raise ConfigError(setting, asked, f"{fix}: use a strategy that asks no more, or {other}")


def pairs_of(privacy: Privacy, n_clients: int) -> Pairs | None:
    """The noise that cancels between pairs of clients; None where the promise has none."""
    if not privacy.private or not isinstance(privacy.trust, Pairwise):
        return None
    return privacy.trust.pairs(n_clients)


def _own(multiplier: float, reference: Sequence[float], factors: Sequence[float]) -> PerClient:
    """Noise over each client's own sensitivity; one number where they differ by nothing but last bits."""
    more = [scale / factor for scale, factor in zip(reference, factors, strict=True)]
    return _compact([multiplier * (1.0 if ratio < 1 + 1e-9 else ratio) for ratio in more] or [multiplier])


def _compact(values: Sequence[float]) -> PerClient:
    return values[0] if len(set(values)) == 1 else tuple(values)
