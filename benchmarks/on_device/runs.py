"""Stage `runs`: MNIST and FEMNIST from the first round to the last, compared with the CPU of the same machine."""

from __future__ import annotations

import os
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from on_device.bench import ROOT, Bench, Check, Facts

from fedpriv.config import build, load_config

FEMNIST = ("femnist_iadmm5pct.npz", "femnist_extra.npz")
CONFIGS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    # the configuration, its changes, and the changes of small runs
    "mnist": (
        "mnist_cnn_fedavg.yaml",
        ("rounds=60", "log.evaluate_every=20", "log.checkpoint_every=60"),
        ("data.partition.n_clients=4", "privacy.trust.secure_aggregation.min_honest=4"),
    ),
    "femnist": (
        "femnist_cnn.yaml",
        ("rounds=60", "log.evaluate_every=20", "log.checkpoint_every=60"),
        ("privacy.trust.secure_aggregation.min_honest=4",),
    ),
}


def made_up_mnist(folder: Path, bench: Bench) -> None:
    """Writes random images in MNIST's format and number."""
    (folder / "mnist").mkdir(parents=True)
    draws = np.random.default_rng(0)
    for part, count in (("train", bench.of(60_000, 60)), ("t10k", bench.of(10_000, 20))):
        images, labels = draws.integers(0, 256, (count, 28, 28)), draws.integers(0, 10, count)
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            (folder / f"mnist/{part}-{kind}-ubyte").write_bytes(head + values.astype(np.uint8).tobytes())


def made_up_femnist(folder: Path, bench: Bench) -> None:
    """Writes random images in the format of FEMNIST's files, with the same numbers of images and writers."""
    (folder / "femnist").mkdir(parents=True)
    draws = np.random.default_rng(0)
    first = 0
    for name, writers in zip(FEMNIST, (bench.of(195, 3), bench.of(283, 3)), strict=True):
        each = bench.of(115, 6)
        count = writers * each
        np.savez_compressed(
            folder / "femnist" / name,
            images=draws.integers(0, 256, (count, 28, 28), dtype=np.uint8),
            labels=draws.integers(0, 62, count),
            writers=np.repeat(np.arange(first, first + writers), each),
            split=(np.arange(count) % 10 == 0).astype(np.uint8),
            writer_names=np.array([f"w{number}" for number in range(writers)]),
            first_writer_id=np.int64(first),
        )
        first += writers


MADE_UP = {"mnist": made_up_mnist, "femnist": made_up_femnist}


def end_to_end(name: str, bench: Bench) -> Facts:
    """Trains 60 rounds on the device and a few on the CPU, and compares the seconds of a round."""
    folder, is_real = bench.data, True
    if folder is None or not (folder / name).is_dir():
        folder, is_real = bench.folder / "made up", False
        if not (folder / name).exists():
            MADE_UP[name](folder, bench)
    file, changes, small = CONFIGS[name]
    words = changes
    if bench.small:
        words += ("rounds=2",)
    if bench.small and not is_real:
        words += small
    facts: Facts = {"data": "real" if is_real else "made up, so accuracy means nothing"}
    os.environ["FEDPRIV_DATA"] = str(folder)
    there = run(file, (*words, f"compute.device={bench.device}"), bench)
    facts["there"] = there
    if bench.small:
        return facts
    # every round of the plan has the same work, so a few are enough
    torch.set_num_threads(os.cpu_count() or 1)
    here = run(file, (*words, "compute.device=cpu"), bench, most=8)
    facts["here"] = {**here, "threads": torch.get_num_threads()}
    facts["times_as_fast"] = round(here["seconds_a_round"] / there["seconds_a_round"], 2)
    return facts


def run(file: str, words: tuple[str, ...], bench: Bench, most: int | None = None) -> Facts:
    """Trains, at most for some rounds."""
    start = monotonic()
    training = build(load_config(ROOT / "configs" / file, (*words, "secret_seed=0")))
    ready = monotonic()
    laps: list[float] = []
    for _ in islice(training, most):
        bench.wait()
        laps.append(monotonic())
    facts: dict[str, Any] = {
        "rounds": len(laps),
        "start_s": round(ready - start, 2),
        "rounds_s": round(laps[-1] - ready, 2),
        "seconds_a_round": round((laps[-1] - laps[0]) / max(len(laps) - 1, 1), 4),
        "backend": training.backend[:200],
    }
    if most is None:
        result = training.result()
        facts |= {"test_accuracy": result.test_accuracy, "spent": str(result.spent)}
    return facts


CHECKS = [
    Check("MNIST", partial(end_to_end, "mnist"), 50),
    Check("FEMNIST by writer", partial(end_to_end, "femnist"), 45),
]
