"""Shows the notebooks as pages of the site, with pictures from an earlier run; mkdocs loads this file as a hook.

    python tools/notebook_pages.py [NAME...]    # run notebooks and store their pictures in docs/assets/notebooks

Notebooks are kept without outputs (`tests/test_notebooks.py`), so run this after a change that affects a picture.
"""

from __future__ import annotations

import base64
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "examples" / "notebooks"
PICTURES = ROOT / "docs" / "assets" / "notebooks"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a generated page next to each notebook."""
    from mkdocs.structure.files import File

    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=markdown(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Redirects links to a notebook file, on other pages, to its generated page."""
    if page.file.src_uri.startswith("notebooks/"):
        return markdown
    return re.sub(r"(\]\((?:\.\./)*notebooks/\w+)\.ipynb\)", r"\1.md)", markdown)


def markdown(path: Path) -> str:
    """Returns text, code and stored pictures of a notebook as Markdown."""
    cells = nbformat.read(path, as_version=4).cells
    parts: list[str] = []
    for number, cell in enumerate(cells):
        if cell.cell_type == "markdown":
            parts.append(cell.source.replace("../../docs/", "../"))
        else:
            parts.append(f"```python\n{cell.source}\n```")
            for picture in sorted(PICTURES.glob(f"{path.stem}-{number}-*.png")):
                parts.append(f"![Output of this cell](../assets/notebooks/{picture.name})")
    title, _, rest = parts[0].partition("\n")
    download = (
        f"[Download this notebook]({path.name}){{ download }}. The pictures are from one run; each run draws new noise."
    )
    return "\n\n".join([title, download, rest, *parts[1:]])


def store_pictures(path: Path) -> int:
    """Runs a notebook without private data folders, and stores its pictures with at most 64 colours."""
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from PIL import Image

    notebook = nbformat.read(path, as_version=4)
    # without installed kernels, the kernel runs in this interpreter
    kernel = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[]))
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, km=kernel, timeout=1800, resources={"metadata": {"path": folder}})
        done = client.execute()
    PICTURES.mkdir(parents=True, exist_ok=True)
    for old in PICTURES.glob(f"{path.stem}-*.png"):
        old.unlink()
    count = 0
    for number, cell in enumerate(done.cells):
        images = [out.data["image/png"] for out in cell.get("outputs", []) if "image/png" in out.get("data", {})]
        for index, image in enumerate(images):
            picture = Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB")
            picture.quantize(64).save(PICTURES / f"{path.stem}-{number}-{index}.png", optimize=True)
            count += 1
    return count


if __name__ == "__main__":
    os.environ.pop("FEDPRIV_DATA", None)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    for notebook_path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not sys.argv[1:] or notebook_path.stem in sys.argv[1:]:
            print(notebook_path.stem, store_pictures(notebook_path), flush=True)
