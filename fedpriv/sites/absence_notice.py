"""A site's signed word that it does not answer in some rounds, so that the others may leave its pairs out.

Nobody else can say it: it is signed with a key whose public half every site has accepted with the plan. It names the
plan, so it counts in no other run. The site that signs it keeps it and refuses these rounds for ever.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import Field

from fedpriv.config.base import Section
from fedpriv.errors import PrivacyError
from fedpriv.settings.checks import Whole
from fedpriv.sites.descriptor import SiteDescriptor

Reason = Literal["over_budget", "away"]
"""Why a site is absent: its budget ends, or its owner says so. No other word leaves."""
MOST = 4
"""Open notices of a site in one plan: what every reply has room for."""
_DOMAIN = b"fedpriv/absence notice/1/"


class InvalidNotice(PrivacyError):
    """A notice that is forged, of another run, or contradicts another one."""


class AbsenceNotice(Section):
    """A site answers nothing from round `first` to `last`, both included.

    Attributes:
        plan: Hash of the plan, and so of everybody's keys.
        site: Number of the site in it.
        first: The first round, from 0.
        last: The last round.
        why: In one word.
        signature: Ed25519, of the site's key in the plan.
    """

    plan: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    site: Whole
    first: Whole
    last: Whole
    why: Reason
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]

    @classmethod
    def signed(cls, key: bytes, plan: str, site: int, first: int, last: int, why: Reason) -> AbsenceNotice:
        """A notice, signed with the private key of the site, 32 bytes."""
        bare = cls(plan=plan, site=site, first=first, last=last, why=why, signature="0" * 128)
        signature = Ed25519PrivateKey.from_private_bytes(key).sign(bare.told)
        return bare.model_copy(update={"signature": signature.hex()})

    @property
    def told(self) -> bytes:
        """What is signed: all of it but the signature."""
        return _DOMAIN + json.dumps(self.model_dump(exclude={"signature"}), sort_keys=True).encode()

    def covers(self, round_index: int) -> bool:
        """Whether it names this round."""
        return self.first <= round_index <= self.last

    def check(self, plan: str, cards: Sequence[SiteDescriptor], rounds: int) -> None:
        """Check that the site itself has said it, of this plan.

        Raises:
            BadNotice: it has not, or the notice names no rounds of the plan.
        """
        if self.plan != plan or self.site >= len(cards) or not self.first <= self.last < rounds:
            raise InvalidNotice("a notice of another plan, of no site, or of no rounds")
        try:
            public = Ed25519PublicKey.from_public_bytes(cards[self.site].verifying_key)
            public.verify(bytes.fromhex(self.signature), self.told)
        except (InvalidSignature, ValueError):
            raise InvalidNotice(f"a notice that site {self.site} has not signed") from None


def absent_by(notices: Iterable[AbsenceNotice], round_index: int, cohort: Collection[int]) -> frozenset[int]:
    """The participants of a round who do not answer, by notices that have been checked.

    Raises:
        BadNotice: one is of another round, of a site that takes no part, or there are two of a site.
    """
    found = [*notices]
    sites = frozenset(notice.site for notice in found)
    if len(sites) < len(found) or not sites <= {*cohort}:
        raise InvalidNotice(f"round {round_index}: two notices of a site, or one of a site that takes no part")
    if not all(notice.covers(round_index) for notice in found):
        raise InvalidNotice(f"round {round_index}: a notice of other rounds")
    return sites


def new_key() -> bytes:
    """A site's private key for its notices, 32 bytes from the operating system."""
    return Ed25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public half of a private key, 32 bytes, for everybody's card."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
