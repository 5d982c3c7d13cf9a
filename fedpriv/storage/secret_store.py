"""Stores a folder's secrets in plain form in the folder, or encrypted with a key that is stored elsewhere.

| `where` | content of the folder | decryption |
|---|---|---|
| `folder` | the secret itself | not needed |
| `env:NAME` | a Fernet token | the environment variable NAME: one or several Fernet keys; the first one encrypts |
| `keyring` | a Fernet token | the operating system's keyring, which holds a key for this folder only |
| `age:RECIPIENT` | an age file | the age identity in the file that the variable `FEDPRIV_AGE_IDENTITY` names |

Libraries perform the encryption: Fernet (cryptography: AES-128 in CBC mode, HMAC-SHA256), and age (pyrage).
"""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path
from types import ModuleType
from typing import Protocol

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from fedpriv.errors import ConfigError, FedprivError

__all__ = [
    "DESTROYED",
    "FOLDER",
    "check_where",
    "describe_location",
    "destroy",
    "get_location",
    "is_destroyed",
    "protect",
    "reveal",
]

FOLDER = "folder"
DESTROYED = "destroyed"
IDENTITY_VARIABLE = "FEDPRIV_AGE_IDENTITY"
_SERVICE = "fedpriv"  # under which the keyring lists the keys
_NEW_KEY = "openssl rand -base64 32 | tr '+/' '-_'"
_INSTALL = "pip install 'fedpriv[secrets]'"
_CHOICES = "folder, env:NAME, keyring or age:RECIPIENT"


class KeyHolder(Protocol):
    """Encrypts a folder's secrets under a key that is stored outside the folder."""

    def encrypt(self, secret: bytes) -> str:
        """Returns the text that the folder stores instead of the secret."""
        ...

    def decrypt(self, text: str) -> bytes:
        """Returns the secret.

        Raises:
            FedprivError: If the key is missing, or differs from the key that encrypted the secret.
        """
        ...

    def destroy(self) -> None:
        """Deletes the key, if only this folder uses it and a program can delete it."""
        ...


class EnvironmentKey:
    """A key in an environment variable, set by a secret manager when the process starts.

    Args:
        variable: Name of the variable. It contains Fernet keys, separated by spaces: the first encrypts, all decrypt.
    """

    def __init__(self, variable: str) -> None:
        self._variable = variable

    def encrypt(self, secret: bytes) -> str:
        """See `KeyHolder`."""
        return f"env:{self._variable}:{self._fernet().encrypt(secret).decode()}"

    def decrypt(self, text: str) -> bytes:
        """See `KeyHolder`."""
        try:
            return self._fernet().decrypt(text.rpartition(":")[2].encode())
        except InvalidToken:
            fix = "cannot decrypt this folder's secrets: use the key with which they were encrypted"
            raise ConfigError(self._variable, "(a different key)", fix) from None

    def destroy(self) -> None:
        """Does nothing, because other folders may use the key, and because its owner stores it elsewhere."""

    def _fernet(self) -> MultiFernet:
        keys = os.environ.get(self._variable, "").split()
        if not keys:
            fix = (
                "set this environment variable to the key of the folder's secrets; a new folder needs a new key: "
                f"{_NEW_KEY}"
            )
            raise ConfigError(self._variable, None, fix)
        try:
            return MultiFernet([Fernet(key) for key in keys])
        except ValueError:
            fix = f"must be 32 bytes in base64, with - and _ instead of + and /: {_NEW_KEY}"
            raise ConfigError(self._variable, "(not shown)", fix) from None


