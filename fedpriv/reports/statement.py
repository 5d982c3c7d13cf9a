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
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.matrix import Cell
from fedpriv.privacy.record import Record
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
_VERIFIER = "200 lines over numpy and scipy (tools/fedpriv_verify.py) that import nothing of fedpriv"
_VERIFIED_NOISE = {("gaussian", "l2"), ("laplace", "l1")}
_DIVIDED = {"iid": "at random", "in_order": "in its order"}
SECRET = (
    "Nothing that is written down makes the noise again: it followed from random bits that the process kept in memory, "
    "and it died with the process. checkpoint.pt may hold state that never left the data holders: keep it as the data "
    "are kept."
)


@dataclass(frozen=True)
class StatementSection:
    """A section of the page, with its contents in this order.

    Attributes:
        title: Its heading: the officer's question.
        text: Sentences.
        rows: Names and values.
        table: Rows of equal length; the first one is the heading.
        notes: The meanings of letters in the table.
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
        title: Its title.
        summary: The most important sentence.
        sections: Its sections.
    """

    title: str
    summary: str
    sections: tuple[StatementSection, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the page as one JSON object."""
        return asdict(self)


def statement_of(runs: Sequence[Run], spendings: Sequence[RunCost], account: Account) -> Statement:
    """Writes the page about runs on the same data.

    Args:
        runs: The runs, read from their folders.
        spendings: What each run is charged, in the same order.
        account: What the runs cost together.
    """
    names = ", ".join(str(run.folder) for run in runs)
    spent = account.spent
    subjects = [text for name, text in _LEFT.items() if spent.trust.startswith(name)]
    subject = "All that was released"
    if subjects and len(_trusts(spendings)) == 1:
        subject = subjects[0]
    alone = all(spending.n_clients == 1 for spending in spendings)
    if alone:
        subject = subject.replace("data holders", "data holder")
    cells = list(account.cells)
    if alone:
        cells = [_for_one_holder(cell) for cell in cells if _concerns_one(cell, spent)]
    assumed = [wording.ASSUMED, *wording.rounding(spent)]
    if any(run.files.ledger.header.extended is not None for run in runs):
        assumed.append(wording.EXTENDED)
    return Statement(
        f"Privacy statement: {names}",
        wording.sentence(subject, spent),
        (
            _protected(runs, spendings, spent),
            against(cells, _SEES_OF_ONE if alone else _SEES),
            _released(runs, spendings),
            rests(spendings, spent.accountant, assumed, alone=alone),
            not_covered(spent, networks=wording.frozen_networks(run.config["data"] for run in runs)),
            _others(runs, spendings, account),
            _verify(runs),
        ),
    )


def _protected(runs: Sequence[Run], spendings: Sequence[RunCost], spent: PrivacySpent) -> StatementSection:
    shared = spent.relation.partition("(")[2]
    rows = [
        ("data", "; ".join(dict.fromkeys(data_name(run.config) for run in runs))),
        (
            "held by",
            "; ".join(dict.fromkeys(_held_by(run, spending) for run, spending in zip(runs, spendings, strict=True))),
        ),
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
    """Returns the section on who could learn what, with a column for each unit.

    Args:
        cells: The bounds for each adversary and unit.
        sees: What each adversary sees.
    """
    units = list(dict.fromkeys(cell.unit for cell in cells))
    remarks = dict[str, str]()
    lines = dict[str, list[str]]()
    for cell in cells:
        letter = remarks.setdefault(_assumed(cell), chr(ord("a") + len(remarks) % 26))
        if math.isinf(cell.epsilon):
            value = "no bound"
        else:
            value = round_up(cell.epsilon)
        lines.setdefault(cell.adversary, []).append(f"{value} [{letter}]")
    table = (
        ("who looks", "what they see", *(f"epsilon of {_column(unit)}" for unit in units)),
        *((_observer(name), sees.get(name.lstrip("0123456789 "), ""), *cells) for name, cells in lines.items()),
    )
    notes = tuple(f"[{letter}] {text}" for text, letter in remarks.items())
    return StatementSection("Who could learn what?", (wording.SCALE,), (), table, notes)


def unbounded(cell: Cell, since: str) -> Cell:
    """Returns a cell for the same adversary, unit and neighbours, without a bound; `since` is the reason."""
    return replace(cell, epsilon=math.inf, accountant="none", bound_of="", amplification="none", assumes=since)


def _assumed(cell: Cell) -> str:
    """Returns what a bound assumes, or why there is none."""
    if math.isinf(cell.epsilon):
        text = f"since {cell.assumes}"
    else:
        text = f"if {cell.assumes}"
    if cell.bound_of:
        text = f"counted as for {cell.bound_of}; {text}"
    if cell.amplification != "none":
        text += f"; {cell.amplification}"
    if cell.simulated:
        text += "; the protocol was SIMULATED"
    return wording.plain(text)


def _released(runs: Sequence[Run], spendings: Sequence[RunCost]) -> StatementSection:
    heading = (
        "run",
        "when (UTC, by its files)",
        "rounds",
        "answers to questions about the data, and their noise",
        "then",
    )
    rows = [_row_of_run(run, spending) for run, spending in zip(runs, spendings, strict=True)]
    text = (
        "Every answer about the data was noised and written down before anything was computed from it. Released "
        "besides, computed from these answers alone: messages, models, and their metrics on public test data.",
    )
    return StatementSection("What was released, and when?", text, (), (heading, *rows))


def _row_of_run(run: Run, spending: RunCost) -> tuple[str, ...]:
    settings = run.files.settings_path
    result = run.folder / "result.json"
    ends = ", not finished"
    if result.exists():
        ends = f" to {wording.changed(result)}"
    records = run.files.ledger.records
    released = wording.released(records)
    unreleased = len(spending.records) - len(records)
    if unreleased:
        released += f"; {unreleased} more were planned and are charged, since answers may have ended the run"
    tested = ""
    if run.result is not None and run.result.get("test_accuracy") is not None:
        tested = f"test accuracy {100 * float(run.result['test_accuracy']):.1f} %"
    return str(run.folder), f"{wording.changed(settings)}{ends}", str(run.rounds), released, tested


def _concerns_one(cell: Cell, spent: PrivacySpent) -> bool:
    """Whether a bound has a meaning if there is one data holder: without others nobody colludes or is a neighbour."""
    if cell.adversary == NEIGHBOUR or cell.adversary.endswith(COLLUDERS):
        return False
    return spent.unit == "client" or cell.unit != "client"


def _for_one_holder(cell: Cell) -> Cell:
    """Returns the cell with its assumption in words for one data holder."""
    assumption = cell.assumes.replace("each client", "the client").replace("; any number of others may collude", "")
    return replace(cell, assumes=assumption)


def rests(
    spendings: Sequence[RunCost],
    accountant: str,
    assumed: Sequence[str] = (wording.ASSUMED,),
    *,
    alone: bool = False,
) -> StatementSection:
    """Returns the section on what the guarantee of simulated runs rests on: trust, simulation and assumptions.

    Args:
        spendings: What each run is charged.
        accountant: The bound by which epsilon was computed.
        assumed: Sentences about further assumptions.
        alone: Whether there is one data holder.
    """
    trusts = _trusts(spendings)
    trusted = [text for name, text in _TRUSTS.items() if any(trust.startswith(name) for trust in trusts)]
    together = [
        "All data holders were SIMULATED by one operator, in one process or in processes that trust each other: who "
        "runs it sees all data. What is said about messages holds where each data holder runs its own part."
    ]
    if alone:
        trusted = [_TRUST_OF_ONE if text == _TRUSTS["local"] else text for text in trusted]
        together = ["There is one data holder, which ran it: who ran it sees all data."]
    power = list[str]()
    if any("no_power_cut" in trust for trust in trusts):
        power.append("No power cut happened while the run was at work.")
    proof = [
        f"The noise is made of a ChaCha20 keystream, and counted by the bound {accountant!r}.",
        *assumed,
    ]
    return StatementSection("What does this rest on, and what was simulated?", (*trusted, *together, *power, *proof))


def not_covered(
    spent: PrivacySpent, secret: str = SECRET, tests: str = wording.TESTS, networks: Iterable[str] = ()
) -> StatementSection:
    """Returns the section on what no epsilon covers, and what must be kept secret.

    Args:
        spent: What was spent.
        secret: What must be kept secret.
        tests: What is public of test data.
        networks: A sentence on each frozen network through which the data were seen.
    """
    more = [f"Revealed besides, and in no epsilon: {fact}." for fact in spent.not_covered]
    more += networks
    return StatementSection("What is not protected?", (wording.public(tests), *more, secret))


def _others(runs: Sequence[Run], spendings: Sequence[RunCost], account: Account) -> StatementSection:
    """Returns the section on what all runs cost together, and what another one would cost."""
    spent = account.spent
    rows = [(name, str(price)) for name, price in account.runs]
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
    """Returns a row with what is spent of the lifetime budgets that runs draw on."""
    paths = [Path(name) for name in dict.fromkeys(budgets) if name]
    return "lifetime budget", "; ".join(map(_balance, paths)) or "none was set"


def _balance(path: Path) -> str:
    try:
        balance = Budget(path).balance()
    except FedprivError as error:
        return f"{path}, which says nothing here: {error}"
    terms = balance.terms
    spent = round_up(balance.spent.epsilon)
    count = len(balance.entries)
    spenders = "1 run or search"
    if count != 1:
        spenders = f"{count} runs or searches"
    return (
        f"epsilon={spent} of {terms.epsilon:g} at delta={wording.small(terms.delta)} is spent so far, by {spenders}; "
        f"kept in {path}"
    )


def made_by() -> tuple[str, str]:
    """Returns a row with the software that made the page, and when."""
    return "page made by", f"{software()}, on {wording.now()}; a ledger proves what was written down"


def count_without_fedpriv(ledger: LedgerFile, answers: str) -> tuple[str, str]:
    """Returns a row with how to count a ledger's epsilon with the small verifier, or why it refuses the ledger.

    Args:
        ledger: The ledger.
        answers: Whose answers its epsilon is about, e.g. "one run's own answers".
    """
    refused = _unknown_to_verifier(ledger.records)
    if refused:
        how = f"not yet: the small verifier does not know {refused}, and refuses this ledger"
    else:
        how = f"python -m fedpriv_verify {ledger.path}: {_VERIFIER}, for {answers}"
    return "count without fedpriv", how


def _unknown_to_verifier(records: Sequence[Record]) -> str:
    """Returns what the small verifier refuses in these records, in words; empty if it counts them."""
    for record in records:
        if record.sampling == "allocation":
            return "random allocation"
        if (record.mechanism, record.norm) not in _VERIFIED_NOISE:
            return f"{record.mechanism} noise under a clip of {record.norm}"
        if record.time is not None and (record.sampling != "full" or record.clients is not None):
            return "secret draws with noise over time"
    return ""


def _verify(runs: Sequence[Run]) -> StatementSection:
    rows = [(f"{run.folder}: ledger", run.evidence) for run in runs]
    names = " ".join(str(run.folder) for run in runs)
    rows += [
        ("was anything changed?", f"fedpriv show {names} must print the same head; it says so if a line was altered"),
        ("count again", f"fedpriv account {names}"),
        count_without_fedpriv(runs[0].files.ledger, "one run's own answers"),
        *_audits(runs),
        ("runs made by", made_with(run.result for run in runs)),
        made_by(),
    ]
    unfinished_runs = [unfinished(run.folder) for run in runs if run.result is None]
    return StatementSection("How can this be verified?", tuple(unfinished_runs), tuple(rows))


def _audits(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Returns a row with how to audit the first run that has a configuration; none if all were made in Python."""
    folders = [run.folder for run in runs if run.files.config is not None]
    return [("look for faults", f"fedpriv audit {folder}, where the data are") for folder in folders[:1]]


def made_with(results: Iterable[Mapping[str, Any] | None]) -> str:
    """Returns the software with which runs were made, by their results."""
    unknown = "not on record: unfinished, or by an early version"
    return "; ".join(dict.fromkeys(str((result or {}).get("software") or unknown) for result in results))


def data_name(config: Mapping[str, Any]) -> str:
    """Returns the name of a configuration's data, and the path if there is one."""
    data = config["data"]
    for name in ("train", "path", "file", "dataset"):
        if data.get(name):
            return f"{data['name']} ({data[name]})"
    return str(data["name"])


def _held_by(run: Run, spending: RunCost) -> str:
    return holders(run.config, spending, (run.result or {}).get("client_names") or ())


def purpose_of(config: Mapping[str, Any]) -> str:
    """Returns in words which model a configuration trains, by which algorithm."""
    text = f"training a model of the kind {config['model']['name']} by the algorithm {config['strategy']['name']}"
    if config["strategy"]["variant"] == "published":
        text += " as published"
    return text


def holders(config: Mapping[str, Any], spending: RunCost, names: Sequence[str] = ()) -> str:
    """Returns in words how many data holders there are, with how many records."""
    text = counted(spending.n_clients, "data holder")
    if names:
        text += f" ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''})"
    text += _records_of(spending)
    kind = config["data"].get("partition", {}).get("kind", "")
    if kind and kind != "by_writer" and spending.n_clients != 1:
        text += f"; one table, divided {_DIVIDED.get(kind, 'by labels')}"
    return text


def _records_of(spending: RunCost) -> str:
    """Returns in words how many records each data holder has; empty if that is unknown."""
    sizes = spending.sizes
    if not sizes:
        return ""
    if len(sizes) == 1:
        return f" with {counted(sizes[0], 'record')}"
    if min(sizes) == max(sizes):
        return f" with {counted(sizes[0], 'record')} each, {sum(sizes)} in all"
    return f" with {min(sizes)} to {max(sizes)} records each, {sum(sizes)} in all"


def _trusts(spendings: Sequence[RunCost]) -> list[str]:
    return list(dict.fromkeys(record.trust for spending in spendings for record in spending.records))


def _column(unit: str) -> str:
    """Returns the heading of a column: `group of 10 samples` is 10 records of one person."""
    if unit in _COLUMNS:
        return _COLUMNS[unit]
    count = unit.removeprefix("group of ").partition(" ")[0]
    if not unit.endswith("samples"):
        return f"{count} data holders"
    if count == "1":
        return "1 record of one person"
    return f"{count} records of one person"


def _observer(adversary: str) -> str:
    """Returns an adversary in the words of the page."""
    if adversary == NEIGHBOUR:
        return "one other data holder"
    if adversary == MODEL:
        return "whoever sees the final model only"
    if adversary.startswith("1 "):
        return wording.plain(adversary.removesuffix("s"))
    return wording.plain(adversary)
