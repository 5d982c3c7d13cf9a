"""Signs requests and replies with the private key of a certificate; checks them against the key that a plan names.

TLS shows that the other end is vouched for by an authority. The signature shows that it is the party of the plan, even
if the authority signed two certificates with one name. A signature is a JSON object that accompanies the message. It
contains the public key, with the fingerprint that the plan names, and the signature of the message's digest.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
)

from fedpriv.errors import FedprivError

PrivateKey = ec.EllipticCurvePrivateKey | Ed25519PrivateKey | RSAPrivateKey
MAX_SIGNATURE_BYTES = 4096  # of the JSON object; with an RSA key of 4096 bits it has 2200
_PURPOSE = b"fedpriv message 1\n"  # no other use of the key signs content with this prefix
_PSS = padding.PSS(padding.MGF1(SHA256()), padding.PSS.DIGEST_LENGTH)


class BadSignature(FedprivError):
    """Raised for a message that is not signed by the party of the plan."""


def sign(key: PrivateKey, *messages: bytes) -> bytes:
    """Returns the joint signature of some messages, such as a request and its reply, as bytes of JSON."""
    content = _signed_content(messages)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        signature = key.sign(content, ec.ECDSA(SHA256()))
    elif isinstance(key, RSAPrivateKey):
        signature = key.sign(content, _PSS, SHA256())
    else:
        signature = key.sign(content)
    return json.dumps({"key": _encoded(key.public_key()).hex(), "signature": signature.hex()}).encode()


def check_signature(signature: bytes, pinned: str, *messages: bytes) -> None:
    """Checks that the owner of a key has signed these messages.

    Args:
        signature: The result of `sign`.
        pinned: The fingerprint of the key in the plan.
        messages: The messages, in the order in which they were signed.

    Raises:
        BadSignature: If the owner has not signed them.
    """
    if len(signature) > MAX_SIGNATURE_BYTES:
        raise BadSignature("the signature is too long")
    try:
        fields = json.loads(signature)
        key = load_der_public_key(bytes.fromhex(fields["key"]))
        signed = bytes.fromhex(fields["signature"])
    except (ValueError, TypeError, KeyError, RecursionError, UnsupportedAlgorithm):
        raise BadSignature("the message has no signature that can be read") from None
    if fingerprint(key) != pinned:
        raise BadSignature("the message is signed with another key than the one in the plan")
    content = _signed_content(messages)
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signed, content, ec.ECDSA(SHA256()))
        elif isinstance(key, RSAPublicKey):
            key.verify(signed, content, _PSS, SHA256())
        elif isinstance(key, Ed25519PublicKey):
            key.verify(signed, content)
        else:
            raise BadSignature("the message is signed with a key of an unsupported type")
    except InvalidSignature:
        raise BadSignature("the signature does not match this message") from None


def fingerprint(public_key: PublicKeyTypes) -> str:
    """Returns `sha256:` and the SHA-256 of a public key (its SubjectPublicKeyInfo), as key pins have it (RFC 7469)."""
    return f"sha256:{hashlib.sha256(_encoded(public_key)).hexdigest()}"


def read_private_key(path: Path) -> PrivateKey:
    """Reads the private key of a certificate.

    Raises:
        FedprivError: If the file has no private key without a password, or a key of an unsupported type.
    """
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise FedprivError(f"{path} must be a private key in PEM format without a password ({error})") from None
    if not isinstance(key, PrivateKey):
        raise FedprivError(f"{path} has a key of an unsupported type: use ECDSA, Ed25519 or RSA")
    return key


def _encoded(public_key: PublicKeyTypes) -> bytes:
    return public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _signed_content(messages: tuple[bytes, ...]) -> bytes:
    """Returns the signed content: a fixed prefix and the digest of each message; its length fixes their number."""
    return _PURPOSE + b"".join(hashlib.sha256(message).digest() for message in messages)
