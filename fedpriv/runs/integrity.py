"""Check that the files of a run are complete and belong together.

A run writes the ledger first, then the metrics, then the checkpoint; after a crash each may be ahead of the next. A
file that is behind the next one has lost lines (*incomplete*); files that contradict each other were changed
(*altered*). docs/reliability.md says what the ledger's hash chain can prove.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from fedpriv.errors import LedgerError
from fedpriv.planning.plan import Plan
from fedpriv.privacy.chain import link_of
from fedpriv.privacy.ledger import LedgerPosition
from fedpriv.runs.run_files import RunFiles
from fedpriv.runs.settings_in_words import difference, settings_in_words
from fedpriv.storage.identity import of_config

_KIND = ("unit", "relation")
_SLACK = 1e-6  # relative: an epsilon that is counted again on another machine may differ in its last bits


@dataclass(frozen=True)
class IntegrityProblem:
    """Something that is wrong with a run's files.

    Attributes:
        kind: `"incomplete"`: something is missing. `"altered"`: something was changed.
        text: What, in a sentence.
    """

    kind: Literal["incomplete", "altered"]
    text: str


def findings(files: RunFiles) -> list[IntegrityProblem]:
    """What is wrong with a run's files, as found by comparing them. Empty for an intact run, also after a crash."""
    if files.ledger.altered:
        return [IntegrityProblem("altered", files.ledger.altered)]
    found = [*_of_heads(files), *_of_rounds(files), *_of_config(files)]
    if files.result is not None:
        found += _of_result(files, files.result)
    return found or [*_of_records(files)]


def unsealed(files: RunFiles, key: bytes) -> IntegrityProblem | None:
    """The first line of the ledger, or the result, that was not sealed with the key; None if all were."""
    for number, link in enumerate(files.ledger.links, start=1):
        if not link.is_of(key):
            if number == 1:
                other = "another run's key, or none of its lines was written with it"
            else:
                other = "and what follows"
            return IntegrityProblem(
                "altered", f"{files.ledger.path}, line {number} is not sealed with this key ({other})"
            )
    if files.result is not None:
        link = link_of(files.result, files.ledger.links[-1].chain)
        if link is None or not link.is_of(key):
            return IntegrityProblem("altered", f"{files.folder / 'result.json'} is not sealed with this key")
    return None


def refuse(found: Sequence[IntegrityProblem]) -> None:
    """Raise if anything was found.

    Raises:
        LedgerError: says what.
    """
    if found:
        said = "; ".join(f"{one.kind}: {one.text}" for one in found)
        raise LedgerError(f"{said}. What was spent is unknown: restore the files from a copy")


def check_resumed(folder: Path, plan: Plan, key: bytes) -> None:
    """Check that a stopped run can go on: its files fit each other, its plan and its key.

    Args:
        folder: The run's folder.
        plan: The plan, made anew from the settings.
        key: Secret key of the ledger's seals.

    Raises:
        LedgerError: they do not, or the ledger is missing or damaged.
    """
    files = RunFiles.read(folder)
    found = findings(files)
    if not found:
        found = [one for one in (unsealed(files, key), *against_plan(files, plan)) if one is not None]
    refuse(found)


def against_plan(files: RunFiles, plan: Plan) -> Iterator[IntegrityProblem]:
    """What in a ledger contradicts the run's plan: other facts in its header, or records with more noise."""
    header, privacy = files.ledger.header, plan.privacy
    facts = {"n_clients": plan.n_clients, "delta": privacy.delta, "planned": len(plan.records)}
    for name, planned in facts.items():
        said = getattr(header, name)
        if said is not None and said != planned:
            text = f"{files.ledger.path}, line 1 has {name} = {said!r}, and the run's plan {planned!r}"
            yield IntegrityProblem("altered", text)
    asked = {(record.round, record.query, record.index): record for record in plan.records}
    for number, record in enumerate(files.ledger.records, start=2):
        found = asked.get((record.round, record.query, record.index))
        if found is None:
            planned = None
        else:
            planned = found.noise_multiplier
        if found is not None and found.pairs != record.pairs:
            yield IntegrityProblem(
                "altered", f"{files.ledger.path}, line {number} has noise of other pairs than the plan"
            )
            return
        if found is not None and found.time != record.time:
            yield IntegrityProblem(
                "altered", f"{files.ledger.path}, line {number} has noise of another matrix than the plan"
            )
            return
        if planned is not None and _largest(record.noise_multiplier) > _largest(planned) * (1 + _SLACK):
            said = f"noise multiplier {record.noise_multiplier!r} where the plan has {planned!r}"
            yield IntegrityProblem("altered", f"{files.ledger.path}, line {number} has {said}")
            return


def _largest(multiplier: float | tuple[float, ...]) -> float:
    if isinstance(multiplier, tuple):
        return max(multiplier)
    return multiplier


def _marks(files: RunFiles) -> Iterator[tuple[str, LedgerPosition]]:
    """How far the ledger had come, by each of the other files."""
    if files.checkpoint is not None:
        yield "the checkpoint has seen", LedgerPosition(files.checkpoint.records, files.checkpoint.head)
    for row in files.metrics:
        if "releases" in row:
            yield "the metrics tell of", LedgerPosition(row["releases"], row.get("head"))
    if files.result is not None:
        yield "result.json counts", LedgerPosition(files.result["releases"], files.result.get("head"))


