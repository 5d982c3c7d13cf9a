"""Who sees what of a run, and which bound holds against them.

Nothing is claimed that is not proved: where no smaller bound is known for an adversary, it is that of a stronger one,
and says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedpriv.errors import ConfigError, LedgerError
from fedpriv.privacy.record import Record

MESSAGES, SERVER, COLLUDERS, NEIGHBOUR, MODEL = (
    "whoever sees messages",
    "the server",
    "colluding clients",
    "a neighbour on the graph",
    "final model only",
)
ADVERSARIES = (MESSAGES, SERVER, COLLUDERS, NEIGHBOUR, MODEL)


@dataclass(frozen=True)
class AdversaryView:
    """How a run is priced against one adversary.

    Attributes:
        records: The records as they are priced; None if nothing hides the data from this adversary.
        assumes: What must hold, in words.
        bound_of: The stronger adversary whose bound this is; empty if it is the adversary's own.
    """

    records: Sequence[Record] | None
    assumes: str
    bound_of: str = ""


def view(records: Sequence[Record], n_clients: int, adversary: str, colluders: int) -> AdversaryView:
    """What one adversary sees of a run.

    Args:
        records: The run's releases.
        n_clients: Number of clients of the run.
        adversary: One of `ADVERSARIES`.
        colluders: How many clients collude, for that adversary.

    Raises:
        LedgerError: the records name a trust that nobody knows, or several.
    """
    trusts = {record.trust for record in records} or {"local"}
    kinds = {_kind(trust) for trust in trusts}
    if len(kinds) > 1 or not kinds <= {*_VIEWS}:
        raise LedgerError(f"the ledger's records have trust {sorted(trusts)}: their adversary is not known")
    (kind,) = kinds
    found = _VIEWS[kind](records, n_clients, adversary, colluders)
    if any("no_power_cut" in trust for trust in trusts):
        power = "; no power cut while it ran"
    else:
        power = ""
    return replace(found, assumes=found.assumes + power)


def simulated(records: Sequence[Record]) -> bool:
    """Whether the protection of messages is simulated, so that a deployment needs a protocol for it."""
    return any("simulated" in trust for trust in {record.trust for record in records})


def amplification(records: Sequence[Record], n_clients: int) -> str:
    """What lowers the price of the records by secret sampling, in words."""
    found = dict[str, None]()
    for record in {replace(r, round=0, index=0, digest=None, clients=None, time=None): None for r in records}:
        if isinstance(record.rate, tuple):
            rates = record.rate
        else:
            rates = (record.rate,)
        rate, what = max(rates, default=1.0), "clients" if record.unit == "client" else "examples"
        if record.sampling == "poisson":
            found[f"{what} drawn in secret, each with probability {rate:.3g}"] = None
        elif record.sampling == "allocation":
            found[f"each of the {what} in one of {record.batches} batches of an epoch, in secret"] = None
        elif record.sampling == "without_replacement":
            found[f"batches of fixed size drawn in secret, {rate:.3g} of a client's {what}"] = None
    if any(record.clients is not None and len(record.clients) < n_clients for record in records):
        found["none for who takes part, for silence is seen"] = None
    turns = {record.time.separation for record in records if record.time is not None}
    found |= {f"none; a unit takes part in every {_th(turn)} round": None for turn in sorted(turns) if turn > 1}
    return "; ".join(found) or "none"


def _th(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def _kind(trust: str) -> str:
    found = re.match(r"\w+", trust.removesuffix("+no_power_cut"))
    if found:
        return found[0]
    return ""


def _local(records: Sequence[Record], n_clients: int, adversary: str, colluders: int) -> AdversaryView:
    said = "each client adds all the noise that it needs; any number of others may collude"
    if adversary in (COLLUDERS, NEIGHBOUR, MODEL):
        weaker = MESSAGES
    else:
        weaker = ""
    return AdversaryView(records, said, weaker)


def _central(records: Sequence[Record], n_clients: int, adversary: str, colluders: int) -> AdversaryView:
    if adversary == SERVER:
        return AdversaryView(None, "the server is trusted: it sees every client's contribution without noise")
    if adversary == MESSAGES:
        return AdversaryView(
            None, "what clients send to the trusted server has no noise: encrypt it, and hide who sends"
        )
    said = "a trusted server adds the noise, and only sums leave it"
    return AdversaryView(
        records, said, "" if adversary == COLLUDERS else "any number of colluding clients, who see all sums"
    )


def _secure_aggregation(records: Sequence[Record], n_clients: int, adversary: str, colluders: int) -> AdversaryView:
    count = {COLLUDERS: colluders, NEIGHBOUR: 1}.get(adversary, 0)
    found = re.search(r"min_honest=(\d+)", records[0].trust)
    if found is None:
        raise LedgerError(f"the ledger's trust {records[0].trust!r} does not say how many are honest")
    honest = int(found[1])
    left = [_with_honest(record, n_clients, count, honest) for record in records]
    said = f"a real protocol shows sums only, and {honest} participants of each round add their share of the noise"
    if None in left:
        return AdversaryView(None, f"{said}; with {count} colluders fewer are left, and the noise is not Gaussian")
    if adversary in (NEIGHBOUR, MODEL):
        stronger = "whoever sees all sums"
    else:
        stronger = ""
    if count and any(one is not record for one, record in zip(left, records, strict=True)):
        said = f"a real protocol shows sums only, and all participants but {count} add their share of the noise"
    return AdversaryView([one for one in left if one is not None], said, stronger)


def _with_honest(record: Record, n_clients: int, colluders: int, min_honest: int) -> Record | None:
    """A record with the noise of those who do not collude; None where that has no price."""
    if record.clients is None:
        participants = n_clients
    else:
        participants = len(record.clients)
    honest = max(1, participants - colluders)
    if honest >= min_honest or record.mechanism == "none":
        return record
    if record.mechanism != "gaussian":
        return None
    factor, noise = math.sqrt(honest / min_honest), record.noise_multiplier
    if isinstance(noise, tuple):
        scaled = tuple(each * factor for each in noise)
    else:
        scaled = noise * factor
    return replace(record, noise_multiplier=scaled)


def _pairwise(records: Sequence[Record], n_clients: int, adversary: str, colluders: int) -> AdversaryView:
    count = {COLLUDERS: colluders, NEIGHBOUR: 1}.get(adversary, 0)
    stronger = {
        NEIGHBOUR: "one colluder who sees every message",
        COLLUDERS: f"{count} colluders who see every message",
        MODEL: MESSAGES,
    }.get(adversary, "")
    told = [
        record if record.pairs is None else replace(record, pairs=replace(record.pairs, colluders=count))
        for record in records
    ]
    said = "pairs of clients keep their secrets from all others"
    declared = max((record.pairs.colluders for record in records if record.pairs is not None), default=0)
    if _priced(told, n_clients):
        if count:
            who = f"at most {count} of them tell{'s' * (count == 1)}"
        else:
            who = "none of them tells"
        return AdversaryView(told, f"{said}, and {who} others", stronger)
    if count <= declared and _priced(records, n_clients):
        return AdversaryView(records, f"{said}, and at most {declared} of them tell others", f"{declared} colluders")
    return AdversaryView(None, f"{said}; with {count} colluders no bound is known: too many sets of them to look at")


def _priced(records: Sequence[Record], n_clients: int) -> bool:
    from fedpriv.privacy.accounting.pairwise import exposure

    try:
        for pairs, clients in {(record.pairs, record.clients) for record in records}:
            if pairs is not None:
                exposure(pairs, clients, n_clients)
    except ConfigError:
        return False
    return True


_VIEWS: dict[str, Callable[[Sequence[Record], int, str, int], AdversaryView]] = {
    "local": _local,
    "central": _central,
    "secure_aggregation": _secure_aggregation,
    "pairwise": _pairwise,
}
