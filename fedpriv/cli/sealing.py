"""`fedpriv secrets` and `fedpriv seal`: the location of a site's keys, and their destruction."""

from __future__ import annotations

from pathlib import Path

from fedpriv.cli.printing import print_rows


def print_secrets(folder: Path, where: str | None, *, renew_keys: bool) -> None:
    """Prints the location of a site's keys; first moves them to `where`, or draws new ones."""
    from fedpriv.sites import sealing

    _check_site(folder)
    rows = dict[str, str]()
    if where is not None:
        sealing.move_secrets(folder, where)
    if renew_keys:
        card = sealing.renew_keys(folder)
        rows["key"] = f"{card.fingerprint}: send the new card.json, and compare this fingerprint with the other owners"
    print_rows({"keys": sealing.describe_secrets(folder)} | rows)


def seal(folder: Path, *, unfinished: bool) -> None:
    """Destroys the keys of a site, and prints the remaining steps."""
    from fedpriv.sites import sealing

    _check_site(folder)
    sealing.seal_site(folder, unfinished=unfinished)
    print_rows(
        {
            "sealed": f"{folder}: its keys and private state are destroyed; ledgers and plans are kept",
            "copies": "destroy backups, snapshots and copies of the folder too, since they may contain the keys",
        }
    )


def _check_site(folder: Path) -> None:
    """Raises an error for a folder that is not a site.

    Raises:
        ConfigError: If it holds a run, or nothing with keys.
    """
    from fedpriv.errors import ConfigError
    from fedpriv.sites.statement import is_site

    if not is_site(folder):
        fix = (
            "is not the folder of a site: name a site's folder. The folder of a run has no keys to destroy, since the "
            "noise of a run came from random bits that were never stored"
        )
        raise ConfigError("FOLDER", str(folder), fix)
