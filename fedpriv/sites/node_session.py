"""Data that a site passes to its own node, which takes part in a plan on a graph for the site."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedpriv.sites.agreement import AgreedSecrets
from fedpriv.sites.reply_counter import ReplyCounter
from fedpriv.sites.resolved_plan import ResolvedPlan


@dataclass(frozen=True)
class NodeSession:
    """The data with which the node of a site takes part in a plan on a graph.

    Attributes:
        resolved_plan: The plan.
        number: The site's number in the plan.
        folder: The folder of the plan, inside the site's folder.
        signing_key: The site's Ed25519 key, which signs its messages.
        secrets: The secrets that the site shares with the others.
        last_answered: The last round with a stored reply, which can be repeated without privacy cost; -1 if there is
            none.
        check: Raises FedprivError once another process has taken over the site's folder.
        sign_counter: Returns the site's signed reply counter in the plan.
        check_counter: Raises RolledBack if the site once signed a larger counter than its files contain.
    """

    resolved_plan: ResolvedPlan
    number: int
    folder: Path
    signing_key: bytes
    secrets: AgreedSecrets
    last_answered: int
    check: Callable[[], None]
    sign_counter: Callable[[], ReplyCounter]
    check_counter: Callable[[ReplyCounter | None], None]
