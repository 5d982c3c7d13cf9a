"""The privacy statement of runs, computed again from their files; altered files raise an error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fedpriv.errors import FedprivError, counted
from fedpriv.privacy import COLLUDERS, MESSAGES, NEIGHBOUR, SERVER, Budget, Cell, RunCost, compose
from fedpriv.privacy.accounting import PrivacySpent, round_up
from fedpriv.reports import wording
from fedpriv.reports.accounts import Account, Price, unfinished
from fedpriv.reports.report import Run
from fedpriv.reports.statement import SEES, Rows, Statement, count_without_fedpriv

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
_SEES_OF_ONE = {
    **SEES,
    MESSAGES: "all that leaves the data holder",
    SERVER: "what it receives from the data holder",
}
_RELEASES = (
    "Every answer about the data was noised and written down before anything was computed from it. Messages, models, "
    "and their metrics on public test data were released, too, and computed from these answers alone."
)
_SIMULATED = (
    "All data holders were SIMULATED by one operator, in one process or in processes that trust each other: who "
    "runs it sees all data. What is said about messages holds where each data holder runs its own part."
)
_SIMULATED_ONE = "There is one data holder, which ran it: who ran it sees all data."
_HEADING = (
    "run",
    "when (UTC, by its files)",
    "rounds",
    "answers to questions about the data, and their noise",
    "then",
)
SECRET = (
    "Nothing that is written down makes the noise again: it followed from random bits that the process kept in memory, "
    "and it died with the process. checkpoint.pt may hold state that never left the data holders: keep it as the data "
    "are kept."
)


def statement_of(runs: Sequence[Run], account: Account) -> Statement:
    """Returns the statement of runs on the same data.

    Args:
        runs: The runs, read from their folders.
        account: Their total cost, in the same order.
    """
    spent = account.spent
    costs = account.costs
    names = [str(run.folder) for run in runs]
    is_alone = all(cost.n_clients == 1 for cost in costs)
    cells = account.cells
    sees = SEES
    if is_alone:
        cells = tuple(_for_one_holder(cell) for cell in cells if _concerns_one(cell, spent))
        sees = _SEES_OF_ONE
    pairs = list(zip(runs, costs, strict=True))
    assumed = [wording.ASSUMED]
    if any(run.files.ledger.header.extended is not None for run in runs):
        assumed.append(wording.EXTENDED)
    return Statement(
        about=", ".join(names),
        subject=_subject(costs, spent, is_alone=is_alone),
        spent=spent,
        data=wording.listed(wording.data_name(run.config) for run in runs),
        held_by=wording.listed(_held_by(run, cost) for run, cost in pairs),
        used_for=wording.listed(f"{wording.purpose_of(run.config)}, {counted(run.rounds, 'round')}" for run in runs),
        cells=cells,
        sees=sees,
        release_text=(_RELEASES,),
        release_table=(_HEADING, *(_release_row(run, cost) for run, cost in pairs)),
        trust=simulated_trust(costs, is_alone=is_alone),
        assumed=tuple(assumed),
        not_protected=tuple(wording.frozen_networks(run.config["data"] for run in runs)),
        secret=SECRET,
        cost_text=account.notes,
        prices=_prices(account),
        budgets=[lifetime(run.config["privacy"].get("budget") for run in runs)],
        check_text=tuple(unfinished(run.folder) for run in runs if run.result is None),
        checks=_checks(runs, " ".join(names)),
    )


def _subject(costs: Sequence[RunCost], spent: PrivacySpent, *, is_alone: bool) -> str:
    subjects = [text for name, text in _LEFT.items() if spent.trust.startswith(name)]
    subject = "All that was released"
    if subjects and len(_trusts(costs)) == 1:
        subject = subjects[0]
    if is_alone:
        return subject.replace("data holders", "data holder")
    return subject


def _held_by(run: Run, cost: RunCost) -> str:
    return wording.holders(run.config, cost, (run.result or {}).get("client_names") or ())


def _release_row(run: Run, cost: RunCost) -> tuple[str, ...]:
    result = run.folder / "result.json"
    ends = ", not finished"
    if result.exists():
        ends = f" to {wording.changed(result)}"
    records = run.files.ledger.records
    released = wording.released(records)
    unreleased = len(cost.records) - len(records)
    if unreleased:
        released += f"; {unreleased} more were planned and are charged, since answers may have ended the run"
    tested = ""
    if run.result is not None and run.result.get("test_accuracy") is not None:
        tested = f"test accuracy {100 * float(run.result['test_accuracy']):.1f} %"
    begins = wording.changed(run.files.settings_path)
    return str(run.folder), f"{begins}{ends}", str(run.rounds), released, tested


def _concerns_one(cell: Cell, spent: PrivacySpent) -> bool:
    """True if a bound is meaningful with a single data holder, who has no colluders or neighbours."""
    if cell.adversary == NEIGHBOUR or cell.adversary.endswith(COLLUDERS):
        return False
    return spent.unit == "client" or cell.unit != "client"


def _for_one_holder(cell: Cell) -> Cell:
    """Returns the cell with its assumption as text for one data holder."""
    assumption = cell.assumes.replace("each client", "the client").replace("; any number of others may collude", "")
    return replace(cell, assumes=assumption)


def simulated_trust(costs: Sequence[RunCost], *, is_alone: bool = False) -> tuple[str, ...]:
    """Returns sentences on the trusted parties in simulated runs, and on the simulation.

    Args:
        costs: The charge of each run.
        is_alone: True if there is one data holder.
    """
    trusts = _trusts(costs)
    trusted = [text for name, text in _TRUSTS.items() if any(trust.startswith(name) for trust in trusts)]
    if is_alone:
        trusted = [_TRUST_OF_ONE if text == _TRUSTS["local"] else text for text in trusted]
        trusted.append(_SIMULATED_ONE)
    else:
        trusted.append(_SIMULATED)
    if any("no_power_cut" in trust for trust in trusts):
        trusted.append("No power cut happened while the run was at work.")
    return tuple(trusted)


def _trusts(costs: Sequence[RunCost]) -> set[str]:
    return {record.trust for cost in costs for record in cost.records}


def _prices(account: Account) -> Sequence[tuple[str, Price]]:
    """Returns the cost of each run, the total cost, and the cost with one more run."""
    delta = account.spent.delta
    again = compose([*account.costs, replace(account.costs[-1], name="one more", run_name=None)], delta)
    return [*account.prices, ("with one more like the last", (again.epsilon, delta))]


def lifetime(budgets: Iterable[str | Path | None]) -> tuple[str, str]:
    """Returns a row with the spending of the lifetime budgets that runs use."""
    balances = [_balance(Path(name)) for name in dict.fromkeys(budgets) if name]
    return "lifetime budget", "; ".join(balances) or "none was set"


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


def _checks(runs: Sequence[Run], names: str) -> Rows:
    audited = [run.folder for run in runs if run.files.config is not None]  # without runs made in Python
    return [
        *((f"{run.folder}: ledger", run.evidence) for run in runs),
        ("was anything changed?", f"fedpriv show {names} must print the same head; it says so if a line was altered"),
        ("count again", f"fedpriv account {names}"),
        ("count without fedpriv", count_without_fedpriv(runs[0].files.ledger, "one run's own answers")),
        *(("look for faults", f"fedpriv audit {folder}, where the data are") for folder in audited[:1]),
        ("runs made by", wording.made_with(run.result for run in runs)),
    ]
