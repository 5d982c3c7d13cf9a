"""A site with pair noise forecasts the end of its budget for each of its plans."""

from __future__ import annotations

from pathlib import Path

from site_plans import BUDGET, PAIRS, plans_of

from fedpriv.sites import Site


def test_forecast_leaves_other_plan_unchanged(tmp_path: Path) -> None:
    """The first forecast of plan 1 is that no budget is left; plan 0 keeps what it had before."""
    found = plans_of(tmp_path, 2, overrides=PAIRS)
    found.join(0)
    assert [found.ask(0), found.ask(0)] == [None, None]
    before = found.site.spent()
    found.join(1)
    assert [notice.reason for notice in found.site.notices(found.plans[1].hash)] == ["over_budget"]
    assert found.site.spent() == before
    assert [found.ask(0), found.ask(0)] == [None, None]
    assert found.epsilon() <= BUDGET
    found.site.close()


def test_forecast_excludes_absent_rounds(tmp_path: Path) -> None:
    found = plans_of(tmp_path, 1, budget=50.0, overrides=PAIRS)
    found.join(0)
    found.site.declare_absence(found.plans[0].hash, 1, 1)
    found.site.close()
    enough_for_three_rounds = 1.8
    settings_file = found.folder / "site.yaml"
    settings_file.write_text(settings_file.read_text().replace("epsilon: 50.0", f"epsilon: {enough_for_three_rounds}"))
    found.site = Site(found.folder)
    found.site.prepare()
    assert [notice.reason for notice in found.site.notices(found.plans[0].hash)] == ["away"]
    assert [found.ask(0) for _ in range(4)] == [None, "said_absent", None, None]
    assert 1.6 < found.epsilon() <= enough_for_three_rounds
    found.site.close()
