"""Stage `speed`: gradients compared with plain steps and other libraries, whole rounds, and the waits of the GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from on_device.bench import Bench, Check, Facts, in_turns, observed, peak_megabytes
from torch import Tensor, nn

from fedpriv.clients.batch import Batch
from fedpriv.clients.client import make_clients
from fedpriv.clients.layout import Layout
from fedpriv.clients.population import Population
from fedpriv.models import MnistCNN, VisionTransformer
from fedpriv.models.nested import Rows
from fedpriv.oracle.backend_selection import select_backend
from fedpriv.privacy.clipping import Clip

# parts of other benchmarks, found by `on_device.bench`
import device as rounds  # isort: skip
import opponents  # isort: skip
from architectures import lora_gpt  # isort: skip
from nets import group_norm_resnet, mlp  # isort: skip
from rows import SMOKE, Effort  # isort: skip
from sequence_nets import CLASSES, Gpt, Recurrent  # isort: skip

LOSS = nn.CrossEntropyLoss()
Inputs = Callable[[int], Tensor]


def images(count: int, *shape: int) -> Tensor:
    """Random images, of MNIST's shape by default."""
    return torch.randn(count, *(shape or (1, 28, 28)))


def words(count: int) -> Tensor:
    """Random texts of 64 words."""
    return torch.randint(0, 256, (count, 64))


def vit() -> nn.Module:
    """The small vision transformer of the speed table."""
    return VisionTransformer((1, 28, 28), CLASSES, width=64, heads=4)


def gpt(effort: Effort) -> nn.Module:
    """A GPT of 11 million parameters."""
    return Gpt(layers=effort.of(6, 1), width=effort.of(384, 24))


EVERYBODY = ("functorch", "opacus hooks", "opacus ghost")
SUBJECTS: dict[str, tuple[Callable[[Effort], nn.Module], Inputs, int, tuple[str, ...]]] = {
    "CNN, batch 256": (lambda _: MnistCNN(), images, 256, EVERYBODY),
    "ViT, batch 64": (lambda _: vit(), images, 64, EVERYBODY),
    "GPT with LoRA, batch 8": (lora_gpt, words, 8, ("functorch",)),
    "ResNet-18, batch 64": (lambda e: group_norm_resnet(e.of(64, 16)), lambda n: images(n, 3, 32, 32), 64, EVERYBODY),
    "MLP 1e6, batch 256": (lambda _: mlp(1_000_000), images, 256, EVERYBODY),
    "LSTM, batch 256": (
        lambda _: Recurrent(nn.LSTM(32, 64, batch_first=True)),
        lambda n: torch.randn(n, 40, 32),
        256,
        (),
    ),
    "GPT, batch 8": (gpt, words, 8, ("functorch",)),
    "CNN, batch 4096": (lambda _: MnistCNN(), images, 4096, ("functorch", "opacus ghost")),
    "GPT with LoRA, batch 64": (lora_gpt, words, 64, ("functorch",)),
    "ViT, batch 512": (
        lambda _: vit(),
        images,
        512,
        ("functorch",),
    ),
}


def gradients(name: str, bench: Bench) -> Facts:
    """Measures the clipped sum of one client's batch and its alternatives, and counts its GPU operations."""
    torch.manual_seed(0)
    make, inputs, examples, peers = SUBJECTS[name]
    effort = SMOKE if bench.small else Effort()
    model = make(effort)
    x = inputs(bench.of(examples, 4))
    y = x.roll(-1, 1) if x.dtype == torch.long else torch.randint(0, CLASSES, (len(x),))
    # on a copy, since its parameters become views of a row, and other contenders need torch's own
    population = Population(make_clients(copy.deepcopy(model), LOSS, [Rows(x[:8], y[:8])]), device=bench.device)
    population.reset_models()
    selection = select_backend("auto", population, 16384)
    model = model.to(bench.device)
    x, y = x.to(bench.device), y.to(bench.device)
    row = Layout.of(model).row_of(model).detach().to(bench.device).unsqueeze(0)
    mask = torch.ones(1, len(y), dtype=torch.bool, device=bench.device)
    rows = torch.zeros(1, dtype=torch.long, device=bench.device)
    batch = Batch(rows, x.unsqueeze(0), y.unsqueeze(0), mask)
    steps: dict[str, Callable[[], object]] = {
        "fedpriv": lambda: selection.backend.clipped_sum(row, batch, Clip(opponents.CLIP)),
        "plain": partial(opponents.plain(model), x, y),
    }
    left_out: dict[str, str] = {}
    for peer in peers:
        try:
            if peer == "functorch":
                made = opponents.functorch(model)
            else:
                made = opponents.opacus(model, peer.removeprefix("opacus "), len(y))
            made(x, y)
            bench.wait()
            steps[peer] = partial(made, x, y)
        except Exception as error:  # another library may not support a layer, or may need more memory than there is
            left_out[peer] = f"{type(error).__name__}: {str(error)[:120]}"
    found = in_turns(steps, 5.0, bench)
    return {
        "backend": selection.name,
        "why_not_faster": selection.why_not_faster[:200],
        "ratio": {who: round(ms / found["plain"], 3) for who, ms in found.items()},
        "ms": found,
        "peak_MiB": {who: peak_megabytes(step, bench) for who, step in steps.items()},
        "of_fedpriv": observed(steps["fedpriv"], bench),
        "of_plain": {k: v for k, v in observed(steps["plain"], bench).items() if k in ("kernels", "gpu_ms", "busy")},
        "left_out": left_out,
    }


def whole_round(name: str, bench: Bench) -> Facts:
    """Measures a round, with its ledger in memory and on disk, and counts its GPU operations."""
    case = rounds.CASES[name]
    effort = SMOKE if bench.small else Effort()
    device, count = str(bench.device), bench.of(15, 1)
    run = rounds.training(case, device, 1 + count, effort)
    laps = [rounds.timed(run, bench.device.type) for _ in range(1 + count)]
    # with a ledger on disk, as in `counts`; the CPU waits for its digest
    on_disk = rounds.training(case, device, 4, effort, str(bench.folder / f"round {name}"))
    next(on_disk)
    return {"ms": round(1e3 * median(laps[1:]), 3), **observed(lambda: next(on_disk), bench)}


FIRST = ("CNN, sample level", "softmax, sample level")
CHECKS = [
    *(Check(f"gradient, {name}", partial(gradients, name), 12) for name in list(SUBJECTS)[:4]),
    *(Check(f"round, {name}", partial(whole_round, name), 9) for name in FIRST),
    *(Check(f"gradient, {name}", partial(gradients, name), 12) for name in list(SUBJECTS)[4:]),
    *(Check(f"round, {name}", partial(whole_round, name), 9) for name in rounds.CASES if name not in FIRST),
]
