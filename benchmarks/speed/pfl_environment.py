"""A separate environment for pfl-research, which has other requirements; it uses the torch of this environment."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

VERSION = "0.6.0"
CHECK = "import pfl.model.pytorch, pfl.privacy.gaussian_mechanism"


def interpreter(folder: Path) -> Path | None:
    """Returns pfl-research's interpreter, created in `folder` if missing; prints a note and returns None on failure."""
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    if not python.exists():
        print(f"making an environment for pfl {VERSION} in {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        # searched after the packages installed there, so that the peer uses the very same torch
        site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
        (Path(site) / "same_torch.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    for command in (["-c", CHECK], ["-m", "pip", "install", "--quiet", f"pfl=={VERSION}"], ["-c", CHECK]):
        done = subprocess.run([python, *command], capture_output=True, text=True, check=False)
        if command[0] == "-c" and done.returncode == 0:
            return python
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    print(f"no pfl {VERSION} ({last}): its lines are left out", file=sys.stderr)
    return None
