"""The privacy statement: seven parts for a data-protection officer, the same for runs, for a site and for a search.

`reports/run_statement.py`, `sites/statement.py` and `tuning/statement.py` fill it; `pages.py` writes it in each format.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fedpriv.privacy import COLLUDERS, MESSAGES, MODEL, NEIGHBOUR, SERVER, Cell, LedgerFile, Record
from fedpriv.privacy.accounting import PrivacySpent, round_up
from fedpriv.reports import wording
from fedpriv.reports.accounts import Cost, add_remark_letters, format_cost_rows
from fedpriv.runs import get_software_versions

Rows = Sequence[tuple[str, str]]
Table = tuple[tuple[str, ...], ...]

_COLUMNS = {"sample": "one record", "client": "one data holder"}
_VERIFIER = "200 lines that need only numpy and scipy (tools/fedpriv_verify.py) and import no fedpriv code"
_VERIFIED_NOISE = {("gaussian", "l2"), ("laplace", "l1")}
_COUNTED = (
    "This page accounts only for the uses that it names. Other uses of the same data, if any, add to the privacy cost."
)
SEES = {
    MESSAGES: "all that travels between data holders and server",
    SERVER: "what the server receives",
    COLLUDERS: "their combined information",
    NEIGHBOUR: "the messages that it receives",
    MODEL: "only the final model",
}
"""The view of each adversary."""


def _made_by() -> str:
    return f"{get_software_versions()}, on {wording.format_current_time()}; a ledger proves what was recorded"


@dataclass(frozen=True)
class Section:
    """A printed part of the page, with its contents in this order.

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
    table: Table = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statement:
    """Everything that a privacy statement states.

    Attributes:
        about: Subject of the statement: runs, a site or a search, with their names.
        subject: Subject of the guarantee, e.g. "All that left this site".
        spent: The guarantee.
        data: Name of the data.
        held_by: The data holders, with their numbers of records.
        used_for: Use of the data.
        settings_tried: The settings that a search tried; empty if there was no search.
        cells: The bound against each adversary, for each privacy unit.
        sees: The view of each adversary.
        release_text: Sentences about the releases.
        release_rows: The releases, as names and values.
        release_table: The releases of each run or federation; the first row is the heading.
        trust: Sentences on trusted parties, and on simulated parts.
        assumed: Sentences on assumptions that are not checked.
        tests: The public facts about test data.
        not_protected: Further sentences on facts that no epsilon covers.
        secret: The facts that must be kept secret.
        cost_text: Sentences on the composition of costs.
        costs: The cost of each part, the total cost, and the cost of more runs; infinite pairs are left out.
        budgets: The spending of each budget.
        check_text: Sentences on incomplete parts.
        checks: Evidence that nothing was changed, and instructions to recompute epsilon.
        made_by: The software that made the page, and the time.
    """

    about: str
    subject: str
    spent: PrivacySpent
    data: str
    held_by: str
    used_for: str
    cells: Sequence[Cell]
    trust: tuple[str, ...]
    secret: str
    costs: Sequence[tuple[str, Cost]]
    budgets: Rows
    checks: Rows
    settings_tried: str = ""
    sees: Mapping[str, str] = field(default_factory=lambda: SEES)
    release_text: tuple[str, ...] = ()
    release_rows: Rows = ()
    release_table: Table = ()
    assumed: tuple[str, ...] = (wording.ASSUMED,)
    tests: str = wording.TESTS
    not_protected: tuple[str, ...] = ()
    cost_text: tuple[str, ...] = ()
    check_text: tuple[str, ...] = ()
    made_by: str = field(default_factory=_made_by)

    @property
    def title(self) -> str:
        """The title of the page."""
        return f"Privacy statement: {self.about}"

    @property
    def summary(self) -> str:
        """The most important sentence."""
        return wording.describe_disclosure(self.subject, self.spent)

    @property
    def sections(self) -> tuple[Section, ...]:
        """The seven parts, in the order in which every format prints them."""
        spent = self.spent
        noise = (
            "The noise is generated from a ChaCha20 keystream; its privacy cost is computed with the bound "
            f"{spent.accountant!r}."
        )
        revealed = [f"Also revealed, and not covered by epsilon: {fact}." for fact in spent.not_covered]
        return (
            self._protected(),
            self._observers(),
            Section(
                "What was released, when, and to whom?",
                self.release_text,
                tuple(self.release_rows),
                self.release_table,
            ),
            Section(
                "What does this assume, and what was simulated?",
                (*self.trust, noise, *self.assumed, *wording.describe_rounding(spent)),
            ),
            Section(
                "What is not protected?",
                (wording.describe_public_facts(self.tests), *revealed, *self.not_protected, self.secret),
            ),
            Section(
                "What was the privacy cost, and what would further use cost?",
                (_COUNTED, *self.cost_text),
                (*format_cost_rows(self.costs), *self.budgets),
            ),
            Section("How can this be verified?", self.check_text, (*self.checks, ("page created by", self.made_by))),
        )

    def _protected(self) -> Section:
        spent = self.spent
        # a neighbouring relation may name, in parentheses, public facts that neighbouring data sets share
        shared = spent.relation.partition("(")[2].removesuffix(")")
        rows = (
            ("data", self.data),
            ("held by", self.held_by),
            ("used for", self.used_for),
            ("settings tried", self.settings_tried),
            ("protected unit", wording.describe_unit(spent)),
            ("both have in common", shared),
            ("guarantee", str(spent)),
        )
        text = ()
        if spent.unit == "sample":
            text = (wording.PERSON,)
        return Section("Whose data, and what of them is protected?", text, tuple(row for row in rows if row[1]))

    def _observers(self) -> Section:
        """Returns the part on the adversaries, with a column for each privacy unit."""
        lines, notes = add_remark_letters(self.cells, _bound, _assumed)
        units = dict.fromkeys(cell.unit for cell in self.cells)
        kinds = {cell.adversary: cell.adversary_kind for cell in self.cells}
        table = (
            ("who looks", "what they see", *(f"epsilon of {_column(unit)}" for unit in units)),
            *((_observer(name), self.sees.get(kinds[name], ""), *bounds) for name, bounds in lines.items()),
        )
        return Section("Who could learn what?", (wording.SCALE,), (), table, tuple(notes))

    def to_json(self) -> dict[str, Any]:
        """Returns the page as one JSON object."""
        sections = [asdict(section) for section in self.sections]
        return {"title": self.title, "summary": self.summary, "sections": sections}


