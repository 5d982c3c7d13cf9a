"""A run, round by round: plan, compute the noise, train, write checkpoints, report."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedpriv import models
from fedpriv.checks import Count, checked
from fedpriv.clients import loaders, ownership
from fedpriv.clients.arguments import check_clients
from fedpriv.clients.client import Client
from fedpriv.clients.client_set import as_client_set, public_sizes
from fedpriv.clients.data_fingerprints import DataFingerprints
from fedpriv.clients.examples import check_kinds
from fedpriv.clients.layout import Layout, changed_constants, constant_totals, frozen
from fedpriv.clients.population import Population
from fedpriv.clients.shard import ClientShard
from fedpriv.engines import MESHES, STATE_STORES, sharding
from fedpriv.engines.rounds import RoundNetwork, TrainState, initial_state, run_rounds, server_view, write_back_models
from fedpriv.errors import ConfigError, FedprivError, PrivacyError
from fedpriv.measuring import model_metrics
from fedpriv.measuring.custom_metrics import CustomMetric
from fedpriv.measuring.early_stopping import EarlyStopping, Stop
from fedpriv.measuring.finite_check import FiniteCheck, StopOn, is_finite
from fedpriv.measuring.model_metrics import ModelMetrics
from fedpriv.network.local import Star
from fedpriv.oracle.backend_selection import make_backend, select_backend
from fedpriv.oracle.backends.in_threads import in_threads
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.data_answerer import data_oracle
from fedpriv.oracle.validation import validate_per_example
from fedpriv.privacy.accounting.spent import PrivacySpent, round_up
from fedpriv.privacy.chain import linked
from fedpriv.privacy.ledger import FollowerLedger, Ledger
from fedpriv.privacy.settings import Privacy
from fedpriv.randomness.streams import Randomness
from fedpriv.runs import compatibility
from fedpriv.runs.arguments import check_measuring, explain
from fedpriv.runs.budget_reservation import BudgetReservation
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.compute import Compute
from fedpriv.runs.evaluation_data import EvaluationData
from fedpriv.runs.extending import EarlierRun, common
from fedpriv.runs.identity import RunIdentity, check_models, of_settings, restored
from fedpriv.runs.metric_log import MetricLog
from fedpriv.runs.planning import Plan, make_plan, with_neighbours
from fedpriv.runs.privacy_warnings import privacy_warnings, warn
from fedpriv.runs.results import Ended, Result, RoundReport, software
from fedpriv.runs.run_accountant import RunAccountant
from fedpriv.runs.run_directory import RunDirectory
from fedpriv.runs.settings_in_words import settings_in_words
from fedpriv.storage import strict_json
from fedpriv.storage.folder import RunFolder
from fedpriv.strategies.base import Strategy


@checked("", explain)
class Training:
    """A run that trains while you iterate over it, once; each round gives a `RoundReport`. Arguments: see `train`.

    What weakens privacy is listed in `warnings` and raised as Python warnings (`PromiseWarning`). Other processes
    cannot use the `folder` while this object lives, or until `folder.close()`.

    Raises:
        ConfigError: settings cannot work; raised before data are read.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        strategy: Strategy,
        privacy: Privacy,
        *,
        rounds: Count,
        seed: int | None = None,
        secret_seed: int | None = None,
        network: RoundNetwork | None = None,
        test: Dataset[Any] | None = None,
        compute: Compute | None = None,
        evaluate_every: Count = 1,
        checkpoint_every: Count = 10,
        folder: str | Path | RunFolder | None = None,
        settings: str = "",
        resume: bool = False,
        fresh_noise: bool = False,
        extend: str | Path | None = None,
        compare: bool = False,
        optimum: float | None = None,
        stop_on: StopOn = "nonfinite",
        stop: Stop | None = None,
        metrics: Mapping[str, CustomMetric] | None = None,
        client_tests: Sequence[Dataset[Any] | None] | None = None,
        client_names: Sequence[str] | None = None,
    ) -> None:
        compute = compute or Compute()
        mesh = self._mesh = MESHES[compute.engine](compute.timeout)
        with mesh.world.raise_together():
            check_clients(clients)
            check_measuring(test, client_tests, metrics)
            if not clients:
                raise ConfigError("clients", [], "a run needs at least one client")
            models.validate_model(clients[0].model)
            roster, sizes = as_client_set(clients), public_sizes(clients, privacy)
            device = sharding.local_device(compute.start(), mesh)
            problems = list({id(problem): problem for problem in roster.problems}.values())
            privacy = with_neighbours(privacy, problems, sizes_declared=roster.sizes_declared)
            strategy = strategy.for_rounds(rounds)
            self.strategy, self.rounds, self.network = strategy, rounds, network or Star(len(clients))

            # where it is kept, and how far it had come
            self._keeper = RunDirectory(folder if mesh.is_main else None, checkpoint_every)
            earlier = self._read_earlier(extend, device, resume=resume, fresh_noise=fresh_noise)
            if resume:
                saved = mesh.world.broadcast(lambda: self._keeper.last(device))
            else:
                saved = None
            if earlier is not None:
                compatibility.check_extended(privacy, rounds, earlier.first.rounds)
                saved = earlier.checkpoint
            compatibility.check_compute(compute, strategy, self.network, privacy, clients[0].model, clients[0].loss)
            if saved is not None:
                compute.check_goes_on(saved.state)
            self.health = FiniteCheck(stop_on, {} if saved is None else saved.first_nonfinite)

            # who it is
            same = of_settings(clients, settings, seed, strategy, privacy, rounds, self.network, sizes, compute.numbers)
            kept = of_settings(
                clients, strategy, common(privacy), self.network, sizes, seed, compute.numbers, clients[0].loss
            )
            words = settings_in_words(
                strategy=strategy,
                privacy=privacy,
                rounds=rounds,
                network=self.network,
                sizes=sizes,
                seed=seed,
                numbers=compute.numbers,
                model=clients[0].model,
                loss=clients[0].loss,
            )
            if earlier is not None:
                words |= self._keeper.config_in_words()
                identity = RunIdentity.extended(
                    same, earlier.checkpoint, earlier.folder, kept=kept, secret_seed=secret_seed, words=words
                )
            elif saved is None:
                private, seeds = privacy.private, {"seed": seed, "secret_seed": secret_seed}
                words |= self._keeper.config_in_words()
                identity = mesh.world.broadcast(
                    lambda: RunIdentity.new(same, clients, private=private, words=words, **seeds)
                )
            else:
                identity = RunIdentity.resumed(same, saved, self._keeper.path, secret_seed=secret_seed, words=words)
            if saved is not None and fresh_noise:
                identity = mesh.world.broadcast(identity.with_fresh_noise)
            identity = replace(identity, rounds=rounds, kept=kept)
            if earlier is None:
                saved_in = self._keeper.path
            else:
                saved_in = earlier.folder
            restart = None
            if saved is not None:
                restart = restored(saved, initial_state(strategy, torch.zeros(1, 1).expand(len(clients), 1)), saved_in)
            streams = identity.randomness

            # what it will release
            def planned() -> Plan:
                of_run: dict[str, Any] = {"rounds": rounds, "randomness": streams}
                if earlier is not None:
                    of_run["first"] = earlier.first
                elif saved is not None:
                    of_run |= {"begun": self._keeper.matrix(), "first": self._keeper.first_part()}
                return make_plan(strategy, privacy, sizes, self.network, **of_run)

            self.plan: Plan = mesh.world.broadcast(planned)
            asked = self.plan.asked
            compatibility.check_problem(strategy, problems, privacy, asked, compare=compare)
            compatibility.check_fresh(self.plan.privacy, fresh_noise)
            compatibility.check_shared(
                mesh.world.world_size,
                compute,
                clients,
                self.network,
                privacy,
                asked,
                optimum=optimum,
                compare=compare,
            )

            # whether the data's budget allows that
            if optimum is not None and privacy.private:
                uncovered = ("the optimality gap, exact",)
            else:
                uncovered = ()
            begun_at = None if saved is None else saved.round
            self._reserving: BudgetReservation | None = None
            if mesh.is_main:
                self._reserving = BudgetReservation.of(
                    self.plan, streams, self._keeper.path, begun_at, uncovered, earlier
                )
            if self._reserving is not None:
                self._reserving.check()

            # whose data it reads, and what is measured of its models
            public = EvaluationData.nothing()
            if mesh.is_main:
                public = EvaluationData.made(test, client_tests, metrics, stop, client_names, len(clients))
            ownership.check_clients(clients, public.everything, privacy)
            begun_with = None if saved is None else saved.chunk
            chunk = compute.examples_at_once(device, Layout.of(clients[0].model).dim, begun_with)
            part = self._part = sharding.shard_clients(ClientShard.whole(clients), mesh)
            own = part.of(clients)
            self.population = Population(own, device, getattr(torch, compute.dtype), chunk, part)
            check_kinds(mesh.world.all_gather_object(self.population.kind))
            sharding.check_replicated(lambda: ownership.example_fingerprints(self.population), mesh)
            self._fingerprints = self._check_data(streams, saved)
            model, loss, self._test = self.population.model, self.population.loss, public.test
            evaluate = public.evaluator(model, loss, batched=compute.backend != "loop")
            self._check_test(public, privacy)
            start = self.population.start_alike(mesh.world.broadcast(self.population.start_alike))
            tried = mesh.clients.all_gather_object(validate_per_example(self.population))
            backend, slow, why_not_faster = mesh.world.broadcast(
                lambda: select_backend(compute.backend, self.population, chunk, compute.precision).told
            )
            self._backend = {"name": backend, **({"refused": why_not_faster} if why_not_faster else {})}
            compatibility.check_batched(problems, model, slow)
            if evaluate is not None:
                evaluate.try_out(start)
            stored = {} if saved is None else saved.stopping
            self._stopping = mesh.world.broadcast(lambda: public.stopping(evaluate, start, stored))
            central, of_clients = start if compare else None, public.client_tests(evaluate)
            self.measures = ModelMetrics(
                self.population, strategy, evaluate, optimum, central, of_clients, public.names
            )
            if earlier is not None and (self.health.stops or self._stopping.stops):
                fix = "its model is not finite, or its metric no longer improves: more rounds would end at once"
                raise ConfigError("extend", str(earlier.folder), fix)
            self._identity, self._constants = identity.with_model(model, saved, saved_in), constant_totals(model)
            check_models(mesh.world.all_gather_object(self._identity.model))
            self.warnings = privacy_warnings(
                self.plan, sizes, clients[0].model, optimum=optimum, secret_seed=secret_seed
            )
            self.warnings += [*dict.fromkeys(chain.from_iterable(tried))]
            self.warnings += [
                *dict.fromkeys(chain.from_iterable(mesh.clients.all_gather_object(loaders.ignored(own)))),
                *slow,
            ]

            # what it costs, and the only door to the data
            self._charging = RunAccountant(self.plan, uncovered)
            made = in_threads(make_backend(backend, self.population, chunk, compute.precision))
            self._sums = ClippedSums(made, len(self.population), device, mesh.examples)
            self.ledger = self._opened(streams, saved, fresh_noise=fresh_noise, earlier=earlier)
            self.oracle = data_oracle(
                self.population,
                self._sums,
                self.plan.privacy,
                self.ledger,
                streams,
                sum_clients=mesh.sum_clients,
                max_clients=mesh.max_clients,
            )
            self.oracle.answerer.prepare(asked)

            # where it stands, and how it goes on
            self._engine, self._seen = run_rounds, sharding.shard_network(self.network, part, mesh)
            self._state, self._keeping = compute.state, STATE_STORES[compute.state](self._keeper.path)
            if restart is None:
                mine = None
            else:
                mine = sharding.shard_state(restart, part, mesh)
            self.progress = self._keeping.begin(strategy, start.expand(len(own), -1), mine)
            self._seconds, self._mark, self._over = 0.0 if saved is None else saved.seconds, self.ledger.mark, False
            if earlier is None:
                before = mesh.world.broadcast(lambda: self._keeper.rows(self.progress.round))
            else:
                before = earlier.rows
            self._reporting = MetricLog(self.measures, evaluate_every, before)
            if saved is None or fresh_noise or earlier is not None:
                self.save()
            mesh.world.broadcast(lambda: None if self._reserving is None else self._reserving.reserve())
            for weakness in self.warnings if mesh.is_main else ():
                warn(weakness)

    def _read_earlier(
        self, extend: str | Path | None, device: torch.device, *, resume: bool, fresh_noise: bool
    ) -> EarlierRun | None:
        """The finished run that this one extends; None if it extends none.

        Raises:
            ConfigError: it cannot be extended so.
            FedprivError: there is no such run, or it is unfinished.
        """
        if extend is None:
            return None
        if resume or fresh_noise:
            fix = "a run that extends another one is resumed as any other: give resume without extend"
            raise ConfigError("extend", str(extend), fix)
        if self._mesh.world.world_size > 1:
            raise ConfigError("extend", str(extend), "one process extends a run: leave out --processes")
        if self._keeper.path is not None and self._keeper.path.resolve() == Path(extend).resolve():
            raise ConfigError("folder", str(extend), "is that of the earlier run, which stays as it is: take another")
        return EarlierRun.read(extend, device)

    def _check_data(self, streams: Randomness, saved: Checkpoint | None) -> DataFingerprints:
        """Refuse to go on with other data than the run began with; see `fedpriv.clients.data_fingerprints`."""
        fingerprints = DataFingerprints(streams.data_key(), None if saved is None else saved.data)
        if self._mesh.world.broadcast(lambda: self._keeper.path is not None):
            fingerprints.watch(self.population)
            fingerprints.merge(self._mesh.clients.all_gather_object(fingerprints.stored()))
        return fingerprints

    def _check_test(self, public: EvaluationData, privacy: Privacy) -> None:
        """Refuse copies of the training examples of all processes."""
        mesh, population = self._mesh, self.population
        count = sum(mesh.clients.all_gather_object(int(population.counts.sum())))
        if mesh.world.broadcast(lambda: public.as_many(count, privacy)):
            public.check(population, self._contents())

    def _contents(self) -> list[list[bytes]]:
        """Fingerprints of every client's examples."""
        return list(
            chain.from_iterable(self._mesh.clients.all_gather_object(ownership.example_fingerprints(self.population)))
        )

    def _opened(
        self, streams: Randomness, saved: Checkpoint | None, *, fresh_noise: bool, earlier: EarlierRun | None
    ) -> Ledger | FollowerLedger:
        """The ledger where it is written, and elsewhere what waits for it."""
        mesh, keeper, charging, plan = self._mesh, self._keeper, self._charging, self.plan
        reserving = self._reserving
        on_disk = mesh.world.broadcast(lambda: keeper.path is not None)
        if saved is None or earlier is not None:
            begun = 1
        else:
            begun = saved.processes
        to_resume = saved if earlier is None else None

        def write() -> Ledger:
            if reserving is None:
                guard = charging.guard
            else:
                guard = reserving.guard(charging.guard)
            if reserving is None:
                budget = None
            else:
                budget = reserving.budget.terms.id
            ledger = keeper.ledger(
                guard, plan, streams, to_resume, fresh_noise=fresh_noise, budget=budget, earlier=earlier
            )
            compatibility.check_processes(begun, mesh.world.world_size, ledger, fresh_noise=fresh_noise)
            charging.follow(ledger)
            return ledger

        return sharding.open_ledger(write, streams.digest_key() if on_disk else None, mesh)

    def __iter__(self) -> Iterator[RoundReport]:
        """Train, round by round.

        Raises:
            FedprivError: this run has ended.
            PrivacyError: a forward pass changed a frozen parameter or a buffer.
        """
        if self._over:
            raise FedprivError("this run is over; make a new Training with fresh clients for another one")
        start, mesh = time.monotonic() - self._seconds, self._mesh
        seen = server_view(self._seen, self.plan.privacy)
        rounds = self._engine(
            self.strategy,
            self.oracle,
            self._seen,
            self.progress,
            self._identity.randomness,
            rounds=self.rounds,
            seen=seen,
            stream=mesh.world.rank,
        )
        self._keeper.check()
        for done in () if self.health.stops or self._stopping.stops else rounds:
            self.progress = done.progress
            self._check_constants()
            models = self._reported_models()
            constrained = self.measures.of_multipliers(self.progress, self.oracle, mesh, self._part)
            told = partial(self._told, models, constrained)
            report, self.health, self._stopping = mesh.world.broadcast(told)
            self._seconds = time.monotonic() - start
            yield report
            # only now, so that whoever writes reports down never misses one that a checkpoint counts as done
            if report.checkpoint:
                self.save()
            if self.health.stops or self._stopping.stops:
                break
            self._keeper.check()  # while a report was read another one may have taken the folder
        self._check_constants()
        mesh.world.broadcast(self._sync)
        self._over = True
        mesh.world.broadcast(self._close)
        write_back_models(self.population, self.progress, mesh.world.broadcast(lambda: str(self._charged())))

    def _sync(self) -> None:
        """Before anything that was made of a round's answers leaves the run: reports, checkpoints, models."""
        self._keeper.check()
        if self.plan.privacy.durable:
            self.ledger.sync()

    def _close(self) -> None:
        """Tell the budget that the run has ended."""
        if self._reserving is not None:
            self._reserving.close(self._ended(), self.ledger.records)

    def _check_constants(self) -> None:
        """The trial's few examples may not show that a forward pass changes what is released as it is."""
        if self.plan.privacy.private:
            names = changed_constants(self.population.model, self._constants)
        else:
            names = []
        fix = "a forward pass on private data changed it, and it would be released as it is; change a copy instead"
        with self._mesh.world.raise_together():
            if names:
                raise PrivacyError(f"model.{names[0]} is frozen, or a buffer, and is not what it was: {fix}")

    def _reported_models(self) -> Tensor:
        """Models of all clients where a report needs them, in the process that writes it; else those here."""
        models, last = self.progress.models, self._ended() != "left"
        if self._reporting.is_due(self.progress.round, last=last) or self.anywhere(not is_finite(models)):
            return sharding.gather_rows(models, self._part, self._mesh)
        return models

    def _told(self, models: Tensor, constrained: dict[str, float]) -> tuple[RoundReport, FiniteCheck, EarlyStopping]:
        """What is told of the round that was just finished.

        Args:
            models: See `_reported_models`.
            constrained: See `ModelMetrics.of_multipliers`.
        """
        self._sync()
        self._charging.catch_up()
        self._mark = self.ledger.mark
        progress, before = replace(self.progress, models=models), self.health
        finished = progress.round
        self.health = before.after(finished, {"model": progress.models})
        metrics = self._reporting.metrics(progress, last=self._ended() != "left") | constrained
        self.health, self._stopping = self.health.after(finished, metrics), self._stopping.after(metrics)
        ended, target, (releases, head) = self._ended(), self.plan.privacy.epsilon, self._mark
        epsilon = self._charging.reported(ended, finished)
        warning = self.health.warning(before, progress.models, _so_far(epsilon, target))
        if warning:
            warn(warning)
        self._reporting.rows.append({"round": finished, "epsilon": epsilon, "releases": releases, **metrics})
        saves = self._keeper.is_due(finished, last=ended != "left")
        report = RoundReport(finished, self.rounds, metrics, epsilon, target, releases, saves, head, warning)
        return report, self.health, self._stopping

    def save(self) -> None:
        """Write a checkpoint of the last finished round now (with a folder)."""
        progress = sharding.gather_state(self.progress, self._part, self._mesh)
        self._mesh.world.broadcast(lambda: self._save(progress))

    def _save(self, progress: TrainState) -> None:
        first = dict(self.health.first)
        whole = self._identity.checkpoint(progress, self._mark, self._seconds, first)
        self._keeping.sync()
        speed = {"chunk": self.population.chunk, "state": self._state, "processes": self._mesh.world.world_size}
        kept = {"stopping": self._stopping.stored(), "data": self._fingerprints.stored()}
        self._keeper.save(replace(whole, **kept, **speed), self.ledger)
        self._keeping.saved(self.progress)

    @property
    def folder(self) -> RunFolder | None:
        """The run's folder; None for a run in memory."""
        return self._keeper.folder

    @property
    def broken_examples(self) -> Tensor:
        """Number of gradients that were not finite, of each client, `[n_clients]`. Exact, so not private."""
        return torch.cat([*self._mesh.clients.all_gather_object(self._sums.broken_examples)])

    def repeats(self) -> ownership.DuplicateCounts:
        """How many training examples equal others, or test examples. Exact, so not private."""
        contents = self._contents()
        return self._mesh.world.broadcast(lambda: ownership.count_duplicates(self.population, self._test, contents))

    def spent(self) -> PrivacySpent:
        """Tight upper bound on what has been spent so far."""
        return self._mesh.world.broadcast(self._charging.spent)

    def anywhere(self, here: bool) -> bool:
        """Whether something is so in any process of the run."""
        return self._mesh.max_clients(float(here)) > 0

    def _ended(self) -> Ended:
        """Why there are no more rounds, as far as is known."""
        if self.progress.round == self.rounds:
            return "rounds"
        if self.strategy.is_done(self.progress.server):
            return "strategy"
        if self.health.stops:
            return "nonfinite"
        if self._stopping.stops:
            return "metric"
        if self._over:
            return "budget"
        return "left"

    def _charged(self) -> PrivacySpent:
        return self._charging.at_end(self._ended(), self.progress.round)

    def result(self) -> Result:
        """The result so far.

        If the run stopped before its plan ended, the stop may depend on data, so the whole plan is charged; not so if
        the budget ended it. If clients' models differ, each is tested on 1000 test examples.

        Raises:
            PrivacyError: a forward pass changed a frozen parameter or a buffer.
        """
        self._check_constants()
        mesh, part = self._mesh, self._part
        progress = replace(self.progress, models=sharding.gather_rows(self.progress.models, part, mesh))
        of_constraints = self.measures.of_constraints(progress, self.oracle, mesh, part)
        found = mesh.world.broadcast(lambda: self._result(progress, of_constraints))
        return replace(found, model=self._with(found.params))

    def _result(self, progress: TrainState, of_constraints: dict[str, Any]) -> Result:
        """The result but for its model, whose class may be one that cannot be sent to other processes."""
        privacy, params = self.plan.privacy, model_metrics.reported(progress)
        metrics, nodes = self._reporting.at_the_end(progress)
        return Result(
            strategy=self.strategy.name,
            rounds=progress.round,
            planned_rounds=self.rounds,
            test_accuracy=metrics.pop("test_accuracy", None),
            test_loss=metrics.pop("test_loss", None),
            ended=self._ended(),
            spent=self._charged(),
            releases=len(self.ledger.records),
            # how long it took tells how many were drawn
            seconds=float(f"{self._seconds:.0e}") if privacy.hides_round_size else self._seconds,
            params_l2=float(params.double().norm()),
            noise_multiplier=privacy.noise_multiplier,
            measures={
                **self.measures.of_run(progress),
                "spectral_gap": self.network.spectral_gap,
                **metrics,
                **nodes,
                **self.measures.by_name(progress),
                **self._parts(),
                "backend": self._backend,
                **of_constraints,
            },
            gradient_evaluations=sum(self.plan.evaluations[: progress.round]),
            optimality_gap=self.measures.optimality_gap(params),
            first_nonfinite=dict(self.health.first),
            reports=tuple(self._reporting.rows),
            params=params.clone(),
            node_params=progress.models.clone()
            if model_metrics.models_differ(progress)
            else params.expand(self._part.n_clients, -1),
            model=nn.Module(),
            charged=self._charging.records(self._ended(), progress.round),
            noise=self._identity.randomness.streams_name(),
            target=privacy.epsilon,
        )

    def _parts(self) -> dict[str, Any]:
        """How many parameters are trained, where not all are."""
        fixed = frozen(self.population.model)
        if fixed:
            return {"parameters": {"trained": self.population.dim, "frozen": fixed}}
        return {}

    def linked(self, result: Result) -> dict[str, Any]:
        """Contents of `result.json`: the result, with what made it, and the last hash of a ledger's chain."""
        head = self.ledger.mark.head
        facts: dict[str, Any] = strict_json.plain({**result.to_json(), "software": software()})
        if head is None:
            return facts
        return linked({**facts, "head": head}, head, self._identity.randomness.seal_key())

    def _with(self, params: Tensor) -> nn.Module:
        """A copy of the model with these parameters `[dim]`, ready for use."""
        model = copy.deepcopy(self.population.clients[0].model).eval()  # through which no example has passed
        self.population.layout.write(params, model)
        return model


def _so_far(epsilon: float, target: float | None) -> str:
    """What has been spent, for a warning; empty without a promise."""
    of = "" if target is None else f" of {target:g}"
    if math.isfinite(epsilon):
        return f"epsilon <= {round_up(epsilon)}{of}"
    return ""
