"""Measures the information about secret batches and cohorts in times, sizes and memory.

Each line is a run of many rounds; its batch size, or number of drawn clients, is secret and differs in every round. An
observer measures one quantity in each round: the time until its result, its processor time (visible to other users of
the machine), the bytes of its ledger line, of its line of metrics, of its checkpoint, of a site's reply and of a site's
state, and the memory of the process. The table shows the mutual information of the measurement and the secret number,
in bits: Kraskov's estimate (scikit-learn, 3 neighbours) for times and memory, Ross's for numbers of bytes. The baseline
is the 95 % quantile of the same estimate over random permutations of the rounds, which contain no information. A value
above the baseline is a leak; a value below it is not detectable with this number of rounds. A constant measurement has
no information.

    python benchmarks/audit/side_channels.py --markdown side_channels.md      (five minutes on one core)
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import yaml
from sklearn.feature_selection import mutual_info_regression
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.reports.sinks import Jsonl
from fedpriv.sites import Site, propose
from fedpriv.sites.messages import TrainRequest, pack

NAMES = {
    "time": "time of a round or answer",
    "cpu": "processor time",
    "ledger": "bytes of a ledger line",
    "metrics": "bytes of a line of metrics",
    "checkpoint": "bytes of the checkpoint",
    "memory": "memory of the process",
    "reply": "bytes of a reply",
    "state": "bytes of the site's state",
}


@dataclass
class Trace:
    """The measurements of an observer in each round, and the secret number."""

    secret: list[int] = field(default_factory=list)
    seen: dict[str, list[float]] = field(default_factory=dict)

    def see(self, **values: float) -> None:
        for name, value in values.items():
            self.seen.setdefault(name, []).append(value)


def resident() -> int:
    """Returns the bytes of memory that the process uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Cnn(nn.Module):
    """Two convolutions, so that computing examples dominates the time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)),
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs.unflatten(1, (1, 8, 8)))


def data(size: int, seed: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(size, 64, generator=draw), torch.randint(10, (size,), generator=draw))


def training_of(case: str, folder: Path, rounds: int, pace: float | None, *, pad: bool) -> fp.Training:
    torch.manual_seed(0)
    compute = fp.Compute(threads=1, pad_seconds=pace, pad_batches=pad)
    given = {"rounds": rounds, "seed": 1, "secret_seed": 2, "folder": folder, "checkpoint_every": 1, "compute": compute}
    if case == "cohorts":
        clients = fp.make_clients(Cnn(), nn.CrossEntropyLoss(), [data(20, seed) for seed in range(40)])
        privacy = fp.Privacy(
            noise_multiplier=2.0,
            unit="client",
            noise_on="message",
            relation="add_remove",
            trust=fp.Central(cohort_rate=0.5),
        )
        return fp.Training(clients, fp.fedavg(0.1), privacy, **given)
    model = Cnn() if case == "batches, CNN" else nn.Linear(64, 10)
    clients = fp.make_clients(model, nn.CrossEntropyLoss(), [data(1000, 0)])
    privacy = fp.Privacy(noise_multiplier=2.0, sampling=fp.Poisson(0.1))
    return fp.Training(clients, fp.fedavg(0.1), privacy, **given)


def run(case: str, folder: Path, rounds: int, pace: float | None, *, pad: bool) -> Trace:
    """A run in one process, with each round observed from outside."""
    training = training_of(case, folder, rounds, pace, pad=pad)
    trace, writer = Trace(), Jsonl(folder / "metrics.jsonl")
    iterator = iter(training)
    sizes = dict.fromkeys(("ledger", "metrics"), 0)
    for index in range(rounds):
        start, busy = time.perf_counter(), time.process_time()
        report = next(iterator)
        elapsed, busy = time.perf_counter() - start, time.process_time() - busy
        writer.write(report)
        training.save()
        lengths = {}
        for name in sizes:
            size = (folder / f"{name}.jsonl").stat().st_size
            lengths[name] = size - sizes[name]
            sizes[name] = size
        trace.see(
            time=elapsed, cpu=busy, memory=resident(), checkpoint=(folder / "checkpoint.pt").stat().st_size, **lengths
        )
        trace.secret.append(secret_size(training, index, case))
    training.folder.close()
    return trace


def secret_size(training: fp.Training, index: int, case: str) -> int:
    """Returns the number of examples or clients in a round, from its secret seed."""
    randomness = training._identity.randomness  # noqa: SLF001 - what an observer does not have
    if case == "cohorts":
        return int(randomness.stream("secret_cohort", index).below(0.5, 40).sum())
    return int(randomness.stream("batch", index, 0, 0).below(0.1, 1000).sum())


def run_site(folder: Path, rounds: int, pace: float | None) -> Trace:
    """A site that replies to a server, which observes the time and size of its replies."""
    settings = {"name": "north", "data": {"name": "digits", "flat": True}, "budget": {"epsilon": 1000}}
    if pace is not None:
        settings["policy"] = {"pad_seconds": pace}
    (folder / "north.yaml").write_text(yaml.safe_dump(settings))
    site = Site.create(folder / "north", folder / "north.yaml")
    config = fp.config.Config.model_validate(
        {
            "data": {"name": "digits", "flat": True, "partition": {"kind": "iid", "n_clients": 1}},
            "model": {"name": "softmax"},
            "strategy": {"name": "fedavg", "learning_rate": 0.1},
            "privacy": {"noise_multiplier": 2.0, "sampling": {"poisson": {"rate": 0.1}}},
            "rounds": rounds,
        }
    )
    plan = propose(config, [site.card], fp.config.building.read_outline(config))
    site.join(plan.text, plan.fingerprint)
    resolved_plan = site.resolved_plan(plan.hash)
    trace, ledger, before = Trace(), folder / "north" / "runs" / plan.hash / "ledger.jsonl", 0
    model = torch.zeros(resolved_plan.widths[0])
    for index in range(rounds):
        question = pack(TrainRequest(plan.hash, index, model))
        start, busy = time.perf_counter(), time.process_time()
        reply = site.answer(question)
        elapsed, busy = time.perf_counter() - start, time.process_time() - busy
        size = ledger.stat().st_size
        state = ledger.with_name("state.pt").stat().st_size
        trace.see(time=elapsed, cpu=busy, reply=len(reply), ledger=size - before, state=state, memory=resident())
        before = size
        member = site._plans.session(plan.hash)  # noqa: SLF001 - what an observer does not have
        words = member._randomness.stream("batch", index, 0, member.number)  # noqa: SLF001
        trace.secret.append(int(words.below(0.1, 1437).sum()))
    site.close()
    return trace


def information(seen: np.ndarray, secret: np.ndarray) -> float:
    """Mutual information in bits."""
    if len(np.unique(seen)) == 1:
        return 0.0
    discrete = len(np.unique(seen)) <= 20
    found = mutual_info_regression(seen[:, None], secret, discrete_features=discrete, n_neighbors=3, random_state=0)
    return float(found[0] / np.log(2))


def lines(case: str, trace: Trace, permutations: int) -> Iterator[str]:
    secret, draw = np.asarray(trace.secret, float), np.random.default_rng(0)
    skip = len(secret) // 20  # the first rounds also load libraries and data for later ones
    _, counts = np.unique(secret[skip:], return_counts=True)
    entropy = float(-(counts / counts.sum() * np.log2(counts / counts.sum())).sum())
    for name, values in trace.seen.items():
        seen = np.asarray(values, float)[skip:]
        actual = information(seen, secret[skip:])
        chance = [information(seen, draw.permutation(secret[skip:])) for _ in range(permutations)]
        limit = float(np.quantile(chance, 0.95))
        verdict = "**leaks**" if actual > limit else "not seen"
        if len(np.unique(seen)) == 1:
            verdict = "constant"
        relation = np.corrcoef(seen, secret[skip:])[0, 1] if verdict != "constant" else 0.0
        spread = f"{np.median(seen):.4g} ({np.ptp(seen) / max(np.median(seen), 1e-9):.1%})"
        row = (case, NAMES[name], spread, f"{actual:.2f} of {entropy:.2f}", f"{limit:.2f}", f"{relation:+.2f}", verdict)
        yield "| " + " | ".join(row) + " |"


@contextmanager
def folder_of(case: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=case.replace(" ", "_").replace(",", "")) as name:
        yield Path(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--permutations", type=int, default=200)
    parser.add_argument("--pad-seconds", type=float, help="seconds of a round or answer; none by default")
    parser.add_argument("--pad", action="store_true", help="compute.pad_batches, for the runs with secret batches")
    parser.add_argument("--only", nargs="*", default=["batches, linear", "batches, CNN", "cohorts", "site"])
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", fp.errors.PromiseWarning)
    rows = ["| run | seen | median (range over it) | bits of the secret number | by chance | correlation | verdict |"]
    rows.append("|---|---|---|---|---|---|---|")
    for case in arguments.only:
        with folder_of(case) as folder:
            if case == "site":
                trace = run_site(folder, arguments.rounds, arguments.pad_seconds)
            else:
                trace = run(case, folder / "run", arguments.rounds, arguments.pad_seconds, pad=arguments.pad)
        name = case if arguments.pad_seconds is None else f"{case}, pace {arguments.pad_seconds:g} s"
        if arguments.pad:
            name += ", padded"
        for row in lines(name, trace, arguments.permutations):
            print(row, flush=True)
            rows.append(row)
    if arguments.markdown is not None:
        arguments.markdown.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