def make_unbounded_cell(cell: Cell, since: str) -> Cell:
    """Returns a cell for the same adversary, unit and neighbours, without a bound; `since` is the reason."""
    return replace(cell, epsilon=math.inf, accountant="none", bound_of="", amplification="none", assumes=since)


def count_without_fedpriv(ledger: LedgerFile, covered: str) -> str:
    """Returns how to compute a ledger's epsilon with the small verifier, or why the verifier rejects the ledger.

    Args:
        ledger: The ledger.
        covered: The releases that its epsilon covers, e.g. "one run's own answers".
    """
    refused = _unknown_to_verifier(ledger.records)
    if refused:
        return f"not possible yet: the small verifier does not support {refused}, and rejects this ledger"
    return f"python -m fedpriv_verify {ledger.path}: {_VERIFIER}, for {covered}"


def _unknown_to_verifier(records: Sequence[Record]) -> str:
    """Returns the reasons, as text, why the small verifier rejects these records; empty if it accepts them."""
    for record in records:
        if record.sampling == "allocation":
            return "random allocation"
        if (record.mechanism, record.norm) not in _VERIFIED_NOISE:
            return f"{record.mechanism} noise under a clip of {record.norm}"
        if record.time is not None and (record.sampling != "full" or record.clients is not None):
            return "secret draws with correlated noise"
    return ""


def _bound(cell: Cell) -> str:
    if math.isinf(cell.epsilon):
        return "no bound"
    return round_up(cell.epsilon)


def _assumed(cell: Cell) -> str:
    """Returns the assumptions of a bound, or the reason why there is none."""
    if math.isinf(cell.epsilon):
        text = f"since {cell.assumes}"
    else:
        text = f"if {cell.assumes}"
    if cell.bound_of:
        text = f"same bound as for {cell.bound_of}; {text}"
    if cell.amplification != "none":
        text += f"; {cell.amplification}"
    if cell.simulated:
        text += "; the protocol was SIMULATED"
    return wording.replace_terms(text)


def _column(unit: str) -> str:
    """Returns the heading of a column: `group of 10 samples` means 10 records of one person."""
    if unit in _COLUMNS:
        return _COLUMNS[unit]
    count = unit.removeprefix("group of ").partition(" ")[0]
    if not unit.endswith("samples"):
        return f"{count} data holders"
    if count == "1":
        return "1 record of one person"
    return f"{count} records of one person"


def _observer(adversary: str) -> str:
    """Returns the page's term for an adversary."""
    if adversary == NEIGHBOUR:
        return "one other data holder"
    if adversary == MODEL:
        return "anyone who sees only the final model"
    return wording.replace_terms(adversary)
