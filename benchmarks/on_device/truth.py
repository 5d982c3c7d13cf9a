"""Stage `truth`: results on the device match the CPU. The checks on which privacy rests come first."""

from __future__ import annotations

import copy
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from on_device.bench import ROOT, Bench, Check, Facts, distance
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.clients.layout import Layout
from fedpriv.clients.population import Population
from fedpriv.errors import FedprivError
from fedpriv.models import MnistCNN, SoftmaxRegression, VisionTransformer
from fedpriv.oracle.backend_selection import select_backend
from fedpriv.oracle.backends import BACKENDS
from fedpriv.oracle.low_precision import largest_error
from fedpriv.privacy.clipping import ROUNDING, Clip
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.record import Record
from fedpriv.randomness import chacha
from fedpriv.randomness.rows import laplace_rows, normal_rows
from fedpriv.randomness.streams import Randomness

# helpers of the tests, found by `on_device.bench`
import backend_cases  # isort: skip
import model_batches  # isort: skip
import model_kinds  # isort: skip
import test_release_sensitivity as releases  # isort: skip
from sequence_nets import Recurrent  # isort: skip

LOSS = nn.CrossEntropyLoss()
IMAGE, CLASSES, BOUND = (1, 28, 28), 10, 0.5
RANDOM = Randomness(0, secret_seed=3, run="a check of a device")


def mlp() -> nn.Module:
    """Two linear layers, with gradient norms that are products."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def lstm() -> nn.Module:
    """An LSTM that reads an image row by row."""
    return nn.Sequential(nn.Flatten(1, 2), Recurrent(nn.LSTM(28, 16, batch_first=True)))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "softmax": (lambda: SoftmaxRegression(784, CLASSES, bias=True), ("linear", "ghost", "vmap", "loop")),
    "MLP": (mlp, ("ghost", "vmap", "loop")),
    "CNN": (MnistCNN, ("ghost", "vmap", "loop")),
    "LSTM": (lstm, ("ghost", "loop")),
    "ViT": (lambda: VisionTransformer(IMAGE, CLASSES, width=16, heads=2), ("ghost", "vmap", "loop")),
}


# --- sensitivity


def records(like: Tensor) -> dict[str, Tensor]:
    """Returns images that an attacker would insert: a blank image has no gradient in a linear model's weights."""
    return {
        "huge": 1e6 * like,
        "opposite": -1e3 * like,
        "squares overflow": 1e25 * like,
        "squares underflow": 1e-25 * like,
        "not finite": torch.full_like(like, torch.inf),
        "not a number": torch.full_like(like, torch.nan),
        "blank": torch.zeros_like(like),
        "all alike": torch.full_like(like, 30.0),
    }


