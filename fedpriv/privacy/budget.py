"""A lifetime budget, which limits the joint privacy cost of all runs on a data set.

A run reserves the cost of all its planned releases before the first of them. Reservations compose like the releases of
a single run, so their joint epsilon is less than the sum of their epsilons. A reservation that would exceed the limit
raises an error.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedpriv.errors import BudgetExhausted, ConfigError, LedgerError, PrivacyError, check_choice
from fedpriv.privacy.accounting.accountant import check_target
from fedpriv.privacy.accounting.spent import PrivacySpent, round_up
from fedpriv.privacy.budget_file import (
    BudgetLines,
    BudgetTerms,
    Closed,
    Reserved,
    RunMark,
    add,
    lock_budget,
    read_mark,
    to_plain,
    write_mark,
    write_new,
)
from fedpriv.privacy.budget_shares import (
    Share,
    check_clients,
    compute_epsilon,
    compute_remaining_epsilon,
    compute_share,
    compute_shares,
    compute_spending,
)
from fedpriv.privacy.composition import RunCost, check_accountant
from fedpriv.privacy.record import Relation, Unit
from fedpriv.settings.checks import Fraction, Positive, validate_arguments
from fedpriv.storage import strict_json

AT_WORK = "at work, stopped or left"
_ANSWERS = {
    True: "for any choice of the runs, even one based on results of earlier runs",
    False: "if the number of runs and their noise did not depend on results of earlier runs",
}


@dataclass(frozen=True)
class Entry:
    """One run's reservation in a budget.

    Attributes:
        run: Name of the run.
        time: Time of the reservation, in UTC.
        epsilon: The cost of this reservation alone, at the budget's delta.
        trust: The run's trust assumption.
        state: Reason for the end of the run; `AT_WORK` if it has not ended.
        returned: True if a part of the reservation was returned.
    """

    run: str
    time: str
    epsilon: float
    trust: str
    state: str
    returned: bool


@dataclass(frozen=True)
class Balance:
    """The state of a budget: its limit, the spent part, and the rest.

    Attributes:
        terms: The budget's terms.
        spent: The cost of all reservations together.
        left: Largest epsilon of a further run with Gaussian noise and without sampling (at delta 0, of a run with pure
            epsilon).
        entries: The reservations, in order.
        holds: The assumption under which `spent` is valid, in words.
    """

    terms: BudgetTerms
    spent: PrivacySpent
    left: float
    entries: tuple[Entry, ...]
    holds: str

    def to_json(self) -> dict[str, Any]:
        """Returns the content of `fedpriv budget --json`, in which the epsilon is the spent epsilon."""
        return {
            "epsilon": strict_json.encode_epsilon(self.spent.epsilon),
            "trust": self.spent.trust,
            "accountant": self.spent.accountant,
            "float64_noise": list(self.spent.float64_noise),
            "left": self.left,
            "budget": asdict(self.terms),
            "runs": [{**asdict(entry), "epsilon": strict_json.encode_epsilon(entry.epsilon)} for entry in self.entries],
            "holds": self.holds,
        }


@validate_arguments("budget")
class Budget:
    """A budget file for all runs on one data set. Several processes may use it at the same time.

    Guarantee: all runs with a reservation in this file are together (epsilon, delta)-differentially private, for the
    file's privacy unit and neighbouring relation, against an observer of each run as its `trust` allows. The choice of
    runs must not depend on query results of earlier runs, unless `accountant` is `"gaussian"` (Smith and Thakurta 2022)
    or `"pure"` (Rogers, Roth, Ullman and Vadhan 2016), which allow it.

    Args:
        path: A file that `Budget.create` or `fedpriv budget` made.

    Raises:
        LedgerError: If the file is missing, damaged or altered, or was replaced with an earlier copy.

    Examples:
        >>> import fedpriv, tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     budget = fedpriv.Budget.create(Path(folder) / "study.budget", epsilon=4.0, delta=1e-5)
        ...     len(budget.balance().entries)
        0
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.terms = BudgetLines.read(self.path).terms

    @staticmethod
    @validate_arguments("budget")
    def create(
        path: str | Path,
        *,
        epsilon: Positive,
        delta: Fraction,
        unit: Unit = "sample",
        relation: Relation = "replace_one",
        invariants: str = "",
        data: str = "",
        accountant: str | None = None,
    ) -> Budget:
        """Creates a budget file.

        Args:
            path: The new file, which only its owner can read. Keep the file at this path as long as the data are used.
            epsilon: Largest epsilon that all runs together may cost.
            delta: Delta of that epsilon.
            unit: Privacy unit: `"sample"` (default) or `"client"`.
            relation: Neighbouring relation. A budget with `"replace_one"` (default) accepts runs with both relations.
            invariants: Further facts that neighbouring data sets may have in common, e.g. `"sizes public"`; a run that
                needs more such facts raises an error.
            data: Name of the data set, for readers of the file; by default the name of the file.
            accountant: The bound by which the cost of runs is computed, `"gaussian"`, `"pld"`, `"rdp"` or `"pure"`;
                None (default) uses the smallest.

        Raises:
            ConfigError: If a term is out of range.
            LedgerError: If the file exists already, or cannot be written.
        """
        check_target(1, delta, epsilon)
        check_choice("budget.unit", unit, "sample", "client")
        check_choice("budget.relation", relation, "replace_one", "add_remove")
        check_accountant(accountant)
        if delta == 0 and accountant not in (None, "pure"):
            raise ConfigError(
                "budget.accountant", accountant, "must be 'pure' or None at delta=0, where only pure epsilon exists"
            )
        name = data or Path(path).stem
        terms = BudgetTerms(
            float(epsilon), float(delta), unit, relation, invariants, name, accountant, secrets.token_hex(16)
        )
        write_new(Path(path), terms)
        return Budget(path)

    def balance(self) -> Balance:
        """Returns the part of the budget that is spent, the runs that spent it, and the remaining part."""
        lines = BudgetLines.read(self.path)
        shares = compute_shares(lines)
        ends = {change.close: change for change in lines.changes if isinstance(change, Closed)}
        entries = list[Entry]()
        for reserved in (change for change in lines.changes if isinstance(change, Reserved)):
            epsilon, _ = compute_epsilon([shares[reserved.reserve]], self.terms)
            end = ends.get(reserved.reserve)
            if end is None:
                state = AT_WORK
                returned = False
            else:
                state = end.ended
                returned = end.charges is not None
            entries.append(Entry(reserved.run, reserved.time, epsilon, reserved.trust, state, returned))
        all_shares = [*shares.values()]
        return Balance(
            self.terms,
            compute_spending(all_shares, self.terms),
            compute_remaining_epsilon(all_shares, self.terms),
            tuple(entries),
            _ANSWERS[self.terms.accountant in ("gaussian", "pure")],
        )

    def holds(self, run: str) -> bool:
        """True if the run of this name has a reservation."""
        return run in compute_shares(BudgetLines.read(self.path))

    def rounds_of(self, run: str) -> int:
        """Returns the number of rounds of a run that may have been released, in its folder or in a copy of it.

        Raises:
            LedgerError: If the run has a reservation but no recorded progress.
        """
        mark = read_mark(self.path, run)
        if mark is not None:
            return mark.rounds
        if self.holds(run):
            raise LedgerError(
                f"{self.path}.marks has no entry for this run, so it is unknown how many of its rounds were released. "
                "This file belongs to the budget: if you moved the budget, move this file too; otherwise, restore it"
            )
        return 0

    def begin(self, run: str, start: str, seen: int, rounds: int) -> None:
        """Records that a process begins to train a run. A process that trained this run before can no longer release
        values.

        Args:
            run: Name of the run.
            start: Random name of the process start.
            seen: The value that `rounds_of` returned, from which the process resumes.
            rounds: Number of rounds, counted from round 0, that the process may release until it calls `advance`.

        Raises:
            LedgerError: If another process has begun in between, or the file cannot be written.
        """
        with lock_budget(self.path):
            if self.rounds_of(run) != seen:
                raise LedgerError(
                    f"{self.path}: another process has just started to train this run: wait for that process, or stop "
                    "it, and resume the run"
                )
            write_mark(self.path, run, RunMark(start, max(rounds, seen)))

    def advance(self, run: str, start: str, rounds: int) -> None:
        """Lets a process release more rounds of its run.

        Args:
            run: Name of the run.
            start: Random name of the process start, as given to `begin`.
            rounds: Number of rounds, counted from round 0, that the process may release until it calls `advance` again.

        Raises:
            LedgerError: If another process trains the run now, from a copy of its folder; or the file cannot be
                written.
        """
        with lock_budget(self.path):
            mark = read_mark(self.path, run)
            if mark is None or mark.start != start:
                raise LedgerError(
                    f"{self.path}: another process trains this run now, in a copy of its folder: continue in that "
                    "folder, because each round of the run may be released only once"
                )
            write_mark(self.path, run, RunMark(start, max(rounds, mark.rounds)))

    def check(self, run: RunCost) -> None:
        """Raises an error if the budget does not allow a run. It reserves nothing.

        Args:
            run: The whole plan of the run.

        Raises:
            BudgetExhausted: If the run would exceed the limit.
            PrivacyError: If the run does not protect the unit or relation of the budget.
        """
        self._fits(BudgetLines.read(self.path), run)

    def reserve(self, run: RunCost) -> None:
        """Reserves the cost of a run's whole plan. Call it before the first release. When it returns, the reservation
        is on the disk.

        Args:
            run: The whole plan. A resumed run finds its reservation by its `run_name` (`holds`).

        Raises:
            BudgetExhausted: If the run would exceed the limit; nothing is reserved.
            PrivacyError: If the run does not protect the unit or relation of the budget, or already has a reservation.
            LedgerError: If the file cannot be written; nothing is reserved.
        """
        if not run.run_name:
            raise ConfigError(
                "run.run_name",
                run.run_name,
                "must not be empty: give the run a name of its own, e.g. secrets.token_hex(16)",
            )
        with lock_budget(self.path):
            lines = BudgetLines.read(self.path)
            share = self._fits(lines, run)
            plain = to_plain(share.charges)
            reserved = Reserved(
                run.run_name, run.name, _utc_now(), share.n_clients, share.trust, share.data, plain, share.float64_noise
            )
            add(self.path, lines, reserved)

    def close(self, run: str, ended: str, used: RunCost | None = None) -> None:
        """Records that a run has ended; a second call changes nothing.

        Args:
            run: Name of the run, as in its reservation.
            ended: The reason, in a word.
            used: The releases that the run made; the rest of the reservation is returned to the budget. With None, the
                whole reservation stays spent. Pass releases only if their number does not depend on the data, which is
                the case if a public limit ended the run and not its query results.

        Raises:
            PrivacyError: If there is no such reservation, or it is smaller than `used`.
            LedgerError: If the file cannot be written; the whole reservation stays spent.
        """
        with lock_budget(self.path):
            lines = BudgetLines.read(self.path)
            share = compute_shares(lines).get(run)
            if any(isinstance(change, Closed) and change.close == run for change in lines.changes):
                return
            if share is None:
                raise PrivacyError(
                    f"{self.path} contains no reservation of a run named {run}: pass the name of a reservation in "
                    "this budget"
                )
            if used is None:
                charges = None
            else:
                charges = compute_share(used, self.terms).charges
            if charges is not None and not charges <= share.charges:
                raise PrivacyError(
                    f"{share.name} released query results that it had not reserved in {self.path}: close it without "
                    "used, to charge the whole reservation"
                )
            if charges is not None and charges != share.charges:  # a part of the reservation is returned
                plain = to_plain(charges)
            else:
                plain = None
            add(self.path, lines, Closed(run, ended, _utc_now(), plain))

    def _fits(self, lines: BudgetLines, run: RunCost) -> Share:
        """Returns the cost of a run; raises an error if the budget does not allow the run."""
        terms = self.terms
        earlier = [*compute_shares(lines).values()]
        try:
            share = compute_share(run, terms)
            check_clients([*earlier, share], terms)
        except PrivacyError as error:
            raise PrivacyError(f"{self.path} does not allow this run: {error}") from None
        reserved = compute_shares(lines).get(run.run_name or "")
        if reserved is not None:
            raise PrivacyError(
                f"{run.name} already has a reservation in {self.path}, as {reserved.name}: resume that run"
            )
        total = compute_epsilon([*earlier, share], terms, terms.epsilon)[0]
        if total > terms.epsilon:
            raise BudgetExhausted(self._refusal(run, earlier, compute_epsilon([share], terms)[0], total))
        return share

    def _refusal(self, run: RunCost, earlier: Sequence[Share], alone: float, total: float) -> str:
        """Returns the message for a run that would exceed the limit: the rest, the cost of the run, and the fix."""
        terms = self.terms
        allowance = f"{self.path} allows epsilon={terms.epsilon:g} at delta={terms.delta:g} for all runs together"
        if math.isinf(alone):
            why = next(
                (record.non_private for record in run.records if record.non_private), "by the budget's accountant"
            )
            return f"{allowance}, but {run.name} has epsilon=inf ({why}); use noise with a known privacy cost"
        spent, _ = compute_epsilon(earlier, terms)
        remaining = compute_remaining_epsilon(earlier, terms)
        if remaining > 0:
            fix = (
                f"A run of up to epsilon={_format_rounded_down(remaining)} still fits: set privacy.epsilon, or use "
                "fewer rounds or more noise"
            )
        else:
            fix = "Nothing of the budget is left"
        return (
            f"{allowance}. Epsilon {round_up(spent)} is spent by {_runs(len(earlier))}, {run.name} costs epsilon "
            f"{round_up(alone)}, and together they would cost epsilon {round_up(total)}. Nothing was released. {fix}"
        )


def _format_rounded_down(value: float) -> str:
    """Returns a number as text with three significant digits, rounded down."""
    scale = 10 ** (2 - math.floor(math.log10(value)))
    return f"{math.floor(value * scale) / scale:g}"


def _runs(count: int) -> str:
    if count == 1:
        return "1 run"
    return f"{count} runs"


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
