"""Plans that protect different units do not share a site's budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_plans import Plans, plans_of
from sites_in_memory import config_of, public_info

from fedpriv.errors import PrivacyError
from fedpriv.sites import propose
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.site_folder import SiteFolder


def other_unit(found: Plans) -> FederationPlan:
    """A plan that protects whole clients; those of `found` protect examples."""
    privacy = "privacy={epsilon: 2, unit: client, noise_on: message}"
    config = config_of("strategy={name: fedavg, learning_rate: .5}", privacy, "rounds=4")
    return propose(config, [*found.plans[0].cards], public_info(config))


def test_plan_with_other_unit_raises(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 1)
    found.join(0)
    other = other_unit(found)
    with pytest.raises(PrivacyError, match="cannot be added"):
        found.site.join(other.text, other.fingerprint)
    assert found.ask(0) is None
    found.site.close()


def test_plan_with_other_unit_raises_before_first_query(tmp_path: Path) -> None:
    """Otherwise the site would accept both plans and answer neither after its next start."""
    found = plans_of(tmp_path, 1)
    found.join(0)
    found.restart()
    other = other_unit(found)
    with pytest.raises(PrivacyError, match="cannot be added"):
        found.site.join(other.text, other.fingerprint)
    found.restart()
    found.site.prepare()
    assert found.ask(0) is None
    found.site.close()


def test_failed_join_does_not_block_other_plan(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 1)
    other = other_unit(found)

    def full(folder: SiteFolder, proposal: FederationPlan) -> None:
        raise OSError("no space")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiteFolder, "accept", full)
        with pytest.raises(OSError, match="no space"):
            found.site.join(other.text, other.fingerprint)
    found.join(0)
    assert found.ask(0) is None
    found.site.close()
