"""Signed notices in which a site declares that it will not reply in some rounds, so that others omit its pairs.

Only the site itself can create a notice: it is signed with a key, and every site has accepted the public half of that
key with the plan. A notice names the plan, so it is invalid in any other run. The site that signs it stores it and
rejects requests for these rounds from then on.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedpriv.config.base import GENERATED, Section, pattern_validator
from fedpriv.errors import PrivacyError
from fedpriv.settings import Whole
from fedpriv.sites.descriptor import SiteDescriptor

Reason = Literal["over_budget", "away"]
"""Reason for an absence: the site's budget is used up, or its owner decided so. No other text leaves the site."""
MAX_OPEN_NOTICES = 4
"""Largest number of open notices of a site in one plan; every reply has room for this many."""
_DOMAIN = b"fedpriv/absence notice/1/"


class InvalidNotice(PrivacyError):
    """Raised for a notice that is forged, belongs to another run, or contradicts another notice."""


class AbsenceNotice(Section):
    """Declares that a site sends no replies from round `first` to round `last`, inclusive.

    Attributes:
        plan: Hash of the plan, which covers the keys of all sites.
        site: Number of the site in the plan.
        first: The first round, from 0.
        last: The last round.
        reason: The reason, in one word.
        signature: Ed25519 signature, with the site's key in the plan.
    """

    plan: Annotated[str, pattern_validator(r"[0-9a-f]{64}", GENERATED)]
    site: Whole
    first: Whole
    last: Whole
    reason: Reason
    signature: Annotated[str, pattern_validator(r"[0-9a-f]{128}", GENERATED)]

    @classmethod
    def signed(cls, key: bytes, plan: str, site: int, first: int, last: int, reason: Reason) -> AbsenceNotice:
        """Returns a notice, signed with the private key of the site, 32 bytes."""
        unsigned = cls(plan=plan, site=site, first=first, last=last, reason=reason, signature="0" * 128)
        signature = Ed25519PrivateKey.from_private_bytes(key).sign(unsigned.signed_content)
        return unsigned.model_copy(update={"signature": signature.hex()})

    @property
    def signed_content(self) -> bytes:
        """The bytes that are signed: all fields but the signature, as JSON with sorted keys."""
        return _DOMAIN + json.dumps(self.model_dump(exclude={"signature"}), sort_keys=True).encode()

    def covers(self, round_index: int) -> bool:
        """Returns True if the notice covers this round."""
        return self.first <= round_index <= self.last

    def check(self, plan: str, cards: Sequence[SiteDescriptor], rounds: int) -> None:
        """Checks that the site itself has signed the notice, for this plan.

        Raises:
            InvalidNotice: If it has not, or if the notice contains no rounds of the plan.
        """
        if self.plan != plan or self.site >= len(cards) or not self.first <= self.last < rounds:
            raise InvalidNotice(
                "a notice of absence is for another plan, of an unknown site, or not for rounds of the plan"
            )
        try:
            public = Ed25519PublicKey.from_public_bytes(cards[self.site].verifying_key)
            public.verify(bytes.fromhex(self.signature), self.signed_content)
        except (InvalidSignature, ValueError):
            raise InvalidNotice(f"a notice of absence is not signed by its site, number {self.site}") from None


def absent_sites(notices: Iterable[AbsenceNotice], round_index: int, cohort: Collection[int]) -> frozenset[int]:
    """Returns the participants of a round that have declared that they do not reply.

    Args:
        notices: Notices with checked signatures.
        round_index: The round, from 0.
        cohort: Numbers of the sites that take part in it.

    Raises:
        InvalidNotice: If a notice is for another round or for a site that does not take part, or if a site has two.
    """
    notices = list(notices)
    sites = frozenset(notice.site for notice in notices)
    if len(sites) < len(notices) or not sites <= {*cohort}:
        raise InvalidNotice(
            f"round {round_index}: two notices of absence are from one site, or one is from a site that does not take "
            "part"
        )
    if not all(notice.covers(round_index) for notice in notices):
        raise InvalidNotice(f"round {round_index}: a notice of absence is for other rounds")
    return sites


def new_key() -> bytes:
    """Returns a new private key with which a site signs its notices, 32 bytes from the operating system."""
    return Ed25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Returns the public half of a private key, 32 bytes, as the card of the site has it."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
