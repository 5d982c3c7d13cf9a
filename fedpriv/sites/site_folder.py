"""A site's folder: settings, private keys, and for each federation its plan, ledger, state and last reply.

Only its owner can read it. Never restore an older copy: a site that loses the record of its spending spends it again.
The keys may be encrypted in it under a key that is stored elsewhere (`fedpriv.storage.secret_store`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fedpriv.errors import DataError, FedprivError
from fedpriv.privacy import Record
from fedpriv.sites import absence_notice
from fedpriv.sites.absence_notice import AbsenceNotice
from fedpriv.sites.agreement import new_key, public_key
from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.reply_counter import ReplyCounter
from fedpriv.sites.site_keys import AGREEMENT_KEY, SIGNING_KEY, SiteKeys, erase_unused, make_public_half
from fedpriv.sites.site_records import (
    LEDGER,
    NOTICES,
    PLAN,
    PLANS,
    ROLLBACK,
    STATE,
    SessionState,
    erase_state,
    list_accepted_hashes,
    list_plan_files,
    read_notices,
    read_plan_ledger,
)
from fedpriv.sites.site_settings import SETTINGS, SiteSettings, require_site
from fedpriv.storage import RunFolder, files, secret_store

CARD = "card.json"
NODE_KEY = "node_key"  # authenticates the site to the transport; it protects no data
SECRETS = (AGREEMENT_KEY, SIGNING_KEY)
CLOSED = "closed"  # in a plan's folder: the secrets of the site's replies are destroyed
_DATA_DIGEST = "data_digest"  # keyed with the signing key
_ONE_PROCESS = (
    "One process at a time can use a site, since its plans share a budget: `fedpriv site run` answers all "
    "plans with a server, `fedpriv site peer` one plan on a graph"
)


class SiteFolder:
    """The folder of a site, which only this process may use until `close`.

    Args:
        path: The folder.

    Raises:
        FedprivError: If it holds no site, others may read it, another process uses it, or its secrets cannot be
            decrypted or were destroyed.
    """

    def __init__(self, path: Path) -> None:
        require_site(path)
        if any(private.stat().st_mode & 0o077 for private in (path, *(path / name for name in SECRETS))):
            raise FedprivError(
                f"{path} or its secret keys can be read by other users: run chmod -R go= {path}, and find out who has "
                "read them"
            )
        self.path = path
        self.settings = SiteSettings.read(path / SETTINGS)
        self.keys = SiteKeys(path)
        self.private_key = self.keys.private_key
        self.signing_key = self.keys.signing_key
        self._parsed: dict[Path, FederationPlan] = {}  # plans are read at every request, and parsed once
        try:
            self._lock = RunFolder(path)
        except FedprivError as error:
            raise FedprivError(f"{error}. {_ONE_PROCESS}") from None

    @classmethod
    def new(cls, path: Path, settings: SiteSettings, secrets: str = secret_store.FOLDER) -> SiteFolder:
        """Creates the folder of a new site, with new keys.

        Args:
            path: The folder, new or empty.
            settings: The settings.
            secrets: Location of the keys, see `fedpriv.storage.secret_store`.

        Raises:
            ConfigError: If they cannot be stored there.
            FedprivError: If the folder is not empty.
        """
        secret_store.check_where(secrets)
        if path.exists() and any(path.iterdir()):
            raise FedprivError(
                f"{path} is not empty, but a new site needs a new or an empty folder; use another folder"
            )
        lock = RunFolder(path)
        path.chmod(0o700)
        new_secrets = (new_key().hex(), absence_notice.new_key().hex())
        for name, secret in zip(SECRETS, new_secrets, strict=True):
            lock.write(name, secret_store.protect(secret, secrets).encode())
        for name, key in zip((NODE_KEY, f"{NODE_KEY}.pub"), _node_key(), strict=True):
            lock.write(name, key)
        dumped = settings.model_dump(mode="json")
        if settings.budget.file is not None:  # absolute: the site may be run from any directory
            dumped["budget"]["file"] = str(Path(settings.budget.file).absolute())
        lock.write(SETTINGS, yaml.safe_dump(dumped, sort_keys=False, allow_unicode=True).encode())
        return cls(path)

    @property
    def public_key(self) -> bytes:
        """The public half of the key with which pairs of sites agree on secrets."""
        return public_key(self.private_key)

    @property
    def public_keys(self) -> Mapping[str, str]:
        """Both public keys, as on the site's card."""
        return {
            "public_key": make_public_half(AGREEMENT_KEY, self.private_key),
            "signing_key": make_public_half(SIGNING_KEY, self.signing_key),
        }

    @property
    def card(self) -> SiteDescriptor:
        """The public facts of the site."""
        return SiteDescriptor.model_validate_json(files.read(self.path / CARD))

    def write_card(self, card: SiteDescriptor) -> Path:
        """Writes the card, which is public; returns its path."""
        self._lock.write(CARD, card.dumps().encode() + b"\n")
        return self.path / CARD

    @property
    def accepted(self) -> Sequence[FederationPlan]:
        """The plans that this site has accepted.

        Raises:
            LedgerError: If one is missing.
        """
        plans: list[FederationPlan] = []
        for path in list_plan_files(self.path):
            text = files.read(path).decode()
            plan = self._parsed.get(path)
            if plan is None or plan.text != text:
                plan = FederationPlan.read(text)
                self._parsed[path] = plan
            plans.append(plan)
        return plans

    def number_in(self, proposal: FederationPlan) -> int:
        """Returns the number of the site in a plan.

        Raises:
            ConfigError: If its key is missing, or is under another name.
        """
        for key in self.keys.agreement_keys:  # a plan contains the key that the site had at that time
            if any(card.key == key for card in proposal.cards):
                return proposal.number_of(self.settings.name, key)
        return proposal.number_of(self.settings.name, self.public_key)

    def accept(self, proposal: FederationPlan) -> None:
        """Stores an accepted plan; the site replies to its requests from now on."""
        self.run(proposal)
        self._lock.check()
        files.write_whole(self._plan_folder(proposal) / PLAN, proposal.text.encode())
        self.remember_plans()

    def remember_plans(self) -> None:
        """Writes the list of accepted plans, so that `list_plan_files` detects a removed folder."""
        hashes = [path.parent.name for path in list_plan_files(self.path)]
        if hashes != list_accepted_hashes(self.path):
            self._lock.write(PLANS, json.dumps(hashes).encode() + b"\n")

    def remember_rollback(self, counter: ReplyCounter) -> None:
        """Writes the proof that this folder is an older copy; `list_plan_files` rejects it from now on."""
        self._lock.write(ROLLBACK, counter.model_dump_json().encode() + b"\n")

    def run(self, proposal: FederationPlan) -> Path:
        """Returns the folder of a federation, and creates it if there is none."""
        folder = self._plan_folder(proposal)
        for path in (folder.parent, folder):
            with suppress(FileExistsError):
                files.make_folder(path)
        return folder

    def ledger(self, proposal: FederationPlan) -> Path:
        """Returns the path of a federation's ledger."""
        return self._plan_folder(proposal) / LEDGER

    def released(self, proposal: FederationPlan) -> Sequence[Record]:
        """Returns the records of a federation's ledger; none before the plan is accepted.

        Raises:
            LedgerError: If the ledger is missing, lost lines, or is damaged or altered.
        """
        plan_file = self._plan_folder(proposal) / PLAN
        if not plan_file.exists() and not self.ledger(proposal).exists():
            return []
        return read_plan_ledger(plan_file).records

    def session_state(self, proposal: FederationPlan) -> SessionState:
        """Reads the site's state in a federation; without a file, this is the state before the first round.

        Raises:
            FedprivError: If the file cannot be read.
        """
        return SessionState.read(self._plan_folder(proposal) / STATE)

    def write_session_state(self, proposal: FederationPlan, state: SessionState) -> None:
        """Writes the site's state in a federation to disk.

        Raises:
            FedprivError: If the file cannot be written.
        """
        self._write(proposal, STATE, state.dumps())

    def notices(self, proposal: FederationPlan) -> list[AbsenceNotice]:
        """Reads the site's own absence notices in a federation.

        Raises:
            FedprivError: If they cannot be read.
        """
        return read_notices(self._plan_folder(proposal) / NOTICES)

    def write_notices(self, proposal: FederationPlan, notices: Sequence[AbsenceNotice]) -> None:
        """Writes the site's own absence notices in a federation to disk; called before they are sent.

        Raises:
            FedprivError: If the file cannot be written.
        """
        self._write(proposal, NOTICES, json.dumps([notice.model_dump() for notice in notices]).encode())

    def close_plan(self, proposal: FederationPlan) -> None:
        """Ends a plan: the site no longer replies to its requests, and erases all that is needed to continue.

        Its ledger stays, and counts for the site's lifetime.

        Raises:
            FedprivError: If a file cannot be read or written.
        """
        self._write(proposal, CLOSED, b"")
        try:
            erase_state(self._plan_folder(proposal))
        except OSError as error:
            raise FedprivError(
                f"{self.path}: the state of a plan could not be erased ({error.strerror}); correct the cause, and "
                "repeat it"
            ) from error

    def erase_unused_keys(self) -> None:
        """Erases earlier keys that neither the card nor an open plan of the site has."""
        name = self.settings.name
        open_plans = [proposal for proposal in self.accepted if not self.is_closed(proposal)]
        cards = [card for proposal in open_plans for card in proposal.cards if card.name == name]
        erase_unused(self.path, [self.card, *cards])

    def is_closed(self, proposal: FederationPlan) -> bool:
        """True if the secrets with which the site replied under a plan are destroyed."""
        return (self._plan_folder(proposal) / CLOSED).exists()

    def check_data(self, proposal: FederationPlan, digest: bytes, *, has_released: bool) -> None:
        """Stores a keyed digest of the site's examples when a plan is accepted, and compares it from then on.

        Args:
            proposal: The plan.
            digest: Keyed digest of all examples of the site.
            has_released: True if the site has sent a reply under this plan.

        Raises:
            DataError: If the examples differ from those with which the site accepted the plan, or these are unknown.
        """
        path = self._plan_folder(proposal) / _DATA_DIGEST
        if not path.exists():
            if has_released:
                raise DataError(
                    f"{path} is missing, so it is unknown if the site's examples are still those of its earlier "
                    f"replies under plan {proposal.fingerprint}: restore the file, or take part in another plan"
                )
            self.run(proposal)
            self._write(proposal, _DATA_DIGEST, digest.hex().encode())
        elif files.read(path).decode() != digest.hex():
            raise DataError(
                f"the site's examples have changed since it accepted plan {proposal.fingerprint}, but a plan is for "
                "one data set. Restore the examples, or make another plan for the new ones"
            )

    def check(self) -> None:
        """Checks that this process still owns the folder.

        Raises:
            FedprivError: If it does not.
        """
        self._lock.check()

    def close(self) -> None:
        """Releases the folder for other processes."""
        self._lock.close()

    def _write(self, proposal: FederationPlan, name: str, content: bytes) -> None:
        self._lock.check()
        try:
            files.write_whole(self._plan_folder(proposal) / name, content)
        except OSError as error:
            raise FedprivError(
                f"{self.path}: {name} could not be written ({error.strerror}); correct the cause, and restart the site"
            ) from error

    def _plan_folder(self, proposal: FederationPlan) -> Path:
        return self.path / "runs" / proposal.hash


def _node_key() -> tuple[bytes, bytes]:
    """Returns a new pair of keys, private and public, in the format in which Flower registers them."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