@contextmanager
def tensor_float_32(allowed: bool, bench: Bench) -> Iterator[None]:
    """Allows or forbids TensorFloat-32 in float32 products of cuDNN and cuBLAS."""
    if not bench.on_gpu:
        yield
        return
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = allowed, allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def sums_keep_their_sensitivity(name: str, bench: Bench) -> Facts:
    """Clipped sums in float32 move by at most 2 C if an example is replaced and C if it is removed, plus `ROUNDING` C.

    TensorFloat-32 is tested too, but not if the number of examples changes, since such runs raise an error.
    """
    make, names = MODELS[name]
    torch.manual_seed(0)
    model = make()
    row = Layout.of(model).row_of(model).detach()
    rows = torch.stack([row, row + 0.1 * torch.randn_like(row), torch.zeros_like(row)]).to(bench.device)
    model = model.to(bench.device)
    worst: dict[str, float] = {}
    others, attained = 0.0, 0.0
    for backend_name, norm, allowed in itertools.product(names, ("l2", "l1"), (False, True)):
        if allowed and not bench.on_gpu:
            continue
        if backend_name == "loop" and (allowed or norm == "l1"):
            continue  # one example at a time: slow, and bounded by a single line of code
        examples = 4 if backend_name == "loop" else bench.of(60, 5)
        backend, clip = BACKENDS[backend_name](model, LOSS), Clip(BOUND, norm)
        x, y = torch.randn(3, examples, *IMAGE), torch.randint(0, CLASSES, (3, examples))
        x[:, ::3] *= 1e3  # gradients of these examples often exceed the bound
        batch = Batch(torch.arange(3), x, y, torch.ones(3, examples, dtype=torch.bool))

        def sums(batch: Batch, backend: Any = backend, clip: Clip = clip) -> Tensor:
            return backend.clipped_sum(rows, bench.there(batch), clip)[0].double().cpu()

        order = {"l1": 1, "l2": 2}[norm]
        with tensor_float_32(allowed, bench):
            base = sums(batch)
            removed = replace(batch, mask=batch.mask.clone())
            removed.mask[1, 2] = False
            cases = [("removed", removed, 1)]
            for kind, image in records(x[1, 2]).items():
                changed = x.clone()
                changed[1, 2] = image
                cases.append((kind, replace(batch, inputs=changed), 2))
            if not allowed:
                fewer = replace(batch, inputs=x[:, 1:], targets=y[:, 1:], mask=batch.mask[:, 1:])
                cases.append(("a smaller batch", fewer, 1))
            for kind, other, times in cases:
                moved = torch.linalg.vector_norm(sums(other) - base, order, dim=1) / BOUND
                ratio = float(moved.max() if kind == "a smaller batch" else moved[1]) / (times + ROUNDING)
                key = f"{backend_name}, {norm}{', TF32' if allowed else ''}: {kind}"
                worst[key] = ratio
                if kind != "a smaller batch":
                    others = max(others, float(moved[[0, 2]].max()))
                attained = max(attained, float(moved[1]) / 2)
    largest = sorted(worst, key=lambda key: -worst[key])[:5]
    return {
        "passed": all(ratio <= 1 for ratio in worst.values()) and others == 0,
        "cases": len(worst),
        "of_the_claim": {key: round(worst[key], 6) for key in largest},
        "other_rows_moved": others,
        "replaced_at_most": round(attained, 4),
    }


def releases_keep_their_sensitivity(bench: Bench) -> Facts:
    """With equal noise, the releases of neighbours differ by at most their sensitivity, and no other row moves."""
    worst, attained, count, broken = "", 0.0, 0, list[str]()
    cases = releases.CASES[:3] if bench.small else releases.CASES
    params = releases.start_rows(len(releases.SIZES)).float().to(bench.device)
    for (unit, relation, norm, sampling), backend in itertools.product(cases, ("linear", "ghost")):
        privacy = releases.privacy_of(unit, relation, norm, sampling)
        allowed = releases.row_sensitivities(privacy)
        options: dict[str, Any] = {"backend": backend, "dtype": torch.float32, "device": bench.device}
        for name, pair in releases.neighbours(unit, relation, row=2).items():
            label = f"{unit}, {relation}, {norm}, {sampling}, {backend}: {name}"
            for change in releases.differences(pair, privacy, params, 1, **options):
                count += 1
                moved = torch.linalg.vector_norm(change.double(), releases.ORDER[norm], dim=1).cpu()
                ratio = float(moved[releases.VICTIM]) / allowed[releases.VICTIM]
                if ratio > attained:
                    worst, attained = label, ratio
                if ratio > 1 + ROUNDING or float(moved[[0, 2]].max()) > 0:
                    broken.append(label)
    facts: Facts = {"passed": not broken, "pairs": count, "largest": worst, "of_the_claim": round(attained, 6)}
    return facts | {"broken": broken[:10]}


# --- noise


def noise_words(bench: Bench) -> Facts:
    """The keystream on the device equals the one of the cipher in an independent library."""
    keys = [bytes(32), bytes([0, 0xFF, *bytes(30)]), bytes([255] * 32), bytes(range(32)), os.urandom(32)]
    tensor = torch.from_numpy(np.frombuffer(bytearray().join(keys), "<i4").copy()).view(-1, 8)
    wrong = 0
    for size in (1, 8, 1001, bench.of(2**17 + 3, 2**12 + 3)):
        found = chacha.compute_words(tensor.to(bench.device), size).cpu()
        for row, key in zip(found, keys, strict=True):
            cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * size))
            wrong += row.numpy().astype("<i8").tobytes() != cipher
    return {"passed": wrong == 0, "wrong_streams": wrong}


