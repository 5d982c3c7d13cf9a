"""A site's keys: the two private keys for the public keys on its card, and earlier ones that plans still need.

`fedpriv secrets SITE --renew-keys` draws new keys for future plans. A plan names the public keys that its sites had at
that time, so a site uses those keys for it until it closes it. Earlier keys are stored in a separate folder until no
open plan names them; then they are erased. Their public halves are kept, since a site identifies itself in its closed
plans by them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from fedpriv.errors import FedprivError
from fedpriv.sites import absence_notice, agreement
from fedpriv.sites.descriptor import KIND, SIGNING, SiteDescriptor
from fedpriv.storage import files, secret_store

AGREEMENT_KEY, SIGNING_KEY = "private_key", "signing_key"
EARLIER = "earlier_keys"
_KNOWN = "earlier_public_keys"  # one line each, the newest last


class SiteKeys:
    """The private keys of a site's folder, by their public halves.

    Args:
        path: The site's folder.

    Raises:
        FedprivError: If the key that decrypts them is missing, or they were destroyed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.private_key = bytes.fromhex(_revealed(path / AGREEMENT_KEY, path))
        self.signing_key = bytes.fromhex(_revealed(path / SIGNING_KEY, path))
        self._agreement = {make_public_half(AGREEMENT_KEY, self.private_key): self.private_key}
        self._signing = {make_public_half(SIGNING_KEY, self.signing_key): self.signing_key}
        for file in list_earlier_files(path):
            key = bytes.fromhex(_revealed(file, path))
            if _kind_of(file) == AGREEMENT_KEY:
                self._agreement[make_public_half(AGREEMENT_KEY, key)] = key
            else:
                self._signing[make_public_half(SIGNING_KEY, key)] = key

    def private_key_of(self, card: SiteDescriptor) -> bytes:
        """Returns the X25519 private key for the public key on a card of this site, 32 bytes.

        Raises:
            FedprivError: If the key was destroyed.
        """
        return self._of(self._agreement, card.public_key)

    def signing_key_of(self, card: SiteDescriptor) -> bytes:
        """Returns the Ed25519 private key for the public key on a card of this site, 32 bytes.

        Raises:
            FedprivError: If the key was destroyed.
        """
        return self._of(self._signing, card.signing_key)

    @property
    def agreement_keys(self) -> list[bytes]:
        """Public halves of all X25519 keys that the site has or had, the newest first."""
        known = [line for line in known_public_keys(self._path) if line.startswith(KIND)]
        public = dict.fromkeys([*self._agreement, *reversed(known)])
        return [bytes.fromhex(text.removeprefix(KIND)) for text in public]

    @property
    def verifying_keys(self) -> list[bytes]:
        """Public halves of all Ed25519 keys that the site has or had, the newest first."""
        known = [line for line in known_public_keys(self._path) if line.startswith(SIGNING)]
        public = dict.fromkeys([*self._signing, *reversed(known)])
        return [bytes.fromhex(text.removeprefix(SIGNING)) for text in public]

    def _of(self, keys: dict[str, bytes], public: str) -> bytes:
        if public not in keys:
            raise FedprivError(
                f"the site's key {public[:20]}..., with which it took part in a plan, was destroyed after all plans "
                "with this key were closed. Take part in another plan"
            )
        return keys[public]


def make_public_half(name: str, key: bytes) -> str:
    """Returns the public half of a private key in the form of a card; `name` is the file of the key."""
    if name == AGREEMENT_KEY:
        return f"{KIND}{agreement.public_key(key).hex()}"
    return f"{SIGNING}{absence_notice.public_key(key).hex()}"


def new_private_key(name: str) -> bytes:
    """Returns a new private key for the file of this name."""
    if name == AGREEMENT_KEY:
        return agreement.new_key()
    return absence_notice.new_key()


def list_earlier_files(path: Path) -> list[Path]:
    """Returns the files of a site's earlier keys."""
    return sorted((path / EARLIER).glob("*_key-*"))


def known_public_keys(path: Path) -> list[str]:
    """Returns the public halves of a site's earlier keys in the form of cards, the oldest first."""
    file = path / _KNOWN
    if not file.exists():
        return []
    return files.read(file).decode().split()


def keep_earlier_key(path: Path, name: str) -> None:
    """Copies one of a site's keys, encrypted or not, to its earlier keys before another one replaces it."""
    text = files.read(path / name).decode()
    public = make_public_half(name, bytes.fromhex(secret_store.reveal(text, path)))
    (path / EARLIER).mkdir(0o700, exist_ok=True)
    files.write_whole(path / _KNOWN, "\n".join(dict.fromkeys([*known_public_keys(path), public])).encode() + b"\n")
    files.write_whole(path / EARLIER / f"{name}-{public.partition(':')[2][:32]}", text.encode())


def erase_unused(path: Path, cards: Collection[SiteDescriptor]) -> None:
    """Erases a site's earlier keys that are on none of these cards, and their outside decryption keys."""
    needed = {key for card in cards for key in (card.public_key, card.signing_key)}
    for file, text, public in _earlier(path):
        if public not in needed:
            files.erase(file)
            secret_store.destroy(text)


def erase_all_earlier(path: Path) -> None:
    """Erases all earlier keys of a site, including those that cannot be decrypted."""
    for file in list_earlier_files(path):
        text = files.read(file).decode()
        files.erase(file)
        secret_store.destroy(text)


def _earlier(path: Path) -> Iterator[tuple[Path, str, str]]:
    """Yields the file, the text and the public half of each earlier key."""
    for file in list_earlier_files(path):
        text = files.read(file).decode()
        yield file, text, make_public_half(_kind_of(file), bytes.fromhex(secret_store.reveal(text, path)))


def _kind_of(file: Path) -> str:
    return file.name.partition("-")[0]


def _revealed(file: Path, folder: Path) -> str:
    return secret_store.reveal(files.read(file).decode(), folder)
