"""Secrets that a folder holds under an external key: only this key reveals them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import keyring
import keyring.backends.fail
import pytest
from cryptography.fernet import Fernet
from key_places import MemoryKeyring, age_place, env_place, memory_keyring, place  # noqa: F401 - fixtures

from fedpriv.errors import ConfigError, FedprivError
from fedpriv.storage import files
from fedpriv.storage.secret_store import (
    DESTROYED,
    check_where,
    destroy,
    get_location,
    is_destroyed,
    is_encrypted,
    protect,
    reveal,
)

SECRET = "0123456789abcdef" * 2


def test_secret_encrypted_and_revealed_at_each_place(place: str, tmp_path: Path):  # noqa: F811
    check_where(place)
    text = protect(SECRET, place)
    assert is_encrypted(text)
    assert SECRET not in text
    assert protect(SECRET, place) != text  # encryption is random
    assert reveal(text, tmp_path) == SECRET
    again = protect("another", get_location(text))
    assert reveal(again, tmp_path) == "another"


def test_secret_in_folder_not_encrypted(tmp_path: Path):
    check_where("folder")
    assert protect(SECRET, "folder") == SECRET
    assert reveal(SECRET, tmp_path) == SECRET
    destroy(SECRET)  # nothing outside the folder


def test_wrong_or_missing_key_raises_with_name(env_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # noqa: F811
    text = protect(SECRET, env_place)
    for key, words in ((Fernet.generate_key().decode(), "different key"), ("short", "32 bytes"), ("", "openssl rand")):
        monkeypatch.setenv("RUN_KEY", key)
        with pytest.raises(ConfigError, match=words) as error:
            reveal(text, tmp_path)
        assert "RUN_KEY" in str(error.value)
        assert len(key) < 10 or key not in str(error.value)


def test_key_rotation_first_encrypts_all_decrypt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    old, new = (Fernet.generate_key().decode() for _ in range(2))
    monkeypatch.setenv("RUN_KEY", old)
    text = protect(SECRET, "env:RUN_KEY")
    monkeypatch.setenv("RUN_KEY", f"{new} {old}")
    rotated = protect(reveal(text, tmp_path), get_location(text))
    monkeypatch.setenv("RUN_KEY", new)
    assert reveal(rotated, tmp_path) == SECRET
    with pytest.raises(ConfigError):
        reveal(text, tmp_path)


def test_keyring_key_destroyed_for_one_secret(
    memory_keyring: MemoryKeyring,  # noqa: F811
    tmp_path: Path,
):
    first, second = protect(SECRET, "keyring"), protect(SECRET, "keyring")
    assert len(memory_keyring.entries) == 2
    destroy(first)
    destroy(first)  # a second time is no error: the first may have been cut off
    with pytest.raises(FedprivError, match="destroyed, or the folder belongs to another user"):
        reveal(first, tmp_path)
    assert reveal(second, tmp_path) == SECRET
    check_where("keyring")
    assert len(memory_keyring.entries) == 1  # a trial leaves nothing


def test_missing_keyring_raises(memory_keyring: MemoryKeyring):  # noqa: F811
    keyring.set_keyring(keyring.backends.fail.Keyring())  # what the library takes where the system offers none
    with pytest.raises(ConfigError, match="keyring cannot be used"):
        check_where("keyring")


def test_age_text_decrypted_by_age_program(age_place: str, tmp_path: Path):  # noqa: F811
    text = protect(SECRET, age_place)
    assert reveal(text, tmp_path) == SECRET
    if shutil.which("age") is None:
        pytest.skip("no age on this machine")
    import base64

    decrypted = subprocess.run(
        ["age", "--decrypt", "-i", str(tmp_path / "identity.txt")],
        input=base64.urlsafe_b64decode(text.rpartition(":")[2]),
        capture_output=True,
        check=True,
    )
    assert decrypted.stdout.decode() == SECRET


def test_wrong_or_missing_age_identity_raises(
    age_place: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    text = protect(SECRET, age_place)
    other = tmp_path / "other.txt"
    other.write_text("no identity\n")
    for path in (other, tmp_path / "absent.txt"):
        monkeypatch.setenv("FEDPRIV_AGE_IDENTITY", str(path))
        with pytest.raises(ConfigError, match="cannot decrypt"):
            reveal(text, tmp_path)
    monkeypatch.delenv("FEDPRIV_AGE_IDENTITY")
    with pytest.raises(ConfigError, match="FEDPRIV_AGE_IDENTITY"):
        reveal(text, tmp_path)


@pytest.mark.parametrize("where", ["", "vault", "env:", "env:A-B", "age:", "age:age1nobody", "folder:x"])
def test_unknown_secret_place_raises(where: str):
    with pytest.raises(ConfigError, match="secrets"):
        check_where(where)


def test_destroyed_or_unknown_secret_raises(tmp_path: Path):
    assert is_destroyed(DESTROYED)
    with pytest.raises(FedprivError, match="is sealed"):
        reveal(DESTROYED, tmp_path)
    with pytest.raises(FedprivError, match="unknown method"):
        reveal("vault:a:b", tmp_path)


def test_erase_overwrites_old_blocks(tmp_path: Path):
    path, copy = tmp_path / "a", tmp_path / "same blocks"
    path.write_bytes(b"secret" * 100)
    copy.hardlink_to(path)
    files.erase(path, b"public")
    assert path.read_bytes() == b"public"
    assert copy.read_bytes() == bytes(600)
    files.erase(path)
    assert not path.exists()
