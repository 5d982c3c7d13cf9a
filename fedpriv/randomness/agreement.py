"""Secrets of pairs that no third party has: X25519 key agreement (RFC 7748) and HKDF-SHA256 (RFC 5869).

Each client makes a key at home and shows the public half. From its own private half and the other's public half two
clients compute the same secret; whoever sees all public halves computes none. Whoever can put a public half of its own
between two clients shares a secret with each of them and counts as a colluder: check the fingerprints out of band.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedpriv.errors import ConfigError, PrivacyError

_BYTES = 32


def new_key() -> bytes:
    """A client's private key, 32 bytes from the operating system. It stays with its owner."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public half of a private key, 32 bytes, for all other clients."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def fingerprint_of(public: bytes) -> str:
    """What two owners compare by another way, e.g. on the telephone: 128 bits of a digest, in groups of four."""
    digest = hashlib.sha256(b"fedpriv public key" + public).hexdigest()[:32]
    return " ".join(digest[at : at + 4] for at in range(0, 32, 4))


@dataclass(frozen=True)
class AgreedSecrets:
    """The secrets that one client shares with the others; see `fedpriv.randomness.streams.PairSecrets`.

    Args:
        client: Whose they are.
        private: Its private key.
        public: Every client's public key, its own among them, as checked by their owners.
        session: Names the run, the same for all its clients and for no other run: with the same keys and session two
            runs would have the same noise of pairs, and the difference of their messages would be without it.

    Raises:
        ConfigError: there is no session; a key has another length or stands twice, or the client's own is not that of
            its private key.
    """

    client: int
    private: bytes = field(repr=False)
    public: Mapping[int, bytes]
    session: bytes

    def __post_init__(self) -> None:
        for client, key in self.public.items():
            if len(key) != _BYTES:
                raise ConfigError(f"public keys: client {client}", f"{len(key)} bytes", f"give {_BYTES} bytes")
        if not self.session:
            raise ConfigError("session", self.session, "give bytes that no other run has, e.g. secrets.token_bytes(16)")
        if len(set(self.public.values())) < len(self.public):
            raise ConfigError("public keys", "the same twice", "every client needs a key of its own")
        if len(self.private) != _BYTES or self.public.get(self.client) != public_key(self.private):
            fix = "does not belong to its private key: give the table that every owner has checked"
            raise ConfigError(f"public keys: client {self.client}", "(its own)", fix)

    def pair_secret(self, i: int, j: int, purpose: str) -> bytes:
        """32 bytes, the same at both ends, and others for every other pair and purpose.

        Raises:
            PrivacyError: neither end is this client, the other has no key here, or its key allows no secret.
        """
        low, high = sorted((i, j))
        if self.client not in (low, high) or low == high or not {low, high} <= {*self.public}:
            raise PrivacyError(f"client {self.client} shares no secret of the pair ({i}, {j})")
        other = self.public[low + high - self.client]
        try:
            shared = X25519PrivateKey.from_private_bytes(self.private).exchange(
                X25519PublicKey.from_public_bytes(other)
            )
        except ValueError:
            raise PrivacyError(f"the public key of client {low + high - self.client} allows no secret") from None
        # both public keys are named: who answers for another's key gets another secret
        name = f"fedpriv/{purpose}/{low}/{high}/".encode() + self.public[low] + self.public[high] + self.session
        return HKDF(SHA256(), _BYTES, salt=None, info=name).derive(shared)
