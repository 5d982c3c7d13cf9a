"""Lines with whole steps of one client: draw a batch, sum the clipped gradients, add noise, write the ledger."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import opponents
import torch
from rows import OURS, PLAIN, Effort, Found, Row, interleaved
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.models import Loss, SoftmaxRegression, cross_entropy

EXAMPLES = 10_000
MOST_ROUNDS = 20_000  # all of them are planned before the first


def oracle_step(batch: int, effort: Effort) -> Found:
    """Measures softmax regression on Poisson batches; all contenders draw batches from the same 10 000 examples."""
    torch.manual_seed(0)
    batch, count = effort.of(batch), effort.of(EXAMPLES, 100)
    x, y = torch.randn(count, 1, 28, 28), torch.randint(0, 10, (count,))
    model, rate = SoftmaxRegression(784, 10, bias=True), batch / count

    def drawn(step: opponents.Step) -> Callable[[], object]:
        def run() -> object:
            chosen = (torch.rand(count) < rate).nonzero()[:, 0]
            return step(x[chosen], y[chosen])

        return run

    steps: dict[str, opponents.Step] = {PLAIN: opponents.plain(model)}
    steps |= {f"opacus {kind}": opponents.opacus(model, kind, batch, noise=1.0) for kind in ("ghost", "hooks")}
    runs = {name: drawn(step) for name, step in steps.items()}
    return Found(interleaved({OURS: asks(model, x, y, rate, effort.of(MOST_ROUNDS, 200)), **runs}, effort))


def asks(model: nn.Module, x: Tensor, y: Tensor, rate: float, most_rounds: int) -> Callable[[], object]:
    """Returns a function that makes one query to the oracle of a run, in a new round each time."""
    clients = fp.make_clients(model, Loss(cross_entropy), [TensorDataset(x, y)])
    privacy = fp.Privacy(noise_multiplier=1.0, sampling=fp.Poisson(rate), clip=fp.Clip(opponents.CLIP))
    oracle = fp.Training(clients, fp.fedavg(0.1), privacy, rounds=most_rounds).oracle
    everyone, params = torch.arange(1), torch.cat([p.detach().flatten() for p in model.parameters()]).unsqueeze(0)
    rounds = iter(range(most_rounds))

    def run() -> Tensor:
        oracle.begin_round(next(rounds), everyone, params)
        return oracle.gradient(params)

    return run


_AIMS = {64: "2", 256: "1.5", 1024: "1.2"}
ROWS = tuple(
    Row(f"whole oracle step, softmax 7 850, batch {batch}", "draw and plain gradient", aim, partial(oracle_step, batch))
    for batch, aim in _AIMS.items()
)