class KeyringKey:
    """A key in the operating system's keyring, for one folder. Without the key, the secrets in all copies of the folder
    are unreadable.

    Args:
        entry: Name of the key in the keyring.
    """

    def __init__(self, entry: str) -> None:
        self._entry = entry

    def encrypt(self, secret: bytes) -> str:
        """See `KeyHolder`. Creates the key if there is none."""
        keyring = _imported("keyring")
        try:
            key = keyring.get_password(_SERVICE, self._entry)
            if key is None:
                key = Fernet.generate_key().decode()
                keyring.set_password(_SERVICE, self._entry, key)
        except keyring.errors.KeyringError as error:
            raise _no_keyring(error) from None
        return f"keyring:{self._entry}:{Fernet(key).encrypt(secret).decode()}"

    def decrypt(self, text: str) -> bytes:
        """See `KeyHolder`."""
        keyring = _imported("keyring")
        try:
            key = keyring.get_password(_SERVICE, self._entry)
        except keyring.errors.KeyringError as error:
            raise _no_keyring(error) from None
        if key is None:
            raise FedprivError(
                f"the keyring of this user has no key {self._entry} of {_SERVICE}: it was destroyed, or the "
                "folder belongs to another user or machine; restore the key, or create a new folder"
            )
        try:
            return Fernet(key).decrypt(text.rpartition(":")[2].encode())
        except (InvalidToken, ValueError):
            fix = "restore the original key, or create a new folder"
            raise FedprivError(
                f"the key {self._entry} of {_SERVICE} in the keyring does not decrypt this folder's secrets; {fix}"
            ) from None

    def destroy(self) -> None:
        """See `KeyHolder`. A key that is already deleted is not an error."""
        keyring = _imported("keyring")
        try:
            if keyring.get_password(_SERVICE, self._entry) is not None:
                keyring.delete_password(_SERVICE, self._entry)
        except keyring.errors.KeyringError as error:
            raise _no_keyring(error) from None


class AgeKey:
    """An age key pair: the public half (the recipient) encrypts, the identity decrypts.

    Args:
        recipient: The public half, `age1...`.
    """

    def __init__(self, recipient: str) -> None:
        self._recipient = recipient

    def encrypt(self, secret: bytes) -> str:
        """See `KeyHolder`."""
        pyrage = _imported("pyrage")
        try:
            recipient = pyrage.x25519.Recipient.from_str(self._recipient)
        except pyrage.RecipientError as error:
            fix = f"must be the public key printed by age-keygen, age1... ({error})"
            raise ConfigError("secrets", f"age:{self._recipient}", fix) from None
        token = base64.urlsafe_b64encode(pyrage.encrypt(secret, [recipient])).decode()
        return f"age:{self._recipient}:{token}"

    def decrypt(self, text: str) -> bytes:
        """See `KeyHolder`."""
        pyrage = _imported("pyrage")
        path = os.environ.get(IDENTITY_VARIABLE)
        if path is None:
            fix = "must name the file of the age identity that decrypts the folder's secrets"
            raise ConfigError(IDENTITY_VARIABLE, None, fix)
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
            words = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
            identities = [pyrage.x25519.Identity.from_str(word) for word in words]
            return pyrage.decrypt(base64.urlsafe_b64decode(text.rpartition(":")[2]), identities)
        except (OSError, UnicodeDecodeError, pyrage.IdentityError, pyrage.DecryptError) as error:
            fix = f"cannot decrypt the folder's secrets ({error}): name the file of the age identity that can"
            raise ConfigError(IDENTITY_VARIABLE, path, fix) from None

    def destroy(self) -> None:
        """Does nothing, because other folders may use the identity, and because its owner stores it elsewhere."""


def check_where(where: str) -> None:
    """Raises an error for a location of secrets that does not exist or cannot be used, before any computation.

    Raises:
        ConfigError: If there is no such location, a library is not installed, or the key is missing.
        FedprivError: If the operating system offers no keyring.
    """
    if where == FOLDER:
        return
    key = _holder(where)
    key.encrypt(b"a trial")
    if where == "keyring":
        key.destroy()


