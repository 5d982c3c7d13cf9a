"""Time and memory of a round as the number of clients grows: softmax regression, 10 to 10 000 clients of 6 examples.

    python benchmarks/speed/scaling.py

The cost per client should stay flat. Each size runs in a process of its own with one thread; a round is one private
gradient of every client (FedSGD, full batches), clipped example by example and noised client by client.
"""

from __future__ import annotations

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
    if len(sys.argv) == 2:
        print(json.dumps(run(int(sys.argv[1]))))
        return
    empty = run_apart(0)["megabytes"]
    print(
        f"{'clients':>8s} {'ms/round':>10s} {'us/client':>10s} {'MB':>8s} {'KB/client':>10s}   (above {empty:.0f} MB)"
    )
    for clients in SIZES:
        found = run_apart(clients)
        milliseconds, megabytes = found["seconds"] * 1e3, found["megabytes"] - empty
        per_client = f"{milliseconds / clients * 1e3:10.1f} {megabytes:8.0f} {megabytes / clients * 1024:10.1f}"
        print(f"{clients:8d} {milliseconds:10.2f} {per_client}", flush=True)


def run_apart(clients: int) -> dict[str, float]:
    """`run` in a fresh process."""
    done = subprocess.run([sys.executable, __file__, str(clients)], check=True, capture_output=True, text=True)
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
