"""What a release carries besides code: its number everywhere, how to cite it, whom to tell, what a forge runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

import fedpriv

ROOT = Path(__file__).parents[1]


def workflow(name: str = "ci") -> dict[str, Any]:
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())


def commands(job: str, name: str = "ci") -> str:
    return "\n".join(step["run"] for step in workflow(name)["jobs"][job]["steps"] if "run" in step)


def test_version_same_in_all_files() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert fedpriv.__version__ == project["version"] == citation["version"]
    assert citation["license"] == project["license"]
    heading = f"## [{fedpriv.__version__}] - {citation['date-released']}"
    assert heading in (ROOT / "CHANGELOG.md").read_text().splitlines()
    assert f"FEDPRIV_VERSION={fedpriv.__version__}" in (ROOT / "examples/operations/Containerfile").read_text()


def test_citation_has_required_fields() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["authors"]


def test_workflow_runs_ci_on_supported_versions() -> None:
    assert ".ci/run" in commands("check").splitlines()
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    lowest, beyond = (int(minor) for minor in re.findall(r"3\.(\d+)", supported))
    versions = workflow()["jobs"]["check"]["strategy"]["matrix"]["python"]
    assert versions == [f"3.{minor}" for minor in range(lowest, beyond)]
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"][0]
    wheels = workflow()["jobs"]["wheel"]["strategy"]["matrix"]["include"]
    assert wheels[0]["torch"] == oldest.replace(">=", "==") + ".*"


def test_workflow_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for name in ("ci", "docs"):
        for job in workflow(name)["jobs"]:
            assert set(re.findall(r"\bmake ([a-z-]+)", commands(job, name))) <= targets


def test_tag_starts_tests_and_docs_release() -> None:
    for name in ("ci", "docs"):
        assert workflow(name)[True]["push"]["tags"] == ["v*"]  # YAML reads `on` as true
    assert "make docs-version" in commands("publish", "docs")
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text())["extra"]["version"]["provider"] == "mike"


def test_security_page_links_exist() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_changelog_entries_at_most_two_lines() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    entries = re.findall(r"^- .*(?:\n  .*)*", text, flags=re.MULTILINE)
    assert len(entries) > 50
    assert not [entry for entry in entries if entry.count("\n") > 1 or max(map(len, entry.split("\n"))) > 120]


def test_changelog_groups_in_order() -> None:
    order = ["Privacy", "Breaking", "Added", "Changed", "Fixed"]
    for release in re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]:
        groups = re.findall(r"^### (.*)", release, flags=re.MULTILINE)
        assert groups == [group for group in order if group in groups]
