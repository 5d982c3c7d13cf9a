"""Every notebook of `examples/` runs from top to bottom in a kernel of this interpreter, and draws."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").rglob("*.ipynb"))
LIMIT = 900  # seconds for a cell: a busy machine is no failure
SLOW = ("images_from_scratch", "next_character")
RUNS = [pytest.param(path, marks=[pytest.mark.slow] if path.stem in SLOW else []) for path in NOTEBOOKS]


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in; kernels see this checkout's fedpriv, one thread, and no settings of the user's."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("FEDPRIV_DATA", raising=False)  # nothing but what is embedded
    monkeypatch.delenv("MPLBACKEND", raising=False)
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    work = tmp_path / "work"
    work.mkdir()
    return work


def executed(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Run all cells; without installed kernels only ipykernel's own is left, which starts `sys.executable`."""
    kernel = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
    client = NotebookClient(notebook, km=kernel, timeout=LIMIT, resources={"metadata": {"path": str(folder)}})
    return client.execute()


def test_notebooks_page_links_every_notebook():
    page = ROOT / "docs" / "notebooks.md"
    named = re.findall(r"\]\(notebooks/(\w+\.ipynb)\)", page.read_text())
    assert sorted(named) == [path.name for path in NOTEBOOKS]
    assert (page.parent / "notebooks").resolve() == ROOT / "examples" / "notebooks"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_site_page_of_notebook_has_pictures(path: Path):
    spec = importlib.util.spec_from_file_location("notebook_pages", ROOT / "tools" / "notebook_pages.py")
    assert spec is not None and spec.loader is not None
    notebook_pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebook_pages)
    page = notebook_pages.markdown(path)
    pictures = re.findall(r"\]\(\.\./assets/notebooks/([\w-]+\.png)\)", page)
    stored = sorted(picture.name for picture in notebook_pages.PICTURES.glob(f"{path.stem}-*.png"))
    assert len(stored) >= 2 and sorted(pictures) == stored, f"run python tools/notebook_pages.py {path.stem}"


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_notebook_runs_and_draws(path: Path, empty_folder: Path):
    done = executed(nbformat.read(path, as_version=4), empty_folder)
    code = [cell for cell in done.cells if cell.cell_type == "code"]
    assert any(cell.source.lstrip().startswith("assert") or "\nassert" in cell.source for cell in code)
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2, "no pictures"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_stored_without_outputs(path: Path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None, f"clear the outputs of {path.name}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_links_have_targets(path: Path):
    text = "".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    broken = [to for to in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in to and not (path.parent / to).exists()]
    assert not broken


def test_failing_notebook_cell_raises(empty_folder: Path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 == 2")])
    with pytest.raises(Exception, match="AssertionError"):
        executed(notebook, empty_folder)


def test_notebook_kernel_uses_this_checkout(empty_folder: Path):
    source = "import sys, fedpriv; print(sys.executable, fedpriv.__file__)"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    (output,) = executed(notebook, empty_folder).cells[0].outputs
    assert output.text.split() == [sys.executable, str(ROOT / "fedpriv" / "__init__.py")]
