"""Settings allowed in one process but not between organisations: each raises, and the page states the reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from sites_in_memory import config_of
from test_site_commands import fedpriv

from fedpriv.errors import ConfigError
from fedpriv.sites import unsupported
from fedpriv.sites.federation_plan import PLAN_SECTIONS
from fedpriv.sites.unsupported import check_settings, settings_without_effect

FEDAVG = "strategy={name: fedavg, learning_rate: .5}"
TRACKING = "strategy={name: gradient_tracking, step_size: .5}"
TABLE = "{name: csv, train: a, test: b, label: y, classes: [c, d], numbers: {x: [0, 1]}, partition: {kind: by_writer}}"
LINKS = "network.topology={name: links, pairs: [[0, 1], [1, 2], [2, 3]]}"
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "federation.md"

# overrides, the field that the error names, words of the error, and words of the page
REFUSED = {
    "no noise": (
        ("privacy.noise_on=none", FEDAVG),
        "privacy.noise_on",
        "only private query results",
        "runs that are not private",
    ),
    "sums": (
        (FEDAVG, "privacy.trust={secure_aggregation: {min_honest: 3}}"),
        "privacy.trust",
        "each site's message",
        "`secure_aggregation`",
    ),
    "central": ((FEDAVG, "privacy.trust=central"), "privacy.trust", "each site's message", "`central`"),
    "correlated noise": (
        (FEDAVG, "privacy.noise={correlated: {bsr: {band: 2}}}"),
        "privacy.noise",
        "would be unknown",
        "correlated noise",
    ),
    "cyclic batches": (
        (FEDAVG, "privacy.sampling={cyclic: {blocks: 2}}"),
        "privacy.noise",
        "would be unknown",
        "cyclic batches",
    ),
    "allocation": (
        (FEDAVG, "privacy.sampling={allocation: {batches: 2}}"),
        "privacy.sampling",
        "is not known between organisations",
        "random allocation",
    ),
    "no fsync": (
        (FEDAVG, "privacy.fsync=false"),
        "privacy.fsync",
        "before it replies",
        "`privacy.fsync: false`",
    ),
    "budget": ((FEDAVG, "privacy.budget=budget.json"), "privacy.budget", "its own budget", "`privacy.budget`"),
    "secret seed": ((FEDAVG, "secret_seed=3"), "secret_seed", "every site creates its own", "`secret_seed`"),
    "weights": (
        (FEDAVG, "model={name: softmax, weights: model.pt}"),
        "model.weights",
        "no files",
        "weights from files",
    ),
    "compare": (
        (FEDAVG, "problem.compare_centralized=true"),
        "problem.compare_centralized",
        "all sites in one place",
        "`problem.compare_centralized`",
    ),
    "server's data": (
        (FEDAVG, "problem.server={constraints: [{name: class_loss_at_most, label: 1, bound: .4}]}"),
        "problem.server",
        "the server has no data",
        "data of the server",
    ),
    "views": (
        (FEDAVG, "data.augment=[{name: crop, padding: 1}]"),
        "data.augment",
        "its random views",
        "`data.augment`",
    ),
    "standardised columns": (
        (FEDAVG, f"data={TABLE}", "data.standardize={}"),
        "data.standardize",
        "nothing about data",
        "`data.standardize`",
    ),
    "a drawn graph": ((TRACKING, "network.topology=ring"), "network.topology", "list its links", "lists its links"),
    "mixing steps": (
        (TRACKING, LINKS, "network.mixing_steps=2"),
        "network.mixing_steps",
        "sites without a link",
        "more than one mixing step",
    ),
    "one way": (
        (TRACKING, LINKS, "network.activity=one_peer_exponential"),
        "network.activity",
        "one way",
        "links in one direction",
    ),
    "mixing weights from a file": (
        (TRACKING, LINKS, "network.mixing={name: file, file: weights.npy}"),
        "network.mixing",
        "must not name a file or code",
        "your own mixing weights",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_setting_raises_as_documented(case: str) -> None:
    overrides, field, words, words_of_page = REFUSED[case]
    with pytest.raises(ConfigError, match=words) as caught:
        check_settings(config_of(*overrides), 4)
    assert caught.value.field == field
    chapter = PAGE.read_text().partition("## What is refused")[2].partition("\n## ")[0]
    assert words_of_page in " ".join(chapter.split())


def test_every_unsupported_setting_has_case() -> None:
    """A new refusal needs a case here, and with it its reason on the page. Those of statistics have their own tests."""
    functions = ast.parse(Path(unsupported.__file__).read_text()).body
    raised = [
        node.args[0].value
        for function in functions
        if not (isinstance(function, ast.FunctionDef) and function.name == "check_statistics")
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ConfigError"
        if isinstance(node.args[0], ast.Constant)
    ]
    assert {*raised} == {field for _, field, _, _ in REFUSED.values()}


def test_settings_without_effect_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    speed = ("compute.threads=1", "compute.pad_seconds=2.0", "log.stop={metric: test_accuracy, patience: 2}")
    assert settings_without_effect(config_of(FEDAVG), PLAN_SECTIONS) == []
    names = ["compute.threads", "compute.pad_seconds", "log.stop"]
    assert settings_without_effect(config_of(FEDAVG, *speed), PLAN_SECTIONS) == names

    digits = "{name: digits, flat: true, partition: {kind: iid, n_clients: 1}}"
    Path("site.yaml").write_text(f"name: north\ndata: {digits}\nbudget: {{epsilon: 2}}\n")
    Path("run.yaml").write_text(
        f"data: {digits}\nmodel: softmax\nstrategy: {{name: fedavg, learning_rate: .5}}\nprivacy: {{epsilon: 1}}\n"
        "rounds: 2\ncompute: {threads: 1}\n"
    )
    fedpriv("site", "init", "north", "site.yaml")
    shown = fedpriv("federate", "plan", "run.yaml", "north/card.json", "--out", "fed")
    assert re.search(
        r"warning: these settings have no effect between organisations: compute\.threads; leave",
        " ".join(shown.split()),
    )
