"""A round of 50 clients against the peers: time as a ratio to pfl-research (or to a plain loop), and peak memory.

    python benchmarks/speed/peers.py --pfl /tmp/pflenv/bin/python

pfl-research lives in an environment of its own, with the same torch:

    python -m venv /tmp/pflenv
    /tmp/pflenv/bin/pip install pfl==0.6.0 torch==$(python -c "import torch; print(torch.__version__.split('+')[0])")

Every contender runs in a fresh process with one thread, the processes take turns, and the table holds medians of CPU
times. All do the same gradient evaluations (`contenders.py`). `client` clips each client's whole update, which is what
pfl has; `sample` clips every example's gradient, which is what opacus has; plain promises nothing. Peak memory is the
whole process: Python, torch and all that a contender imports.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median

SCRIPT = Path(__file__).with_name("contenders.py")
CONTENDERS = (
    ("plain", "none"),
    ("pfl", "client"),
    ("fedpriv", "client"),
    ("opacus", "sample"),
    ("fedpriv", "sample"),
)
MODELS = {"cnn": "CNN, 26 010 parameters", "linear": "linear, 7 850 parameters"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pfl", type=Path, default=Path("/tmp/pflenv/bin/python"), help="python that has pfl")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    contenders = CONTENDERS
    if not arguments.pfl.exists():
        print(f"no pfl: {arguments.pfl} does not exist; `python {sys.argv[0]} --help` says how to install it\n")
        contenders = tuple(c for c in CONTENDERS if c[0] != "pfl")
    for model, title in MODELS.items():
        table(title, measure(contenders, model, arguments.repeats, arguments.pfl))


def measure(
    contenders: tuple[tuple[str, str], ...], model: str, repeats: int, pfl: Path
) -> dict[tuple[str, str], tuple[float, float]]:
    """Seconds of a round and megabytes of the process, medians over processes."""
    seconds: dict[tuple[str, str], list[float]] = {contender: [] for contender in contenders}
    megabytes: dict[tuple[str, str], list[float]] = {contender: [] for contender in contenders}
    for _ in range(repeats):
        for name, mode in contenders:
            python = str(pfl) if name == "pfl" else sys.executable
            command = [python, str(SCRIPT), name, model, mode]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            seconds[name, mode] += found["seconds"]
            megabytes[name, mode].append(found["megabytes"])
    return {contender: (median(seconds[contender]), median(megabytes[contender])) for contender in contenders}


def table(title: str, found: dict[tuple[str, str], tuple[float, float]]) -> None:
    """Print one model's table."""
    plain = found["plain", "none"][0]
    pfl = found.get(("pfl", "client"), (float("nan"), 0.0))[0]
    print(f"{title:26s} {'clips':>7s} {'s/round':>8s} {'/ plain':>8s} {'/ pfl':>8s} {'peak MB':>8s}")
    for (name, mode), (seconds, megabytes) in found.items():
        ratios = f"{seconds / plain:8.2f} {seconds / pfl:8.2f}"
        print(f"  {name:24s} {mode:>7s} {seconds:8.3f} {ratios} {megabytes:8.0f}", flush=True)
    print()


if __name__ == "__main__":
    main()
