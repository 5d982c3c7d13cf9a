"""Noise that is correlated between rounds: which matrix a run has, and which runs cannot have one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedpriv.distributed import threads
from fedpriv.errors import ConfigError
from fedpriv.network.local import Star
from fedpriv.network.rounds import RoundNetwork
from fedpriv.privacy.correlated import INDEPENDENT, CorrelatedNoise, Factor
from fedpriv.privacy.matrices import BLT, Banded, Follow, unknown
from fedpriv.privacy.record import Record
from fedpriv.privacy.schedules import Uniform
from fedpriv.privacy.settings import Cyclic, FullBatch, Independent, Privacy


def with_matrix(
    privacy: Privacy, network: RoundNetwork, rounds: int, follow: Follow = unknown, begun: Factor | None = None
) -> Privacy:
    """Fills in the matrix of a run's noise, if noise is correlated between rounds or batches are cyclic.

    The rounds in which one unit takes part follow from batches, cohorts and the number of rounds. Independent noise on
    cyclic batches is the matrix I.

    Args:
        privacy: The privacy settings.
        network: Determines the participants of a round.
        rounds: Number of rounds.
        follow: See `fedpriv.privacy.matrices.Follow`.
        begun: The matrix with which a resumed run began: an optimiser may find other last digits on another machine.

    Raises:
        ConfigError: nothing enforces how often a unit takes part, or no cost is known for the noise.
    """
    noise = privacy.noise
    has_slots = privacy.unit == "sample" and isinstance(privacy.sampling, Cyclic)
    if not privacy.private or (isinstance(noise, Independent) and not has_slots):
        return privacy
    check_participation(privacy, network)
    check_noise(privacy)
    separation = _separation(privacy, network)
    if isinstance(noise, CorrelatedNoise):  # from a plan, or constructed by the user
        if noise.separation != separation:
            fix = f"units take part in one of {separation} rounds; give BSR, Banded or BLT, and the matrix follows"
            raise ConfigError("privacy.noise", f"one of {noise.separation} rounds", fix)
        return privacy
    if begun is not None and isinstance(noise, Banded | BLT):
        return replace(privacy, noise=CorrelatedNoise(begun, separation))
    with threads.single_thread():
        if isinstance(noise, Independent):
            factor = INDEPENDENT
        else:
            factor = noise.factor(rounds, separation, follow)
    return replace(privacy, noise=CorrelatedNoise(factor, separation))


def _separation(privacy: Privacy, network: RoundNetwork) -> int:
    """Returns the number of rounds in a cycle: a unit takes part in one of them."""
    if privacy.unit == "sample":
        if isinstance(privacy.sampling, Cyclic):
            return privacy.sampling.blocks
        return 1
    return blocks_of(network)


def blocks_of(network: RoundNetwork) -> int:
    """Returns the number of fixed blocks of clients that take turns; 1 if there are none."""
    if isinstance(network, Star):
        return network.blocks
    return 1


def check_participation(privacy: Privacy, network: RoundNetwork) -> None:
    """Raises for batches and cohorts that do not fix the rounds in which a unit takes part.

    Raises:
        ConfigError: the rounds are not fixed; the message names the setting.
    """
    if privacy.unit == "sample" and not isinstance(privacy.sampling, FullBatch | Cyclic):
        fix = "the rounds of an example must be fixed: use {cyclic: {blocks: B}} or full"
        raise ConfigError("privacy.sampling", str(privacy.sampling), f"with noise over time {fix}")
    if privacy.cohort_rate < 1:
        fix = "with noise over time nothing is gained by secret cohorts: use network.cohort: {cyclic: {blocks: B}}"
        if privacy.cohort_rounds is None:
            raise ConfigError("privacy.trust.cohort_rate", privacy.cohort_rate, fix)
        raise ConfigError("privacy.trust.cohort_rounds", privacy.cohort_rounds, fix)
    if network.everyone:
        return
    blocks = blocks_of(network)
    if blocks == 1:
        fix = "with noise over time or cyclic batches everyone takes part, or {cyclic: {blocks: B}} on a star"
        raise ConfigError("network.cohort", "not everyone", fix)
    if privacy.unit == "sample" or isinstance(privacy.sampling, Cyclic):
        fix = "cyclic cohorts have a price over time for unit: client, without cyclic batches; let everyone take part"
        raise ConfigError("network.cohort", f"cyclic, {blocks} blocks", fix)
    if not privacy.trust.sums_only:
        fix = (
            "noise of an earlier cohort cancels only if all clients send their noise in every round, behind "
            "trust: secure_aggregation, or a server adds it, trust: central; else let everyone take part"
        )
        raise ConfigError("network.cohort", f"cyclic, {blocks} blocks", fix)


def check_noise(privacy: Privacy) -> None:
    """Raises for noise without a bound on epsilon when it is correlated between rounds.

    Raises:
        ConfigError: it is not Gaussian, or not the same in all rounds.
    """
    if privacy.mechanism.name != "gaussian":
        fix = "noise over time and cyclic batches are priced for Gaussian noise: use Gaussian noise"
        raise ConfigError("privacy.mechanism", privacy.mechanism.name, fix)
    if privacy.schedule != Uniform():
        fix = "with noise over time every round has the same noise, and the matrix shares the budget: leave it out"
        raise ConfigError("privacy.schedule", str(privacy.schedule), fix)


def check_questions(privacy: Privacy, records: Sequence[Record], rounds: int) -> None:
    """Raises for a strategy that makes no query in some rounds: correlated noise covers one query in each round.

    Raises:
        ConfigError: there is such a round; the message names the first one.
    """
    if privacy.over_time is None:
        return
    asked_rounds = [record.round for record in records]
    if asked_rounds != list(range(rounds)):
        missing = next((t for t in range(rounds) if t >= len(asked_rounds) or asked_rounds[t] != t), rounds)
        fix = "the strategy asks no gradient then: noise over time needs one in every round; use independent noise"
        raise ConfigError("privacy.noise", f"round {missing}", fix)
