"""Places for the keys of secrets: an environment variable, a keyring in memory, an age identity in a file."""

from __future__ import annotations

from pathlib import Path

import keyring
import keyring.backend
import keyring.errors
import pyrage
import pytest
from cryptography.fernet import Fernet


class MemoryKeyring(keyring.backend.KeyringBackend):
    """A backend of the keyring library that keeps passwords in memory, as its documentation shows how to write one."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.entries[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        if self.entries.pop((service, username), None) is None:
            raise keyring.errors.PasswordDeleteError(username)


@pytest.fixture
def memory_keyring():
    before, backend = keyring.get_keyring(), MemoryKeyring()
    keyring.set_keyring(backend)
    yield backend
    keyring.set_keyring(before)


@pytest.fixture
def env_place(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RUN_KEY", Fernet.generate_key().decode())
    return "env:RUN_KEY"


@pytest.fixture
def age_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    identity = pyrage.x25519.Identity.generate()
    path = tmp_path / "identity.txt"
    path.write_text(f"# created by a test\n{identity}\n")
    monkeypatch.setenv("FEDPRIV_AGE_IDENTITY", str(path))
    return f"age:{identity.to_public()}"


@pytest.fixture(params=["env", "keyring", "age"])
def place(request: pytest.FixtureRequest) -> str:
    """Each place outside the folder in turn."""
    if request.param == "keyring":
        request.getfixturevalue("memory_keyring")
        return "keyring"
    return request.getfixturevalue(f"{request.param}_place")
