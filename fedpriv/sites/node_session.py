"""What a site hands to its own node, which takes part in a plan on a graph for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedpriv.sites.agreement import AgreedSecrets
from fedpriv.sites.reply_counter import ReplyCounter
from fedpriv.sites.resolved_plan import ResolvedPlan


@dataclass(frozen=True)
class NodeSession:
    """What the node of a site needs to take part in a plan on a graph.

    Attributes:
        terms: The plan.
        number: The site's number in it.
        folder: The folder of the plan, inside the site's.
        signing_key: The site's Ed25519 key, with which its messages are signed.
        secrets: The secrets that the site shares with the others.
        last_answered: The last round whose reply is on the disk, from where it is repeated at no price; -1 for none.
        check: Raises FedprivError once another process has taken the site's folder over.
        sign_counter: Returns what the site has on record in the plan, signed.
        check_counter: Raises RolledBack if the site once signed to have more on record than it has.
    """

    terms: ResolvedPlan
    number: int
    folder: Path
    signing_key: bytes
    secrets: AgreedSecrets
    last_answered: int
    check: Callable[[], None]
    sign_counter: Callable[[], ReplyCounter]
    check_counter: Callable[[ReplyCounter | None], None]
