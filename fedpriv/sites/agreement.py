"""Secrets of pairs of clients, unknown to third parties: X25519 key agreement (RFC 7748), HKDF-SHA256 (RFC 5869).

Each client creates a private key locally and publishes the public key. Two clients compute the same secret, each from
its private key and the other's public key; it cannot be computed from public keys alone. An attacker who replaces
public keys with attacker keys shares a secret with each client and counts as a colluder: compare the fingerprints out
of band.
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
    """Returns a new private key, 32 bytes from the operating system. It must not leave its owner."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Returns the public key of a private key, 32 bytes, for all other clients."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def fingerprint_of(public: bytes) -> str:
    """Returns a digest of a public key for comparison out of band, e.g. by telephone: 128 bits, in groups of four."""
    digest = hashlib.sha256(b"fedpriv public key" + public).hexdigest()[:32]
    return " ".join(digest[start : start + 4] for start in range(0, 32, 4))


@dataclass(frozen=True)
class AgreedSecrets:
    """The secrets that one client shares with the other clients; see `fedpriv.randomness.streams.PairSecrets`.

    Args:
        client: Number of the client.
        private: The client's private key.
        public: Public keys of all clients, this one included, as verified by their owners.
        session: Name of the run, equal for all its clients and different from any other run. With the same keys and
            session, two runs would have the same pairwise noise, and the difference of their messages would contain no
            pairwise noise.

    Raises:
        ConfigError: If there is no session; if a key has a wrong length or occurs twice; or if the client's public key
            does not match its private key.
    """

    client: int
    private: bytes = field(repr=False)
    public: Mapping[int, bytes]
    session: bytes

    def __post_init__(self) -> None:
        for client, key in self.public.items():
            if len(key) != _BYTES:
                raise ConfigError(
                    f"public keys: client {client}", f"{len(key)} bytes", f"a public key must have {_BYTES} bytes"
                )
        if not self.session:
            raise ConfigError(
                "session",
                self.session,
                "must not be empty: pass bytes that no other run uses, e.g. secrets.token_bytes(16)",
            )
        if len(set(self.public.values())) < len(self.public):
            raise ConfigError("public keys", "the same key twice", "each client needs its own pair of keys")
        if len(self.private) != _BYTES or self.public.get(self.client) != public_key(self.private):
            fix = (
                f"does not belong to the client's private key, which must have {_BYTES} bytes: pass this client's own "
                "private key, and the table of public keys that all owners have checked"
            )
            raise ConfigError(f"public keys: client {self.client}", "(its own)", fix)

    def pair_secret(self, i: int, j: int, purpose: str) -> bytes:
        """Returns 32 bytes, equal for both clients of a pair and different for every other pair and purpose.

        Raises:
            PrivacyError: If this client is not in the pair, the other's key is missing, or its key allows no secret.
        """
        low, high = sorted((i, j))
        if self.client not in (low, high) or low == high or not {low, high} <= {*self.public}:
            raise PrivacyError(
                f"client {self.client} has no secret of clients {i} and {j}: it shares secrets only as one of the two"
            )
        other = self.public[low + high - self.client]
        try:
            shared = X25519PrivateKey.from_private_bytes(self.private).exchange(
                X25519PublicKey.from_public_bytes(other)
            )
        except ValueError:
            raise PrivacyError(
                f"the public key of client {low + high - self.client} is not a valid X25519 key, so no secret can be "
                "shared with this client: obtain its key again"
            ) from None
        # the name includes both public keys, so that a client with another's key gets a different secret
        name = f"fedpriv/{purpose}/{low}/{high}/".encode() + self.public[low] + self.public[high] + self.session
        return HKDF(SHA256(), _BYTES, salt=None, info=name).derive(shared)
