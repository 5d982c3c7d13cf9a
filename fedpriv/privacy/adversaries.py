"""Defines the adversaries for which the privacy cost of a run is computed, and the values that each adversary observes.

Only proved bounds are claimed. If no smaller bound is known for an adversary, the bound for a stronger adversary is
used; `AdversaryView.bound_of` names this adversary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedpriv.errors import ConfigError, LedgerError, format_count
from fedpriv.privacy.record import Record

MESSAGES = "anyone who sees messages"
SERVER = "the server"
COLLUDERS = "colluding clients"
NEIGHBOUR = "a neighbour on the graph"
MODEL = "final model only"
ADVERSARIES = (MESSAGES, SERVER, COLLUDERS, NEIGHBOUR, MODEL)


@dataclass(frozen=True)
class AdversaryView:
    """The cost of a run for one adversary.

    Attributes:
        records: The records from which the cost is computed; None if nothing hides the data from this adversary.
        assumes: The assumptions of the bound, in words.
        bound_of: The stronger adversary for which the bound was computed; empty if it was computed for this adversary.
    """

    records: Sequence[Record] | None
    assumes: str
    bound_of: str = ""


def format_colluders(count: int) -> str:
    """Returns the name of the adversary of this many colluding clients.

    >>> format_colluders(1), format_colluders(3)
    ('1 colluding client', '3 colluding clients')
    """
    return format_count(count, COLLUDERS.removesuffix("s"))


def compute_view(records: Sequence[Record], n_clients: int, adversary: str, colluders: int) -> AdversaryView:
    """Returns the cost of a run for one adversary.

    Args:
        records: The run's releases.
        n_clients: Number of clients of the run.
        adversary: One of `ADVERSARIES`.
        colluders: Number of colluding clients, for the adversary with colluders.

    Raises:
        LedgerError: If the records name an unknown trust assumption, or several kinds of trust.
    """
    trusts = {record.trust for record in records} or {"local"}
    kinds = {_kind(trust) for trust in trusts}
    if len(kinds) > 1 or not kinds <= {*_VIEWS}:
        raise LedgerError(
            f"the ledger's records have trust {sorted(trusts)}, but an adversary is defined only for records of one "
            f"kind of trust ({', '.join(_VIEWS)}): use the version of fedpriv that wrote the ledger; if this version "
            "wrote it, its records were altered"
        )
    (kind,) = kinds
    adversary_view = _VIEWS[kind](records, n_clients, adversary, colluders)
    if any("no_power_cut" in trust for trust in trusts):
        condition = "; no power cut during the run"
    else:
        condition = ""
    return replace(adversary_view, assumes=adversary_view.assumes + condition)


def is_simulated(records: Sequence[Record]) -> bool:
    """True if the protection of messages is simulated, so that a deployment needs a cryptographic protocol for it."""
    return any("simulated" in trust for trust in {record.trust for record in records})


def describe_amplification(records: Sequence[Record], n_clients: int) -> str:
    """Returns the secret sampling that lowers the cost of the records, in words."""
    causes = dict[str, None]()
    for record in {replace(r, round=0, index=0, clients=None, time=None): None for r in records}:
        if isinstance(record.rate, tuple):
            rates = record.rate
        else:
            rates = (record.rate,)
        rate = max(rates, default=1.0)
        if record.unit == "client":
            units = "clients"
        else:
            units = "examples"
        if record.sampling == "poisson":
            causes[f"{units} drawn in secret, each with probability {rate:.3g}"] = None
        elif record.sampling == "allocation":
            causes[f"each of the {units} in one of {record.batches} batches of an epoch, in secret"] = None
        elif record.sampling == "without_replacement":
            causes[f"batches of fixed size drawn in secret, {rate:.3g} of a client's {units}"] = None
    if any(record.clients is not None and len(record.clients) < n_clients for record in records):
        causes["none for the choice of participants, since silence is visible"] = None
    separations = {record.time.separation for record in records if record.time is not None}
    for separation in sorted(separations):
        if separation > 1:
            causes[f"none; a privacy unit takes part in every {_ordinal(separation)} round"] = None
    return "; ".join(causes) or "none"


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def _kind(trust: str) -> str:
    """Returns the name of a trust without its arguments; empty if the text has none."""
    match = re.match(r"\w+", trust.removesuffix("+no_power_cut"))
    if match:
        return match[0]
    return ""


def _local(records: Sequence[Record], n_clients: int, adversary: str, colluders: int) -> AdversaryView:
    assumption = "each client adds all the noise that its own guarantee needs; any number of others may collude"
    if adversary in (COLLUDERS, NEIGHBOUR, MODEL):
        stronger = MESSAGES
    else:
        stronger = ""
    return AdversaryView(records, assumption, stronger)


def _central(records: Sequence[Record], n_clients: int, adversary: str, colluders: int) -> AdversaryView:
    if adversary == SERVER:
        return AdversaryView(None, "the server is trusted: it sees every client's contribution without noise")
    if adversary == MESSAGES:
        return AdversaryView(None, "messages to the trusted server have no noise: encrypt them, and hide the senders")
    assumption = "a trusted server adds the noise, and only sums leave it"
    if adversary == COLLUDERS:
        stronger = ""
    else:
        stronger = "any number of colluding clients who see all sums"
    return AdversaryView(records, assumption, stronger)


def _secure_aggregation(records: Sequence[Record], n_clients: int, adversary: str, colluders: int) -> AdversaryView:
    count = {COLLUDERS: colluders, NEIGHBOUR: 1}.get(adversary, 0)
    match = re.search(r"min_honest=(\d+)", records[0].trust)
    if match is None:
        raise LedgerError(
            f"the ledger's trust {records[0].trust!r} does not state the number of honest clients: restore the ledger "
            "from a copy"
        )
    honest = int(match[1])
    honest_records = [_with_honest(record, n_clients, count, honest) for record in records]
    assumption = (
        f"a real protocol reveals only sums, and {honest} participants of each round add their share of the noise"
    )
    if None in honest_records:
        return AdversaryView(
            None, f"{assumption}; with {format_count(count, 'colluder')} fewer remain, and the noise is not Gaussian"
        )
    if adversary in (NEIGHBOUR, MODEL):
        stronger = "anyone who sees all sums"
    else:
        stronger = ""
    if count and any(
        honest_record is not record for honest_record, record in zip(honest_records, records, strict=True)
    ):
        assumption = f"a real protocol reveals only sums, and all participants but {count} add their share of the noise"
    return AdversaryView(
        [honest_record for honest_record in honest_records if honest_record is not None], assumption, stronger
    )


def _with_honest(record: Record, n_clients: int, colluders: int, min_honest: int) -> Record | None:
    """Returns a record with only the noise of clients that do not collude; None if no cost is known for this record."""
    if record.clients is None:
        participants = n_clients
    else:
        participants = len(record.clients)
    honest = max(1, participants - colluders)
    if honest >= min_honest or record.mechanism == "none":
        return record
    if record.mechanism != "gaussian":
        return None
    factor = math.sqrt(honest / min_honest)
    noise = record.noise_multiplier
    if isinstance(noise, tuple):
        scaled = tuple(each * factor for each in noise)
    else:
        scaled = noise * factor
    return replace(record, noise_multiplier=scaled)


def _pairwise(records: Sequence[Record], n_clients: int, adversary: str, colluders: int) -> AdversaryView:
    count = {COLLUDERS: colluders, NEIGHBOUR: 1}.get(adversary, 0)
    if count == 1:
        all_messages = "one colluder who sees every message"
    else:
        all_messages = f"{count} colluders who see every message"
    stronger = {
        NEIGHBOUR: all_messages,
        COLLUDERS: all_messages,
        MODEL: MESSAGES,
    }.get(adversary, "")
    with_count = [
        record if record.pairs is None else replace(record, pairs=replace(record.pairs, colluders=count))
        for record in records
    ]
    assumption = "pairs of clients keep their secrets from all others"
    declared = max((record.pairs.colluders for record in records if record.pairs is not None), default=0)
    if _has_known_cost(with_count, n_clients):
        return AdversaryView(with_count, f"{assumption}, and {_describe_revealing(count)}", stronger)
    if count <= declared and _has_known_cost(records, n_clients):
        return AdversaryView(
            records,
            f"{assumption}, and {_describe_revealing(declared)}",
            format_count(declared, "colluder"),
        )
    return AdversaryView(
        None,
        f"{assumption}; with {format_count(count, 'colluder')} no bound is known: too many sets of colluders to check",
    )


def _describe_revealing(count: int) -> str:
    if count == 0:
        return "none of them reveals its secrets to others"
    if count == 1:
        return "at most 1 of them reveals its secrets to others"
    return f"at most {count} of them reveal their secrets to others"


def _has_known_cost(records: Sequence[Record], n_clients: int) -> bool:
    """True if the cost of the pairwise noise in these records is known."""
    from fedpriv.privacy.accounting.pairwise import compute_exposure

    try:
        for pairs, clients in {(record.pairs, record.clients) for record in records}:
            if pairs is not None:
                compute_exposure(pairs, clients, n_clients)
    except ConfigError:
        return False
    return True


_VIEWS: dict[str, Callable[[Sequence[Record], int, str, int], AdversaryView]] = {
    "local": _local,
    "central": _central,
    "secure_aggregation": _secure_aggregation,
    "pairwise": _pairwise,
}