def noise_numbers(bench: Bench) -> Facts:
    """Draws on the device equal the CPU's up to their last digits, and follow their distributions."""
    keys = RANDOM.keys("noise", 5, 0, range(8))
    facts: Facts = {"passed": True}
    for draw, law in ((normal_rows, stats.norm), (laplace_rows, stats.laplace)):
        here = draw(keys, bench.of(100_001, 2_001))
        there = draw(keys.to(bench.device), bench.of(100_001, 2_001)).cpu()
        error = float(((there - here).abs() / here.abs().clamp_min(1e-3)).max())
        p_value = float(stats.kstest(there.flatten().numpy(), law.cdf).pvalue)
        facts[law.name] = {
            "relative_error": error,
            "differ_in_bits": float((there != here).double().mean()),
            "kstest_p": round(p_value, 4),
        }
        facts["passed"] &= error < 1e-12 and p_value > 1e-4 and bool(torch.isfinite(there).all())
    return facts


def noise_rounding(bench: Bench) -> Facts:
    """Releases are on their public grids and equal the CPU's, and no two rows have the same noise."""
    facts: Facts = {"passed": True}
    record = Record(2, "gradient", 1, "gaussian", 1.0, "sample", "replace_one")
    count, dim = 5, bench.of(200_000, 700)
    bounded = torch.randn(count, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for mechanism, scales in itertools.product((fp.Gaussian(), fp.Laplace()), ([0.3] * 5, [0.3, 0.5, 0.7, 1.1, 2.0])):
        clients = [1, 3, 4, 8, 11]
        here = add_noise(bounded, scales, mechanism, record, RANDOM, clients)._value  # noqa: SLF001
        there = add_noise(bounded.to(bench.device), scales, mechanism, record, RANDOM, clients)._value  # noqa: SLF001
        grids = (2.0 ** (torch.tensor(scales).log2().ceil() - 20)).double().unsqueeze(1)
        on_grid = bool(torch.equal((there.cpu() / grids).round() * grids, there.cpu()))
        differ = float((there.cpu() != here).double().mean())
        noise = there.cpu() - bounded
        apart = float(torch.corrcoef(noise).fill_diagonal_(0).abs().max())
        name = f"{mechanism.name}, {'one scale' if len(set(scales)) == 1 else 'scales'}"
        facts[name] = {"on_grid": on_grid, "share_other_than_here": differ, "largest_correlation": round(apart, 4)}
        facts["passed"] &= on_grid and differ < 1e-6 and apart < 6 / dim**0.5
    return facts


# --- gradients


def backends_equal_the_loop(bench: Bench) -> Facts:
    """Every backend returns the sums of the CPU's loop, which computes one example at a time."""
    broken, worst, count = list[str](), {torch.float64: 0.0, torch.float32: 0.0}, 0
    cases = backend_cases.CASES[::3] if bench.small else backend_cases.CASES
    if bench.device.type == "meta":
        cases = [case for case in cases if case.name != "words"]  # the simulated device unties tied weights
    clips = [Clip(0.3), Clip(0.7, "l1"), None]
    for case, dtype, clip in itertools.product(cases, worst, clips):
        torch.manual_seed(0)
        params, batch = case.rows(3, dtype), backend_cases.ragged((5, 4, 2), dtype)
        # the cases' own weights are doubles; use copies, since the next case computes here
        model, loss = copy.deepcopy(case.model).to(dtype), copy.deepcopy(case.loss).to(dtype)
        wanted, wanted_broken = BACKENDS["loop"](model, loss).clipped_sum(params, batch, clip)
        model, loss = model.to(bench.device), loss.to(bench.device)
        for name in (*case.backends, "loop"):
            with tensor_float_32(False, bench):
                backend = BACKENDS[name](model, loss)
                found, found_broken = backend.clipped_sum(params.to(bench.device), bench.there(batch), clip)
            error, count = distance(found, wanted), count + 1
            worst[dtype] = max(worst[dtype], error)
            limit = 1e-9 if dtype == torch.float64 else 1e-4
            if not error < limit or not torch.equal(found_broken.cpu(), wanted_broken):
                broken.append(f"{case.name}, {name}, {clip}, {dtype}: {error:.1e}")
    facts: Facts = {"passed": not broken, "cases": count, "broken": broken[:10]}
    return facts | {str(dtype).removeprefix("torch."): error for dtype, error in worst.items()}


def kinds_equal_the_loop(bench: Bench) -> Facts:
    """For every kind of model in the tests, sums on the device equal the sums of the CPU's loop."""
    # random masks differ between devices, and lengths of packed sequences must be on the CPU
    skipped = {name for name, kind in model_kinds.KINDS.items() if kind.random or "packed" in name}
    skipped |= {"lstm with projection"}  # torch batches it with one set of weights only
    if bench.device.type == "meta":
        # the simulated device unties tied weights, and loses torch's lazy conjugation
        skipped |= {name for name in model_kinds.KINDS if any(word in name for word in ("tied", "language", "complex"))}
    names = [name for name in model_kinds.KINDS if name not in skipped]
    broken, worst = list[str](), 0.0
    names = names[::9] if bench.small else names
    for name in names:
        kind = model_kinds.KINDS[name]
        torch.manual_seed(1)
        model = kind.make().double()
        batch = model_batches.batch(kind, torch.float64)
        row = Layout.of(model).row_of(model).detach()
        rows = torch.stack([row, row + 0.1 * torch.randn_like(row)])
        backend = kind.backend.split()[0]
        try:
            wanted = BACKENDS["loop"](copy.deepcopy(model), kind.loss).clipped_sum(rows, batch, Clip(0.3))[0]
            there = BACKENDS[backend](model.to(bench.device), kind.loss)
            found = there.clipped_sum(rows.to(bench.device), bench.there(batch), Clip(0.3))[0]
            error = distance(found, wanted)
            worst = max(worst, error)
            if not error < 1e-8:
                broken.append(f"{name}: {error:.1e}")
        except Exception as problem:  # each kind is independent of the others
            broken.append(f"{name}: {type(problem).__name__}: {str(problem)[:150]}")
    return {"passed": not broken, "kinds": len(names), "largest_error": worst, "broken": broken}


def the_backend_is_that_of_the_processor(bench: Bench) -> Facts:
    """Tests on the device select the same backend as tests on the CPU."""
    facts: Facts = {"passed": True}
    for name, (make, _) in MODELS.items():
        chosen = []
        for device in ("cpu", bench.device):
            torch.manual_seed(0)
            population = Population(clients_of(make(), 2, 4), device=device)
            population.reset_models()
            selection = select_backend("auto", population)
            chosen.append(f"{selection.name} {selection.why_not_faster}".strip())
        facts[name] = chosen[1]
        facts["passed"] &= chosen[0] == chosen[1]
    return facts


# --- precision


def precision_switches(bench: Bench) -> Facts:
    """Measures products as in runs; the documentation's statements about TensorFloat-32 hold."""
    if not bench.on_gpu:
        return {"passed": largest_error(bench.device) < 2.0**-14, "note": "no GPU, so no TensorFloat-32"}
    facts: Facts = {
        "cudnn_at_first": torch.backends.cudnn.allow_tf32,
        "matmul_at_first": torch.get_float32_matmul_precision(),
        "error_at_first": largest_error(bench.device),
    }
    with tensor_float_32(True, bench):
        facts["error_with_tf32"] = largest_error(bench.device)
    with tensor_float_32(False, bench):
        facts["error_without_tf32"] = largest_error(bench.device)
    facts["passed"] = facts["error_without_tf32"] < 2.0**-14 < facts["error_with_tf32"]

    # a run with neighbours of different size disables cuDNN's switch, and raises an error for cuBLAS's
    torch.backends.cudnn.allow_tf32 = True
    train(bench, MnistCNN(), {"relation": "add_remove"})
    facts["cudnn_after_a_run"] = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = facts["cudnn_at_first"]
    facts["passed"] &= facts["cudnn_after_a_run"] is False
    for name in ("precision_high", "allow_tf32"):
        if name == "allow_tf32":
            torch.backends.cuda.matmul.allow_tf32 = True
        else:
            torch.set_float32_matmul_precision("high")
        try:
            train(bench, mlp(), {"relation": "add_remove"})
            facts[name] = "trained"
            facts["passed"] = False
        except FedprivError as error:
            facts[name] = str(error)[:200]
            facts["passed"] &= "compute.device" in str(error)
        finally:
            torch.set_float32_matmul_precision("highest")
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = facts["cudnn_at_first"]
    return facts


def newer_precision_switches(bench: Bench) -> Facts:
    """The same with torch's switches from 2.9 on, in a separate process, since torch rejects a mixture."""
    if not bench.on_gpu or not hasattr(torch.backends, "fp32_precision"):
        return {"passed": True, "note": "no GPU, or an older torch"}
    code = (
        "import sys, torch\n"
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'\n"
        "torch.backends.cudnn.conv.fp32_precision = 'tf32'\n"
        "from on_device import truth\n"
        "from on_device.bench import Bench\n"
        "from pathlib import Path\n"
        "try:\n"
        f"    truth.train(Bench(torch.device({str(bench.device)!r}), True, Path()), truth.MnistCNN(),"
        " {'relation': 'add_remove'})\n"
        "    print('trained')\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    done = child(["-c", code], 60)
    said = (done.stdout.strip().splitlines() or [done.stderr[-300:]])[-1]
    return {"passed": said.startswith("ConfigError compute.device"), "said": said[:300]}


# --- runs


def clients_of(model: nn.Module, clients: int, examples: int) -> list[fp.Client]:
    """Returns clients with random images."""
    draws = torch.Generator().manual_seed(0)
    x, y = torch.randn(clients * examples, *IMAGE, generator=draws), torch.arange(clients * examples) % CLASSES
    pairs = zip(x.split(examples), y.split(examples), strict=True)
    return fp.make_clients(model, LOSS, [TensorDataset(*pair) for pair in pairs])


def run_of(
    bench: Bench,
    model: nn.Module,
    settings: dict[str, Any],
    *,
    device: str | None = None,
    strategy: Any = None,
    rounds: int = 3,
    **options: Any,
) -> fp.Training:
    """Returns a short run on the device, with fixed secret numbers."""
    clients = clients_of(model, bench.of(8, 3), bench.of(20, 6))
    privacy = fp.Privacy(noise_multiplier=1.0, **settings)
    compute = fp.Compute(device=device or str(bench.device))
    if not options.get("resume"):
        options = {"secret_seed": 0, **options}
    return fp.Training(clients, strategy or fp.fedavg(0.1), privacy, rounds=rounds, seed=0, compute=compute, **options)


def train(bench: Bench, model: nn.Module, settings: dict[str, Any], **options: Any) -> Tensor:
    """Returns the models of a short run, on the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training = run_of(bench, model, settings, **options)
        list(training)
        if training.folder is not None:
            training.folder.close()
    return training.progress.models.detach().cpu().clone()


SETTINGS: dict[str, tuple[dict[str, Any], Callable[[], Any]]] = {
    "sample level": ({}, lambda: fp.fedavg(0.1)),
    "Poisson batches": ({"sampling": fp.Poisson(0.5)}, lambda: fp.fedavg(0.1)),
    "client level": ({"unit": "client"}, lambda: fp.fedavg(0.1)),
    "messages, local steps": ({"unit": "client", "noise_on": "message"}, lambda: fp.fedavg(0.1, 3)),
    "central": ({"trust": fp.Central()}, lambda: fp.fedavg(0.1)),
    "ADMM": ({}, fp.inexact_admm),
}


def two_runs_agree(bench: Bench) -> Facts:
    """Two runs with one seed end with equal bits, close to the CPU's; runs with different seeds differ."""
    facts: Facts = {"passed": True}
    for model, (name, (settings, strategy)) in itertools.product(
        ("CNN",) if bench.small else ("CNN", "LSTM"), list(SETTINGS.items())[: 2 if bench.small else None]
    ):
        runs = []
        for device in (None, None, "cpu"):
            torch.manual_seed(0)
            runs.append(train(bench, MODELS[model][0](), settings, strategy=strategy(), device=device))
        equal, error = bool(torch.equal(runs[0], runs[1])), distance(runs[0], runs[2])
        facts[f"{model}, {name}"] = {"same_bits": equal, "from_the_processor": error}
        facts["passed"] &= equal and error < 1e-3
    return facts


def kill_and_resume(bench: Bench) -> Facts:
    """A run that is killed in a round after its checkpoint resumes with new noise, and charges each round once."""
    code = (
        "import os, signal, torch\n"
        "from on_device import truth\n"
        "from on_device.bench import Bench\n"
        "from pathlib import Path\n"
        "torch.manual_seed(0)\n"
        f"bench = Bench(torch.device({str(bench.device)!r}), {bench.small}, Path({str(bench.folder)!r}))\n"
        "for report in truth.run_of(bench, truth.MnistCNN(), {}, rounds=6, folder=bench.folder / 'killed',"
        " checkpoint_every=2):\n"
        "    if report.round == 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = child(["-c", code], 100)
    if done.returncode != -signal.SIGKILL:
        return {"passed": False, "said": done.stderr[-500:]}
    before = _ledger_lines(bench.folder / "killed")
    torch.manual_seed(0)
    resumed = train(bench, MnistCNN(), {}, rounds=6, folder=bench.folder / "killed", checkpoint_every=2, resume=True)
    after = _ledger_lines(bench.folder / "killed")
    rounds = [line["round"] for line in after]
    passed = after[: len(before)] == before and rounds == list(range(6)) and bool(resumed.isfinite().all())
    return {"passed": passed, "rounds": rounds, "before the kill": len(before)}


def _ledger_lines(folder: Path) -> list[dict[str, Any]]:
    """Returns what a run has released, without the header of its ledger."""
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()[1:]]


def child(arguments: list[str], seconds: float, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with the modules of this folder, with a time limit."""
    paths = [str(ROOT), str(ROOT / "benchmarks"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    try:
        return subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=seconds, env=environment, check=False
        )
    except subprocess.TimeoutExpired as late:
        said = late.stderr or b""
        return subprocess.CompletedProcess(
            arguments, 124, "", said.decode(errors="replace") if isinstance(said, bytes) else said
        )


# --- the wrong device


class Scaled(nn.Module):
    """A module with a tensor that is neither parameter nor buffer, so that it stays on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(784, CLASSES), torch.ones(784)

    def forward(self, x: Tensor) -> Tensor:
        """`[n, 1, 28, 28] -> [n, classes]`."""
        return self.layer(x.flatten(1) * self.scale)


def left_behind(bench: Bench) -> Facts:
    """Objects on the wrong device are moved, or raise an error that names them."""
    if bench.device.type == "cpu":
        return {"passed": True, "note": "there is one device"}
    x, y = torch.randn(12, *IMAGE), torch.arange(12) % CLASSES
    there = bench.device
    plain: Any = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, CLASSES))  # noqa: E731
    cases: dict[str, tuple[nn.Module, Any, Tensor, Tensor, str]] = {
        "a tensor of the model": (Scaled(), LOSS, x, y, "model"),
        "a weight of the loss": (plain(), nn.CrossEntropyLoss(weight=torch.ones(CLASSES)), x, y, "loss"),
        "a model that is there": (plain().to(there), LOSS, x, y, ""),
        "data that are there": (plain(), LOSS, x.to(there), y.to(there), ""),
        "inputs that are there": (plain(), LOSS, x.to(there), y, ""),
        "targets that are there": (plain(), LOSS, x, y.to(there), ""),
    }
    if bench.device.type == "meta":
        cases = dict(list(cases.items())[:3])  # data of the simulated device have no location in memory
    facts: Facts = {"passed": True}
    for name, (model, loss, inputs, targets, owner) in cases.items():
        data = [TensorDataset(inputs[:6], targets[:6]), TensorDataset(inputs[6:], targets[6:])]
        compute = fp.Compute(device=str(there))
        try:
            clients = fp.make_clients(model, loss, data)
            list(fp.Training(clients, fp.fedavg(0.1), fp.Privacy(noise_multiplier=1.0), rounds=1, compute=compute))
            facts[name] = "trained"
            facts["passed"] &= not owner
        except FedprivError as error:
            facts[name] = f"{type(error).__name__}: {str(error)[:250]}"
            facts["passed"] &= owner in str(error)
        except Exception as error:  # an error without a name
            facts[name] = f"{type(error).__name__}: {str(error)[:250]}"
            facts["passed"] = False
    return facts


def names_of_devices(bench: Bench) -> Facts:
    """`Compute` accepts `cuda`, `cuda:0` and `auto`, and raises an error with the field for a missing GPU."""
    facts: Facts = {"passed": True}
    names = ("auto", "cuda", "cuda:0") if bench.on_gpu else ("auto", str(bench.device))
    for name in names:
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            training = run_of(bench, mlp(), {}, device=name, rounds=1)
            list(training)
        facts[name] = str(training.progress.models.device)
        facts["passed"] &= bench.device.type == "meta" or training.progress.models.device.type == bench.device.type
    try:
        fp.Compute(device="cuda:99").start()
        facts["passed"] = False
    except FedprivError as error:
        facts["cuda:99"] = str(error)[:200]
        facts["passed"] &= "compute.device" in str(error)
    return facts


def default_device(bench: Bench) -> Facts:
    """If torch creates tensors on the device by default (`torch.set_default_device`), runs raise a named error."""
    if bench.device.type == "cpu":
        return {"passed": True, "note": "there is one device"}
    with torch.device(bench.device):
        try:
            train(bench, mlp(), {})
        except FedprivError as error:
            return {"passed": "get_default_device" in str(error), "said": str(error)[:200]}
    return {"passed": False, "said": "trained"}


def processes(count: int, bench: Bench) -> Facts:
    """Runs of several processes end with the models of one process; two on one GPU at least end with a reason."""
    device = bench.device.type  # without a number: each process uses a separate one
    script = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import torch, fedpriv as fp\n"
        "from on_device import truth\n"
        "from on_device.bench import Bench\n"
        "from pathlib import Path\n"
        "torch.manual_seed(0)\n"
        "clients = truth.clients_of(truth.mlp(), 4, 6)\n"
        f"compute = fp.Compute(device={device!r}, parallelism=PARALLELISM, timeout=40.0)\n"
        "run = fp.Training(clients, fp.fedavg(0.1), fp.Privacy(noise_multiplier=1.0), rounds=2, seed=0, secret_seed=0,"
        " compute=compute)\n"
        "list(run)\n"
        "models = run.progress.models\n"
        "line = f'ended {models.device} {float(models[0].double().sum())}\\n'\n"
        "import os; os.write(1, line.encode())\n"  # as a single write, since several processes print
    )
    path = bench.folder / f"processes{count}.py"
    path.write_text(script.replace("PARALLELISM", "'clients'"))
    alone = child(["-c", script.replace("PARALLELISM", "'none'")], 60, OMP_NUM_THREADS="1").stdout.split()
    done = child(
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", str(path)], 90, OMP_NUM_THREADS="1"
    )
    # the processes may write into each other's lines
    ended = re.findall(r"ended \S+ (-?\d+\.\d+(?:e[-+]\d+)?)", done.stdout)
    if len(ended) == count and len(alone) == 3:
        same = all(abs(float(total) - float(alone[2])) < 1e-4 for total in ended)
        return {"passed": same, "said": ended, "in_one": alone}
    reasons = [line for line in done.stderr.splitlines() if "Error" in line]
    return {"passed": False, "code": done.returncode, "said": [line[:250] for line in reasons[:6]]}


