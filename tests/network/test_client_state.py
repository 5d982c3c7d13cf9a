"""State of clients on disk: the same runs, bit for bit, in the memory of a cohort."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import networkx as nx
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.algorithms.augmented_lagrangian import AdmmBlock
from fedpriv.algorithms.private_augmented_lagrangian import ScalarizedStep
from fedpriv.config.strategies import STRATEGIES
from fedpriv.papers.recipe import Recipe
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.record import Record
from fedpriv.strategies.base import Oracle, Strategy
from fedpriv.strategies.factory_parameters import read_keyword_parameters
from fedpriv.strategies.fedavg import AddMeanUpdate
from fedpriv.strategies.state import flatten_with_names, select_rows

N, FEATURES, ROUNDS = 12, 4, 7
DISK, MEMORY = fp.Compute(client_state="disk"), fp.Compute()


def random_cohorts() -> fp.Star:
    return fp.Star(N, fp.PoissonCohort(0.4))


def random_nodes() -> fp.Graph:
    return fp.Graph(nx.cycle_graph(N), activity=fp.RandomNodes(0.6))


@dataclass(frozen=True)
class Momentum:
    """A strategy of a user's own, whose clients remember what they received: a part of a part, and another type."""

    receives: ClassVar[tuple[str, ...]] = ("model",)
    sends: ClassVar[tuple[str, ...]] = ("update",)
    memory: ClassVar[str] = "none"
    linear: ClassVar[bool] = False

    def init(self, params: Tensor) -> dict[str, Any]:
        return {"seen": (params.double(), torch.zeros(len(params), 2, 3, dtype=torch.int32)), "t": 0}

    def __call__(self, received: Tensor, state: dict[str, Any], oracle: Oracle) -> tuple[Tensor, dict[str, Any]]:
        (seen, times), t = state["seen"], state["t"] + 1
        update = -0.1 * oracle.client_gradient(received) + (0.01 * t * (seen - received)).to(received)
        return update, {"seen": ((seen + received) / 2, times + t), "t": t}


LOCAL = fp.Privacy(noise_multiplier=1.0, sampling=fp.Poisson(0.5))
SECRET = replace(LOCAL, unit="client", noise_on="message", trust=fp.Central(0.4))
OWN = Strategy(Momentum(), AddMeanUpdate(), name="own")
RUNS: dict[str, tuple[Strategy, fp.Privacy, Callable[[], Any]]] = {
    "iadmm_prox": (fp.inexact_admm(), LOCAL, random_cohorts),
    "iadmm_trust": (fp.inexact_admm(fp.Trust()), LOCAL, random_cohorts),
    "gradient_tracking": (fp.gradient_tracking(), LOCAL, random_nodes),
    "gradient_tracking_pair": (fp.gradient_tracking_pair(), LOCAL, random_cohorts),
    "dual_averaging": (fp.dual_averaging(inactive="literal"), LOCAL, random_nodes),
    "custom strategy, secret cohorts": (OWN, SECRET, lambda: fp.Star(N)),
    "custom strategy, empty cohorts": (
        OWN,
        replace(LOCAL, noise_on="none"),
        lambda: fp.Star(N, fp.PoissonCohort(0.05)),
    ),
    "custom strategy, full cohorts at times": (OWN, LOCAL, lambda: fp.Star(N, fp.PoissonCohort(0.95))),
}


NEED_EVERYONE = {ScalarizedStep, AdmmBlock}  # in every round, for constraints


