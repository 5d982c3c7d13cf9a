"""The signed count of a site's records, by which a folder that was restored from an old copy is noticed.

A site signs with each reply how much it has on record in a plan. Whoever asks keeps the largest count, and shows it
with the next question. A ledger only grows, so a site that is shown more than it has was set back: it does not know
what it has spent, and answers nothing (docs/protocol.md). Only the site itself can sign, so nobody stops it with a
made-up count.
"""

from __future__ import annotations

import json
from typing import Annotated

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedpriv.config.base import GENERATED, Section, matching
from fedpriv.errors import PrivacyError
from fedpriv.settings import Whole

_DOMAIN = b"fedpriv/reply counter/1/"


class InvalidCounter(PrivacyError):
    """Raised for a count that its site has not signed, or that is of another plan."""


class ReplyCounter(Section):
    """Counts what a site has on record in a plan. Neither number ever decreases.

    Attributes:
        plan: Hash of the plan.
        site: Number of the site in it.
        records: Number of records in the site's ledger of the plan.
        notices: Number of its absence notices in the plan.
        signature: Ed25519, of the site's key in the plan.
    """

    plan: Annotated[str, matching(r"[0-9a-f]{64}", GENERATED)]
    site: Whole
    records: Whole
    notices: Whole
    signature: Annotated[str, matching(r"[0-9a-f]{128}", GENERATED)]

    @classmethod
    def signed(cls, key: bytes, plan: str, site: int, *, records: int, notices: int) -> ReplyCounter:
        """Returns a count, signed with the private key of the site, 32 bytes."""
        unsigned = cls(plan=plan, site=site, records=records, notices=notices, signature="0" * 128)
        signature = Ed25519PrivateKey.from_private_bytes(key).sign(unsigned.signed_content)
        return unsigned.model_copy(update={"signature": signature.hex()})

    @property
    def signed_content(self) -> bytes:
        """The bytes that are signed: all fields but the signature, as JSON with sorted keys."""
        return _DOMAIN + json.dumps(self.model_dump(exclude={"signature"}), sort_keys=True).encode()

    def check(self, plan: str, site: int, verifying_key: bytes) -> None:
        """Checks that the site itself has signed the count, for this plan.

        Raises:
            InvalidCounter: it has not, or the count is of another plan or site.
        """
        if (self.plan, self.site) != (plan, site):
            raise InvalidCounter("a counter for another plan or site")
        try:
            public = Ed25519PublicKey.from_public_bytes(verifying_key)
            public.verify(bytes.fromhex(self.signature), self.signed_content)
        except (InvalidSignature, ValueError):
            raise InvalidCounter(f"a counter that site {site} has not signed") from None

    def exceeds(self, records: int, notices: int) -> bool:
        """Returns whether the site has signed more records or notices than these numbers."""
        return self.records > records or self.notices > notices
