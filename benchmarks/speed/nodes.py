"""Time and memory of a round on a sparse graph as the number of nodes grows: 10 to 1000 nodes, four neighbours each.

    python benchmarks/speed/nodes.py

Gradient tracking of softmax regression (7850 parameters, 6 examples a node) on a random 4-regular graph, private and,
in the same process, without noise. Costs are per node and link (a link counts once): they should stay constant. Each
size runs in a separate process with one thread. Memory is the peak of the process minus the peak of a process without
nodes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import pairwise
from statistics import median
from time import process_time
from typing import TYPE_CHECKING

from memory import peak_megabytes

if TYPE_CHECKING:
    from fedpriv import Privacy

SIZES = (10, 30, 100, 300, 1000)
DEGREE, EXAMPLES, ROUNDS = 4, 6, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, help="run one size in this process and print JSON")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of nodes")
    options = parser.parse_args()
    if options.only is not None:
        print(json.dumps(run(options.only)))
        return
    empty = run_apart(0)["megabytes"]
    columns = ("ms/round", "against no noise", "us/(node+link)", "against n=10", "MB", "KB/(node+link)")
    print(f"{'nodes':>6s} {'links':>6s} " + " ".join(f"{name:>16s}" for name in columns) + f"   (above {empty:.0f} MB)")
    first = None
    for nodes in options.sizes:
        found, links = run_apart(nodes), nodes * DEGREE // 2
        each = found["seconds"] * 1e6 / (nodes + links)
        first = first or each
        megabytes = found["megabytes"] - empty
        values = (found["seconds"] * 1e3, found["seconds"] / found["plain"], each, each / first)
        memory = (megabytes, megabytes * 1024 / (nodes + links))
        print(f"{nodes:6d} {links:6d} " + " ".join(f"{value:16.2f}" for value in (*values, *memory)), flush=True)


def run_apart(nodes: int) -> dict[str, float]:
    """Runs `run` in a fresh process."""
    done = subprocess.run([sys.executable, __file__, "--only", str(nodes)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def run(nodes: int) -> dict[str, float]:
    """Returns median seconds of a private round and of one without noise, and the peak memory of the process."""
    import torch

    from fedpriv import Privacy
    from fedpriv.models import SoftmaxRegression, validate_model

    torch.set_num_threads(1)
    validate_model(SoftmaxRegression(784, 10))
    private = rounds(nodes, Privacy(noise_multiplier=1.0)) if nodes else 0.0
    megabytes = peak_megabytes()
    plain = rounds(nodes, Privacy(noise_on="none")) if nodes else 0.0
    return {"seconds": private, "plain": plain, "megabytes": megabytes}


def rounds(nodes: int, privacy: Privacy) -> float:
    """Returns the median seconds of a round after the first."""
    import torch
    from torch.utils.data import TensorDataset

    from fedpriv import Graph, StepSize, Training, gradient_tracking, make_clients
    from fedpriv.models import Loss, SoftmaxRegression, cross_entropy
    from fedpriv.network.topology import random_regular

    torch.manual_seed(0)
    inputs, targets = torch.randn(nodes, EXAMPLES, 784), torch.randint(0, 10, (nodes, EXAMPLES))
    sets = [TensorDataset(x, y) for x, y in zip(inputs, targets, strict=True)]
    clients = make_clients(SoftmaxRegression(784, 10), Loss(cross_entropy), sets)
    network = Graph(random_regular(nodes, DEGREE))
    laps: list[float] = []
    for _ in Training(clients, gradient_tracking(StepSize(0.1)), privacy, rounds=1 + ROUNDS, network=network):
        laps.append(process_time())
    return median(after - before for before, after in pairwise(laps))


if __name__ == "__main__":
    main()
