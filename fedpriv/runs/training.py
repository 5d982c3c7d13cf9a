"""Trains a run, round by round."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedpriv.clients import ownership
from fedpriv.clients.layout import count_frozen_parameters, find_changed_constants
from fedpriv.clients.population import Population
from fedpriv.clients.released_models import record_result
from fedpriv.distributed.modes import Modes
from fedpriv.errors import FedprivError, PrivacyError
from fedpriv.evaluation import model_metrics
from fedpriv.evaluation.early_stopping import EarlyStopping
from fedpriv.evaluation.finite_check import FiniteCheck, is_finite
from fedpriv.evaluation.model_metrics import ModelMetrics
from fedpriv.models.copies import copy_module
from fedpriv.network import sharding
from fedpriv.network.engines import MESHES, STATE_STORES, StateName
from fedpriv.network.rounds import RoundResult, TrainState, run_rounds, server_view, write_back_models
from fedpriv.oracle.data_query_engine import DataQueryEngine
from fedpriv.oracle.low_precision import needs_full_precision
from fedpriv.oracle.oracle import Oracle
from fedpriv.oracle.state_check import KEPT, draw_check_rounds
from fedpriv.planning.arguments import suggest_argument
from fedpriv.planning.privacy_warnings import warn
from fedpriv.privacy.accounting.spent import PrivacySpent
from fedpriv.privacy.chain import with_chain
from fedpriv.privacy.ledger import FollowerLedger, Ledger
from fedpriv.runs import stages
from fedpriv.runs.line_files import MetricsFile
from fedpriv.runs.options import TrainingOptions, init_takes_options
from fedpriv.runs.report_groups import ReportGroup, compute_longest_wait
from fedpriv.runs.results import Result, RoundReport, get_software_versions
from fedpriv.runs.run_directory import RunDirectory
from fedpriv.settings.checks import validate_arguments
from fedpriv.settings.pace import wait_for_pace
from fedpriv.storage import strict_json
from fedpriv.storage.folder import RunFolder


@validate_arguments("", suggest_argument)
class Training:
    """A run as an iterable object. Each iteration trains one round and yields a `RoundReport`; it can be iterated once.

    Settings that weaken privacy are listed in `warnings` and raised as Python warnings (`PromiseWarning`). Other
    processes cannot use the `folder` while this object exists, or until `folder.close()`.

    Args:
        options: The arguments of `train` except `sinks` and `progress`, passed by name.

    Raises:
        ConfigError: If settings cannot work. The error is raised before data are read.

    Examples:
        >>> import fedpriv, torch
        >>> from torch import nn
        >>> x, y = torch.linspace(-1, 1, 40)[:, None], torch.arange(40) // 20
        >>> data = [torch.utils.data.TensorDataset(x[i::2], y[i::2]) for i in range(2)]
        >>> clients = fedpriv.make_clients(nn.Linear(1, 2), nn.CrossEntropyLoss(), data)
        >>> training = fedpriv.Training(clients, fedpriv.fedavg(0.5), fedpriv.Privacy(epsilon=2.0), rounds=3)
        >>> [report.round for report in training]
        [1, 2, 3]
        >>> training.result().releases
        3
    """

    @init_takes_options(TrainingOptions)
    def __init__(self, options: TrainingOptions) -> None:
        compute = options.compute
        mesh = self._mesh = MESHES[compute.parallelism](compute.timeout)
        self._modes = Modes(getattr(torch, compute.dtype), needs_full_precision(options.privacy))
        with self._modes.fixed(), mesh.world.raise_together():
            # settings, folder and seeds, planned releases and their cost: no data have been read
            experiment = stages.resolve_experiment(options, compute, mesh)
            self._directory = RunDirectory(options.folder if mesh.is_main else None, options.checkpoint_every)
            self._pace = compute.pad_seconds
            self._save_nodes = options.save_node_models
            run = stages.open_run(experiment, options, self._directory, mesh)
            self.plan = stages.plan_run(experiment, run, options, mesh)
            reveals = stages.not_covered(experiment.privacy, options, run)
            self._reservation = stages.check_budget(self.plan, run, reveals, mesh)

            # the data, and the only path from them to released values
            public = stages.load_public_data(options, mesh)
            self._data = stages.load_data(experiment, run, public, mesh)
            self._evaluation = stages.prepare_evaluation(experiment, run, self._data, public, options, mesh)
            self._release_path = stages.open_release_path(
                experiment, run, self.plan, self._data, self._reservation, reveals, options, mesh
            )
            self.oracle: Oracle[DataQueryEngine] = self._release_path.oracle

            # the initial state of the first round, and the monitor of the rounds
            self._hides_sizes = experiment.hides_sizes
            self.strategy = experiment.strategy
            self.rounds = experiment.rounds
            self.network = experiment.network
            self._identity = self._data.identity
            self._local_network = sharding.shard_network(self.network, self._data.shard, mesh)
            self._state_store = STATE_STORES[compute.client_state](self._directory.path)
            self._state_kind: StateName = compute.client_state
            self.progress = stages.load_first_state(experiment, run, self._data, self._state_store, mesh)
            self._seconds = stages.read_seconds_before(run)
            self._metrics_file: MetricsFile | None = None
            self._final: Result | None = None
            self._position = self.ledger.mark
            self._monitor = stages.make_monitor(experiment, run, self._evaluation, self._release_path, options, mesh)
            self._state_rounds = mesh.world.broadcast(lambda: draw_check_rounds(experiment.rounds))

            # from here on a stopped run can be resumed; only then is the budget charged
            by_settings = stages.collect_warnings(experiment, self.plan, self._data, options)
            self.warnings = [
                *by_settings,
                *self._evaluation.warnings,
                *stages.warn_of_lost_rounds(run, self._release_path),
            ]
            self._has_begun = False
            self.save()
            mesh.world.broadcast(self._reserve_budget)
            self._has_begun = True
            if mesh.is_main:
                for warning in self.warnings:
                    warn(warning)

    @property
    def population(self) -> Population:
        """The clients of this process with their examples."""
        return self._data.population

    @property
    def backend(self) -> str:
        """The backend that computes gradients and, if faster ones were rejected, the reason, in one line."""
        if self._data.why_not_faster:
            return f"{self._data.backend} ({self._data.why_not_faster})"
        return self._data.backend

    @property
    def is_main(self) -> bool:
        """True if this process reports the run; always True in a run of one process."""
        return self._mesh.is_main

    @property
    def measures(self) -> ModelMetrics:
        """Computes metrics of models."""
        return self._evaluation.measures

    @property
    def ledger(self) -> Ledger | FollowerLedger:
        """The records of all releases of the run."""
        return self._release_path.ledger

    @property
    def health(self) -> FiniteCheck:
        """The kinds of values that were not finite, with the first round of each."""
        return self._monitor.health

    def _reserve_budget(self) -> None:
        """Reserves the cost of the whole plan in the lifetime budget, before the first round."""
        if self._reservation is not None:
            self._reservation.reserve(self._last_round_until_save())

    def _last_round_until_save(self) -> int:
        """Returns the last round before the next checkpoint; without a folder, the last round of the run."""
        if self._directory.path is None:
            return self.rounds
        return min(self._directory.next_save, self.rounds)

    def __iter__(self) -> Iterator[RoundReport]:
        """Trains, round by round.

        Raises:
            FedprivError: If this run has ended.
            PrivacyError: If a forward pass changed a frozen parameter or a buffer.
        """
        for reports in self._groups_of_rounds(0.0):
            yield from reports

    def in_groups(self) -> Iterator[Sequence[RoundReport]]:
        """Trains like an iteration over this object, and yields the reports of one or more rounds at once.

        Short rounds share one sync of the ledger to disk, so do not inspect this object between two rounds of a group.
        If you iterate over this object round by round instead, every ledger line is on disk before you receive the
        round. See `__iter__` for errors.
        """
        population = self.population
        problems = {id(problem): problem for problem in population.problems}
        metrics = self._evaluation.public.custom.metrics_by_name
        code = (self.strategy, self.network, population.model, population.loss, [*problems.values()], metrics)
        return self._groups_of_rounds(compute_longest_wait(self._mesh, self.folder, self._state_kind, self._pace, code))

    def _groups_of_rounds(self, seconds: float) -> Iterator[Sequence[RoundReport]]:
        """Trains, and yields reports once their ledger lines are on the disk; see `in_groups`."""
        return self._modes.iterate(self._make_rounds(seconds))

    def _make_rounds(self, seconds: float) -> Iterator[Sequence[RoundReport]]:
        """Trains in the torch modes that the calling function has set; see `_groups_of_rounds`."""
        monitor = self._monitor
        mesh = self._mesh
        if monitor.is_over:
            raise FedprivError("this run has ended; create a new Training with new clients for another one")
        start = time.monotonic() - self._seconds
        began = time.monotonic()
        if self._saved_round < self.progress.round:  # left earlier, and no checkpoint could be written
            self.save()
        rounds = self._all_rounds()
        self._directory.check()
        group = ReportGroup(seconds, self._sync)
        self._metrics_file = self._directory.open_metrics(self.progress.round)
        self._written_rounds = self.progress.round
        if monitor.stops:
            rounds = iter(())
        with group.synced(), self._saved_if_left(group):
            for result in rounds:
                self.progress = result.progress
                self._check_constants()
                if result.index in self._state_rounds:
                    self._check_state()
                report = self._report_round(sync=seconds == 0)
                group.add(report)
                wait_for_pace(began, self._pace)
                self._seconds = time.monotonic() - start
                if report.checkpoint or monitor.stops or group.is_due:
                    yield self._written(group.take())
                    # after the yield: a sink has then written every round that a checkpoint marks as done
                    if report.checkpoint:
                        self.save()
                    if monitor.stops:
                        break
                    self._directory.check()  # another process may have taken the folder while a report was read
                began = time.monotonic()
        remaining = group.take()
        if remaining:
            yield self._written(remaining)
        self._check_constants()
        self._check_state()
        mesh.world.broadcast(self._sync)
        if self._saved_round < self.progress.round:
            self.save()
        monitor.is_over = True
        mesh.world.broadcast(self._close_budget)
        reported = self.progress
        kept = mesh.world.broadcast(lambda: monitor.best.models)
        if kept is not None:
            reported = replace(reported, models=sharding.shard_rows(kept, self._data.shard, mesh))
        write_back_models(self.population, reported, mesh.world.broadcast(lambda: str(self._charged())))
        if mesh.world.broadcast(lambda: self._directory.path is not None):
            self._final = self._outcome()
            result = self._with_model(self._final)
            mesh.world.broadcast(lambda: self._directory.finish(result, self.linked(result), nodes=self._save_nodes))

    def _all_rounds(self) -> Iterator[RoundResult]:
        """Computes the rounds. Rounds with query results that were lost in a stop come first and use zeros; then the
        other rounds follow.
        """
        path = self._release_path
        network = self._local_network
        progress = self.progress
        for oracle, rounds in ((path.lost_oracle, path.first_round), (self.oracle, self.rounds)):
            if rounds <= progress.round:
                continue
            results = run_rounds(
                self.strategy,
                oracle,
                network,
                progress,
                self._identity.randomness,
                rounds=rounds,
                seen=server_view(network, self.plan.privacy),
                stream=self._mesh.world.rank,
            )
            for result in results:
                progress = result.progress
                yield result

    @contextmanager
    def _saved_if_left(self, group: ReportGroup) -> Generator[None]:
        """A context that writes a checkpoint of the last finished round if the caller leaves the rounds early.

        The reports of finished rounds are written before the checkpoint, because a checkpoint must not contain rounds
        that the reports lack. A round that was interrupted before its report was made is lost.
        """
        try:
            yield
        except (GeneratorExit, KeyboardInterrupt):
            try:
                if self._mesh.world.world_size == 1:  # other processes may be at another point
                    reports = group.take()
                    if reports:
                        self._written(reports)
                    if self._written_rounds == self.progress.round:
                        self._position = self.ledger.mark
                        self.save()
            except Exception:  # earlier saves remain; and when Python exits, modules have lost their contents
                pass
            raise

    def _written(self, reports: Sequence[RoundReport]) -> Sequence[RoundReport]:
        """Writes reports to the folder, and returns them."""
        self._written_rounds = reports[-1].round
        if self._metrics_file is not None:
            for report in reports:
                self._metrics_file.write(report)
        return reports

    def _report_round(self, *, sync: bool) -> RoundReport:
        """Makes the report of the round just finished on the main process, and returns it on every process.

        Args:
            sync: True to write the ledger to disk first.
        """
        monitor = self._monitor
        mesh = self._mesh
        state = self.progress
        if monitor.is_evaluated(state) or self.any_process(not is_finite(state.models)):
            models = sharding.gather_rows(state.models, self._data.shard, mesh)
            if models is not state.models:
                state = replace(state, models=models)
        constraint_metrics = self.measures.of_multipliers(self.progress, self.oracle, mesh, self._data.shard)
        on_main = partial(self._report_on_main, state, constraint_metrics, sync=sync)
        report, monitor.health, monitor.stopping = mesh.world.broadcast(on_main)
        return report

    def _report_on_main(
        self, state: TrainState, constraint_metrics: dict[str, float], *, sync: bool
    ) -> tuple[RoundReport, FiniteCheck, EarlyStopping]:
        """Returns the report of a round, and the state of the checks that the other processes also need."""
        monitor = self._monitor
        if sync:
            self._sync()
        self._position = self.ledger.mark
        report = monitor.after_round(
            state,
            self._position,
            constraint_metrics,
            is_checkpoint_due=lambda is_last: self._directory.is_due(state.round, last=is_last),
        )
        if report.warning:
            self._sync()  # the warning reveals a property of the model
            warn(report.warning)
        return report, monitor.health, monitor.stopping

    def _sync(self) -> None:
        """Writes the ledger to disk, before any value computed from a round's results leaves the run."""
        self._directory.check()
        if self.plan.privacy.fsync:
            self.ledger.sync()

    def _close_budget(self) -> None:
        """Records the end of the run in its budget."""
        if self._reservation is not None:
            self._reservation.close(self._monitor.why_ended(self.progress), self.ledger.records)

    def _check_constants(self) -> None:
        """Raises an error if a forward pass changed a frozen parameter or buffer, which are released without noise.

        The check before training, on a few examples, may miss such a change.

        Raises:
            PrivacyError: If a frozen parameter or a buffer has changed.
        """
        names = list[str]()
        if self.plan.privacy.private:
            names = find_changed_constants(self.population.model, self._data.constants)
        fix = "a forward pass on private data changed it, so it would be released without noise; change a copy instead"
        if self.any_process(bool(names)):
            self._void("a forward pass on private data changed a frozen parameter or a buffer")
        with self._mesh.world.raise_together():
            if names:
                raise PrivacyError(f"model.{names[0]} is frozen or a buffer, and has changed: {fix}")

    def _check_state(self) -> None:
        """Ends a private run with infinite epsilon if its code kept state from earlier examples."""
        check = self._release_path.state_check
        if check is None or self._monitor.is_void:
            return
        if self.any_process(check.has_changed()):
            self._void(KEPT)

    def _void(self, reason: str) -> None:
        """Records in the ledger that no bound on epsilon holds; all processes call this together."""
        self._monitor.is_void = True
        ledger = self.ledger
        if isinstance(ledger, Ledger):
            ledger.void(reason)
            warn(f"epsilon is infinite: {reason}. Keep no state between calls, and do not publish this run's models")

    def save(self) -> None:
        """Writes a checkpoint of the last finished round now (with a folder)."""
        self._saved_round = self.progress.round
        state = sharding.gather_state(self.progress, self._data.shard, self._mesh)
        self._mesh.world.broadcast(lambda: self._save(state))

    def _save(self, state: TrainState) -> None:
        checkpoint = self._identity.checkpoint(
            state,
            self._position,
            self._seconds,
            dict(self.health.first),
            self.plan.privacy.allocation_rounds,
            self._release_path.first_round,
        )
        checkpoint = replace(
            checkpoint,
            stopping=self._monitor.stopping.stored(),
            kept=self._monitor.best.stored(),
            data=self._data.fingerprints.stored(),
            max_physical_batch_size=self.population.chunk,
            client_state=self._state_kind,
            processes=self._mesh.world.world_size,
        )
        self._state_store.sync()
        if self._metrics_file is not None:
            self._metrics_file.sync()  # it must have every round that the checkpoint marks as done
        self._directory.save(checkpoint, self.ledger)
        self._state_store.saved(self.progress)
        if self._has_begun and self._reservation is not None:
            self._reservation.advance(self._last_round_until_save())

    @property
    def folder(self) -> RunFolder | None:
        """The run's folder; None for a run in memory."""
        return self._directory.folder

    @property
    def broken_examples(self) -> Tensor:
        """Number of non-finite gradients of each client, `[n_clients]`. It has no noise, so it is not private."""
        return torch.cat([*self._mesh.clients.all_gather_object(self._release_path.sums.broken_examples)])

    def count_duplicates(self) -> ownership.DuplicateCounts:
        """Counts the training examples that equal other training examples or test examples. The numbers have no noise,
        so they are not private.
        """
        fingerprints = stages.all_example_fingerprints(self.population, self._mesh)
        test = self._evaluation.public.test
        return self._mesh.world.broadcast(lambda: ownership.count_duplicates(self.population, test, fingerprints))

    def spent(self) -> PrivacySpent:
        """Returns a tight upper bound on the spending so far."""
        return self._mesh.world.broadcast(self._release_path.accountant.spent)

    def any_process(self, is_so: bool) -> bool:
        """True if a condition holds in any process of the run; all processes call it together."""
        return self._mesh.max_clients(float(is_so)) > 0

    def _charged(self) -> PrivacySpent:
        """Returns the privacy cost of the run if it ends now."""
        return self._release_path.accountant.charged_at_end(self._monitor.why_ended(self.progress), self.progress.round)

    def result(self) -> Result:
        """Returns the result so far; the result of a finished run is also in its folder.

        If the run stopped before its plan ended, the stop may depend on data, so epsilon counts all planned releases,
        unless the run ended at its target epsilon. If clients' models differ, each model is tested on 1000 test
        examples.

        Raises:
            PrivacyError: If a forward pass changed a frozen parameter or a buffer.
        """
        with self._modes.fixed():
            return self._make_result()

    def _make_result(self) -> Result:
        """Returns the result so far, computed in the torch modes that the calling function has set."""
        self._check_constants()
        if not self._monitor.is_over:
            self._check_state()
        return self._with_model(self._final or self._outcome())

    def _outcome(self) -> Result:
        """Returns the result so far without its model; all processes call it together."""
        mesh = self._mesh
        shard = self._data.shard
        state = replace(self.progress, models=sharding.gather_rows(self.progress.models, shard, mesh))
        constraint_measures = self.measures.of_constraints(state, self.oracle, mesh, shard)
        return mesh.world.broadcast(lambda: self._result(state, constraint_measures))

    def _with_model(self, result: Result) -> Result:
        """Returns a result with a module of its parameters."""
        model = self._model_with(result.params)
        record_result(model, str(result.spent))
        return replace(result, model=model)

    def _result(self, state: TrainState, constraint_measures: dict[str, Any]) -> Result:
        """Returns the result without its model, since some model classes cannot be sent to other processes."""
        privacy = self.plan.privacy
        monitor = self._monitor
        kept = monitor.best.of(state)
        params = model_metrics.average_reported_models(kept)
        ended = monitor.why_ended(self.progress)
        metrics, node_metrics = monitor.log.final_metrics(kept)
        test_accuracy = metrics.pop("test_accuracy", None)
        test_loss = metrics.pop("test_loss", None)

        measures = {
            **self.measures.of_run(state),
            "spectral_gap": self.network.spectral_gap,
            **metrics,
            **node_metrics,
            **self.measures.by_name(kept),
            **monitor.best.in_words(),
        }
        n_frozen = count_frozen_parameters(self.population.model)
        if n_frozen:
            measures["parameters"] = {"trained": self.population.dim, "frozen": n_frozen}
        measures["backend"] = {"name": self._data.backend}
        if self._data.why_not_faster:
            measures["backend"]["refused"] = self._data.why_not_faster

        seconds = self._seconds
        if privacy.hides_round_size or self._hides_sizes:
            seconds = float(f"{seconds:.0e}")  # the exact time would reveal how many were drawn, or how many there are
        node_params = params.expand(self._data.shard.n_clients, -1)
        if model_metrics.models_differ(kept):
            node_params = kept.models.clone()
        return Result(
            strategy=self.strategy.name,
            rounds=state.round,
            planned_rounds=self.rounds,
            test_accuracy=test_accuracy,
            test_loss=test_loss,
            ended=ended,
            spent=self._charged(),
            releases=len(self.ledger.records),
            seconds=seconds,
            params_l2=float(params.double().norm()),
            noise_multiplier=privacy.noise_multiplier,
            measures={**measures, **constraint_measures},
            gradient_evaluations=sum(self.plan.evaluations[: state.round]),
            optimality_gap=self.measures.optimality_gap(params),
            first_nonfinite=dict(monitor.health.first),
            reports=tuple(monitor.log.rows),
            params=params.clone(),
            node_params=node_params,
            model=nn.Module(),
            charged=self._release_path.accountant.records(ended, state.round),
            run_name=self._identity.name,
            target=privacy.epsilon,
        )

    def linked(self, result: Result) -> dict[str, Any]:
        """Returns the contents of `result.json`: the result, software versions, and the ledger's last hash."""
        head = self.ledger.mark.head
        facts: dict[str, Any] = strict_json.to_plain({**result.to_json(), "software": get_software_versions()})
        if head is None:
            return facts
        return with_chain({**facts, "head": head}, head)

    def _model_with(self, params: Tensor) -> nn.Module:
        """Returns a copy of the model with these parameters `[dim]`, in eval mode."""
        # a copy of the client's model that has processed no example
        model = copy_module(self.population.clients[0].model).eval()
        self.population.layout.write(params, model)
        return model
