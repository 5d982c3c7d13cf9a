"""The privacy statement of runs, computed again from their files; altered files raise an error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fedpriv.errors import FedprivError, LedgerError, format_count
from fedpriv.privacy import COLLUDERS, MESSAGES, NEIGHBOUR, SERVER, Budget, Cell, RunCost, compose
from fedpriv.privacy.accounting import PrivacySpent, round_up
from fedpriv.reports import wording
from fedpriv.reports.accounts import Account, Cost, describe_unfinished
from fedpriv.reports.report import Run
from fedpriv.reports.statement import SEES, Rows, Statement, count_without_fedpriv

_LEFT = {
    "local": "All that left the data holders",
    "pairwise": "All that left the data holders",
    "secure_aggregation": "All that was released, sums alone,",
    "central": "All that left the trusted server",
}
_TRUSTS = {
    "local": "No party is trusted: each data holder adds the noise to its own messages before they leave it.",
    "secure_aggregation": "Only sums over participants are visible to anyone. The protocol for that was SIMULATED.",
    "central": "One server is trusted: it sees what data holders send, and adds the noise once.",
    "pairwise": "No party is trusted; pairs of data holders share secrets, which were SIMULATED in one process.",
}
_TRUST_OF_ONE = "No other party is trusted: the data holder adds the noise before anything leaves it."
_SEES_OF_ONE = {
    **SEES,
    MESSAGES: "all that leaves the data holder",
    SERVER: "what it receives from the data holder",
}
_RELEASES = (
    "Noise was added to every query result, and the release was recorded in the ledger, before anything was "
    "computed from it. Messages, models, and their metrics on public test data were also released; they were "
    "computed only from these noisy results."
)
_SIMULATED = (
    "All data holders were SIMULATED by one operator, in one process or in processes that trust each other: "
    "the operator can see all data. Statements about messages hold if each data holder runs its own part."
)
_SIMULATED_ONE = "There is one data holder, which ran the training: the person who ran it can see all data."
_HEADING = (
    "run",
    "when (UTC, from file times)",
    "rounds",
    "query results and their noise",
    "then",
)
SECRET = (
    "No stored file can reproduce the noise: it was derived from random bits that existed only in the memory "
    "of the process and were lost when it ended. checkpoint.pt may contain state that never left the data "
    "holders: protect it like the data."
)


def make_statement(runs: Sequence[Run], account: Account) -> Statement:
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
    earlier = [run.files.ledger.header.extended for run in runs]
    if any(extended is not None and extended.rounds > 0 for extended in earlier):
        assumed.append(wording.EXTENDED)
    if any(extended is not None and extended.rounds == 0 for extended in earlier):
        assumed.append(wording.COUNTED)
    return Statement(
        about=", ".join(names),
        subject=_subject(costs, is_alone=is_alone),
        spent=spent,
        data=wording.join_distinct(wording.format_data_name(run.config) for run in runs),
        held_by=wording.join_distinct(_held_by(run, cost) for run, cost in pairs),
        used_for=wording.join_distinct(
            f"{wording.describe_purpose(run.config)}, {format_count(run.rounds, 'round')}" for run in runs
        ),
        cells=cells,
        sees=sees,
        release_text=(_RELEASES,),
        release_table=(_HEADING, *(_release_row(run, cost) for run, cost in pairs)),
        trust=describe_simulated_trust(costs, is_alone=is_alone),
        assumed=tuple(assumed),
        not_protected=tuple(wording.describe_frozen_networks(run.config["data"] for run in runs)),
        secret=SECRET,
        cost_text=account.notes,
        costs=_costs(account),
        budgets=[make_lifetime_row(run.config["privacy"].get("budget") for run in runs)],
        check_text=tuple(describe_unfinished(run.folder) for run in runs if run.result is None),
        checks=_checks(runs, " ".join(names)),
    )


def _subject(costs: Sequence[RunCost], *, is_alone: bool) -> str:
    subject = "All that was released"
    if len(_trusts(costs)) == 1:
        (name,) = _trust_names(costs)
        subject = _LEFT.get(name, subject)
    if is_alone:
        return subject.replace("data holders", "data holder")
    return subject


def _held_by(run: Run, cost: RunCost) -> str:
    return wording.describe_holders(run.config, cost, (run.result or {}).get("client_names") or ())


def _release_row(run: Run, cost: RunCost) -> tuple[str, ...]:
    result = run.folder / "result.json"
    ends = ", not finished"
    if result.exists():
        ends = f" to {wording.format_change_time(result)}"
    records = run.files.ledger.records
    released = wording.describe_releases(records)
    unreleased = len(cost.records) - len(records)
    if unreleased:
        released += f"; {unreleased} more were planned and are charged, since results may have ended the run"
    tested = ""
    if run.result is not None and run.result.get("test_accuracy") is not None:
        tested = f"test accuracy {100 * float(run.result['test_accuracy']):.1f} %"
    begins = wording.format_change_time(run.files.settings_path)
    return str(run.folder), f"{begins}{ends}", str(run.rounds), released, tested


def _concerns_one(cell: Cell, spent: PrivacySpent) -> bool:
    """True if a bound is meaningful with a single data holder, who has no colluders or neighbours."""
    if cell.adversary == NEIGHBOUR or cell.adversary_kind == COLLUDERS:
        return False
    return spent.unit == "client" or cell.unit != "client"


def _for_one_holder(cell: Cell) -> Cell:
    """Returns the cell with its assumption as text for one data holder."""
    assumption = cell.assumes.replace("each client", "the client").replace("; any number of others may collude", "")
    return replace(cell, assumes=assumption)


def describe_simulated_trust(costs: Sequence[RunCost], *, is_alone: bool = False) -> tuple[str, ...]:
    """Returns sentences on the trusted parties in simulated runs, and on the simulation.

    Args:
        costs: What each run is charged.
        is_alone: Whether there is one data holder.

    Raises:
        LedgerError: If no sentence is known for a trust on record.
    """
    trusts = _trusts(costs)
    names = _trust_names(costs)
    trusted = [text for name, text in _TRUSTS.items() if name in names]
    if is_alone:
        trusted = [_TRUST_OF_ONE if text == _TRUSTS["local"] else text for text in trusted]
        trusted.append(_SIMULATED_ONE)
    else:
        trusted.append(_SIMULATED)
    if any("no_power_cut" in trust for trust in trusts):
        trusted.append("No power cut happened during the run.")
    return tuple(trusted)


def _trusts(costs: Sequence[RunCost]) -> set[str]:
    return {record.trust for cost in costs for record in cost.records}


def _costs(account: Account) -> Sequence[tuple[str, Cost]]:
    """Returns the cost of each run, the total cost, and the cost with one more run."""
    delta = account.spent.delta
    again = compose([*account.costs, replace(account.costs[-1], name="one more", run_name=None)], delta)
    return [*account.named_costs, ("with one more like the last", (again.epsilon, delta))]


def make_lifetime_row(budgets: Iterable[str | Path | None]) -> tuple[str, str]:
    """Returns a row with the spending of the lifetime budgets that runs use."""
    balances = [_balance(Path(name)) for name in dict.fromkeys(budgets) if name]
    return "lifetime budget", "; ".join(balances) or "none was set"


def _balance(path: Path) -> str:
    try:
        balance = Budget(path).balance()
    except FedprivError as error:
        return f"{path}, which cannot be read: {error}"
    terms = balance.terms
    spent = round_up(balance.spent.epsilon)
    count = len(balance.entries)
    spenders = "1 run or search"
    if count != 1:
        spenders = f"{count} runs or searches"
    return (
        f"epsilon={spent} of {terms.epsilon:g} at delta={wording.format_small(terms.delta)} is spent so far, "
        f"by {spenders}; "
        f"kept in {path}"
    )


def _checks(runs: Sequence[Run], names: str) -> Rows:
    audited = [run.folder for run in runs if run.files.config is not None]  # without runs made in Python
    return [
        *((f"{run.folder}: ledger", run.evidence) for run in runs),
        ("was anything changed?", f"fedpriv show {names} must print the same head; it reports altered lines"),
        ("compute again", f"fedpriv account {names}"),
        ("compute without fedpriv", count_without_fedpriv(runs[0].files.ledger, "one run's own releases")),
        *(("look for faults", f"fedpriv audit {folder}, on a machine with the data") for folder in audited[:1]),
        ("runs made by", wording.describe_software(run.result for run in runs)),
    ]


def _trust_names(costs: Sequence[RunCost]) -> set[str]:
    names = {trust.partition("+")[0].partition("(")[0] for trust in _trusts(costs)}
    unknown = names - {*_TRUSTS}
    if unknown:
        raise LedgerError(
            f"the privacy statement has no sentence on trust {sorted(unknown)}: add one to "
            "fedpriv/reports/run_statement.py"
        )
    return names
