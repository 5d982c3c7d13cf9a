"""Shared conventions of a server and its sites: key expressions, signed contents, and the longest message."""

from __future__ import annotations

from fedpriv.errors import ConfigError
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.messages import OVERHEAD, compute_request_limit
from fedpriv.sites.over_zenoh.signatures import MAX_SIGNATURE_BYTES, PrivateKey, check_signature, sign
from fedpriv.sites.resolved_plan import ResolvedPlan

_FRAMING = 1024  # bytes that Zenoh adds to a message: key expression, identifiers, lengths


def question_key(plan_hash: str, site_name: str) -> str:
    """Returns the key expression on which a site replies to the requests of a plan."""
    return f"fedpriv/{plan_hash}/{site_name}"


def message_limit(resolved_plan: ResolvedPlan) -> int:
    """Returns the length in bytes of the longest request or reply of a plan, with all its metadata."""
    received, sent = resolved_plan.widths
    question = compute_request_limit(received, len(resolved_plan.cards))
    reply = 4 * sent + OVERHEAD
    return max(question, reply) + MAX_SIGNATURE_BYTES + _FRAMING


def check_transport(proposal: FederationPlan, *, has_tls: bool) -> None:
    """Raises an error for plain TCP with a plan that names certificates, or TLS with one that names none.

    Raises:
        ConfigError: If the transport does not fit the plan.
    """
    if has_tls and proposal.document.coordinator is None:
        fix = (
            "names no certificates, which TLS needs: run `fedpriv site keys` at every site and `fedpriv federate "
            "keys` at the server, then make a new plan"
        )
        raise ConfigError("plan", proposal.fingerprint, fix)
    if not has_tls and proposal.document.coordinator is not None:
        raise ConfigError(
            "plan",
            proposal.fingerprint,
            "names certificates, so its connections need TLS: write addresses as tls/HOST:PORT",
        )


class Signer:
    """Signs this party's messages and checks the signatures of the other party of a plan.

    Args:
        key: This party's private key; None if nothing is signed, on one machine without TLS.
        pinned: Fingerprint of the other party's public key; None if nothing is signed.
        name: The key expression of their requests, which is signed as well.
    """

    def __init__(self, key: PrivateKey | None, pinned: str | None, name: str) -> None:
        self._key = key
        self._pinned = pinned
        self._name = name.encode()

    def sign_question(self, question: bytes) -> bytes:
        """Returns the signature of a request; empty if nothing is signed."""
        if self._key is None:
            return b""
        return sign(self._key, self._name, b"question", question)

    def sign_reply(self, question: bytes, reply: bytes) -> bytes:
        """Returns the signature of a reply to this request; empty if nothing is signed."""
        if self._key is None:
            return b""
        return sign(self._key, self._name, b"reply", question, reply)

    def check_question(self, signature: bytes, question: bytes) -> None:
        """Checks that the other party has signed this request.

        Raises:
            BadSignature: If it has not.
        """
        if self._pinned is not None:
            check_signature(signature, self._pinned, self._name, b"question", question)

    def check_reply(self, signature: bytes, question: bytes, reply: bytes) -> None:
        """Checks that the other party has signed this reply to this request.

        Raises:
            BadSignature: If it has not.
        """
        if self._pinned is not None:
            check_signature(signature, self._pinned, self._name, b"reply", question, reply)
