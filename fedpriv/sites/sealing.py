"""The keys of a site: re-encrypts them, replaces them with new ones, or destroys them after the site's last plan."""

from __future__ import annotations

from pathlib import Path

from fedpriv.errors import FedprivError, format_count
from fedpriv.sites.descriptor import SiteDescriptor
from fedpriv.sites.site_folder import CLOSED, SECRETS, SiteFolder
from fedpriv.sites.site_keys import (
    AGREEMENT_KEY,
    SIGNING_KEY,
    erase_all_earlier,
    keep_earlier_key,
    list_earlier_files,
    new_private_key,
)
from fedpriv.sites.site_records import erase_state, list_plan_files
from fedpriv.storage import RunFolder, files, secret_store


def describe_secrets(folder: Path) -> str:
    """Returns the location of a site's keys as text."""
    texts = [files.read(path).decode() for path in _secret_files(folder)]
    return "; ".join(dict.fromkeys(secret_store.describe_location(text) for text in texts))


def move_secrets(folder: Path, where: str) -> None:
    """Encrypts the keys of a site under new keys, or stores them unencrypted in the folder.

    Args:
        folder: The site's folder.
        where: See `fedpriv.storage.secret_store`.

    Raises:
        ConfigError: If the secrets cannot be stored there.
        FedprivError: If another process uses the folder, or the key that decrypts the secrets is missing.
    """
    secret_store.check_where(where)
    site_folder = SiteFolder(folder)
    try:
        for path in _secret_files(folder):
            before = files.read(path).decode()
            secret = secret_store.reveal(before, folder)
            _replace(path, before, secret_store.protect(secret, where))
    finally:
        site_folder.close()


def renew_keys(folder: Path) -> SiteDescriptor:
    """Draws new keys of a site for future plans, in the same location as the old ones; returns its new card.

    Open plans keep the keys that they name until they are closed. If this operation is interrupted, no key that the
    card or an open plan names is lost, and it can be repeated.

    Args:
        folder: The site's folder.

    Raises:
        FedprivError: If another process uses the folder, or the key that decrypts the secrets is missing.
    """
    site_folder = SiteFolder(folder)
    try:
        for name in (AGREEMENT_KEY, SIGNING_KEY):
            place = secret_store.get_location(files.read(folder / name).decode())
            keep_earlier_key(folder, name)
            # the key outside the folder, if there is one, is still needed for the copy
            files.erase(folder / name, secret_store.protect(new_private_key(name).hex(), place).encode())
    finally:
        site_folder.close()
    site_folder = SiteFolder(folder)
    try:
        card = site_folder.card.model_copy(update=dict(site_folder.public_keys))
        site_folder.write_card(card)
        site_folder.erase_unused_keys()
    finally:
        site_folder.close()
    return card


def seal_site(folder: Path, *, unfinished: bool = False) -> None:
    """Destroys a site's keys and private state, so that the noise it shared with others cannot be recomputed.

    Plans, ledgers, notices and card stay, and with them epsilon and statement. The site sends no more replies.

    Args:
        folder: The site's folder.
        unfinished: Also seal a site that has not replied in the last round of a plan.

    Raises:
        FedprivError: If another process uses the folder, a plan is unfinished, or the site is already sealed.
    """
    texts = [files.read(folder / name).decode() for name in SECRETS]
    if all(secret_store.is_destroyed(text) for text in texts):
        raise FedprivError(f"{folder} is sealed already: its keys were destroyed, and nothing is left to do")
    # an earlier attempt may have closed the plans before an interruption: then there is nothing left to decrypt
    if any(not (path.parent / CLOSED).exists() for path in list_plan_files(folder)):
        site_folder = SiteFolder(folder)
        try:
            _close_plans(site_folder, unfinished=unfinished)
        finally:
            site_folder.close()
    with RunFolder(folder):
        for path in list_plan_files(folder):  # again: the earlier attempt may have been interrupted before
            erase_state(path.parent)
        erase_all_earlier(folder)
        for name, text in zip(SECRETS, texts, strict=True):
            if not secret_store.is_destroyed(text):
                secret_store.destroy(text)
                files.erase(folder / name, secret_store.DESTROYED.encode())


def _close_plans(folder: SiteFolder, *, unfinished: bool) -> None:
    """Closes all plans of a site.

    Raises:
        FedprivError: If the site has not replied in the last round of one, and `unfinished` is not set.
    """
    open_plans = [proposal for proposal in folder.accepted if not folder.is_closed(proposal)]
    closed_plans = [proposal for proposal in folder.accepted if folder.is_closed(proposal)]
    for proposal in open_plans:
        n_rounds = proposal.rounds
        n_answered = folder.session_state(proposal).round + 1
        if n_answered < n_rounds and not unfinished:
            raise FedprivError(
                f"the site has replied in {n_answered} of the {format_count(n_rounds, 'round')} of plan "
                f"{proposal.fingerprint}, and a sealed site can never resume a plan: finish the plan first, or add "
                "--unfinished to abandon the plan"
            )
    for proposal in (
        *open_plans,
        *closed_plans,
    ):  # closed ones may not be erased yet
        folder.close_plan(proposal)


def _replace(path: Path, before: str, after: str) -> None:
    """Writes a new text to the file of a secret, and then destroys the outside key of the old text."""
    files.erase(path, after.encode())
    secret_store.destroy(before)


def _secret_files(folder: Path) -> list[Path]:
    """Returns the files of a site's keys, including earlier keys."""
    return [*(folder / name for name in SECRETS), *list_earlier_files(folder)]
