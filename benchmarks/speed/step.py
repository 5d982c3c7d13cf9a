"""What privacy costs in one step: per-example clipping and noise against a plain gradient of the same batch.

    python benchmarks/speed/step.py

Times are CPU times of one thread. The contenders take turns and the table holds ratios of medians, so that a busy
machine slows all of them alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from time import process_time

import torch
from torch import Tensor, nn

from fedpriv.clients.batch import Batch
from fedpriv.models import Loss, MnistCNN, SoftmaxRegression, cross_entropy
from fedpriv.oracle.backends import BACKENDS
from fedpriv.oracle.backends.base import Backend
from fedpriv.privacy.clipping import Clip
from fedpriv.randomness.streams import Randomness, normal

LOSS = Loss(cross_entropy)


@dataclass(frozen=True)
class Setting:
    """Clients of equal size that each take one step."""

    name: str
    model: nn.Module
    clients: int
    examples: int
    backends: tuple[str, ...]

    def data(self) -> Batch:
        shape = (self.clients, self.examples)
        inputs, targets = torch.randn(*shape, 1, 28, 28), torch.randint(0, 10, shape)
        return Batch(torch.arange(self.clients), inputs, targets, torch.ones(shape, dtype=torch.bool))


SETTINGS = (
    Setting("CNN 29 034, batch 64", MnistCNN(), 1, 64, ("vmap", "loop")),
    Setting("CNN 29 034, batch 256", MnistCNN(), 1, 256, ("vmap", "loop")),
    Setting("CNN 29 034, 50 clients of batch 10", MnistCNN(), 50, 10, ("vmap",)),
    Setting("softmax 7 850, batch 256", SoftmaxRegression(784, 10, bias=True), 1, 256, ("linear", "vmap", "loop")),
    Setting("softmax 7 850, 10 clients of 6000", SoftmaxRegression(784, 10, bias=True), 10, 6000, ("linear",)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(
        f"{'setting':36s} {'plain':>10s} {'backend':>9s} {'l2 clip':>8s} {'+ noise':>8s} {'l1 clip':>8s} {'exact':>8s}"
    )
    for setting in SETTINGS:
        for line in compare(setting, repeats):
            print(line, flush=True)


def compare(setting: Setting, repeats: int) -> Iterator[str]:
    """One line per backend."""
    batch = setting.data()
    params = torch.cat([p.detach().flatten() for p in setting.model.parameters()]).repeat(setting.clients, 1)
    for name in setting.backends:
        backend = BACKENDS[name](setting.model, LOSS)
        contenders = {
            "plain": lambda: plain_step(setting.model, batch),
            "l2": lambda b=backend: b.clipped_sum(params, batch, Clip(1.0)),
            "noise": lambda b=backend: private_step(b, params, batch),
            "l1": lambda b=backend: b.clipped_sum(params, batch, Clip(1.0, "l1")),
            "exact": lambda b=backend: b.clipped_sum(params, batch, None),
        }
        times = interleaved(contenders, 1 if name == "loop" else repeats)
        ratios = "".join(f"{times[c] / times['plain']:8.2f}x" for c in ("l2", "noise", "l1", "exact"))
        yield f"{setting.name:36s} {times['plain'] * 1e3:8.2f}ms {name:>9s}{ratios}"


def plain_step(model: nn.Module, batch: Batch) -> list[Tensor]:
    """The gradient of each client's mean loss, one backward pass a client."""
    parameters = list(model.parameters())
    return [
        torch.cat([g.flatten() for g in torch.autograd.grad(LOSS(model(x), y), parameters)])
        for x, y in zip(batch.inputs, batch.targets, strict=True)
    ]


def private_step(backend: Backend, params: Tensor, batch: Batch) -> Tensor:
    """Clipped sum and Gaussian noise."""
    sums, _ = backend.clipped_sum(params, batch, Clip(1.0))
    for row in sums:
        row += normal(Randomness(0).stream("noise"), len(row))
    return sums


def interleaved(contenders: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median CPU seconds of each contender, after one round to warm up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, run in contenders.items():
            start = process_time()
            run()
            if repeat or repeats == 1:
                times[name].append(process_time() - start)
    return {name: median(of) for name, of in times.items()}


if __name__ == "__main__":
    main()
