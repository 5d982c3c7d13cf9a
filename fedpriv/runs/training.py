"""A run from settings to result: plan, calibrate, simulate, checkpoint, report."""

from __future__ import annotations

import copy
import math
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedpriv import models
from fedpriv.clients import loaders, ownership
from fedpriv.clients.client import Client, public_sizes
from fedpriv.clients.layout import fingerprint
from fedpriv.clients.population import Population
from fedpriv.engines.local import Progress, RoundNetwork, adopt, begin, seen_by_aggregator, simulate
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.measuring import measures
from fedpriv.measuring.health import Health, StopOn
from fedpriv.measuring.measures import Measures
from fedpriv.measuring.metrics import Evaluator
from fedpriv.network.local import Star
from fedpriv.oracle.backends import choose
from fedpriv.oracle.private import PrivateOracle
from fedpriv.oracle.trial import try_out
from fedpriv.privacy.accounting.accountant import Accountant, account
from fedpriv.privacy.accounting.spent import Spent, up
from fedpriv.privacy.chain import linked
from fedpriv.privacy.ledger import Ledger
from fedpriv.privacy.record import Record
from fedpriv.privacy.settings import Privacy
from fedpriv.randomness.streams import Randomness, new_secret
from fedpriv.runs import fit, integrity
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.compute import Compute
from fedpriv.runs.planning import Plan, make_plan, with_neighbours
from fedpriv.runs.results import Ended, Result, RoundReport, Sink, read_metrics, releases_told
from fedpriv.runs.run_files import config_in
from fedpriv.runs.telling import warn
from fedpriv.storage import strict_json
from fedpriv.storage.folder import RunFolder
from fedpriv.storage.identity import digest, of_config
from fedpriv.strategies.base import Strategy

_GAP_WARNING = (
    "optimum: the result tells the gap to it, computed on the training data without noise, which epsilon does not "
    "cover; leave it out unless the data are public"
)
_OTHER_VERSION = (
    "was made with other settings, or by another version; resume with its own config.yaml, and the version of fedpriv "
    "that began it"
)
_TOLD = "a secret_seed is given: whoever knows it can subtract the noise; leave it out for data that matter"


