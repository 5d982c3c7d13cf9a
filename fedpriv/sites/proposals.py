"""Plans that arrive over the network: they wait in a site's folder until its owner approves or rejects them.

No plan is accepted without the owner, who types the fingerprint that the owners have compared. A decision is a file, so
it can be made while the site is running.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

from fedpriv.errors import FedprivError
from fedpriv.sites.federation_plan import FederationPlan, check_fingerprint, fingerprint_of_hash
from fedpriv.sites.statistics_policy import OtherColumns
from fedpriv.storage import files

Word = Literal["pending", "accepted", "refused", "not_allowed", "other_columns", "malformed", "later"]
"""A site's response to a proposal. The reason stays in the site's log."""
Decision = Literal["pending", "approved", "refused"]
PROPOSALS = "proposals"
MAX_PROPOSAL_BYTES = 1_000_000
_PREFIX = b"fedpriv proposal\n"  # as the first bytes of a request this would be a header of 10^18 bytes
_MAX_PENDING = 20
_INTERVAL = 10.0  # seconds between proposals that are read, since the privacy cost of each is computed
_LOG = logging.getLogger(__name__)


class Carrier(Protocol):
    """Carries bytes to sites; see `fedpriv.sites.federation.Transport`."""

    def ask(self, questions: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """Returns the replies that sites sent in time, by number."""
        ...


@dataclass(frozen=True)
class Proposal:
    """A plan that has arrived.

    Attributes:
        text: The plan.
        party: Sender of the plan, by its name in the transport.
        decision: The owner's decision.
        reason: Reason why the site could not accept an approved plan; empty if there is no problem.
    """

    text: str
    party: str
    decision: Decision
    reason: str = ""

    @property
    def hash(self) -> str:
        """Hash of the plan."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def fingerprint(self) -> str:
        """The fingerprint that the owners compare; see `FederationPlan`."""
        return fingerprint_of_hash(self.hash)


def pack_proposal(text: str) -> bytes:
    """Returns a plan's text as a message."""
    return _PREFIX + text.encode()


def is_proposal(data: bytes) -> bool:
    """Returns True if a message is a proposal and not a request."""
    return data.startswith(_PREFIX)


def proposed_hash(data: bytes) -> str:
    """Returns the hash of a proposed plan; the plan may be invalid."""
    return hashlib.sha256(data.removeprefix(_PREFIX)).hexdigest()


def offer(carrier: Carrier, plan: FederationPlan) -> Mapping[str, str]:
    """Sends a plan to all its sites; returns the response of each by name, `no_reply` for none."""
    replies = carrier.ask(dict.fromkeys(range(len(plan.cards)), pack_proposal(plan.text)))
    words: dict[str, str] = {}
    for number, card in enumerate(plan.cards):
        reply = replies.get(number, b"no_reply")
        word = reply[:20].decode("ascii", errors="replace")
        if word not in (*get_args(Word), "no_reply"):
            word = "malformed"
        words[card.name] = word
    return words


class ProposalBox:
    """The proposals in a site's folder.

    Args:
        folder: The site's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / PROPOSALS
        self._lock = threading.Lock()
        self._last_read = -_INTERVAL

    def receive(self, data: bytes, party: str, consider: Callable[[str], object]) -> Word:
        """Stores a proposal for the owner.

        Args:
            data: The message.
            party: Sender of the message.
            consider: Reads a plan; raises FedprivError for one that the site would not accept.

        Returns:
            The response to the sender.
        """
        if len(data) > MAX_PROPOSAL_BYTES + len(_PREFIX):
            return "malformed"
        try:
            text = data.removeprefix(_PREFIX).decode()
        except UnicodeDecodeError:
            return "malformed"
        with self._lock:
            known = self.find(proposed_hash(data))
            if known is not None:
                if known.decision == "refused":
                    return "refused"
                return "pending"
            if time.monotonic() - self._last_read < _INTERVAL:
                return "later"
            self._last_read = time.monotonic()
            if sum(proposal.decision == "pending" for proposal in self.proposals) >= _MAX_PENDING:
                return "later"
            try:
                consider(text)
            except FedprivError as error:
                word: Word = "not_allowed"
                if isinstance(error, OtherColumns):
                    word = "other_columns"
                facts = {"event": "proposed", "party": party, "word": word, "reason": str(error)}
                _LOG.warning("a proposed plan was rejected", extra={"facts": facts})
                return word
            proposal = Proposal(text, party, "pending")
            self._write(proposal)
        _LOG.warning(
            "a plan was proposed; the site's owner decides about it with: fedpriv site approve",
            extra={"facts": {"event": "proposed", "party": party, "word": "pending", "plan": proposal.fingerprint}},
        )
        return "pending"

    def decide(self, fingerprint: str, decision: Decision, reason: str = "") -> Proposal:
        """Writes the owner's decision.

        Args:
            fingerprint: The fingerprint of the plan, as the owners have compared it.
            decision: The decision.
            reason: Information for the owner.

        Raises:
            ConfigError: If no proposal has this fingerprint.
        """
        proposal = self.named(fingerprint)
        decided = Proposal(proposal.text, proposal.party, decision, reason)
        self._write(decided)
        return decided

    def named(self, fingerprint: str) -> Proposal:
        """Returns the proposal with this fingerprint.

        Raises:
            ConfigError: If there is none.
        """
        proposals = {proposal.hash: proposal for proposal in self.proposals}
        return proposals[check_fingerprint("fingerprint", fingerprint, proposals)]

    def find(self, plan_hash: str) -> Proposal | None:
        """Returns the proposal of a plan; None if there is none.

        Raises:
            FedprivError: If its files cannot be read.
        """
        path = self._folder / f"{plan_hash}.json"
        if not path.exists():
            return None
        try:
            facts = json.loads(files.read(path))
            proposal = Proposal(str(facts["text"]), str(facts["party"]), facts["decision"], str(facts["reason"]))
            if proposal.decision not in get_args(Decision) or proposal.hash != plan_hash:
                raise ValueError(proposal.decision)
            return proposal
        except (ValueError, KeyError, TypeError) as error:
            raise FedprivError(
                f"{path}, a proposed plan, cannot be read: delete the file, and have the plan proposed again"
            ) from error

    @property
    def proposals(self) -> list[Proposal]:
        """All proposals, including those already decided; sorted by hash."""
        stored = [self.find(path.stem) for path in sorted(self._folder.glob("*.json"))]
        return [proposal for proposal in stored if proposal is not None]

    def _write(self, proposal: Proposal) -> None:
        self._folder.mkdir(0o700, exist_ok=True)
        facts = {
            "text": proposal.text,
            "party": proposal.party,
            "decision": proposal.decision,
            "reason": proposal.reason,
        }
        files.write_whole(self._folder / f"{proposal.hash}.json", json.dumps(facts).encode())
