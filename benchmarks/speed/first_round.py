"""Measures the time of a first round after torch is imported: fedpriv's import, the plan, backends and one round.

    python benchmarks/speed/first_round.py [--repeats 5]

Smallest processor seconds of fresh processes with one thread, compared with `import torch` in the same processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

MODELS = {
    "linear": "nn.Sequential(nn.Flatten(), nn.Linear(784, 10))",
    "MLP": "nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))",
    "CNN": "MnistCNN()",
}
FIRST_ROUND = """
import json, sys, time
start = time.process_time()
import torch
with_torch = time.process_time()
import fedpriv
from fedpriv.models import MnistCNN
from torch import nn
model = {model}
data = torch.utils.data.TensorDataset(torch.randn(60, 1, 28, 28), torch.randint(0, 10, (60,)))
clients = fedpriv.make_clients(model, nn.CrossEntropyLoss(), [data])
privacy = fedpriv.Privacy(noise_multiplier=1.0, clip=fedpriv.Clip(1.0), sampling=fedpriv.Poisson(0.5), delta=1e-5)
next(iter(fedpriv.Training(clients, fedpriv.fedavg(0.1), privacy, rounds=100)))
done = time.process_time()
slow = ["sympy", "torch._dynamo", "scipy.stats", "scipy.optimize", "scipy.signal"]
print(json.dumps([with_torch - start, done - with_torch, [name for name in slow if name in sys.modules]]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=[*MODELS], choices=[*MODELS], help="models")
    options = parser.parse_args()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in options.only:
        took: list[tuple[float, float, list[str]]] = []
        for _ in range(options.repeats):
            code = FIRST_ROUND.replace("{model}", MODELS[name])
            done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)
            took.append(json.loads(done.stdout))
        of_torch = min(seconds for seconds, _, _ in took)
        first = min(seconds for _, seconds, _ in took)
        print(f"{name:<8} {first:5.2f} s, import torch {of_torch:5.2f} s, slow modules: {took[0][2] or 'none'}")


if __name__ == "__main__":
    main()
