"""A budget for the lifetime of a data set, which outlives the runs on it.

A run reserves the price of its whole plan before it releases anything. Reservations compose as the answers of one run
do, which costs less than the sum of their epsilons, and the one that would pass the limit is refused.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedpriv.errors import BudgetExhausted, ConfigError, PrivacyError, check_choice
from fedpriv.privacy.accounting.accountant import check_target
from fedpriv.privacy.accounting.spent import PrivacySpent, round_up
from fedpriv.privacy.budget_file import BudgetLines, BudgetTerms, Closed, Reserved, add, locked, to_plain, write_new
from fedpriv.privacy.budget_shares import (
    Share,
    check_clients,
    epsilon_of,
    left_of,
    share_of,
    shares_of,
    spent_by,
)
from fedpriv.privacy.composition import RunCost, check_accountant
from fedpriv.privacy.record import Relation, Unit
from fedpriv.settings.checks import Fraction, Positive, checked
from fedpriv.storage import strict_json

AT_WORK = "at work, stopped or left"
_ANSWERS = {
    True: "whatever made you choose the runs, answers of earlier ones included",
    False: "if the number of runs and their noise did not depend on the answers of earlier ones",
}


@dataclass(frozen=True)
class Entry:
    """One reservation.

    Attributes:
        run: What the run is called.
        time: When it reserved, in UTC.
        epsilon: What it is charged, as if it were alone, at the budget's delta.
        trust: Who it trusts.
        state: How it ended, `AT_WORK` if it has not.
        returned: Whether a part of what it had reserved was given back.
    """

    run: str
    time: str
    epsilon: float
    trust: str
    state: str
    returned: bool


@dataclass(frozen=True)
class Balance:
    """What a budget allows, and what is spent of it.

    Attributes:
        terms: What is promised.
        spent: The price of all reservations together.
        left: Epsilon of a run with unsampled Gaussian noise (with pure epsilon at delta 0) that would still fit.
        entries: The reservations, in order.
        holds: On what `spent` rests, in words.
    """

    terms: BudgetTerms
    spent: PrivacySpent
    left: float
    entries: tuple[Entry, ...]
    holds: str

    def to_json(self) -> dict[str, Any]:
        """What `fedpriv budget --json` prints; `epsilon` is what is spent."""
        return {
            "epsilon": strict_json.epsilon(self.spent.epsilon),
            "trust": self.spent.trust,
            "accountant": self.spent.accountant,
            "left": self.left,
            "budget": asdict(self.terms),
            "runs": [{**asdict(one), "epsilon": strict_json.epsilon(one.epsilon)} for one in self.entries],
            "holds": self.holds,
        }


@checked("budget")
class Budget:
    """A budget file, for all runs on one data set. Processes may use it at the same time.

    Guarantee: all runs that reserved in it are together (epsilon, delta)-differentially private, for the unit and the
    relation of its terms, each against whoever sees what its `trust` allows. Which runs there are must not depend on
    answers of earlier ones, unless `accountant` is `"gaussian"` (Smith and Thakurta 2022) or `"pure"` (Rogers, Roth,
    Ullman and Vadhan 2016): then it may.

    Args:
        path: A file that `Budget.create` or `fedpriv budget` made.

    Raises:
        LedgerError: it is missing, damaged or altered, or an earlier copy was put back.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.terms = BudgetLines.read(self.path).terms

    @staticmethod
    @checked("budget")
    def create(
        path: str | Path,
        *,
        epsilon: Positive,
        delta: Fraction,
        unit: Unit = "sample",
        relation: Relation = "replace_one",
        shared: str = "",
        data: str = "",
        accountant: str | None = None,
    ) -> Budget:
        """Begin a budget.

        Args:
            path: The new file, for its owner alone; it stays where it is for as long as the data are used.
            epsilon: Most that all runs together may cost.
            delta: At this delta.
            unit: What is protected: `"sample"` or `"client"`.
            relation: Which data sets are neighbours. A budget of `"replace_one"` takes runs of both relations.
            shared: What else neighbours may have in common, e.g. `"sizes public"`; runs that need more are refused.
            data: Name of the data set, for whoever reads the file; its own name by default.
            accountant: The one bound by which runs are priced, `"gaussian"`, `"pld"`, `"rdp"` or `"pure"`; None takes
                the smallest.

        Raises:
            ConfigError: a term is out of range.
            LedgerError: the file exists, or cannot be written.
        """
        check_target(1, delta, epsilon)
        check_choice("budget.unit", unit, "sample", "client")
        check_choice("budget.relation", relation, "replace_one", "add_remove")
        check_accountant(accountant)
        if delta == 0 and accountant not in (None, "pure"):
            raise ConfigError("budget.accountant", accountant, "at delta 0 there is pure epsilon alone")
        name = data or Path(path).stem
        terms = BudgetTerms(
            float(epsilon), float(delta), unit, relation, shared, name, accountant, secrets.token_hex(16)
        )
        write_new(Path(path), terms)
        return Budget(path)

    def balance(self) -> Balance:
        """What is spent, by which runs, and what is left."""
        lines = BudgetLines.read(self.path)
        shares, ends = shares_of(lines), {one.close: one for one in lines.changes if isinstance(one, Closed)}
        entries = list[Entry]()
        for one in (change for change in lines.changes if isinstance(change, Reserved)):
            alone, end = epsilon_of([shares[one.reserve]], self.terms)[0], ends.get(one.reserve)
            returned = end is not None and end.charges is not None
            state = AT_WORK if end is None else end.ended
            entries.append(Entry(one.run, one.time, alone, one.trust, state, returned))
        every = [*shares.values()]
        holds = _ANSWERS[self.terms.accountant in ("gaussian", "pure")]
        return Balance(self.terms, spent_by(every, self.terms), left_of(every, self.terms), tuple(entries), holds)

    def holds(self, noise: str) -> bool:
        """Whether a run that draws this noise has reserved."""
        return noise in shares_of(BudgetLines.read(self.path))

    def check(self, run: RunCost) -> None:
        """Refuse a run that the budget does not allow; nothing is reserved.

        Args:
            run: The whole plan of the run.

        Raises:
            BudgetExhausted: it would overspend.
            PrivacyError: it does not protect what the budget promises.
        """
        self._fits(BudgetLines.read(self.path), run)

    def reserve(self, run: RunCost) -> None:
        """Charge a run for its whole plan. Call it before anything is released; it returns when it is on the disk.

        Args:
            run: The whole plan. Its `noise` must name the noise that the run draws (`Randomness.noise_name`), which
                is how a resume finds what it has reserved (`holds`).

        Raises:
            BudgetExhausted: it would overspend; nothing was charged.
            PrivacyError: it does not protect what the budget promises, or another run drew the same noise.
            LedgerError: the file cannot be written; nothing was charged.
        """
        if not run.noise:
            raise ConfigError("run.noise", run.noise, "name the noise that the run draws: Randomness.noise_name()")
        with locked(self.path):
            lines = BudgetLines.read(self.path)
            share = self._fits(lines, run)
            plain = to_plain(share.charges)
            reserved = Reserved(run.noise, run.name, _now(), share.n_clients, share.trust, share.data, plain)
            add(self.path, lines, reserved)

    def close(self, noise: str, ended: str, used: RunCost | None = None) -> None:
        """Note that a run has ended; a second time changes nothing.

        Args:
            noise: The name under which it reserved.
            ended: Why, in a word.
            used: What it released, to give back the rest; None charges all that it reserved. Give it only if how much
                was released does not depend on the data: a public limit ended the run, not its answers.

        Raises:
            PrivacyError: no such run has reserved, or less than was used.
            LedgerError: the file cannot be written; all that it reserved stays charged.
        """
        with locked(self.path):
            lines = BudgetLines.read(self.path)
            share = shares_of(lines).get(noise)
            if any(isinstance(change, Closed) and change.close == noise for change in lines.changes):
                return
            if share is None:
                raise PrivacyError(f"{self.path} holds no reservation of a run with the noise {noise}")
            if used is None:
                charges = None
            else:
                charges = share_of(used, self.terms).charges
            if charges is not None and not charges <= share.charges:
                raise PrivacyError(f"{share.name} released what it had not reserved in {self.path}")
            returned = charges is not None and charges != share.charges
            if charges is not None and returned:
                plain = to_plain(charges)
            else:
                plain = None
            add(self.path, lines, Closed(noise, ended, _now(), plain))

    def _fits(self, lines: BudgetLines, run: RunCost) -> Share:
        terms, before = self.terms, [*shares_of(lines).values()]
        try:
            share = share_of(run, terms)
            check_clients([*before, share], terms)
        except PrivacyError as error:
            raise PrivacyError(f"{self.path} does not allow this run: {error}") from None
        known = shares_of(lines).get(run.noise or "")
        if known is not None:
            fix = "resume that one, or give no secret_seed"
            raise PrivacyError(f"{run.name} would draw the noise of {known.name}, which is in {self.path}: {fix}")
        whole = epsilon_of([*before, share], terms, terms.epsilon)[0]
        if whole > terms.epsilon:
            raise BudgetExhausted(self._refusal(run, before, epsilon_of([share], terms)[0], whole))
        return share

    def _refusal(self, run: RunCost, before: Sequence[Share], alone: float, whole: float) -> str:
        """What is left, what the run costs, and what to do."""
        terms = self.terms
        said = f"{self.path} allows epsilon={terms.epsilon:g} at delta={terms.delta:g} in all"
        if math.isinf(alone):
            why = next((one.non_private for one in run.records if one.non_private), "by the budget's accountant")
            return f"{said}, and {run.name} has epsilon=inf ({why}); give it noise that has a price"
        left, spent = left_of(before, terms), epsilon_of(before, terms)[0]
        fix = "Nothing is left of it"
        if left > 0:
            fix = (
                f"A run of up to epsilon={_down(left)} still fits: set privacy.epsilon, take fewer rounds or more noise"
            )
        return (
            f"{said}; {round_up(spent)} is spent by {_runs(len(before))}, {run.name} costs {round_up(alone)}, and "
            f"together they would cost {round_up(whole)}. Nothing was released. {fix}"
        )


def _down(value: float) -> str:
    """As text with three significant digits, rounded down."""
    scale = 10 ** (2 - math.floor(math.log10(value)))
    return f"{math.floor(value * scale) / scale:g}"


def _runs(count: int) -> str:
    if count == 1:
        return "1 run"
    return f"{count} runs"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