class Training:
    """One run. Iterate over it to train; it can be iterated once.

    Args:
        clients: The data owners. All start from the first client's parameters.
        strategy: The algorithm.
        privacy: The promise.
        rounds: Number of rounds.
        seed: Public seed of cohorts and links; drawn by default.
        secret_seed: Seed of noise and batches, for reproduction: whoever knows it can subtract the noise. By default
            128 bits come from the operating system and are kept in the checkpoint, and nowhere else. Where the run
            makes no promise there is nothing to hide, and it follows from `seed`, if that is given.
        network: Who hears whom; a star of everyone by default.
        test: Public test data for metrics.
        compute: Speed settings.
        evaluate_every: Rounds between evaluations on the test data; the last round is always evaluated.
        checkpoint_every: Rounds between checkpoints (with a folder).
        folder: Where ledger and checkpoint go, held against every other process for as long as this object lives (or
            until `folder.close()`); None keeps the run in memory.
        settings: Fingerprint of the configuration. With a digest of all other settings it is checked on resume and
            names the run's noise, so that runs of one secret seed share none unless they differ in their data alone.
        resume: Go on from the folder's checkpoint, or from the start where the run was killed before its first one.
        fresh_noise: On resume, charge the releases past the checkpoint and draw new noise instead of replaying.
        compare: At the end of an exact run with constraints, solve the problem with all data in one place as well and
            report the relative difference of the objectives.
        optimum: Smallest value of the objective, where it is known. Then the result tells the gap to it, which is
            computed on the training data without noise: for experiments on public data only.
        stop_on: End the run, charged whole, when a released model is not finite (`"nonfinite"`), when its test loss is
            not either (`"nonfinite_loss"`), or never (`"nothing"`). Reports and result tell of it in any case.

    What weakens the promise is in `warnings`, and is a Python warning, a `PromiseWarning`; so is a report's `warning`.

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
        secret_seed: int | None = None,
        network: RoundNetwork | None = None,
        test: Dataset[Any] | None = None,
        compute: Compute | None = None,
        evaluate_every: int = 1,
        checkpoint_every: int = 10,
        folder: Path | RunFolder | None = None,
        settings: str = "",
        resume: bool = False,
        fresh_noise: bool = False,
        compare: bool = False,
        optimum: float | None = None,
        stop_on: StopOn = "nonfinite",
    ) -> None:
        compute = compute or Compute()
        if not clients:
            raise ConfigError("clients", [], "a run needs at least one client")
        models.validate_model(clients[0].model)
        self.strategy, self.rounds = strategy, rounds
        self.folder = RunFolder(folder) if isinstance(folder, Path) else folder
        self.network = network or Star(len(clients))
        self._every, self._save_every = evaluate_every, checkpoint_every
        sizes, problems = public_sizes(clients, privacy), [client.problem for client in clients]
        privacy = with_neighbours(privacy, problems, sizes_declared=all(client.size_declared for client in clients))
        device = compute.start()
        told = releases_told(_needed(self.folder) / "metrics.jsonl") if resume else 0
        saved = Checkpoint.last(_needed(self.folder), told, device) if resume else None
        restart: Progress | None = None
        self.health = Health(stop_on, {} if saved is None else saved.first_nonfinite)
        kinds = [(type(part), [p.shape for p in part.parameters(False)]) for part in clients[0].modules()]
        self._settings = digest(
            settings, seed, strategy, privacy, rounds, self.network, sizes, compute.dtype, kinds, problems
        )
        if saved is not None:
            self._check_same(saved, secret_seed)
            restart, again = self._restored(saved, len(clients)), saved.randomness()
            self._randomness = replace(again, attempt=secrets.randbits(62)) if fresh_noise else again
        else:
            # models of one kind may start elsewhere: the first answers of two such runs must not share noise
            run = digest(self._settings, clients[0].model, clients[0].loss)
            self._randomness = _streams(seed, secret_seed, run, private=privacy.private)
        self.plan: Plan = make_plan(strategy, privacy, sizes, self.network, rounds=rounds, randomness=self._randomness)
        told = optimum is not None and privacy.private
        self._not_covered = ("the optimality gap, exact",) if told else ()
        self.warnings = [*self.plan.warnings(sizes), *([_GAP_WARNING] if told else [])]
        if privacy.private and secret_seed is not None:
            self.warnings.append(_TOLD)
        fit.check_problem(strategy, problems, privacy, self.plan.asked, compare=compare)
        ownership.check_clients(clients, test, privacy)
        self.population = Population(clients, device, getattr(torch, compute.dtype), compute.chunk)
        template, loss, batched = self.population.model, self.population.loss, compute.backend != "loop"
        evaluate = None if test is None else Evaluator(template, loss, test, batched=batched)
        ownership.check_test(self.population, test, privacy)
        self.warnings += [*(models.shipped(clients[0].model) if privacy.private else []), *loaders.ignored(clients)]
        self._test = test
        self.population.params.copy_(self.population.params[0].clone())
        try_out(self.population)
        if evaluate is not None:
            evaluate.try_out(self.population.params[0])
        self._model = fingerprint(self.population.model)
        if saved is not None and saved.model != self._model:
            fix = "resume with its own"
            raise FedprivError(f"{_needed(self.folder)} has another model, or other frozen values or buffers; {fix}")
        self._start = self.population.params[0].clone() if compare else None
        limit = privacy.epsilon if privacy.private else None
        self._guard = Accountant(len(clients), privacy.delta, limit, self.plan.records)
        self.measures = Measures(self.population, strategy, evaluate, optimum)
        self._seconds, self._over = 0.0 if saved is None else saved.seconds, False
        self._spent: tuple[int, Spent] | None = None
        backend = choose(compute.backend, self.population.model, self.population.loss)
        self.ledger = self._open_ledger(saved, fresh_noise=fresh_noise)
        if self.folder is not None:
            self.ledger.may_write = self.folder.check
        self._kept = self.ledger.mark
        # a repeated round is reported with the epsilon that it had, though the guard counts all that was released
        self._reported = self._guard
        if self.ledger.replays:
            self._reported = Accountant(len(clients), privacy.delta, limit, self.plan.records)
        self._count(self.ledger.records)
        self.progress = restart or begin(strategy, self.population.params.clone())
        self.oracle = PrivateOracle(self.population, backend, self.plan.privacy, self.ledger, self._randomness)
        before = read_metrics(_needed(self.folder) / "metrics.jsonl") if resume else []
        self._reports = [
            {**row, "epsilon": float(row["epsilon"])} for row in before if row["round"] <= self.progress.round
        ]
        self._measured: tuple[int, int | None, dict[str, float], dict[str, Any]] | None = None
        if saved is None or fresh_noise:
            self.save()
        for weakness in self.warnings:
            warn(weakness)

    def _check_same(self, saved: Checkpoint, secret_seed: int | None) -> None:
        if saved.settings != self._settings or secret_seed not in (None, int(saved.secret_seed, 16)):
            raise FedprivError(f"{_needed(self.folder)} {_OTHER_VERSION}")

    def _restored(self, saved: Checkpoint, n_clients: int) -> Progress:
        """Before anything is written: what another version's strategy kept may have other names."""
        try:
            return begin(self.strategy, torch.zeros(n_clients, 1)).restored(saved.progress)
        except (KeyError, TypeError, ValueError) as error:
            raise FedprivError(f"{_needed(self.folder)} {_OTHER_VERSION}") from error

    def _open_ledger(self, saved: Checkpoint | None, *, fresh_noise: bool) -> Ledger:
        digests, seals = self._randomness.digest_key(), self._randomness.seal_key()
        if self.folder is None:
            return Ledger(self._guard)
        path = self.folder.path / "ledger.jsonl"
        if saved is None:
            facts = {"n_clients": len(self.population), "delta": self.plan.privacy.delta}
            config = config_in(self.folder.path)
            named = {} if config is None else {"config": of_config(config)}
            return Ledger(self._guard, path, {**facts, **named, "planned": len(self.plan.records)}, digests, seals)
        integrity.check_resumed(self.folder.path, self.plan, seals)
        return Ledger.resume(
            path, self._guard, saved.records, fresh_noise=fresh_noise, digest_key=digests, seal_key=seals
        )

    def __iter__(self) -> Iterator[RoundReport]:
        """Train, round by round.

        Raises:
            FedprivError: this run is over already.
        """
        if self._over:
            raise FedprivError("this run is over; make a new Training with fresh clients for another one")
        start = time.monotonic() - self._seconds
        network = seen_by_aggregator(self.network, self.plan.privacy)
        rounds = simulate(self.strategy, self.oracle, network, self.progress, self._randomness, rounds=self.rounds)
        self._check_writer()
        for done in () if self.health.stops else rounds:
            self._sync()
            self._count(self.ledger.records[self._kept.releases :])
            self.progress, self._kept = done.progress, self.ledger.mark
            before = self.health
            self.health = before.after(done.progress.round, {"model": done.progress.models})
            last = self._ended() != "left"
            metrics: dict[str, float] = {}
            if last or done.progress.round % self._every == 0:
                metrics = self._metrics(measures.AT_THE_END if last else None)
            metrics |= self.strategy.shown(done.progress.server)
            self.health = self.health.after(done.progress.round, metrics)
            self._seconds = time.monotonic() - start
            ended = self._ended()
            charged = ended in ("strategy", "nonfinite")
            epsilon = self._charged().epsilon if charged else self._reported.so_far()
            saves = self.folder is not None and (ended != "left" or done.progress.round % self._save_every == 0)
            target, (releases, head) = self.plan.privacy.epsilon, self._kept
            warning = self.health.warning(before, done.progress.models, _so_far(epsilon, target))
            if warning:
                warn(warning)
            row = {"round": done.progress.round, "epsilon": epsilon, "releases": releases, **metrics}
            self._reports.append(row)
            yield RoundReport(
                done.progress.round, self.rounds, metrics, epsilon, target, releases, saves, head, warning
            )
            # only now, so that whoever writes reports down never misses one that a checkpoint counts as done
            if saves:
                self.save()
            if self.health.stops:
                break
            self._check_writer()  # while a report was read another one may have taken the folder
        self._sync()
        self._over = True
        adopt(self.population, self.progress, str(self._charged()))

    def save(self) -> None:
        """Write a checkpoint of the last finished round now (with a folder)."""
        if self.folder is not None:
            self._check_writer()
            self.ledger.sync()
            checkpoint = Checkpoint(
                self.progress.stored(),
                *self._kept,
                self._seconds,
                self._settings,
                f"{self._randomness.seed:x}",
                f"{self._randomness.secret_seed:x}",
                self._randomness.run,
                self._randomness.attempt,
                self._model,
                dict(self.health.first),
            )
            checkpoint.save(self.folder.path / "checkpoint.pt")

    def _count(self, records: Sequence[Record]) -> None:
        """Count for reports what the guard counted when the run was resumed."""
        if self._reported is not self._guard:
            for record in records:
                self._reported.admit(record)
            if not self.ledger.replays:
                self._reported = self._guard

    def _sync(self) -> None:
        """Before anything that was made of a round's answers leaves this process: reports, checkpoints, models."""
        self._check_writer()
        if self.plan.privacy.durable:
            self.ledger.sync()

    def _check_writer(self) -> None:
        if self.folder is not None:
            self.folder.check()

    @property
    def broken_examples(self) -> Tensor:
        """How often each client met a gradient that was not finite, `[n_clients]`. Not private: for the owner alone."""
        return self.oracle._sums.broken_examples  # noqa: SLF001 - kept out of a strategy's sight

    def repeats(self) -> ownership.Repeats:
        """How many training examples are equal to others, or to test examples. Not private: for the owner alone."""
        return ownership.repeats(self.population, self._test)

    def spent(self) -> Spent:
        """What has been spent so far, by the tightest bound."""
        if self._spent is None or self._spent[0] != len(self.ledger.records):
            self._spent = len(self.ledger.records), self._guard.spent()
        return self._spent[1]

    def _ended(self) -> Ended:
        """Why there are no more rounds, as far as is known."""
        if self.progress.round == self.rounds:
            return "rounds"
        if self.strategy.is_done(self.progress.server):
            return "strategy"
        if self.health.stops:
            return "nonfinite"
        return "budget" if self._over else "left"

    def _charged(self) -> Spent:
        """What has been spent; the whole plan if the run stopped before its end, for the stop may depend on data."""
        privacy = self.plan.privacy
        if self._ended() in ("rounds", "budget") or not privacy.private:
            return replace(self.spent(), not_covered=self._not_covered)
        rest = [record for record in self.plan.records if record.round >= self.progress.round]
        charged = account([*self.ledger.records, *rest], len(self.population), privacy.delta)
        return replace(charged.at_most(privacy.epsilon), not_covered=self._not_covered)

    def _metrics(self, examples: int | None) -> dict[str, float]:
        """What a report shows of the models, all of it public or released."""
        one, nodes = self._measure(examples)
        return {**one, **measures.flat(nodes), "bytes_sent": self._bytes_sent()}

    def _measure(self, examples: int | None) -> tuple[dict[str, float], dict[str, Any]]:
        """Of the one model, and of nodes' own on so many test examples; a round's models are measured once."""
        asked = self.progress.round, examples
        if self._measured is None or self._measured[:2] != asked:
            one, nodes = self.measures.of_the_one(self.progress), self.measures.of_nodes(self.progress, examples)
            self._measured = *asked, one, nodes
        return self._measured[2:]

    def _bytes_sent(self) -> int:
        return self.progress.numbers_sent * self.progress.received.element_size()

    def result(self) -> Result:
        """Where the run stands, tightly accounted.

        A run that was left early is charged whole: among many possible stops some have a larger loss than the epsilon
        of their round allows, and whoever looks can find them. One that the budget ended was not.

        Where the clients' models differ, each is tested on the first 1000 examples of the test data.
        """
        progress, params = self.progress, measures.reported(self.progress)
        metrics, nodes = self._measure(measures.AT_THE_END)
        private, start = self.plan.privacy.private, self._start
        return Result(
            strategy=self.strategy.name,
            rounds=progress.round,
            planned_rounds=self.rounds,
            test_accuracy=metrics.get("test_accuracy"),
            test_loss=metrics.get("test_loss"),
            ended=self._ended(),
            spent=self._charged(),
            releases=len(self.ledger.records),
            # how long it took tells how many were drawn
            seconds=float(f"{self._seconds:.0e}") if self.plan.privacy.draws_in_secret else self._seconds,
            params_l2=float(params.double().norm()),
            noise_multiplier=self.plan.privacy.noise_multiplier,
            measures={
                "bytes_sent": self._bytes_sent(),
                "spectral_gap": self.network.spectral_gap,
                **nodes,
                **measures.of_constraints(progress, self.oracle, self.strategy, private=private, start=start),
            },
            gradient_evaluations=sum(self.plan.evaluations[: progress.round]),
            optimality_gap=self.measures.optimality_gap(params),
            first_nonfinite=dict(self.health.first),
            reports=tuple(self._reports),
            params=params.clone(),
            node_params=progress.models.clone()
            if measures.apart(progress)
            else params.expand(len(self.population), -1),
            model=self._with(params),
        )

    def linked(self, result: Result) -> dict[str, Any]:
        """What `result.json` holds: the result as the last link of the ledger's chain, where there is one."""
        head = self.ledger.mark.head
        facts: dict[str, Any] = strict_json.plain(result.to_json())
        return facts if head is None else linked({**facts, "head": head}, head, self._randomness.seal_key())

    def _with(self, params: Tensor) -> nn.Module:
        """A copy of the model with these parameters `[dim]`, ready for use."""
        model = copy.deepcopy(self.population.model).eval()
        self.population.layout.write(params, model)
        return model


