"""Clients whose examples are read when they are drawn: the same runs, at the cost of those who are drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from counting_calls import AdmitAll, LargestTensor, count_calls
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

import fedpriv as fp
from fedpriv.clients.population import Population
from fedpriv.network.rounds import initial_state, run_rounds
from fedpriv.oracle.backends import build_backend
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.data_query_engine import data_oracle
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness

N, FEATURES, CLASSES = 30, 6, 3
SIZES = [4 + i % 5 for i in range(N)]
CENTRAL = fp.Privacy(
    noise_multiplier=1.0, unit="client", noise_on="message", trust=fp.Central(0.3), sampling=fp.Poisson(0.5)
)
SETTINGS: dict[str, tuple[fp.Privacy, Any]] = {
    "secret cohorts": (CENTRAL, fp.Star(N)),
    "secret cohorts, gradients": (replace(CENTRAL, noise_on="gradient"), fp.Star(N)),
    "public cohorts": (fp.Privacy(noise_multiplier=1.0), fp.Star(N, fp.PoissonCohort(0.3))),
    "batches of fixed size": (
        fp.Privacy(noise_multiplier=1.0, sampling=fp.FixedSize(3)),
        fp.Star(N, fp.FixedCohort(5)),
    ),
    "everyone": (fp.Privacy(noise_multiplier=1.0, sampling=fp.Poisson(0.5)), fp.Star(N)),
    "sums": (fp.Privacy(noise_multiplier=1.0, trust=fp.SecureAggregation(20)), fp.Star(N)),
    "no privacy": (fp.Privacy(noise_on="none"), fp.Star(N, fp.PoissonCohort(0.3))),
}


def records_in(folder: Path) -> list[Record]:
    """Records; headers differ in the names of the data set and of the run."""
    return list(LedgerFile.read(folder / "ledger.jsonl").records)


def load(client: int) -> TensorDataset:
    draw = torch.Generator().manual_seed(client)
    size = SIZES[client % N]
    return TensorDataset(torch.randn(size, FEATURES, generator=draw), torch.randint(CLASSES, (size,), generator=draw))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


def eager() -> list[fp.Client]:
    return fp.make_clients(model(), nn.CrossEntropyLoss(), [load(i) for i in range(N)])


def lazy(load: Callable[[int], Dataset[Any]] = load, sizes: list[int] = SIZES, **options: Any):
    return fp.lazy_clients(model(), nn.CrossEntropyLoss(), load, sizes, **options)


def training_of(clients, name: str, folder: Path | None = None, **options: Any) -> fp.Training:
    privacy, network = SETTINGS[name]
    if folder is not None:
        folder.mkdir(exist_ok=True)
    test = TensorDataset(torch.ones(5, FEATURES), torch.zeros(5, dtype=torch.long))
    given = {"rounds": 6, "seed": 1, "secret_seed": 2, "checkpoint_every": 2, "folder": folder, "test": test, **options}
    return fp.Training(clients, fp.fedavg(0.5), privacy, network=network, **given)


def trajectory(training: fp.Training, stop: int = 99) -> list[Tensor]:
    found = []
    for report in training:
        found.append(training.progress.models.clone())
        if report.round == stop:
            break
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_lazy_run_equals_in_memory_run(name: str, tmp_path: Path) -> None:
    one, other = training_of(eager(), name, tmp_path / "a"), training_of(lazy(), name, tmp_path / "b")
    for a, b in zip(trajectory(one), trajectory(other), strict=True):
        assert torch.equal(a, b)
    assert records_in(tmp_path / "a") == records_in(tmp_path / "b")
    assert one.spent() == other.spent()
    results = [replace(training.result(), seconds=0.0, model=nn.Identity()) for training in (one, other)]
    assert torch.equal(results[0].params, results[1].params)
    assert results[0].to_json() == results[1].to_json()
    assert torch.equal(one.broken_examples, other.broken_examples)


@pytest.mark.parametrize("name", ["secret cohorts", "public cohorts"])
@pytest.mark.parametrize("again", [eager, lazy])
def test_lazy_run_resumes_lazy_or_in_memory(name: str, again: Callable[[], Any], tmp_path: Path) -> None:
    whole = trajectory(training_of(eager(), name, tmp_path / "a"))
    trajectory(training_of(lazy(), name, tmp_path / "b"), stop=3)
    rest = trajectory(training_of(again(), name, tmp_path / "b", resume=True))
    assert len(rest) == 3
    for a, b in zip(whole[3:], rest, strict=True):
        assert torch.equal(a, b)
    assert records_in(tmp_path / "a") == records_in(tmp_path / "b")


class Reads:
    """Counts what is loaded."""

    def __init__(self) -> None:
        self.of = Counter[int]()

    def __call__(self, client: int) -> TensorDataset:
        self.of[client] += 1
        return load(client)


def test_lazy_clients_read_once_per_drawn_round() -> None:
    n, reads = 5000, Reads()
    clients = lazy(reads, [SIZES[i % N] for i in range(n)])
    privacy = replace(CENTRAL, trust=fp.Central(0.01))
    training = fp.Training(clients, fp.fedavg(0.5, local_steps=3), privacy, rounds=4, seed=1, secret_seed=2)
    streams, looked_at = (
        training._identity.randomness,
        {1, *training.population.validated_clients},
    )  # 1: for five examples
    assert len(looked_at) <= 17
    list(training)
    training.population.examples._pool.shutdown()
    expected = Counter[int]()
    drawn = [{*streams.stream("secret_cohort", k).below(0.01, n).nonzero()[0].tolist()} for k in range(5)]
    for k, cohort in enumerate(drawn):  # with those of one round more, which were read ahead
        expected.update(cohort - set[int]().union(*drawn[max(k - 2, 0) : k]) - looked_at)
    assert {client: count for client, count in reads.of.items() if client not in looked_at} == expected
    assert 30 < len(drawn[0]) < 80


@pytest.mark.parametrize("wrong", [-1, 1, 100])
def test_lazy_wrong_size_raises_before_query(wrong: int, tmp_path: Path) -> None:
    """The error names the client and its public size, but not its true size."""
    sizes = [size + wrong if i == 7 else size for i, size in enumerate(SIZES)]
    training = training_of(lazy(sizes=sizes), "secret cohorts", tmp_path / "a", rounds=60)
    inside = [training._identity.randomness.stream("secret_cohort", k).below(0.3, N)[7] for k in range(60)]
    with pytest.raises(fp.DataError, match=rf"client 7: load\(7\) must return the {sizes[7]} examples") as caught:
        list(training)
    assert str(SIZES[7]) not in str(caught.value).replace(f"the {sizes[7]} examples", "").replace("7", "")
    # nothing of that round; its examples may have been read in the round before
    assert inside.index(True) - 1 <= len(training.ledger.records) <= inside.index(True)


def test_lazy_load_error_names_client() -> None:
    def broken(client: int) -> TensorDataset:
        if client == 9:
            raise OSError("gone")
        found = load(client)
        return TensorDataset(found.tensors[0][:, :5], found.tensors[1]) if client == 11 else found

    with pytest.raises(fp.DataError, match=r"client (9: load\(9\) raises OSError: gone|11 has inputs of shape)"):
        list(training_of(lazy(broken), "everyone"))
    for sizes in ([], [3, 0]):
        with pytest.raises(fp.ConfigError, match=r"lazy_clients\.sizes"):
            lazy(sizes=sizes)


def test_lazy_repeated_example_raises() -> None:
    base = TensorDataset(torch.randn(100, FEATURES), torch.zeros(100, dtype=torch.long))
    apart = lazy(lambda client: Subset(base, [0, client + 1]), [2] * N)
    with pytest.raises(fp.PrivacyError, match="examples belong to two clients"):
        training_of(apart, "public cohorts")
    twice = lazy(lambda client: Subset(base, [3 * client, 3 * client + (client != 7)]), [2] * N)
    with pytest.raises(fp.PrivacyError, match="client 7 has an example twice"):
        list(training_of(twice, "everyone"))


def test_lazy_clients_share_result_model() -> None:
    clients = lazy()
    training = training_of(clients, "secret cohorts")
    list(training)
    assert torch.equal(clients[3].model.weight.flatten(), training.progress.models[0, : FEATURES * CLASSES])
    with pytest.raises(fp.ConfigError, match="result of an earlier run"):
        training_of(clients, "secret cohorts")


def rounds_of(n: int, privacy: fp.Privacy, network: fp.Star) -> Callable[[], None]:
    clients = lazy(sizes=[SIZES[i % N] for i in range(n)], num_workers=1)
    population, streams, strategy = Population(clients), Randomness(3, 4), fp.fedavg(0.5, local_steps=2)
    sums = ClippedSums(build_backend("auto", population.model, population.loss), n, population.device)
    oracle = data_oracle(population, sums, privacy, Ledger(AdmitAll()), streams)
    progress = initial_state(strategy, population.params)
    return lambda: [None for _ in run_rounds(strategy, oracle, network, progress, streams, rounds=2)] and None


@pytest.mark.parametrize("secret", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_lazy_round_cost_scales_with_cohort(secret: bool) -> None:
    cost = []
    for n in (10_000, 100_000):
        rate = 100 / n
        privacy = replace(CENTRAL, trust=fp.Central(rate)) if secret else replace(CENTRAL, trust=fp.Local())
        network = fp.Star(n) if secret else fp.Star(n, fp.PoissonCohort(rate))
        rounds_of(n, privacy, network)()
        with LargestTensor() as largest:
            rounds_of(n, privacy, network)()
        assert largest.numbers <= n + 1  # who is drawn; nothing has a row of parameters for each client
        cost.append(count_calls(rounds_of(n, privacy, network)))
    assert cost[1] < 1.3 * cost[0]
