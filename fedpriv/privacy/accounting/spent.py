"""An epsilon together with the conditions under which it holds."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedpriv.privacy.record import Unit

_DIGITS = 4


@dataclass(frozen=True)
class PrivacySpent:
    """The privacy guarantee of a run: epsilon, delta and the conditions under which they hold.

    >>> print(PrivacySpent(3.2, 1e-5, "sample", "replace_one", "local", "pld", (3.2,), ()))
    epsilon=3.2 (delta=1e-5, unit=sample, relation=replace_one, trust=local, accountant=pld)

    Attributes:
        epsilon: Upper bound on the privacy loss of the whole run (natural logarithm); the largest over the clients.
        delta: The delta of (epsilon, delta)-differential privacy.
        unit: Privacy unit: one `"sample"`, or everything that one `"client"` holds.
        relation: Neighbouring relation, followed in brackets by further facts that neighbours have in common.
        trust: The trust assumption, as text, e.g. `"local"`.
        accountant: The bound from which epsilon is computed: `gaussian` (exact), `pld`, `rdp` or `pure`; `none` if
            epsilon is infinite.
        per_client: Epsilon of each client.
        non_private: Reason why epsilon is infinite; empty if epsilon is finite.
        not_covered: Further facts about the data that were revealed and that epsilon does not cover.
        float64_noise: Description of noise that is added in float64 and then rounded, although its cost is computed for
            real numbers (`fedpriv.privacy.float64_noise`). Empty if all sums are rounded as real numbers.
    """

    epsilon: float
    delta: float
    unit: Unit
    relation: str
    trust: str
    accountant: str
    per_client: tuple[float, ...]
    non_private: tuple[str, ...]
    not_covered: tuple[str, ...] = ()
    float64_noise: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Returns epsilon and its conditions as text. Epsilon is rounded up, never down."""
        if math.isinf(self.epsilon):
            reasons = "; ".join(self.non_private) or f"no finite bound at delta={_plain(self.delta)}"
            value = f"inf (not private: {reasons})"
        else:
            value = round_up(self.epsilon)
        if self.not_covered:
            not_covered = f"; not covered: {', '.join(self.not_covered)}"
        else:
            not_covered = ""
        if self.float64_noise and math.isfinite(self.epsilon):
            rounding = ", rounding=float64"
        else:
            rounding = ""
        return (
            f"epsilon={value} (delta={_plain(self.delta)}, unit={self.unit}, relation={self.relation}, "
            f"trust={self.trust}, accountant={self.accountant}{rounding}{not_covered})"
        )

    def at_most(self, limit: float | None) -> PrivacySpent:
        """Returns a copy with every epsilon at most `limit`, which the accountant enforced; None changes nothing.

        The copy is unchanged if a release was not private, because no limit was enforced then.
        """
        if limit is None or self.non_private:
            return self
        return replace(self, epsilon=min(self.epsilon, limit), per_client=tuple(min(e, limit) for e in self.per_client))


def round_up(value: float) -> str:
    """Returns a number as text with four significant digits, rounded up.

    >>> round_up(4.37718)
    '4.378'
    """
    # the shortest decimal that reads back as the same float, so that 3.2 stays 3.2
    rounded = Context(prec=_DIGITS, rounding=ROUND_CEILING).create_decimal(Decimal(repr(value)))
    return _plain(float(rounded))


def _plain(value: float) -> str:
    """Returns a number as text: ``1e-5`` rather than ``1e-05``, and ``1`` rather than ``1.0``."""
    return re.sub(r"e([+-])0*", lambda match: "e" + match[1].replace("+", ""), repr(value)).removesuffix(".0")
