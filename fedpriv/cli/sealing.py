"""`fedpriv secrets` and `fedpriv seal`: where the secrets of a folder are, and their end."""

from __future__ import annotations

from pathlib import Path

from fedpriv.cli.printing import print_rows


def print_secrets(folder: Path, where: str | None, *, rotate: bool, renew_keys: bool, unfinished: bool) -> None:
    """Prints where the secrets of a run or site are; first moves them to `where`, or draws new ones of a site."""
    from fedpriv.errors import ConfigError
    from fedpriv.runs import sealing as of_runs
    from fedpriv.sites import sealing as of_sites
    from fedpriv.sites.statement import is_site

    rows = dict[str, str]()
    if is_site(folder):
        if where is not None:
            of_sites.move_secrets(folder, where)
        if rotate:
            of_sites.rotate_seed(folder, unfinished=unfinished)
        if renew_keys:
            card = of_sites.renew_keys(folder)
            rows["key"] = f"{card.fingerprint}: send the new card.json, and compare this with the other owners"
        words = of_sites.secrets_in_words(folder)
    else:
        if rotate or renew_keys:
            fix = "every run draws a seed of its own, and has no keys; of a site, name its folder"
            option = "--renew-keys"
            if rotate:
                option = "--rotate"
            raise ConfigError(option, str(folder), fix)
        if where is not None:
            of_runs.move_secrets(folder, where)
        words = of_runs.secrets_in_words(folder)
    print_rows({"secrets": words} | rows)


def seal(folder: Path, *, unfinished: bool) -> None:
    """Destroys the secrets of a run or site, and prints what is left to do."""
    from fedpriv.runs import sealing as of_runs
    from fedpriv.sites import sealing as of_sites
    from fedpriv.sites.statement import is_site

    if is_site(folder):
        of_sites.seal_site(folder, unfinished=unfinished)
        rows = {"sealed": f"{folder}: its secret seed, keys and private state are destroyed; ledgers and plans stay"}
    else:
        key = of_runs.seal_run(folder, unfinished=unfinished)
        rows = {"sealed": f"{folder}: its secret seed and private state are destroyed; ledger and statement stay"}
        if key is None:
            rows["key"] = "of the ledger's seals: unknown, as the secret seed could not be decrypted"
        else:
            rows["key"] = f"{key} (of the ledger's seals, for show --verify: keep it elsewhere)"
    rows["copies"] = "backups, snapshots and copies of the folder may still hold them: destroy those, too"
    print_rows(rows)
