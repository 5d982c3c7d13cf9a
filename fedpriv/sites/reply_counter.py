"""The signed counter of a site's records, which detects a folder that was restored from an old copy.

With each reply, a site signs its number of records in a plan. The receiver keeps the largest counter and sends it with
the next request. A ledger only grows, so a site that receives a larger counter than its own was set back: its spending
is unknown, and it sends no more replies (docs/protocol.md). Only the site itself can sign, so no other party can stop
it with a forged counter.
"""

from __future__ import annotations

import json
from typing import Annotated

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedpriv.config.base import GENERATED, Section, pattern_validator
from fedpriv.errors import PrivacyError
from fedpriv.settings import Whole

_DOMAIN = b"fedpriv/reply counter/1/"


class InvalidCounter(PrivacyError):
    """Raised for a counter that its site has not signed, or that belongs to another plan."""


class ReplyCounter(Section):
    """Counts the records of a site in a plan. Neither number ever decreases.

    Attributes:
        plan: Hash of the plan.
        site: Number of the site in the plan.
        records: Number of records in the site's ledger of the plan.
        notices: Number of its absence notices in the plan.
        signature: Ed25519 signature, with the site's key in the plan.
    """

    plan: Annotated[str, pattern_validator(r"[0-9a-f]{64}", GENERATED)]
    site: Whole
    records: Whole
    notices: Whole
    signature: Annotated[str, pattern_validator(r"[0-9a-f]{128}", GENERATED)]

    @classmethod
    def signed(cls, key: bytes, plan: str, site: int, *, records: int, notices: int) -> ReplyCounter:
        """Returns a counter, signed with the private key of the site, 32 bytes."""
        unsigned = cls(plan=plan, site=site, records=records, notices=notices, signature="0" * 128)
        signature = Ed25519PrivateKey.from_private_bytes(key).sign(unsigned.signed_content)
        return unsigned.model_copy(update={"signature": signature.hex()})

    @property
    def signed_content(self) -> bytes:
        """The bytes that are signed: all fields but the signature, as JSON with sorted keys."""
        return _DOMAIN + json.dumps(self.model_dump(exclude={"signature"}), sort_keys=True).encode()

    def check(self, plan: str, site: int, verifying_key: bytes) -> None:
        """Checks that the site itself has signed the counter, for this plan.

        Raises:
            InvalidCounter: If it has not, or the counter belongs to another plan or site.
        """
        if (self.plan, self.site) != (plan, site):
            raise InvalidCounter("a reply counter is for another plan or another site")
        try:
            public = Ed25519PublicKey.from_public_bytes(verifying_key)
            public.verify(bytes.fromhex(self.signature), self.signed_content)
        except (InvalidSignature, ValueError):
            raise InvalidCounter(f"a reply counter is not signed by its site, number {site}") from None

    def exceeds(self, records: int, notices: int) -> bool:
        """Returns True if the site has signed more records or notices than these numbers."""
        return self.records > records or self.notices > notices