def _streams(seed: int | None, secret_seed: int | None, run: str, *, private: bool) -> Randomness:
    """The streams of a new run; one that makes no promise has nothing to hide, so its public seed repeats it."""
    if secret_seed is None:
        secret_seed = new_secret() if private or seed is None else abs(seed)
    return Randomness(secrets.randbits(62) if seed is None else seed, secret_seed, run=run)


def _so_far(epsilon: float, target: float | None) -> str:
    """What has been spent, for a warning; empty without a promise."""
    of = "" if target is None else f" of {target:g}"
    return f"epsilon <= {up(epsilon)}{of}" if math.isfinite(epsilon) else ""


def _needed(folder: RunFolder | None) -> Path:
    if folder is None:
        raise ConfigError("folder", None, "name the folder of the run to resume")
    return folder.path


def train(
    clients: Sequence[Client],
    strategy: Strategy,
    privacy: Privacy,
    *,
    rounds: int,
    seed: int | None = None,
    secret_seed: int | None = None,
    network: RoundNetwork | None = None,
    test: Dataset[Any] | None = None,
    compute: Compute | None = None,
    evaluate_every: int = 1,
    checkpoint_every: int = 10,
    folder: Path | RunFolder | None = None,
    settings: str = "",
    resume: bool = False,
    fresh_noise: bool = False,
    compare: bool = False,
    optimum: float | None = None,
    stop_on: StopOn = "nonfinite",
    sinks: Sequence[Sink] = (),
    progress: bool = False,
) -> Result:
    """Train and return the result. What is not explained here is as `Training` has it.

    Args:
        clients: The data owners (see `make_clients`).
        strategy: The algorithm, e.g. `fedpriv.inexact_admm()`.
        privacy: The promise, e.g. `fedpriv.Privacy(epsilon=3, delta=1e-5)`.
        rounds: Number of rounds.
        seed: Public seed of cohorts and links; drawn by default.
        secret_seed: Seed of noise and batches, to repeat a run exactly: whoever knows it can subtract the noise. By
            default it comes from the operating system.
        network: A star by default.
        test: Public test data.
        compute: Speed settings.
        evaluate_every: Rounds between evaluations on the test data.
        checkpoint_every: Rounds between checkpoints (with a folder).
        folder: Keeps ledger and checkpoint, for `resume`; None keeps the run in memory.
        settings: Fingerprint of the configuration, if there is one.
        resume: Go on from the folder's checkpoint.
        fresh_noise: On resume, draw new noise for rounds past the checkpoint, and pay for them again.
        compare: Solve an exact problem with constraints in one place as well.
        optimum: Smallest value of the objective, where it is known, on public data.
        stop_on: What ends a run that breaks.
        sinks: Take a report every round, e.g. `fedpriv.reports.sinks.TensorBoard(Path("runs/a"))`.
        progress: Show a bar on standard error, where that is a terminal or a notebook.

    Returns:
        The result: its `spent` is an upper bound, its `model` the trained module.

    Guarantee: what a strategy hears of the data is noised and counted first; an answer that would pass the target
    epsilon is not made, and ends the run. What weakens the promise is a Python warning, and so is a model or a test
    loss that is not finite.

    Raises:
        FedprivError: settings or data that cannot work; names field, value and fix.
    """
    training = Training(
        clients,
        strategy,
        privacy,
        rounds=rounds,
        seed=seed,
        secret_seed=secret_seed,
        network=network,
        test=test,
        compute=compute,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        folder=folder,
        settings=settings,
        resume=resume,
        fresh_noise=fresh_noise,
        compare=compare,
        optimum=optimum,
        stop_on=stop_on,
    )
    if progress:
        from fedpriv.runs.live import bar  # rich

        sinks = [*sinks, *bar(rounds, training.progress.round)]
    try:
        for report in training:
            for sink in sinks:
                sink.write(report)
    finally:
        for sink in sinks:
            sink.close()
    return training.result()