def load(client: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(client)
    return TensorDataset(torch.randn(5, FEATURES, generator=draw), torch.randint(2, (5,), generator=draw))


def training_of(name: str, compute: fp.Compute, folder: Path | None = None, **options: Any) -> fp.Training:
    strategy, privacy, network = RUNS[name]
    torch.manual_seed(0)
    clients = fp.lazy_clients(nn.Linear(FEATURES, 2), nn.CrossEntropyLoss(), load, [5] * N)
    given = {"rounds": ROUNDS, "seed": 1, "secret_seed": 2, "checkpoint_every": 2, "privacy": privacy, **options}
    return fp.Training(clients, strategy, network=network(), compute=compute, folder=folder, **given)


def trajectory(training: fp.Training, stop: int = ROUNDS) -> list[list[Tensor]]:
    """Every model, what everyone received, and everyone's state at the end."""
    found: list[list[Tensor]] = []
    for report in training:
        found.append([training.progress.models.clone(), training.progress.received.clone()])
        if report.round == stop:
            break
    return found


def records_in(folder: Path) -> tuple[Record, ...]:
    return LedgerFile.read(folder / "ledger.jsonl").records


def assert_equal(one: list[list[Tensor]], other: list[list[Tensor]]) -> None:
    assert len(one) == len(other)
    assert all(torch.equal(a, b) for pair in zip(one, other, strict=True) for a, b in zip(*pair, strict=True))


def state_of(training: fp.Training) -> dict[str, Any]:
    return flatten_with_names(select_rows(training.progress.local, torch.arange(N)))


@pytest.mark.parametrize("in_a_folder", [True, False])
@pytest.mark.parametrize("name", RUNS)
def test_disk_state_run_equals_memory_run(name: str, in_a_folder: bool, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"] if in_a_folder else [None, None]
    one, other = (training_of(name, compute, at) for compute, at in zip((MEMORY, DISK), folders, strict=True))
    assert_equal(trajectory(one), trajectory(other))
    states = state_of(one), state_of(other)
    assert states[0].keys() == states[1].keys()
    for key, value in states[0].items():
        found = states[1][key]
        assert torch.equal(found, value) and found.dtype == value.dtype if isinstance(value, Tensor) else found == value
    if in_a_folder:
        assert records_in(tmp_path / "a") == records_in(tmp_path / "b")
    assert one.result().to_json()["params_l2"] == other.result().to_json()["params_l2"]


def test_strategies_with_client_state_all_tested() -> None:
    required = {"learning_rate": 0.1, "proximal_mu": 0.1, "rounds": 3, "radius": 1.0}
    more = {
        "dual_averaging": {"inactive": "literal"},
        **{key: {"epoch_length": 2} for key in ("dp_svrg", "dp_svrg_plus_plus")},
    }
    keeping = set[type]()
    for name, entry in STRATEGIES.items():
        options = {
            p.name: required[p.name]
            for p in read_keyword_parameters(entry.build)
            if p.default is p.empty and p.name in required
        }
        made = entry.build(**options, **more.get(name, {}))
        step = (made.strategy if isinstance(made, Recipe) else made).local_step
        if any(
            isinstance(leaf, Tensor) and leaf.ndim for leaf in flatten_with_names(step.init(torch.zeros(2, 3))).values()
        ):
            keeping.add(type(step))
    assert keeping | {Momentum} == {type(strategy.local_step) for strategy, *_ in RUNS.values()} | NEED_EVERYONE


@pytest.mark.parametrize("stop", [1, 2, 3, 5])
def test_disk_state_run_resumes(stop: int, tmp_path: Path) -> None:
    whole = trajectory(training_of("iadmm_prox", DISK, tmp_path / "a"))
    trajectory(training_of("iadmm_prox", DISK, tmp_path / "b"), stop)
    rest = trajectory(training_of("iadmm_prox", DISK, tmp_path / "b", resume=True))
    assert_equal(whole[-len(rest) :], rest)
    assert records_in(tmp_path / "a") == records_in(tmp_path / "b")


@pytest.mark.parametrize("name", [name for name in RUNS if "_" in name])
def test_disk_state_resumes_from_any_round(name: str, tmp_path: Path) -> None:
    """A process may be killed after any round: what is copied then is what it would have left.

    Without noise the rounds after the checkpoint, which have changed the files, are made again.
    """
    exact = fp.Privacy(noise_on="none")
    training = training_of(name, DISK, tmp_path / "a", privacy=exact)
    (tmp_path / "moments").mkdir()
    whole: list[list[Tensor]] = []
    for report in training:
        whole.append([training.progress.models.clone(), training.progress.received.clone()])
        shutil.copytree(
            tmp_path / "a", tmp_path / "moments" / str(report.round), ignore=shutil.ignore_patterns(".lock")
        )
    for moment in sorted((tmp_path / "moments").iterdir()):
        again = training_of(name, DISK, moment, privacy=exact, resume=True)
        rest = trajectory(again)
        assert_equal(whole[ROUNDS - len(rest) :], rest)


def test_disk_state_files_small_and_private(tmp_path: Path) -> None:
    """Rows that no checkpoint refers to are overwritten."""
    training = training_of("iadmm_prox", DISK, tmp_path / "a", rounds=60)
    row, most = 4 * training.population.dim, 0
    for _ in training:
        most = max(most, *(path.stat().st_size for path in (tmp_path / "a").glob("client_state.*")))
    assert most <= 3 * N * row + row
    assert {path.name for path in (tmp_path / "a").glob("client_state.*")} == {"client_state.0", "client_state.1"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a").glob("c*")} == {0o600}
    assert (tmp_path / "a" / "checkpoint.pt").stat().st_size < 20_000


@pytest.mark.parametrize("harm", ["changed", "cut", "another run's", "gone"])
def test_resume_damaged_state_file_raises(harm: str, tmp_path: Path) -> None:
    trajectory(training_of("iadmm_prox", DISK, tmp_path / "a"), stop=5)
    folder = shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns(".lock"))
    path = folder / "client_state.1"
    found = bytearray(path.read_bytes())
    if harm == "changed":
        found[::7] = bytes(byte ^ 1 for byte in found[::7])
    elif harm == "cut":
        found = found[: len(found) // 2]
    elif harm == "another run's":
        trajectory(training_of("iadmm_prox", DISK, tmp_path / "c", secret_seed=3), stop=5)
        found = (tmp_path / "c" / path.name).read_bytes()
    path.write_bytes(found)
    if harm == "gone":
        path.unlink()
    with pytest.raises(fp.FedprivError, match=r"client_state\.1 is damaged, or belongs to another checkpoint"):
        trajectory(training_of("iadmm_prox", DISK, folder, resume=True))


@pytest.mark.parametrize(("begun", "going"), [(DISK, MEMORY), (MEMORY, DISK)])
def test_resume_with_other_state_setting_raises(begun: fp.Compute, going: fp.Compute, tmp_path: Path) -> None:
    trajectory(training_of("iadmm_prox", begun, tmp_path / "a"), stop=3)
    with pytest.raises(
        fp.ConfigError,
        match=rf"compute\.client_state.*{going.client_state}.*cannot change on resume; "
        rf"set compute\.client_state={begun.client_state}",
    ):
        training_of("iadmm_prox", going, tmp_path / "a", resume=True)


def test_disk_state_without_benefit_raises() -> None:
    with pytest.raises(
        fp.ConfigError, match=r"compute\.client_state = 'disk'.*clients of fedavg keep no state between rounds"
    ):
        fp.train(
            fp.lazy_clients(nn.Linear(4, 2), nn.CrossEntropyLoss(), load, [5] * N),
            fp.fedavg(0.1),
            LOCAL,
            rounds=2,
            network=random_cohorts(),
            compute=DISK,
        )
    with pytest.raises(fp.ConfigError, match=r"compute\.client_state = 'disk'.*every client takes part in every round"):
        fp.train(
            fp.lazy_clients(nn.Linear(4, 2), nn.CrossEntropyLoss(), load, [5] * N),
            fp.inexact_admm(),
            LOCAL,
            rounds=2,
            compute=DISK,
        )
    with pytest.raises(fp.ConfigError, match=r"compute\.client_state"):
        fp.Compute(client_state="tape")  # type: ignore[arg-type]


@dataclass(frozen=True)
class ByPlace(Momentum):
    """Its clients start with different rows."""

    def init(self, params: Tensor) -> dict[str, Any]:
        return {**super().init(params), "seen": (params.double() + torch.arange(len(params)).unsqueeze(1), params)}


def test_disk_state_differing_start_rows_raise() -> None:
    apart = Strategy(ByPlace(), AddMeanUpdate(), name="own")
    with pytest.raises(fp.ConfigError, match=r"compute\.client_state = 'disk'.*start with different state \(seen\.0\)"):
        fp.train(
            fp.lazy_clients(nn.Linear(4, 2), nn.CrossEntropyLoss(), load, [5] * N),
            apart,
            SECRET,
            rounds=2,
            compute=DISK,
        )


SCRIPT = """
import resource, sys
import torch
from torch import nn
from torch.utils.data import TensorDataset
import fedpriv as fp

def load(i):
    return TensorDataset(torch.ones(2, 1999), torch.tensor([0, 1]))

def megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

n = 30_000
privacy = fp.Privacy(noise_multiplier=1.0, delta=1e-7)
network, compute = fp.Star(n, fp.FixedCohort(20)), fp.Compute(client_state=sys.argv[1])
def train(n, network, compute):
    clients = fp.lazy_clients(nn.Linear(1999, 2), nn.CrossEntropyLoss(), load, [2] * n)
    training = fp.Training(clients, fp.inexact_admm(), privacy, rounds=3, seed=0, network=network, compute=compute)
    list(training)
    return training.population.dim
train(60, fp.Star(60, fp.FixedCohort(20)), fp.Compute(client_state=sys.argv[1]))  # what any run takes
before = megabytes()
dim = train(n, network, compute)
print((megabytes() - before) / (n * dim * 8 / 2**20))
"""


def test_disk_state_memory_of_cohort() -> None:
    """Duals and models of all clients would be `n dim 8` bytes, in float32; with the copies of a round, more."""
    run = subprocess.run([sys.executable, "-c", SCRIPT, "disk"], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 0.05
