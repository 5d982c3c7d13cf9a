"""The planned releases of a run, as stored in its checkpoint. They are needed to compute the epsilon of a run that
stopped early.

The stored text contains each kind of release once, in the form of a ledger line, and for each release its kind, its
round and its clients. The numbers are compressed (zlib, RFC 1950) and written in base64.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from fedpriv.planning.plan import Plan
from fedpriv.privacy.accounting.accountant import Accountant
from fedpriv.privacy.accounting.events import compute_cost
from fedpriv.privacy.accounting.plan_filter import SLACK, count_within_limit, covers
from fedpriv.privacy.client_lists import ClientLists
from fedpriv.privacy.ledger_file import Header, LedgerFile
from fedpriv.privacy.record import Record
from fedpriv.privacy.record_table import RecordTable


@dataclass(frozen=True)
class PlannedReleases:
    """All releases that a run planned before it read data, and its epsilon limit.

    Attributes:
        records: The planned releases, in order.
        n_clients: Number of clients.
        delta: Delta of the privacy settings.
        limit: The target epsilon; None without a target.
        fits: True if the noise was computed from the target, so that the whole plan meets it.
        private: False for a run without privacy, which has infinite epsilon from its first release on.
    """

    records: RecordTable
    n_clients: int
    delta: float
    limit: float | None
    fits: bool
    private: bool

    @staticmethod
    def of(plan: Plan) -> PlannedReleases:
        """Returns the releases of a plan."""
        privacy = plan.privacy
        return PlannedReleases(
            plan.records, plan.n_clients, privacy.delta, privacy.epsilon, plan.calibrated, privacy.private
        )

    def packed(self) -> str:
        """Returns the plan as text. If all rounds are equal, it has a few hundred bytes for any number of rounds."""
        rounds = self.records.rounds
        facts = {
            "n_clients": self.n_clients,
            "delta": self.delta,
            "limit": self.limit,
            "fits": self.fits,
            "private": self.private,
            "kinds": [kind.to_json() for kind in self.records.kinds],
            "kind_of": self.records.numbers.tolist(),
            "steps": [after - before for before, after in zip([0, *rounds], rounds, strict=False)],
            "cohorts": self.records.cohorts.tolist(),
            "lists": self.records.lists.packed(),
        }
        return base64.b64encode(zlib.compress(json.dumps(facts).encode())).decode()

    @staticmethod
    def unpacked(text: str, header: Header) -> PlannedReleases:
        """Returns the plan from a text that `packed` returned.

        Args:
            text: The text.
            header: The header of the run's ledger, which holds the pairs that share a secret and the noise matrix.

        Raises:
            ValueError: If the text contains no plan.
        """
        try:
            facts: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
            kinds = tuple(Record.from_json(kind, header.secrets, header.factor) for kind in facts["kinds"])
            numbers, rounds = array("i", facts["kind_of"]), array("i", accumulate(facts["steps"]))
            cohorts, lists = array("i", facts["cohorts"]), ClientLists.unpacked(facts["lists"])
            fits = len(numbers) == len(rounds) == len(cohorts)
            if not fits or not {*numbers} <= {*range(len(kinds))} or not {*cohorts} <= {*range(-1, len(lists))}:
                raise ValueError("no plan of a run (its kinds do not fit)")
            records = RecordTable(kinds, numbers, rounds, cohorts, lists)
            return PlannedReleases(
                records, facts["n_clients"], facts["delta"], facts["limit"], facts["fits"], facts["private"]
            )
        except (zlib.error, binascii.Error, LookupError, TypeError, OverflowError) as error:
            raise ValueError(f"no plan of a run ({error})") from error

    def is_of(self, ledger: LedgerFile) -> bool:
        """Returns True if the plan contains every recorded release, with at least the recorded privacy cost.

        In that case the remaining releases of the plan belong to the run. The test is needed because a plan with
        batches of fixed size depends on the sizes of clients: a plan for more examples than the run has would count too
        small a cost for the remaining releases.

        Raises:
            LedgerError: If the ledger is damaged or altered.
        """
        header = ledger.header
        if self.n_clients != header.n_clients or header.planned not in (None, len(self.records)):
            return False
        costs = {
            (record.round, record.query, record.index): compute_cost(record, self.n_clients) for record in self.records
        }
        for record in ledger.records:
            cost = costs.get((record.round, record.query, record.index))
            if cost is None or not covers(cost, compute_cost(record, self.n_clients), SLACK):
                return False
        return True

    def remaining(self, on_record: Sequence[Record], attempt: int, finished: int) -> list[Record]:
        """Returns the planned releases that a run has not made yet and that its limit allows.

        Args:
            on_record: All recorded releases of the run.
            attempt: Label of the run's own releases; the releases of an earlier run that it extends have another label.
            finished: Number of finished rounds at the checkpoint.
        """
        if not self.private:
            return []
        of_attempt = [record for record in on_record if record.attempt == attempt]
        # rounds before the last one on record are over, including lost ones
        first = max((record.round for record in of_attempt), default=finished)
        keys = {(record.round, record.query, record.index) for record in of_attempt}
        remaining = [
            replace(record, attempt=attempt)
            for record in self.records
            if record.round >= first and (record.round, record.query, record.index) not in keys
        ]
        if self.limit is None or self.fits:
            return remaining
        accountant = Accountant(self.n_clients, self.delta)
        for record in on_record:
            accountant.count(record)
        return remaining[: count_within_limit(accountant, remaining, self.limit)]