def only_on_a_gpu(run: Callable[[Bench], Facts]) -> Callable[[Bench], Facts]:
    """Omits a check in small runs: it starts processes, which takes longer than all others."""

    def checked(bench: Bench) -> Facts:
        if bench.small:
            return {"passed": True, "note": "starts processes: not in small runs"}
        return run(bench)

    return checked


CHECKS = [
    *(Check(f"sensitivity of sums, {name}", partial(sums_keep_their_sensitivity, name), 5) for name in MODELS),
    Check("sensitivity of releases", releases_keep_their_sensitivity, 12),
    Check("words of noise", noise_words, 1),
    Check("numbers of noise", noise_numbers, 2),
    Check("rounding of noise", noise_rounding, 3),
    Check("TensorFloat-32 and cuDNN", precision_switches, 4),
    Check("backends equal the loop", backends_equal_the_loop, 12),
    Check("two runs agree", two_runs_agree, 12),
    Check("kill and resume", only_on_a_gpu(kill_and_resume), 14),
    Check("left on the wrong device", left_behind, 2),
    Check("names of devices", names_of_devices, 1),
    Check("torch's default device", default_device, 1),
    Check("the backend chosen", the_backend_is_that_of_the_processor, 5),
    Check("kinds of models equal the loop", kinds_equal_the_loop, 14),
    Check("TensorFloat-32, newer switches", newer_precision_switches, 8),
    Check("one process on the GPU", only_on_a_gpu(partial(processes, 1)), 12),
    Check("two processes on the GPU", only_on_a_gpu(partial(processes, 2)), 14),
]
