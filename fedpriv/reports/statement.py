"""A page about runs that a data-protection officer can file: what was protected, from whom, and how to verify it.

Everything on it is counted again from the runs' files; a run whose files were altered gets no page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedpriv.errors import FedprivError, counted
from fedpriv.privacy.accounting.spent import PrivacySpent, round_up
from fedpriv.privacy.adversaries import COLLUDERS, MESSAGES, MODEL, NEIGHBOUR, SERVER
from fedpriv.privacy.budget import Budget
from fedpriv.privacy.composition import RunCost, compose
from fedpriv.privacy.matrix import Cell
from fedpriv.reports import wording
from fedpriv.reports.accounts import Account, unfinished
from fedpriv.reports.report import Run
from fedpriv.runs.results import software

_COLUMNS = {"sample": "one record", "client": "one data holder"}
_LEFT = {
    "local": "All that left the data holders",
    "pairwise": "All that left the data holders",
    "secure_aggregation": "All that was released, sums alone,",
    "central": "All that left the trusted server",
}
_TRUSTS = {
    "local": "Nobody is trusted: each data holder adds the noise to its own messages before they leave it.",
    "secure_aggregation": "Only sums over participants are seen by anybody. The protocol for that was SIMULATED.",
    "central": "One server is trusted: it sees what data holders send, and adds the noise once.",
    "pairwise": "Nobody is trusted; pairs of data holders share secrets, which were SIMULATED in one process.",
}
_TRUST_OF_ONE = "Nobody else is trusted: the data holder adds the noise before anything leaves it."
_SEES = {
    MESSAGES: "all that travels between data holders and server",
    SERVER: "what the server receives",
    COLLUDERS: "what they know together",
    NEIGHBOUR: "the messages that it receives",
    MODEL: "the last model alone",
}
_SEES_OF_ONE = {
    MESSAGES: "all that leaves the data holder",
    SERVER: "what it receives from the data holder",
    MODEL: "the last model alone",
}
_DIVIDED = {"iid": "at random", "in_order": "in its order"}
SECRET = (
    "checkpoint.pt holds the secret from which the noise was drawn, and state that never left: who has it can subtract "
    "the noise. Keep it as the data are kept, or delete it once the run is over."
)


@dataclass(frozen=True)
class StatementSection:
    """A part of the page, in this order: sentences, names with values, a table whose first row is its heading, notes.

    Attributes:
        title: Its heading: the officer's question.
        text: Sentences.
        rows: Names and values.
        table: Rows of equal length.
        notes: What letters in the table mean.
    """

    title: str
    text: tuple[str, ...] = ()
    rows: tuple[tuple[str, str], ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statement:
    """The page.

    Attributes:
        title: What it is about.
        summary: The most important sentence.
        sections: Its parts.
    """

    title: str
    summary: str
    sections: tuple[StatementSection, ...]

    def to_json(self) -> dict[str, Any]:
        """The page as one JSON object."""
        return asdict(self)


def statement_of(runs: Sequence[Run], spendings: Sequence[RunCost], account: Account) -> Statement:
    """The page about runs on the same data.

    Args:
        runs: Their folders.
        spendings: What each is charged, in the same order.
        account: What they cost together.
    """
    names = ", ".join(str(run.folder) for run in runs)
    spent = account.spent
    left = [text for name, text in _LEFT.items() if spent.trust.startswith(name)]
    if left and len(_trusts(spendings)) == 1:
        subject = left[0]
    else:
        subject = "All that was released"
    alone = all(spending.n_clients == 1 for spending in spendings)
    if alone:
        subject = subject.replace("data holders", "data holder")
    cells = list(account.cells)
    if alone:
        cells = [_of_one(cell) for cell in cells if _concerns_one(cell, spent)]
    extends = any(run.files.ledger.header.extended is not None for run in runs)
    if extends:
        assumed = (wording.ASSUMED, wording.EXTENDED)
    else:
        assumed = (wording.ASSUMED,)
    return Statement(
        f"Privacy statement: {names}",
        wording.sentence(subject, spent),
        (
            _protected(runs, spendings, spent),
            against(cells, _SEES_OF_ONE if alone else _SEES),
            _released(runs, spendings),
            rests(spendings, spent.accountant, assumed, alone=alone),
            not_covered(spent),
            _others(runs, spendings, account),
            _verify(runs),
        ),
    )


def _protected(runs: Sequence[Run], spendings: Sequence[RunCost], spent: PrivacySpent) -> StatementSection:
    shared = spent.relation.partition("(")[2]
    rows = [
        ("data", "; ".join(dict.fromkeys(data_of(run.config) for run in runs))),
        ("held by", "; ".join(dict.fromkeys(_held_by(run, one) for run, one in zip(runs, spendings, strict=True)))),
        (
            "used for",
            "; ".join(dict.fromkeys(f"{purpose_of(run.config)}, {counted(run.rounds, 'round')}" for run in runs)),
        ),
        ("protected unit", wording.unit_of(spent)),
        *([("both have in common", shared.removesuffix(")"))] if shared else []),
        ("guarantee", str(spent)),
    ]
    return StatementSection(
        "Whose data, and what of them is protected?", (wording.PERSON,) if spent.unit == "sample" else (), tuple(rows)
    )


def against(cells: Sequence[Cell], sees: Mapping[str, str] = _SEES) -> StatementSection:
    """Who could learn what, with a column for each unit; `sees` says what observers see."""
    units = list(dict.fromkeys(cell.unit for cell in cells))
    remarks, lines = dict[str, str](), dict[str, list[str]]()
    for cell in cells:
        letter = remarks.setdefault(_assumed(cell), chr(ord("a") + len(remarks) % 26))
        if math.isinf(cell.epsilon):
            value = "no bound"
        else:
            value = round_up(cell.epsilon)
        lines.setdefault(cell.adversary, []).append(f"{value} [{letter}]")
    table = (
        ("who looks", "what they see", *(f"epsilon of {_column(unit)}" for unit in units)),
        *((_looking(name), sees.get(name.lstrip("0123456789 "), ""), *cells) for name, cells in lines.items()),
    )
    notes = tuple(f"[{letter}] {text}" for text, letter in remarks.items())
    return StatementSection("Who could learn what?", (wording.SCALE,), (), table, notes)


def unbounded(cell: Cell, since: str) -> Cell:
    """The same observer, unit and neighbours, without a bound."""
    return replace(cell, epsilon=math.inf, accountant="none", bound_of="", amplification="none", assumes=since)


def _assumed(cell: Cell) -> str:
    if cell.bound_of:
        stronger = f"counted as for {cell.bound_of}; "
    else:
        stronger = ""
    if cell.amplification == "none":
        drawn = ""
    else:
        drawn = f"; {cell.amplification}"
    if math.isinf(cell.epsilon):
        holds = "since"
    else:
        holds = "if"
    if cell.simulated:
        protocol = "; the protocol was SIMULATED"
    else:
        protocol = ""
    return wording.plain(f"{stronger}{holds} {cell.assumes}{drawn}{protocol}")


def _released(runs: Sequence[Run], spendings: Sequence[RunCost]) -> StatementSection:
    heading = (
        "run",
        "when (UTC, by its files)",
        "rounds",
        "answers to questions about the data, and their noise",
        "then",
    )
    rows = [_of_run(run, one) for run, one in zip(runs, spendings, strict=True)]
    text = (
        "Every answer about the data was noised and written down before anything was computed from it. Released "
        "besides, computed from these answers alone: messages, models, and their metrics on public test data.",
    )
    return StatementSection("What was released, and when?", text, (), (heading, *rows))


def _of_run(run: Run, spending: RunCost) -> tuple[str, ...]:
    config, result = run.folder / "config.yaml", run.folder / "result.json"
    if result.exists():
        ends = f" to {wording.changed(result)}"
    else:
        ends = ", not finished"
    records = run.files.ledger.records
    unreleased = len(spending.records) - len(records)
    if unreleased:
        charged = f"; {unreleased} more were planned and are charged, since answers may have ended the run"
    else:
        charged = ""
    if run.result is None or run.result.get("test_accuracy") is None:
        tested = ""
    else:
        tested = _accuracy(run.result)
    return (
        str(run.folder),
        f"{wording.changed(config)}{ends}",
        str(run.rounds),
        f"{wording.released(records)}{charged}",
        tested,
    )


def _accuracy(result: dict[str, Any]) -> str:
    return f"test accuracy {100 * float(result['test_accuracy']):.1f} %"


def _concerns_one(cell: Cell, spent: PrivacySpent) -> bool:
    """Whether a bound means something where there is one data holder: nobody colludes with it, or is beside it."""
    if cell.adversary == NEIGHBOUR or cell.adversary.endswith(COLLUDERS):
        return False
    return spent.unit == "client" or cell.unit != "client"


def _of_one(cell: Cell) -> Cell:
    """The bound with its assumption in words for one data holder."""
    told = cell.assumes.replace("each client", "the client").replace("; any number of others may collude", "")
    return replace(cell, assumes=told)


def rests(
    spendings: Sequence[RunCost],
    accountant: str,
    assumed: Sequence[str] = (wording.ASSUMED,),
    *,
    alone: bool = False,
) -> StatementSection:
    """What runs in one place rest on: who is trusted, what was simulated, and what is assumed besides.

    Args:
        spendings: What each run is charged.
        accountant: The bound that counted it.
        assumed: What is assumed besides.
        alone: Whether there is one data holder.
    """
    trusts = _trusts(spendings)
    said = [text for name, text in _TRUSTS.items() if any(trust.startswith(name) for trust in trusts)]
    together = [
        "All data holders were SIMULATED by one operator, in one process or in processes that trust each other: who "
        "runs it sees all data. What is said about messages holds where each data holder runs its own part."
    ]
    if alone:
        said = [_TRUST_OF_ONE if text == _TRUSTS["local"] else text for text in said]
        together = ["There is one data holder, which ran it: who ran it sees all data."]
    if any("no_power_cut" in one for one in trusts):
        power = ["No power cut happened while the run was at work."]
    else:
        power = []
    proof = [
        f"The noise is made of a ChaCha20 keystream, and counted by the bound {accountant!r}.",
        *assumed,
    ]
    return StatementSection("What does this rest on, and what was simulated?", (*said, *together, *power, *proof))


def not_covered(spent: PrivacySpent, secret: str = SECRET, tests: str = wording.TESTS) -> StatementSection:
    """What no epsilon covers, and what must be kept secret."""
    more = [f"Revealed besides, and in no epsilon: {said}." for said in spent.not_covered]
    return StatementSection("What is not protected?", (wording.public(tests), *more, secret))


def _others(runs: Sequence[Run], spendings: Sequence[RunCost], account: Account) -> StatementSection:
    spent, rows = account.spent, [(name, str(own)) for name, own in account.runs]
    if len(runs) > 1:
        rows.append(("together", str(spent)))
        rows.append(
            (
                "if answers chose later runs",
                f"epsilon={round_up(account.basic[0])} at delta={wording.small(account.basic[1])}",
            )
        )
    if math.isfinite(spent.epsilon):
        again = compose([*spendings, replace(spendings[-1], name="one more", noise=None)], spent.delta)
        rows.append(
            ("with one more like the last", f"epsilon={round_up(again.epsilon)} at delta={wording.small(again.delta)}")
        )
    rows.append(lifetime(run.config["privacy"].get("budget") for run in runs))
    text = ("Counted here: the runs that this page names. Other runs on the same data, if there are any, add to it.",)
    return StatementSection(
        "What did all runs cost together, and what would another one cost?", (*text, *account.notes), tuple(rows)
    )


def lifetime(budgets: Iterable[str | Path | None]) -> tuple[str, str]:
    """What is spent of the lifetime budgets that runs draw on, as a row."""
    kept = [Path(name) for name in dict.fromkeys(budgets) if name]
    return "lifetime budget", "; ".join(map(_balance, kept)) or "none was set"


def _balance(path: Path) -> str:
    try:
        balance = Budget(path).balance()
    except FedprivError as error:
        return f"{path}, which says nothing here: {error}"
    terms, spent, count = balance.terms, round_up(balance.spent.epsilon), len(balance.entries)
    by = f"by {'1 run or search' if count == 1 else f'{count} runs or searches'}; kept in {path}"
    return f"epsilon={spent} of {terms.epsilon:g} at delta={wording.small(terms.delta)} is spent so far, {by}"


def made_by() -> tuple[str, str]:
    """Who made the page, as a row."""
    return "page made by", f"{software()}, on {wording.now()}; a ledger proves what was written down"


def _verify(runs: Sequence[Run]) -> StatementSection:
    rows = [(f"{run.folder}: ledger", run.evidence) for run in runs]
    names = " ".join(str(run.folder) for run in runs)
    rows += [
        ("was anything changed?", f"fedpriv show {names} must print the same head; it says so if a line was altered"),
        ("count again", f"fedpriv account {names}"),
        ("check the seals", f"fedpriv show {runs[0].folder} --verify KEYFILE, with the key that fedpriv key printed"),
        ("look for faults", f"fedpriv audit {runs[0].folder}, where the data are"),
        ("runs made by", made_with(run.result for run in runs)),
        made_by(),
    ]
    left = tuple(unfinished(run.folder) for run in runs if run.result is None)
    return StatementSection("How can this be verified?", left, tuple(rows))


def made_with(results: Iterable[Mapping[str, Any] | None]) -> str:
    """The software that runs say they were made with."""
    unknown = "not on record: unfinished, or by an early version"
    return "; ".join(dict.fromkeys(str((one or {}).get("software") or unknown) for one in results))


def data_of(config: Mapping[str, Any]) -> str:
    """The data of a configuration, by name and place."""
    data = config["data"]
    place = next((str(data[name]) for name in ("train", "path", "file") if data.get(name)), "")
    return f"{data['name']}{f' ({place})' if place else ''}"


def _held_by(run: Run, spending: RunCost) -> str:
    return holders(run.config, spending, (run.result or {}).get("client_names") or ())


def purpose_of(config: Mapping[str, Any]) -> str:
    """What a configuration trains, and how."""
    strategy, variant = config["strategy"]["name"], config["strategy"]["variant"]
    if variant == "published":
        kind = " as published"
    else:
        kind = ""
    return f"training a model of the kind {config['model']['name']} by the algorithm {strategy}{kind}"


def holders(config: Mapping[str, Any], spending: RunCost, names: Sequence[str] = ()) -> str:
    """How many data holders there are, with how many records."""
    each = _records_of(spending)
    kind = config["data"].get("partition", {}).get("kind", "")
    if kind and kind != "by_writer":
        split = f"; one table, divided {_DIVIDED.get(kind, 'by labels')}"
    else:
        split = ""
    if names:
        called = f" ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})"
    else:
        called = ""
    if spending.n_clients == 1:
        split = ""
    return f"{counted(spending.n_clients, 'data holder')}{called}{each}{split}"


def _records_of(spending: RunCost) -> str:
    """How many records each data holder has."""
    sizes = spending.sizes
    if not sizes:
        return ""
    if len(sizes) == 1:
        return f" with {counted(sizes[0], 'record')}"
    if min(sizes) == max(sizes):
        return f" with {counted(sizes[0], 'record')} each, {sum(sizes)} in all"
    return f" with {min(sizes)} to {max(sizes)} records each, {sum(sizes)} in all"


def _trusts(spendings: Sequence[RunCost]) -> list[str]:
    return list(dict.fromkeys(record.trust for one in spendings for record in one.records))


def _column(unit: str) -> str:
    """Of a table: `group of 10 samples` is 10 records."""
    count = unit.removeprefix("group of ").partition(" ")[0]
    if unit.endswith("samples"):
        several = f"record{'s' * (count != '1')} of one person"
    else:
        several = "data holders"
    return _COLUMNS.get(unit, f"{count} {several}")


def _looking(adversary: str) -> str:
    known = {NEIGHBOUR: "one other data holder", MODEL: "whoever sees the final model only"}
    return known.get(adversary) or wording.plain(adversary.removesuffix("s" * adversary.startswith("1 ")))
