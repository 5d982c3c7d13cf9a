"""Time and memory of a round as the number of clients grows: softmax regression, 10 to 10 000 clients of 6 examples.

    python benchmarks/speed/scaling.py

The cost per client should stay flat. Each size runs in a process of its own with one thread; a round is one private
gradient of every client (FedSGD, full batches), clipped example by example and noised client by client.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from itertools import pairwise
from statistics import median
from time import process_time

SIZES = (10, 100, 1000, 10_000)
EXAMPLES, ROUNDS = 6, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=int, help="run one size in this process and print JSON")
    only = parser.parse_args().only
    if only is not None:
        print(json.dumps(run(only)))
        return
    empty = run_apart(0)["megabytes"]
    columns = ("ms/round", "us/client", "against n=10", "MB", "KB/client")
    print(f"{'clients':>8s} " + " ".join(f"{name:>12s}" for name in columns) + f"   (above {empty:.0f} MB)")
    first = None
    for clients in SIZES:
        found = run_apart(clients)
        each, megabytes = found["seconds"] * 1e6 / clients, found["megabytes"] - empty
        first = first or each
        values = (found["seconds"] * 1e3, each, each / first, megabytes, megabytes * 1024 / clients)
        print(f"{clients:8d} " + " ".join(f"{value:12.2f}" for value in values), flush=True)


def run_apart(clients: int) -> dict[str, float]:
    """`run` in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--only", str(clients)], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def run(clients: int) -> dict[str, float]:
    """Median seconds of a round after the first, and the peak memory of the process; for no clients only the memory."""
    import torch
    from torch.utils.data import TensorDataset

    from fedpriv import Privacy, Training, fedavg, make_clients
    from fedpriv.models import Loss, SoftmaxRegression, cross_entropy, validate_model

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = SoftmaxRegression(784, 10)
    validate_model(model)
    laps: list[float] = []
    if clients:
        inputs, targets = torch.randn(clients, EXAMPLES, 784), torch.randint(0, 10, (clients, EXAMPLES))
        sets = [TensorDataset(x, y) for x, y in zip(inputs, targets, strict=True)]
        everyone = make_clients(model, Loss(cross_entropy), sets)
        for _ in Training(everyone, fedavg(0.1), Privacy(noise_multiplier=1.0), rounds=1 + ROUNDS):
            laps.append(process_time())
    seconds = median([after - before for before, after in pairwise(laps)] or [0.0])
    return {"seconds": seconds, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


if __name__ == "__main__":
    main()
