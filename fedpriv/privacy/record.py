"""One line of the ledger. It contains the query and the facts about the noise of its release, but never the released
value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from fedpriv.errors import ConfigError, check_choice
from fedpriv.privacy import packing
from fedpriv.privacy.clipping import NormName
from fedpriv.privacy.correlated import CorrelatedNoise, Factor
from fedpriv.privacy.pairwise import Edges, Pairs, name_pairs

NoiseDistributionName = Literal["gaussian", "laplace"]
MechanismName = Literal[NoiseDistributionName, "none"]
SamplingName = Literal["full", "poisson", "without_replacement", "allocation"]
Unit = Literal["sample", "client"]
Relation = Literal["replace_one", "add_remove"]
PerClient = float | tuple[float, ...]
_WORDS = {
    "mechanism": get_args(MechanismName),
    "sampling": get_args(SamplingName),
    "unit": get_args(Unit),
    "relation": get_args(Relation),
    "norm": get_args(NormName),
}


_PAIRS = {"ratio", "colluders", "secrets"}
_TIME = {"factor", "separation", "slot"}
_OPTIONAL = ("pairs", "time", "batches")  # fields that are written only if they are not None
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
Packing = Callable[[Any], object]
_PACKED: dict[str, Packing] = {
    "clients": packing.pack_clients,
    "noise_multiplier": packing.pack_numbers,
    "rate": packing.pack_numbers,
}
_UNPACKED: dict[str, Packing] = {
    "clients": packing.unpack_clients,
    "noise_multiplier": packing.unpack_numbers,
    "rate": packing.unpack_numbers,
}


@dataclass(frozen=True)
class Record:
    """One release without its value. It contains all facts that determine the privacy cost.

    Attributes:
        round: Round of the run, from 0.
        query: `"gradient"`, `"client_gradient"`, `"gradient_difference"`, `"statistic:<name>"` or `"message"`.
        index: Number of this release within its round, from 0.
        clients: The clients that computed the query result; None means all of them.
        mechanism: Distribution of the noise. `"none"` is an exact release and has `non_private` set.
        norm: Norm in which a unit's contribution was clipped.
        bound: Bound C on that norm, rounding included. If two contributions differ by at most D < 2C, it is D / 2 under
            replace_one (`fedpriv.privacy.hulls`).
        noise_multiplier: Noise scale (standard deviation of a Gaussian, b of a Laplace) over sensitivity, where the
            sensitivity is C (add_remove) or 2C (replace_one). One number, or one for each of `clients`. With `pairs`
            this is a client's individual noise alone, and the cost also depends on `pairs` and on the participants.
        sampling: Sampling of the units of the release.
        rate: Probability (poisson, allocation) or fraction (without_replacement) with which a unit is drawn; 1 when
            full.
        unit: Privacy unit: one example (`"sample"`) or one client's data (`"client"`).
        relation: Which data sets count as neighbours.
        shared: Further exact numbers about the data that count as public, as printed.
        trust: The trust assumption, as printed, e.g. `"local"`.
        non_private: Reason why epsilon is infinite; None if it is finite.
        attempt: Label that distinguishes releases of the same round in a run and its extension, in the trials of a
                search, or after different starts of a site. Each has independent noise and random allocations.
        pairs: The noise that cancels between pairs of these clients; None if there is none.
        time: Correlation of the noise with earlier rounds; None for independent noise. The cost then covers all rounds
            so far together, and `noise_multiplier` is s divided by the sensitivity (`fedpriv.privacy.correlated`).
        batches: Batches of an epoch of random allocation; round r belongs to epoch `r // batches`. None for every other
            sampling. The cost covers the whole epoch and is counted once (`fedpriv.privacy.accounting.epochs`).
    """

    round: int
    query: str
    index: int
    mechanism: MechanismName
    noise_multiplier: PerClient
    unit: Unit
    relation: Relation
    clients: tuple[int, ...] | None = None
    norm: NormName = "l2"
    bound: float = 1.0
    sampling: SamplingName = "full"
    rate: PerClient = 1.0
    shared: str = ""
    trust: str = "local"
    non_private: str | None = None
    attempt: int = 0
    pairs: Pairs | None = None
    time: CorrelatedNoise | None = None
    batches: int | None = None

    def __post_init__(self) -> None:
        # the cost of an unknown word would be computed as if it were another one
        for name, words in _WORDS.items():
            value = getattr(self, name)
            if value not in words:
                check_choice(f"record.{name}", value, *words)
        if (self.sampling == "allocation") != (self.batches is not None) or (self.batches or 2) < 2:
            fix = "must be at least 2 for random allocation, and None for other sampling"
            raise ConfigError("record.batches", self.batches, fix)

    @property
    def costs_each_client_alike(self) -> bool:
        """True if the privacy cost is the same for each client of the record, for any clients."""
        per_client = isinstance(self.noise_multiplier, tuple) or isinstance(self.rate, tuple)
        depends_on_others = self.pairs is not None or self.time is not None or self.batches is not None
        return self.clients is not None and not per_client and not depends_on_others

    def changed(self, **values: Any) -> Record:  # noqa: ANN401 - a value of any field
        """Returns this record with other values of the fields round, clients, bound or attempt, which need no check."""
        # `replace` would check the record again, in thirty times the time
        record = object.__new__(Record)
        record.__dict__.update(vars(self), **values)
        return record

    def to_json(self) -> str:
        """Returns one line of JSON, with digests instead of the pairs that share a secret and of the noise matrix."""
        values: dict[str, Any] = dict(vars(self))
        for name in _OPTIONAL:
            del values[name]
        for name, pack in _PACKED.items():
            values[name] = pack(values[name])
        if self.pairs is not None:
            values["pairs"] = {name: getattr(self.pairs, name) for name in sorted(_PAIRS)}
        if self.time is not None:
            values["time"] = {**vars(self.time), "factor": self.time.factor.name}
        if self.batches is not None:
            values["batches"] = self.batches
        return _ENCODER.encode(values)

    @staticmethod
    def from_json(line: str, edges: Edges | None = None, factor: Factor | None = None) -> Record:
        """Reads a record from a line that `to_json` wrote.

        Args:
            line: The line.
            edges: The pairs that share a secret; None if all do.
            factor: The matrix of noise that is correlated between rounds; None if there is none.

        Raises:
            ValueError: If the line is not a record, or its digest of the pairs or of the matrix does not match the
                arguments.
        """
        raw: Any = from_json(line, allow_inf_nan=False)
        if not isinstance(raw, dict) or {*_OPTIONAL, *raw} != {f.name for f in fields(Record)}:
            raise ValueError("not a ledger record")
        if "pairs" in raw and (not isinstance(raw["pairs"], dict) or {*raw["pairs"]} != _PAIRS):
            raise ValueError("not a ledger record")
        unpacked = {
            name: unpack(raw[name]) for name, unpack in _UNPACKED.items() if isinstance(raw.get(name), str | dict)
        }
        if "time" in raw:
            time = _read_correlation(raw.pop("time"), factor)
        else:
            time = None
        # most lines are validated as they are, without writing JSON again
        if unpacked or time:
            line = to_json({**raw, **unpacked}).decode()
        record = replace(_RECORD.validate_json(line, strict=True), time=time)

        # in the line, a digest replaces the pairs that share a secret
        if record.pairs is None or record.pairs.secrets == name_pairs(None):
            return record
        if edges is None or record.pairs.secrets != name_pairs(edges):
            raise ValueError("the pairs that share its secrets are not recorded")
        return replace(record, pairs=replace(record.pairs, edges=edges))


def _read_correlation(raw: Any, factor: Factor | None) -> CorrelatedNoise:  # noqa: ANN401 - any JSON value
    """Reads a record's `time` field, in which a digest replaces the matrix."""
    if not isinstance(raw, dict) or {*raw} != _TIME:
        raise ValueError("not a ledger record")
    separation = raw["separation"]
    slot = raw["slot"]
    # `type`, not `isinstance`: true and false are no numbers here
    if factor is None or raw["factor"] != factor.name or type(separation) is not int or type(slot) is not int:
        raise ValueError("the matrix of its noise is not recorded")
    return CorrelatedNoise(factor, separation, slot)


# strict validation: the cost of "3", true or null instead of a number would be wrong
_RECORD = TypeAdapter(Record)
