"""Plans that protect different units do not share a site's budget."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_plans import Plans, plans_of
from sites_in_memory import config_of, like

from fedpriv.errors import PrivacyError
from fedpriv.sites import propose
from fedpriv.sites.federation_plan import FederationPlan
from fedpriv.sites.site_folder import SiteFolder


def other_unit(found: Plans) -> FederationPlan:
    """A plan that protects whole clients, while those of `found` protect examples."""
    privacy = "privacy={epsilon: 2, unit: client, at: message}"
    config = config_of("strategy={name: fedavg, learning_rate: .5}", privacy, "rounds=4")
    return propose(config, [*found.plans[0].cards], like(config))


def test_a_plan_of_another_unit_is_refused(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 1)
    found.join(0)
    other = other_unit(found)
    with pytest.raises(PrivacyError, match="cannot be added"):
        found.site.join(other.text, other.fingerprint)
    assert found.ask(0) is None
    found.site.close()


def test_a_plan_of_another_unit_is_refused_before_the_first_was_asked(tmp_path: Path) -> None:
    """Otherwise both would be accepted, and neither could be answered after the next start."""
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


def test_a_plan_that_could_not_be_kept_is_not_in_the_way_of_others(tmp_path: Path) -> None:
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
