"""A run from settings to result: plan, calibrate, simulate, checkpoint, report."""

from __future__ import annotations

import copy
import json
import math
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fedpriv.backends import choose
from fedpriv.central import centralised_al
from fedpriv.checkpoint import Checkpoint
from fedpriv.client import Client, Loss
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.kkt import exact_report, private_report
from fedpriv.metrics import Evaluator, consensus_distance, spread
from fedpriv.models import validate_model
from fedpriv.network.local import Star
from fedpriv.oracle import PrivateOracle
from fedpriv.planning import Plan, make_plan
from fedpriv.population import Population
from fedpriv.privacy.accountant import Accountant
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.randomness import Randomness
from fedpriv.privacy.settings import FixedSize, Privacy
from fedpriv.privacy.spent import Spent
from fedpriv.problem import Problem
from fedpriv.simulation import RoundNetwork, adopt, begin, simulate
from fedpriv.strategies.base import Strategy


@dataclass(frozen=True)
class Compute:
    """How fast, never how private.

    Args:
        backend: `"auto"` takes the closed form for linear models and vmap otherwise.
        device: A torch device, or `"auto"` for a GPU if there is one.
        dtype: `"float32"` or `"float64"`.
        chunk: Largest number of examples in one batch of a backend.
    """

    backend: Literal["auto", "loop", "vmap", "linear"] = "auto"
    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    chunk: int = 16384

    def torch_device(self) -> torch.device:
        """The device, resolved."""
        if self.device != "auto":
            return torch.device(self.device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class RoundReport:
    """What sinks see of a round. Nothing in it is computed on clients' data un-noised.

    Attributes:
        round: Number of finished rounds.
        rounds: Number of rounds of the whole run.
        metrics: Values on public test data (`test_...`), the bytes sent so far and, where clients' models differ, how
            far they are apart (`consensus_distance`); empty on rounds without an evaluation.
        epsilon: Upper bound on what has been spent so far (the largest over clients): the quick bound, or the limit,
            which the budget's filter enforces.
        target: The target epsilon, or None.
        seconds: Time spent so far.
    """

    round: int
    rounds: int
    metrics: dict[str, float]
    epsilon: float
    target: float | None
    seconds: float


@dataclass(frozen=True)
class Result:
    """The end of a run; `to_json` is `result.json`. `measures` says what else is known of it."""

    strategy: str
    rounds: int
    planned_rounds: int
    test_accuracy: float | None
    test_loss: float | None
    spent: Spent
    seconds: float
    params_l2: float
    noise_multiplier: float | None
    measures: dict[str, Any]
    gradient_evaluations: float
    optimality_gap: float | None
    params: Tensor = field(repr=False)
    model: nn.Module = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain values. An infinite epsilon is the string `"inf"`, for JSON has no infinity."""
        spent = asdict(self.spent)
        flat = {
            "strategy": self.strategy,
            "rounds": self.rounds,
            "planned_rounds": self.planned_rounds,
            "test_accuracy": self.test_accuracy,
            "test_loss": self.test_loss,
            **{name: spent[name] for name in ("epsilon", "delta", "unit", "relation", "trust", "accountant")},
            "per_client_epsilon": list(self.spent.per_client),
            "non_private": list(self.spent.non_private),
            "noise_multiplier": self.noise_multiplier,
            "gradient_evaluations": self.gradient_evaluations,
            "optimality_gap": self.optimality_gap,
            "seconds": round(self.seconds, 3),
            "params_l2": self.params_l2,
            **self.measures,
        }
        return json.loads(json.dumps(flat).replace("Infinity", '"inf"'))

    def __str__(self) -> str:
        accuracy = "" if self.test_accuracy is None else f"test accuracy {self.test_accuracy:.2%}, "
        return f"{self.strategy}: {accuracy}{self.rounds} rounds, {self.spent}"


class Sink(Protocol):
    """Something that takes reports: a progress line, a file, TensorBoard."""

    def write(self, report: RoundReport) -> None:
        """Take one round."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


def make_clients(
    model: nn.Module, loss: Loss, datasets: Sequence[Dataset[Any]], problem: Problem | None = None
) -> list[Client]:
    """One client for each data set, each with its own copy of `model` and the same problem."""
    return [Client(copy.deepcopy(model), loss, DataLoader(d, batch_size=256), problem=problem) for d in datasets]


class Training:
    """One run. Iterate over it to train; it can be iterated once.

    Args:
        clients: The data owners. All start from the first client's parameters.
        strategy: The algorithm.
        privacy: The promise.
        rounds: Number of rounds.
        seed: Seed of batches, noise and cohorts, for reproduction: whoever knows it can subtract the noise. By default
            a secret one is drawn and kept in the checkpoint.
        network: Who hears whom; a star of everyone by default.
        test: Public test data for metrics.
        compute: Speed settings.
        evaluate_every: Rounds between evaluations on the test data; the last round is always evaluated.
        checkpoint_every: Rounds between checkpoints (with a folder).
        folder: Where ledger and checkpoint go; None keeps the run in memory.
        settings: Fingerprint of the configuration, checked on resume; it also names the run's noise.
        resume: Go on from the folder's checkpoint.
        fresh_noise: On resume, charge the releases past the checkpoint and draw new noise instead of replaying.
        compare: At the end of an exact run with constraints, solve the problem with all data in one place as well and
            report the relative difference of the objectives.
        optimum: Smallest value of the objective, where it is known. Then the result tells the gap to it, which is
            computed on the training data without noise: for experiments on public data only.

    Raises:
        ConfigError: settings that cannot work, before any data is touched.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        strategy: Strategy,
        privacy: Privacy,
        *,
        rounds: int,
        seed: int | None = None,
        network: RoundNetwork | None = None,
        test: Dataset[Any] | None = None,
        compute: Compute | None = None,
        evaluate_every: int = 1,
        checkpoint_every: int = 10,
        folder: Path | None = None,
        settings: str = "",
        resume: bool = False,
        fresh_noise: bool = False,
        compare: bool = False,
        optimum: float | None = None,
    ) -> None:
        compute = compute or Compute()
        self._compare = compare
        if not clients:
            raise ConfigError("clients", [], "a run needs at least one client")
        validate_model(clients[0].model)
        self.strategy, self.rounds, self._folder, self._settings = strategy, rounds, folder, settings
        self.network = network or Star(len(clients))
        self._every, self._save_every, self._optimum = evaluate_every, checkpoint_every, optimum
        sizes = _public_sizes(clients, privacy)
        device = compute.torch_device()
        saved = Checkpoint.load(_needed(folder) / "checkpoint.pt", device) if resume else None
        if saved is not None and saved.settings != settings:
            raise FedprivError(f"{folder} was made with other settings; resume with its own config.yaml")
        self._randomness = self._streams(seed, saved, fresh_noise=fresh_noise, secure=privacy.secure)
        self.plan: Plan = make_plan(strategy, privacy, sizes, self.network, rounds=rounds, randomness=self._randomness)
        self.population = Population(clients, device, getattr(torch, compute.dtype), compute.chunk)
        self.population.params.copy_(self.population.params[0].clone())
        limit = privacy.epsilon if privacy.private else None
        self._guard = Accountant(len(clients), privacy.delta, limit, self.plan.records)
        self._evaluate = None if test is None else Evaluator(self.population.model, self.population.loss, test)
        self._seconds, self._over = 0.0 if saved is None else saved.seconds, False
        self._spent: tuple[int, Spent] | None = None
        backend = choose(compute.backend, self.population.model, self.population.loss)
        self.ledger = self._open_ledger(saved, fresh_noise=fresh_noise)
        self.progress = begin(strategy, self.population.params.clone()) if saved is None else saved.progress
        self.oracle = PrivateOracle(self.population, backend, self.plan.privacy, self.ledger, self._randomness)
        if saved is None or fresh_noise:
            self.save()

    def _streams(self, seed: int | None, saved: Checkpoint | None, *, fresh_noise: bool, secure: bool) -> Randomness:
        """The run's streams: of the given seed, of the stopped run, or of a new secret seed."""
        run = self._settings or f"{self.strategy.name}"
        if saved is None:
            return Randomness(secrets.randbits(128) if seed is None else seed, secure, 0, run)
        attempt = secrets.randbits(62) if fresh_noise else saved.attempt
        return Randomness(int(saved.seed, 16), secure, attempt, run)

    def _open_ledger(self, saved: Checkpoint | None, *, fresh_noise: bool) -> Ledger:
        path, key = None if self._folder is None else self._folder / "ledger.jsonl", self._randomness.digest_key()
        if saved is None or path is None:
            header = {"n_clients": len(self.population), "delta": self.plan.privacy.delta}
            return Ledger(self._guard, path, header, key)
        return Ledger.resume(path, self._guard, saved.records, fresh_noise=fresh_noise, digest_key=key)

    def __iter__(self) -> Iterator[RoundReport]:
        """Train, round by round.

        Raises:
            FedprivError: this run is over already.
        """
        if self._over:
            raise FedprivError("this run is over; make a new Training with fresh clients for another one")
        start = time.monotonic() - self._seconds
        rounds = simulate(self.strategy, self.oracle, self.network, self.progress, self._randomness, rounds=self.rounds)
        for done in rounds:
            self.progress = done.progress
            server = done.progress.server
            last = done.progress.round == self.rounds or bool(server.get("done", False))
            metrics = self._metrics() if last or done.progress.round % self._every == 0 else {}
            metrics |= {name: float(server[name]) for name in self.strategy.monitor}
            self._seconds = time.monotonic() - start
            # the quick bound may pass the limit where the tight one, which the filter asks, has not
            limit = self.plan.privacy.epsilon if self.plan.privacy.private else None
            epsilon = min(float(self._guard.epsilon().max()), math.inf if limit is None else limit)
            yield RoundReport(
                done.progress.round, self.rounds, metrics, epsilon, self.plan.privacy.epsilon, self._seconds
            )
            # only now, so that whoever writes reports down never misses one that a checkpoint counts as done
            if last or done.progress.round % self._save_every == 0:
                self.save()
        self._over = True
        adopt(self.population, self.progress, str(self.spent()))

    def save(self) -> None:
        """Write a checkpoint now (with a folder)."""
        if self._folder is not None:
            self.ledger.sync()
            checkpoint = Checkpoint(
                self.progress,
                len(self.ledger.records),
                self._seconds,
                self._settings,
                f"{self._randomness.seed:x}",
                self._randomness.attempt,
            )
            path = self._folder / "checkpoint.pt"
            try:
                checkpoint.save(path)
            except (OSError, RuntimeError) as error:
                raise FedprivError(
                    f"{path} could not be written ({error}); free some space and resume the run"
                ) from error

    @property
    def broken_examples(self) -> Tensor:
        """How often each client met a gradient that was not finite, `[n_clients]`. Not private: for the owner alone."""
        return self.oracle._broken_examples  # noqa: SLF001 - kept out of a strategy's sight

    def spent(self) -> Spent:
        """What has been spent so far, by the tightest bound."""
        if self._spent is None or self._spent[0] != len(self.ledger.records):
            self._spent = len(self.ledger.records), self._guard.spent()
        return self._spent[1]

    def _reported(self) -> Tensor:
        """The run's one model: the mean of the reported ones, `[dim]`."""
        models = self.progress.models
        return models[0] if models.stride(0) == 0 or len(models) == 1 else models.mean(0)

    def _optimality(self, params: Tensor) -> dict[str, Any]:
        """What a run with constraints reports beside the rest."""
        multipliers = self.progress.local.get("multipliers")
        if multipliers is None or self.progress.round == 0:
            return {}
        if self.plan.privacy.private:
            return private_report(self.progress, self.oracle, multipliers)
        h = self.strategy.regularizer
        report = exact_report(self.progress, self.oracle.queries.problem, params, multipliers, h)
        if self._compare:
            best = centralised_al(self.oracle.queries.problem, torch.zeros_like(params), regularizer=h)
            report["centralised"] = {"objective": best.objective, "converged": best.converged, "seconds": best.seconds}
            report["relative_difference"] = abs(report["objective"] - best.objective) / abs(best.objective)
        return report

    @property
    def _apart(self) -> bool:
        """Whether clients may have models of their own."""
        return self.progress.models.stride(0) != 0 and len(self.progress.models) > 1

    def _metrics(self) -> dict[str, float]:
        """What a report shows of the models, all of it public or released."""
        metrics = self._evaluate(self._reported()) if self._evaluate else {}
        if self._apart:
            metrics["consensus_distance"] = consensus_distance(self.progress.models)
        return {**metrics, "bytes_sent": self._bytes_sent()}

    def _bytes_sent(self) -> int:
        return self.progress.numbers_sent * self.progress.received.element_size()

    def _measures(self) -> dict[str, Any]:
        """What is known at the end beside test metrics and privacy."""
        measures: dict[str, Any] = {"bytes_sent": self._bytes_sent(), "spectral_gap": self.network.spectral_gap}
        if self._apart:
            measures["consensus_distance"] = consensus_distance(self.progress.models)
        if self._apart and self._evaluate is not None:
            # a first batch tells how far nodes disagree, at a cost that many nodes can bear
            each = [self._evaluate(row, batches=1) for row in self.progress.models]
            measures |= {f"node_{name}": spread([metrics[name] for metrics in each]) for name in each[0]}
        return measures

    def optimality_gap(self, params: Tensor) -> float | None:
        """Objective at `params [dim]` over all training examples, less the optimum: exact, so not private."""
        if self._optimum is None:
            return None
        population = self.population
        data = TensorDataset(population.inputs, population.targets)
        loss = Evaluator(population.model, population.loss, data)(params)["test_loss"]
        return loss + float(self.strategy.regularizer.value(params)) - self._optimum

    def result(self) -> Result:
        """Where the run stands, tightly accounted.

        Where the clients' models differ, each is tested on the first 1000 examples of the test data.
        """
        params = self._reported()
        metrics = self._evaluate(params) if self._evaluate is not None else {}
        model = copy.deepcopy(self.population.model)
        torch.nn.utils.vector_to_parameters(params, model.parameters())
        return Result(
            strategy=self.strategy.name,
            rounds=self.progress.round,
            planned_rounds=self.rounds,
            test_accuracy=metrics.get("test_accuracy"),
            test_loss=metrics.get("test_loss"),
            spent=self.spent(),
            seconds=self._seconds,
            params_l2=float(params.double().norm()),
            noise_multiplier=self.plan.privacy.noise_multiplier,
            measures={**self._measures(), **self._optimality(params)},
            gradient_evaluations=sum(self.plan.evaluations[: self.progress.round]),
            optimality_gap=self.optimality_gap(params),
            params=params.clone(),
            model=model,
        )


def _public_sizes(clients: Sequence[Client], privacy: Privacy) -> list[int]:
    if isinstance(privacy.sampling, FixedSize):
        for index, client in enumerate(clients):
            if client.public_size != len(client):
                raise ConfigError(
                    f"clients[{index}].public_size",
                    client.public_size,
                    f"batches of fixed size need the true size, {len(client)}; use Poisson batches",
                )
    return [client.public_size for client in clients]


def _needed(folder: Path | None) -> Path:
    if folder is None:
        raise ConfigError("folder", None, "name the folder of the run to resume")
    return folder


def train(
    clients: Sequence[Client],
    strategy: Strategy,
    privacy: Privacy,
    *,
    rounds: int,
    seed: int | None = None,
    test: Dataset[Any] | None = None,
    network: RoundNetwork | None = None,
    compute: Compute | None = None,
    sinks: Sequence[Sink] = (),
) -> Result:
    """Train in memory and return the result.

    Args:
        clients: The data owners (see `make_clients`).
        strategy: The algorithm, e.g. `fedpriv.inexact_admm()`.
        privacy: The promise, e.g. `fedpriv.Privacy(epsilon=3, delta=1e-5)`.
        rounds: Number of rounds.
        seed: Seed of batches, noise and cohorts; a secret one by default.
        test: Public test data.
        network: A star by default.
        compute: Speed settings.
        sinks: Take a report every round.

    Returns:
        The result: its `spent` is an upper bound, its `model` the trained module.
    """
    training = Training(
        clients, strategy, privacy, rounds=rounds, seed=seed, test=test, network=network, compute=compute
    )
    for report in training:
        for sink in sinks:
            sink.write(report)
    for sink in sinks:
        sink.close()
    return training.result()
