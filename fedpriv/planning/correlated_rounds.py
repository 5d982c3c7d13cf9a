"""Selects the matrix of noise that is correlated between rounds, and rejects runs that cannot have such noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedpriv.distributed import threads
from fedpriv.errors import ConfigError
from fedpriv.network.local import Star
from fedpriv.network.rounds import RoundNetwork
from fedpriv.privacy.correlated import INDEPENDENT, CorrelatedNoise, Factor
from fedpriv.privacy.matrices import BLT, Banded, Follow, unknown
from fedpriv.privacy.pairwise import Pairwise
from fedpriv.privacy.record import Record
from fedpriv.privacy.schedules import Uniform
from fedpriv.privacy.settings import Central, Cyclic, FullBatch, Independent, Local, Privacy, SecureAggregation


def with_matrix(
    privacy: Privacy, network: RoundNetwork, rounds: int, follow: Follow = unknown, begun: Factor | None = None
) -> Privacy:
    """Fills in the matrix of a run's noise, if noise is correlated between rounds or batches are cyclic.

    The settings of batches and cohorts and the number of rounds determine in which rounds one privacy unit takes part.
    For independent noise on cyclic batches, the matrix is the identity.

    Args:
        privacy: The privacy settings.
        network: Determines the participants of a round.
        rounds: Number of rounds.
        follow: See `fedpriv.privacy.matrices.Follow`.
        begun: The matrix with which a resumed run began. It is reused because an optimiser may find other last digits
            on another machine.

    Raises:
        ConfigError: If the settings do not fix how often a unit takes part, or no privacy cost is known for the noise.
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
            fix = (
                f"in this run, a privacy unit takes part in one of {separation} rounds, but the matrix of the noise "
                "is for another number; use BSR, Banded or BLT, which compute the matrix for the run"
            )
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
    """Returns the number of rounds in a cycle. A unit takes part in one round of each cycle."""
    if privacy.unit == "sample":
        if isinstance(privacy.sampling, Cyclic):
            return privacy.sampling.blocks
        return 1
    return count_blocks(network)


def count_blocks(network: RoundNetwork) -> int:
    """Returns the number of fixed blocks of clients that take turns; 1 if there are none."""
    if isinstance(network, Star):
        return network.blocks
    return 1


def check_participation(privacy: Privacy, network: RoundNetwork) -> None:
    """Raises an error for batches and cohorts that do not fix the rounds in which a unit takes part.

    Raises:
        ConfigError: If the rounds are not fixed; the message names the setting.
    """
    if privacy.unit == "sample" and not isinstance(privacy.sampling, FullBatch | Cyclic):
        fix = "batches in which the rounds of each example are fixed: use {cyclic: {blocks: B}} or full"
        raise ConfigError("privacy.sampling", str(privacy.sampling), f"correlated noise (noise.correlated) needs {fix}")
    if privacy.cohort_rate < 1:
        fix = (
            "secret cohorts give no advantage with correlated noise (noise.correlated): use network.cohort: {cyclic: "
            "{blocks: B}}"
        )
        if privacy.cohort_rounds is None:
            raise ConfigError("privacy.trust.cohort_rate", privacy.cohort_rate, fix)
        raise ConfigError("privacy.trust.cohort_rounds", privacy.cohort_rounds, fix)
    if network.everyone:
        return
    blocks = count_blocks(network)
    if blocks == 1:
        fix = (
            "correlated noise (noise.correlated) and cyclic batches need all clients in every round, or {cyclic: "
            "{blocks: B}} on a star"
        )
        raise ConfigError("network.cohort", "not everyone", fix)
    if privacy.unit == "sample" or isinstance(privacy.sampling, Cyclic):
        fix = "correlated noise with cyclic cohorts needs unit: client, and no cyclic batches; or use all clients"
        raise ConfigError("network.cohort", f"cyclic, {blocks} blocks", fix)
    if not isinstance(privacy.trust, Central | SecureAggregation):
        fix = (
            "the noise of an earlier cohort is cancelled only if all clients send noise in every round (trust: "
            "secure_aggregation) or a server adds all noise (trust: central): use one of these, or all clients"
        )
        raise ConfigError("network.cohort", f"cyclic, {blocks} blocks", fix)


def check_noise(privacy: Privacy) -> None:
    """Raises an error for noise without a bound on epsilon when it is correlated between rounds.

    Raises:
        ConfigError: If the noise is not Gaussian, or its scale is not the same in all rounds, or there is no proof for
            such noise under the trust assumption.
    """
    trust = privacy.trust
    # a trust that is added later has no proof yet
    if not isinstance(trust, Local | Pairwise | Central | SecureAggregation):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            "privacy.trust", str(trust), "no proof covers correlated noise under this trust: use independent noise"
        )
    if privacy.mechanism.name != "gaussian":
        fix = "correlated noise (noise.correlated) and cyclic batches need Gaussian noise"
        raise ConfigError("privacy.mechanism", privacy.mechanism.name, fix)
    if privacy.schedule != Uniform():
        fix = (
            "with correlated noise (noise.correlated), the matrix determines the noise, and every round has the same "
            "share: leave the schedule out"
        )
        raise ConfigError("privacy.schedule", str(privacy.schedule), fix)


def check_queries(privacy: Privacy, records: Sequence[Record], rounds: int) -> None:
    """Raises an error for a strategy that makes no query in some rounds, because correlated noise needs one query in
    each round.

    Raises:
        ConfigError: If there is such a round; the message names the first one.
    """
    if privacy.over_time is None:
        return
    asked_rounds = [record.round for record in records]
    if asked_rounds != list(range(rounds)):
        missing = next((t for t in range(rounds) if t >= len(asked_rounds) or asked_rounds[t] != t), rounds)
        fix = (
            "the strategy makes no gradient query in this round, but correlated noise (noise.correlated) needs one in "
            "every round; use independent noise"
        )
        raise ConfigError("privacy.noise", f"round {missing}", fix)
