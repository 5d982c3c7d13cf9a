"""The settings of a site, `site.yaml`, written by its owner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import model_validator

from fedpriv.config.base import Section, check
from fedpriv.config.schema import DataSection
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.settings import Count, Fraction, Positive, Whole
from fedpriv.sites.descriptor import SiteName
from fedpriv.sites.operator_log import LogSettings
from fedpriv.sites.policy import SitePolicy
from fedpriv.sites.prometheus import MetricsSettings
from fedpriv.storage import strict_yaml

SETTINGS = "site.yaml"
_ALL_DATA: dict[str, Any] = {"kind": "iid", "n_clients": 1}


def require_site(folder: Path) -> None:
    """Checks that a folder is the folder of a site.

    Raises:
        FedprivError: If it contains no site; the error names the sites in its subfolders, if there are any.
    """
    if (folder / SETTINGS).exists():
        return
    name = folder.resolve()
    inside = sorted(path.parent.name for path in folder.glob(f"*/{SETTINGS}"))
    if inside:
        raise FedprivError(
            f"{name} is not the folder of a site, but contains sites: give the folder of one of {', '.join(inside)}"
        )
    raise FedprivError(f"{name} is not the folder of a site; create a site: fedpriv site init {folder} SETTINGS.yaml")


class SiteBudget(Section):
    """The lifetime budget of a site for all federations together.

    Attributes:
        epsilon: Largest epsilon that it spends.
        delta: Failure probability of this guarantee.
        file: The lifetime budget of its data (`fedpriv budget`), in which every accepted plan is also reserved: for
            data that have other uses, such as the owner's own runs. None: federations are the only use.
    """

    epsilon: Positive
    delta: Fraction = 1e-5
    file: str | None = None


class SiteSettings(Section):
    """The settings of a site, written by its owner.

    Attributes:
        name: Name of the site.
        data: A data section as in configurations; without `partition` the site holds the whole data set.
        client: Index of the site among the partition's clients.
        public_size: The number of examples on its card; None for the true number.
        budget: Its lifetime budget.
        policy: Limits on accepted plans, and the hours in which requests get replies.
        log: Settings of `log.jsonl`.
        metrics: Address at which public counts are served for Prometheus; None to disable.
    """

    name: SiteName
    data: DataSection
    client: Whole = 0
    public_size: Count | None = None
    budget: SiteBudget
    policy: SitePolicy = SitePolicy()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings | None = None

    @model_validator(mode="before")
    @classmethod
    def _default_to_all_data(cls, raw: object) -> object:
        """Fills in a partition with one client, which has all examples, if the data section has none."""
        if not isinstance(raw, dict):
            return raw
        data = raw.get("data")
        if isinstance(data, dict) and "partition" not in data:
            return {**raw, "data": {**data, "partition": _ALL_DATA}}
        return raw

    @classmethod
    def read(cls, path: Path) -> SiteSettings:
        """Reads a site's settings from a YAML file.

        Raises:
            ConfigError: If the file or a setting cannot be used.
        """
        try:
            raw = strict_yaml.read(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError("site", str(path), f"cannot be read ({error})") from None
        return check(cls, raw, "site")