def _of_heads(files: RunFiles) -> Iterator[IntegrityProblem]:
    """The ledger against those that counted it."""
    ledger, held, result = files.ledger, len(files.ledger.texts), files.result
    said, counted = max(_marks(files), key=lambda one: one[1].releases, default=("", LedgerPosition(0, None)))
    if counted.releases > held:
        yield IntegrityProblem("incomplete", f"{ledger.path} holds {held} records but {said} {counted.releases}")
    if result is not None and result["releases"] < held:
        yield IntegrityProblem(
            "altered", f"{ledger.path} holds {held} records and result.json counts {result['releases']}"
        )
    if held and result is None and files.checkpoint is None and files.unread is None:
        yield IntegrityProblem("incomplete", f"{files.folder / 'checkpoint.pt'} is missing")
    if files.unread is not None:
        yield IntegrityProblem("incomplete", files.unread)
    for said, mark in _marks(files):
        if mark.releases <= held and mark.head != ledger.head(mark.releases):
            noted = f"{said} {mark.releases} records, with another hash at their end"
            yield IntegrityProblem("altered", f"{noted} than line {mark.releases + 1} of {ledger.path} has")
            return


def _of_rounds(files: RunFiles) -> Iterator[IntegrityProblem]:
    """The metrics have one row for each round that others know of."""
    rounds, path = [row["round"] for row in files.metrics], files.folder / "metrics.jsonl"
    gap = next((number for number, found in enumerate(rounds, start=1) if number != found), None)
    if gap is not None:
        yield IntegrityProblem("incomplete", f"{path} lacks round {gap}, or has rounds in another order")
    elif files.result is not None and len(rounds) != files.result["rounds"]:
        if len(rounds) < files.result["rounds"]:
            kind = "incomplete"
        else:
            kind = "altered"
        yield IntegrityProblem(kind, f"{path} has {len(rounds)} rounds and result.json {files.result['rounds']}")
    elif files.checkpoint is not None and files.config is not None and len(rounds) < files.checkpoint.round:
        yield IntegrityProblem(
            "incomplete", f"{path} has {len(rounds)} rounds and the checkpoint {files.checkpoint.round}"
        )


def _of_config(files: RunFiles) -> Iterator[IntegrityProblem]:
    """The configuration is the one that the run began with."""
    known = files.ledger.header.config
    if files.config is not None and known is not None and of_config(files.config) != known:
        told = _changed_settings(files)
        which = f" ({told})" if told else ""
        yield IntegrityProblem(
            "altered", f"{files.folder / 'config.yaml'} is not the one that the run began with{which}"
        )


def _changed_settings(files: RunFiles) -> str:
    """Which settings of the configuration changed since the checkpoint; empty where that is not known."""
    if files.checkpoint is None:
        words = {}
    else:
        words = files.checkpoint.words
    before = {name: text for name, text in words.items() if name.startswith("config.")}
    now = settings_in_words(config=files.config)
    if before:
        return difference(before, {name: now[name] for name in now if not name.startswith("config.log")})
    return ""


def _asked(files: RunFiles, name: str) -> Any:  # noqa: ANN401 - a setting is what it is
    """A privacy setting of the configuration; None if it has none."""
    privacy = (files.config or {}).get("privacy")
    if isinstance(privacy, dict):
        return cast("dict[str, Any]", privacy).get(name)
    return None


def _of_turns(files: RunFiles) -> Iterator[IntegrityProblem]:
    """Blocks of examples or clients that take turns: as many as the configuration says, which lowers the price."""
    time, config = next((record.time for record in files.ledger.records), None), files.config
    if time is None or config is None:
        return
    network = config.get("network")
    if isinstance(network, dict):
        cohort: Any = network.get("cohort")
    else:
        cohort = None
    if _asked(files, "unit") == "client":
        said = cohort
    else:
        said = _asked(files, "sampling")
    if isinstance(said, dict):
        cyclic: Any = cast("dict[str, Any]", said).get("cyclic")
    else:
        cyclic = None
    if isinstance(cyclic, dict):
        blocks = cyclic.get("blocks")
    else:
        blocks = 1
    if blocks != time.separation:
        text = f"config.yaml has {blocks!r} blocks take turns, and the ledger {time.separation}"
        yield IntegrityProblem("altered", text)


def _of_result(files: RunFiles, result: dict[str, Any]) -> Iterator[IntegrityProblem]:
    """The result is the one that the run ended with."""
    if link_of(result, str(result.get("head"))) is None:
        yield IntegrityProblem("altered", f"{files.folder / 'result.json'} is not as it was written")


def _of_records(files: RunFiles) -> Iterator[IntegrityProblem]:
    """What was released against what was allowed, and its price against the one that was said."""
    counted, target = files.counted, _asked(files, "epsilon")
    first = files.ledger.records[:1]
    released = {"delta": counted.delta, **{name: getattr(record, name) for record in first for name in _KIND}}
    for name, found in released.items() if _asked(files, "at") != "none" else ():
        if _asked(files, name) not in (None, found):
            yield IntegrityProblem(
                "altered", f"config.yaml has {name} = {_asked(files, name)!r}, and the ledger {found!r}"
            )
    yield from _of_turns(files)
    if isinstance(target, int | float) and target * (1 + _SLACK) < counted.epsilon < math.inf:
        yield IntegrityProblem("altered", f"the ledger's records cost more than the {target:g} that config.yaml allows")
    if files.result is not None:
        said, whole = float(files.result["epsilon"]), files.result["ended"] in ("rounds", "budget")
        # a run that its strategy ended is charged for its whole plan, of which the ledger holds a part
        if not math.isclose(said, counted.epsilon, rel_tol=_SLACK) and (whole or said < counted.epsilon):
            text = f"the epsilon of {said:.4g} in result.json is not that of the ledger's records"
            yield IntegrityProblem("altered", f"{text}, unless another version of fedpriv counted them")
