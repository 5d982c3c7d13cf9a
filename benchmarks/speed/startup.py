"""Measures the start-up time of fedpriv, relative to the import time of the underlying libraries.

    python benchmarks/speed/startup.py [--repeats 5]

Median processor seconds of fresh processes. The targets: `fedpriv --help` within 1.5 times `import typer, rich`, and
`import fedpriv` within 1.2 times `import torch`.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from statistics import median

AGAINST = {
    "fedpriv --help": ("from fedpriv.cli import app; app(['--help'])", "import typer, rich"),
    "import fedpriv": ("import fedpriv", "import torch"),
    "from fedpriv import *": ("from fedpriv import *", "import torch"),
    "import fedpriv.config": ("import fedpriv.config", "import torch"),
}


def seconds(code: str, repeats: int) -> float:
    """Returns the processor time, since other processes may be running."""
    took: list[float] = []
    for _ in range(repeats + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return median(took[1:] or took)  # the first one fills the disk's cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=list(AGAINST), choices=list(AGAINST))
    options = parser.parse_args()
    against, repeats = {name: AGAINST[name] for name in options.only}, options.repeats
    alone = {code: seconds(code, repeats) for code in {base for _, base in against.values()}}
    for name, (code, base) in against.items():
        took = seconds(code, repeats)
        print(f"{name:<22}  {took:6.2f} s  {took / alone[base]:5.2f} x {base} ({alone[base]:.2f} s)")


if __name__ == "__main__":
    main()
