"""What the documentation says, done: its Python runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner

import fedpriv
from fedpriv.cli import shipped

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Section:
    """The blocks of one language under one second-level heading; they share their names, as a reader expects."""

    page: str
    title: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}: {self.title}"


def sections(language: str) -> list[Section]:
    found: list[Section] = []
    for page in PAGES:
        for chapter in re.split(r"^## ", page.read_text(), flags=re.MULTILINE):
            blocks = re.findall(rf"^```{language}\n(.*?)^```$", chapter, flags=re.MULTILINE | re.DOTALL)
            if blocks:
                title = chapter.splitlines()[0].lstrip("# ")
                found.append(Section(page.relative_to(ROOT).as_posix(), title, "\n".join(blocks)))
    return found


def shell_lines() -> list[str]:
    """Commands of all console blocks, without their prompt, comments and output."""
    blocks = "\n".join(section.code for section in sections("console"))
    joined = re.sub(r"\\\n\s*", " ", blocks)
    return [line[2:].split(" #")[0].strip() for line in joined.splitlines() if line.startswith("$ ")]


@pytest.mark.parametrize("section", sections("python"), ids=str)
def test_docs_python_blocks_run(section: Section, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    exec(compile(section.code, str(section), "exec"), {"__name__": "__main__"})


def test_readme_example_is_short():
    first = next(section for section in sections("python") if section.page == "README.md")
    code = [line for line in first.code.splitlines() if line.strip()]
    assert len(code) <= 12, f"the first example has {len(code)} lines"


def test_readme_first_screen():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 105
    assert re.findall(r"^## (.*)", text, flags=re.MULTILINE)[:2] == ["Install", "On the command line"]
    first_screen = text[: text.index("## Install")]
    assert first_screen.index("$ fedpriv train") < first_screen.index(".png)") < first_screen.index("$ make demo")


def test_docs_pages_all_in_site_navigation():
    named = set(re.findall(r"^ +- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))
    written = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    generated = {f"notebooks/{path.stem}.md" for path in (ROOT / "examples" / "notebooks").glob("*.ipynb")}
    assert named == written | generated


@pytest.mark.parametrize("line", [line for line in shell_lines() if line.startswith("make ")])
def test_docs_make_targets_exist(line: str):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert line.split()[1] in targets


@pytest.mark.parametrize("line", [line for line in shell_lines() if line.startswith("fedpriv ")])
def test_docs_cli_commands_exist(line: str):
    """The command takes the options that the text shows, and the files that it names are there."""
    from fedpriv.cli import app

    words = line.split()
    command = words[1:3] if words[1] in ("site", "federate") else words[1:2]
    done = CliRunner().invoke(
        app, [*command, "--help"], env={"COLUMNS": "200", "TERMINAL_WIDTH": "200", "NO_COLOR": "1"}
    )
    assert done.exit_code == 0, done.output
    for word in words[2:]:
        if word.startswith("--"):
            assert word.split("=")[0] in done.output, f"{words[1]} has no {word}"
        elif word.startswith("configs/"):
            assert (ROOT / word).is_file()
    if words[1] in ("train", "plan") and words[2] != "--extend":  # which goes on with the configuration of a run
        assert words[2].endswith(".yaml") or words[2] in shipped.list_configs(), f"{words[2]} is no file and no name"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_links_have_targets(page: Path):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'src="([^"]+)"', text)
    broken = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not broken


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").rglob("*.svg")), ids=lambda path: path.name)
def test_svg_pictures_well_formed(picture: Path):
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_trained_model_recipe_runs_with_dropout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A model left in train mode has another accuracy at each call; the recipe asserts that it is the reported one."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    recipe = next(s.code for s in sections("python") if s.title == "Use the trained model")
    plain = "models.SoftmaxRegression(64, 10)"
    assert recipe.count(plain) == 2
    exec(recipe.replace(plain, "torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(64, 10))"), {})


def test_reference_pages_cover_public_names() -> None:
    pages = [path.read_text() for path in sorted((ROOT / "docs" / "reference").glob("*.md"))]
    modules = {module for page in pages for module in re.findall(r"^::: (\S+)$", page, flags=re.MULTILINE)}
    assert "fedpriv.runs.options" in modules  # the arguments of train
    missing = {}
    for name in dir(fedpriv):
        value = getattr(fedpriv, name)
        module = getattr(value, "__module__", None)
        if not name.startswith("_") and not isinstance(value, ModuleType) and module not in {None, *modules}:
            missing[name] = module
    assert not missing
