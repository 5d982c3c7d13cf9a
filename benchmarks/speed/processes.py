"""Measures the benefit of a second process: rounds of 100 clients, on a star and a graph, with 60 images each.

The last line has two clients with 3000 images each; their examples are shared instead of the clients.

    python benchmarks/speed/processes.py [--processes 2] [--rounds 5] [--turns 3] [--markdown FILE]

The model is a small CNN. A run in one process and a run in several, each process with one thread, alternate as separate
programs. The first round is for warm-up. `ratio` compares wall seconds, so nothing else may run; `work` compares the
processor time of the one process with the busiest of the several, which other programs affect less, and is the ratio on
idle cores. `apart` is the idle share of the other processes, relative to the busiest one. `--smoke` runs tiny sizes:
its numbers are meaningless.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from rows import SMOKE, Effort

CLIENTS, IMAGES, LINKS = 100, 60, 4
KINDS: dict[str, dict[str, Any]] = {
    "star, sample level": {},
    "star, client level": {"unit": "client"},
    "graph, sample level": {},
    "two clients, examples shared": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2, help="so many against one")
    parser.add_argument("--rounds", type=int, default=5, help="of each run, after one that warms up")
    parser.add_argument("--turns", type=int, default=3, help="how often each is run")
    parser.add_argument("--markdown", type=Path, help="write the table to a file, too")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes")
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.kind:
        train(told.kind, told.rounds, SMOKE if told.smoke else Effort())
        return
    columns = "round", "s, one process", f"s, {told.processes} processes", "ratio", "work", "apart"
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    print("\n".join(lines))
    for kind in KINDS:
        lines.append(line(kind, told))
        print(lines[-1], flush=True)
    if told.markdown:
        told.markdown.write_text("\n".join(lines) + "\n")


def line(kind: str, told: argparse.Namespace) -> str:
    """Returns one line of the table."""
    found = [[measured(size, kind, told) for size in (1, told.processes)] for _ in range(told.turns)]
    one, several = ([turn[place] for turn in found] for place in (0, 1))
    walls = [median(max(wall for wall, _ in run) for run in runs) for runs in (one, several)]
    busiest = [median(max(busy for _, busy in run) for run in runs) for runs in (one, several)]
    idle = median(1 - min(busy for _, busy in run) / max(busy for _, busy in run) for run in several)
    values = *(f"{wall:.2f}" for wall in walls), *(f"{a / b:.2f}" for a, b in (walls, busiest)), f"{idle:.0%}"
    return f"| {' | '.join((kind, *values))} |"


def measured(size: int, kind: str, told: argparse.Namespace) -> list[tuple[float, float]]:
    """Returns wall and processor seconds of a round, for each process."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(size)] if size > 1 else []
    words = [__file__, "--kind", kind, "--rounds", str(told.rounds), *(["--smoke"] * told.smoke)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, *words]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [tuple(json.loads(text)) for text in done.stdout.splitlines() if text.startswith("[")]


def train(kind: str, rounds: int, effort: Effort) -> None:
    """Runs in this process, or runs this process's part; prints the median cost of a round."""
    import networkx as nx
    import torch
    from cores import Cost
    from torch import nn
    from torch.utils.data import TensorDataset

    import fedpriv as fp
    from fedpriv.models import MnistCNN

    torch.set_num_threads(1)
    torch.manual_seed(0)
    clients, images = effort.of(CLIENTS, LINKS + 2), effort.of(IMAGES)
    if kind.startswith("two"):
        clients, images = 2, images * clients // 2
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(clients * images, 1, 28, 28, generator=draw), torch.arange(clients * images) % 10
    data = [TensorDataset(*pair) for pair in zip(x.split(images), y.split(images), strict=True)]
    everyone = fp.make_clients(MnistCNN(), nn.CrossEntropyLoss(), data)
    privacy = fp.Privacy(noise_multiplier=1.0, **KINDS[kind])
    shared = "examples" if kind.startswith("two") else "clients"
    parallelism = shared if "TORCHELASTIC_RUN_ID" in os.environ else "none"
    compute = fp.Compute(device="cpu", parallelism=parallelism)
    strategy, network = fp.fedavg(0.1), fp.Star(clients)
    if kind.startswith("graph"):  # its models are only combined at the end of the run
        strategy, network = fp.gradient_tracking(0.1), fp.Graph(nx.random_regular_graph(LINKS, clients, seed=0))
    settings = {"rounds": 1 + rounds, "compute": compute, "network": network, "evaluate_every": 1 + rounds}
    before, costs = Cost.now(), list[Cost]()
    for _ in fp.Training(everyone, strategy, privacy, **settings):
        costs.append(Cost.now().since(before))
        before = Cost.now()
    parts = [median(getattr(cost, name) for cost in costs[1:]) for name in ("wall", "busy")]
    sys.stdout.write(f"{json.dumps(parts)}\n")  # one write: processes share the output


if __name__ == "__main__":
    main()