def protect(secret: str, where: str) -> str:
    """Returns the text that a folder stores for a secret: the secret itself, or encrypted.

    Args:
        secret: The secret, as text.
        where: `folder`, `env:NAME`, `keyring` or `age:RECIPIENT`.

    Raises:
        ConfigError: If there is no such location, a library is not installed, or the key is missing.
        FedprivError: If the operating system offers no keyring.
    """
    if where == FOLDER:
        return secret
    return _holder(where).encrypt(secret.encode())


def reveal(text: str, folder: Path | str) -> str:
    """Returns the secret for which a folder stores `text`.

    Args:
        text: The result of `protect`.
        folder: The folder, for error messages.

    Raises:
        FedprivError: If it was destroyed, or the key that decrypts it is missing.
    """
    if is_destroyed(text):
        raise FedprivError(
            f"{folder} is sealed: its keys were destroyed, so the site no longer replies; print its privacy cost "
            "(fedpriv statement), or create a new site in another folder, with the rest of the budget"
        )
    if not is_encrypted(text):
        return text
    return _holder_of(text).decrypt(text).decode()


def destroy(text: str) -> None:
    """Deletes the key outside the folder if only this folder uses it. The caller must overwrite the stored text."""
    if is_encrypted(text):
        _holder_of(text).destroy()


def is_destroyed(text: str) -> bool:
    """True if the secret for which a folder stores `text` was destroyed."""
    return text == DESTROYED


def is_encrypted(text: str) -> bool:
    """True if a folder stores a secret encrypted."""
    return ":" in text


def get_location(text: str) -> str:
    """Returns the location of a folder's secret, in the form that `protect` accepts for another secret."""
    kind, _, rest = text.partition(":")
    if kind in ("env", "age"):
        return f"{kind}:{rest.partition(':')[0]}"
    if kind == "keyring":
        return kind
    return FOLDER


def describe_location(text: str) -> str:
    """Returns as text the location of the secret for which a folder stores `text`, for `fedpriv secrets`."""
    if is_destroyed(text):
        return "destroyed"
    kind, _, rest = text.partition(":")
    if kind == "env":
        return f"encrypted; the key is in the environment variable {rest.partition(':')[0]}"
    if kind == "keyring":
        return f"encrypted; the key is in the keyring: {_SERVICE}, {rest.partition(':')[0]}"
    if kind == "age":
        return f"encrypted with age; {IDENTITY_VARIABLE} names the file that decrypts it"
    return "in the folder, not encrypted"


def _holder(where: str) -> KeyHolder:
    """Returns the holder of a new key, or of the named key."""
    kind, _, name = where.partition(":")
    if kind == "env" and name.isidentifier():
        return EnvironmentKey(name)
    if where == "keyring":
        return KeyringKey(secrets.token_hex(8))
    if kind == "age" and name:
        return AgeKey(name)
    raise ConfigError("secrets", where, f"choose {_CHOICES}")


def _holder_of(text: str) -> KeyHolder:
    """Returns the holder of the key with which a folder's text was encrypted."""
    kind, _, rest = text.partition(":")
    name = rest.partition(":")[0]
    if kind == "env":
        return EnvironmentKey(name)
    if kind == "keyring":
        return KeyringKey(name)
    if kind == "age":
        return AgeKey(name)
    raise FedprivError(
        f"a secret is encrypted with an unknown method ({kind!r}): restore the file, or use a newer version of fedpriv"
    )


def _imported(name: str) -> ModuleType:
    """Imports an optional library.

    Raises:
        ConfigError: If it is not installed.
    """
    try:
        if name == "keyring":
            import keyring
            import keyring.errors  # pyright: ignore[reportUnusedImport] - callers use it

            return keyring
        import pyrage

        return pyrage
    except ModuleNotFoundError:
        raise ConfigError("secrets", name, f"this choice needs another package: {_INSTALL}") from None


def _no_keyring(error: Exception) -> ConfigError:
    reason = str(error).split(". ")[0]
    return ConfigError(
        "secrets", "keyring", f"the operating system's keyring cannot be used ({reason}): choose env:NAME instead"
    )
