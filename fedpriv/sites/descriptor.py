"""The card of a site: its name, public number of examples and public keys, which all parties receive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Self

from fedpriv.config.base import GENERATED, Section, check, pattern_validator
from fedpriv.errors import ConfigError
from fedpriv.settings import Count
from fedpriv.sites.agreement import fingerprint_of

KIND, SIGNING = "x25519:", "ed25519:"
SiteName = Annotated[
    str,
    pattern_validator(
        r"[a-z][a-z0-9_-]{0,39}",
        "must be a lower-case letter, then lower-case letters, digits, - and _, at most 40 in all, e.g. north-hospital",
    ),
]
"""The name of a site."""


class CertificatePin(Section):
    """The certificate to which a plan binds a party, independent of the authority that signs it.

    Attributes:
        common_name: The name in its subject, by which the transport identifies the party.
        public_key: `sha256:` and the SHA-256 of its public key (SubjectPublicKeyInfo), 64 hexadecimal digits.
    """

    common_name: Annotated[str, pattern_validator(r"[^\x00-\x1f]{1,64}", "must have 1 to 64 printable characters")]
    public_key: Annotated[str, pattern_validator(r"sha256:[0-9a-f]{64}", GENERATED)]


class SiteDescriptor(Section):
    """The public facts of a site: its card.

    Attributes:
        name: A lower-case letter, then such letters, digits, `-` and `_`.
        size: Public number of examples.
        size_declared: True if that number does not depend on the true one.
        public_key: Public half of the site's X25519 key: `x25519:` and 64 hexadecimal digits.
        signing_key: Public half of the Ed25519 key that signs its absence: `ed25519:` and 64 hexadecimal digits.
        certificate: The certificate for connections to others; None for a transport that needs no certificate.
    """

    name: SiteName
    size: Count
    size_declared: bool
    public_key: Annotated[str, pattern_validator(r"x25519:[0-9a-f]{64}", GENERATED)]
    signing_key: Annotated[str, pattern_validator(r"ed25519:[0-9a-f]{64}", GENERATED)]
    certificate: CertificatePin | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a card that another organisation sent.

        Raises:
            ConfigError: If the file cannot be read, or is not a card.
        """
        try:
            raw = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(
                "card", str(path), f"cannot be read ({error}): give the path of a site's card.json"
            ) from None
        return check(cls, raw, str(path))

    @property
    def key(self) -> bytes:
        """The X25519 public key, 32 bytes."""
        return bytes.fromhex(self.public_key.removeprefix(KIND))

    @property
    def verifying_key(self) -> bytes:
        """The Ed25519 public key that verifies the site's notices, 32 bytes."""
        return bytes.fromhex(self.signing_key.removeprefix(SIGNING))

    @property
    def fingerprint(self) -> str:
        """A fingerprint of both public keys, which owners compare over another channel."""
        return fingerprint_of(self.key + self.verifying_key)

    def dumps(self) -> str:
        """Returns the card as one line of JSON."""
        return json.dumps(self.model_dump(mode="json"))
