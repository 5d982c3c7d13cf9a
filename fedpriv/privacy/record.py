"""One line of the ledger: what was asked and how the answer was noised, never the answer."""

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
from fedpriv.privacy.pairwise import Edges, Pairs, name_of

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
_BRIEF = ("pairs", "time", "batches")  # written only where there is something to say
Packing = Callable[[Any], object]
_PACKED: dict[str, Packing] = {
    "clients": packing.packed_clients,
    "noise_multiplier": packing.packed_numbers,
    "rate": packing.packed_numbers,
}
_UNPACKED: dict[str, Packing] = {
    "clients": packing.unpacked_clients,
    "noise_multiplier": packing.unpacked_numbers,
    "rate": packing.unpacked_numbers,
}


def _plain(value: object) -> object:
    return value


@dataclass(frozen=True)
class Record:
    """One release, without its value: all that its price in epsilon depends on.

    Attributes:
        round: Round of the run, from 0.
        query: `"gradient"`, `"client_gradient"`, `"gradient_difference"`, `"statistic:<name>"` or `"message"`.
        index: Which release of this round, from 0.
        clients: The clients that answered; None means all of them.
        mechanism: Law of the noise. `"none"` is an exact answer and has `non_private` set.
        norm: Norm in which a unit's contribution was clipped.
        bound: Bound C on that norm, rounding included.
        noise_multiplier: Noise scale (standard deviation of a Gaussian, b of a Laplace) over sensitivity, where the
            sensitivity is C (add_remove) or 2C (replace_one). One number, or one for each of `clients`. With `pairs`
            this is the noise of a client's own alone: its price also follows from `pairs` and who took part.
        sampling: How the units behind the answer were drawn.
        rate: Probability (poisson, allocation) or fraction (without_replacement) with which a unit is drawn; 1 when
            full.
        unit: What is protected: one example (`"sample"`) or one client's data (`"client"`).
        relation: Which data sets count as neighbours.
        shared: Further exact numbers about the data that count as known, as printed.
        trust: Who is trusted, as printed, e.g. `"local"`.
        non_private: Why epsilon is infinite; None when it is finite.
        digest: Keyed checksum of the released value: after a crash, the repeated answer must have the same.
        attempt: Number of resumes with fresh noise so far: each draws other noise for the same round.
        pairs: Noise that cancels between pairs of those who answered; None without any.
        time: How the noise is correlated with that of the rounds before; None if it is not. The price then holds for
            all rounds so far together, and `noise_multiplier` is s over sensitivity (`fedpriv.privacy.correlated`).
        batches: Batches of an epoch of random allocation; round r belongs to epoch `r // batches`. None for every other
            sampling. The price is that of the whole epoch, charged once (`fedpriv.privacy.accounting.epochs`).
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
    digest: str | None = None
    attempt: int = 0
    pairs: Pairs | None = None
    time: CorrelatedNoise | None = None
    batches: int | None = None

    def __post_init__(self) -> None:
        # a word that nobody knows would be priced as if it were some other one
        for name, words in _WORDS.items():
            check_choice(f"record.{name}", getattr(self, name), *words)
        if (self.sampling == "allocation") != (self.batches is not None) or (self.batches or 2) < 2:
            fix = "random allocation has at least 2 batches, and no other sampling has any"
            raise ConfigError("record.batches", self.batches, fix)

    def to_json(self) -> str:
        """One line of JSON, in which a digest stands for the pairs that share a secret, and one for the matrix."""
        told = {name: _PACKED.get(name, _plain)(value) for name, value in vars(self).items() if name not in _BRIEF}
        if self.pairs is not None:
            told["pairs"] = {name: getattr(self.pairs, name) for name in sorted(_PAIRS)}
        if self.time is not None:
            told["time"] = {**vars(self.time), "factor": self.time.factor.name}
        if self.batches is not None:
            told["batches"] = self.batches
        return json.dumps(told, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def from_json(line: str, edges: Edges | None = None, factor: Factor | None = None) -> Record:
        """Read one line back.

        Args:
            line: As `to_json` wrote it.
            edges: The pairs that share a secret, where they are not all.
            factor: The matrix of noise that is correlated between rounds, where there is one.

        Raises:
            ValueError: the line is not a record, or other pairs share its secrets, or its matrix is another.
        """
        raw: Any = from_json(line, allow_inf_nan=False)
        if not isinstance(raw, dict) or {*_BRIEF, *raw} != {f.name for f in fields(Record)}:
            raise ValueError("not a ledger record")
        if "pairs" in raw and (not isinstance(raw["pairs"], dict) or {*raw["pairs"]} != _PAIRS):
            raise ValueError("not a ledger record")
        packed = {
            name: unpack(raw[name]) for name, unpack in _UNPACKED.items() if isinstance(raw.get(name), str | dict)
        }
        if "time" in raw:
            time = _over_time(raw.pop("time"), factor)
        else:
            time = None
        told = _RECORD.validate_json(to_json({**raw, **packed}) if packed or time else line, strict=True)
        told = replace(told, time=time)
        if told.pairs is None or told.pairs.secrets == name_of(None):
            return told
        if edges is None or told.pairs.secrets != name_of(edges):
            raise ValueError("the pairs that share its secrets are not on record")
        return replace(told, pairs=replace(told.pairs, edges=edges))


def _over_time(told: Any, factor: Factor | None) -> CorrelatedNoise:  # noqa: ANN401 - whatever a line says
    if not isinstance(told, dict) or {*told} != _TIME:
        raise ValueError("not a ledger record")
    numbers = told["separation"], told["slot"]
    if factor is None or told["factor"] != factor.name or any(type(number) is not int for number in numbers):
        raise ValueError("the matrix of its noise is not on record")
    return CorrelatedNoise(factor, *numbers)


_RECORD = TypeAdapter(Record)  # a number is a number: "3", true and null would be priced as something else
