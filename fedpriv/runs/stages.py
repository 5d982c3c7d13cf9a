"""The stages of a run before its first round, in the order in which they happen.

Each function computes one stage from the stages before it:

    Experiment       settings that are consistent; no data were read and no random numbers drawn
    OpenRun          the folder, the starting point of the run, its seeds
    Plan             the planned releases, their noise and privacy cost (`fedpriv.planning.plan`)
    BudgetReservation   the share of a lifetime budget (`fedpriv.runs.budget_reservation`)
    LocalData        the examples in this process, which are read here for the first time
    Evaluation       public test data and metrics
    ReleasePath      accountant, ledger and oracle, the only path from data to released values

`Training` holds the stages and computes the rounds. With several processes, every rank passes through every stage;
writing, drawing and decisions are done on the main process and broadcast.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpriv import models
from fedpriv.clients import loaders, ownership
from fedpriv.clients.arguments import check_clients
from fedpriv.clients.client import Client
from fedpriv.clients.client_set import as_client_set, public_sizes
from fedpriv.clients.data_fingerprints import DataFingerprints
from fedpriv.clients.examples import check_kinds
from fedpriv.clients.layout import Layout, checksum_constants
from fedpriv.clients.population import Population
from fedpriv.clients.shard import ClientShard
from fedpriv.distributed.mesh import Mesh
from fedpriv.errors import ConfigError
from fedpriv.evaluation.best_model import BestModel
from fedpriv.evaluation.early_stopping import EarlyStopping
from fedpriv.evaluation.finite_check import FiniteCheck
from fedpriv.evaluation.model_metrics import ModelMetrics
from fedpriv.models.problem import Problem
from fedpriv.network import sharding
from fedpriv.network.rounds import RoundNetwork, TrainState, initial_state
from fedpriv.network.state_store import StateStore
from fedpriv.oracle.backend_selection import make_backend, select_backend
from fedpriv.oracle.backends.threaded import wrap_in_threads
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.data_query_engine import DataQueryEngine, data_oracle
from fedpriv.oracle.lost_rounds import LostRoundsEngine
from fedpriv.oracle.oracle import Oracle
from fedpriv.oracle.state_check import StateCheck, copy_unused_backend
from fedpriv.oracle.validation import validate_per_example
from fedpriv.planning import compatibility, privacy_warnings
from fedpriv.planning.advice import warn_of_missing_network
from fedpriv.planning.arguments import check_measuring
from fedpriv.planning.compute import Compute
from fedpriv.planning.plan import Plan, make_plan, with_neighbours
from fedpriv.planning.reach import reach_warnings
from fedpriv.privacy.ledger import FollowerLedger, Ledger
from fedpriv.privacy.settings import Privacy
from fedpriv.runs.budget_reservation import BudgetReservation
from fedpriv.runs.checkpoint import Checkpoint
from fedpriv.runs.described_settings import describe_settings
from fedpriv.runs.evaluation_data import EvaluationData
from fedpriv.runs.extending import EarlierRun, get_common_settings
from fedpriv.runs.identity import KNOWN_NOISE, Draws, RunIdentity, check_models, digest_settings, restore_state
from fedpriv.runs.metric_log import MetricLog
from fedpriv.runs.monitor import RunMonitor
from fedpriv.runs.options import TrainingOptions
from fedpriv.runs.preceding import PrecedingRun, check_preceding
from fedpriv.runs.run_accountant import RunAccountant
from fedpriv.runs.run_directory import RunDirectory
from fedpriv.runs.settings_text import format_settings
from fedpriv.strategies.base import Strategy

# --- stage 1: the experiment ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Experiment:
    """The resolved settings of a run: the model, the algorithm and the privacy settings.

    Attributes:
        clients: The data owners.
        strategy: The algorithm, made for this number of rounds.
        privacy: The privacy settings, including `invariants`: the facts that neighbouring data sets must share because
            the problem needs them.
        network: The communication network.
        rounds: Number of rounds.
        sizes: Public number of examples of each client.
        problems: The distinct problems (objectives and constraints) of the clients.
        compute: The settings of the computation, which affect speed only.
        device: Device of this process.
    """

    clients: Sequence[Client]
    strategy: Strategy
    privacy: Privacy
    network: RoundNetwork
    rounds: int
    sizes: Sequence[int]
    problems: list[Problem]
    compute: Compute
    device: torch.device

    @property
    def hides_sizes(self) -> bool:
        """True if a client of a private run declared its size, so that its true number of examples is secret."""
        return self.privacy.private and next(as_client_set(self.clients).declared(), None) is not None


def resolve_experiment(options: TrainingOptions, compute: Compute, mesh: Mesh) -> Experiment:
    """Checks the settings and computes derived settings, without reading data or drawing random numbers.

    Raises:
        ConfigError: If settings cannot work.
    """
    clients = options.clients
    check_clients(clients)
    check_measuring(options.test, options.client_tests, options.metrics)
    if not clients:
        raise ConfigError("clients", [], "a run needs at least one client")
    models.validate_model(clients[0].model)
    client_set = as_client_set(clients)
    problems = list({id(problem): problem for problem in client_set.problems}.values())
    return Experiment(
        clients=clients,
        strategy=options.strategy.for_rounds(options.rounds),
        privacy=with_neighbours(options.privacy, problems, sizes_declared=client_set.sizes_declared),
        network=compatibility.choose_network(len(clients), options.network),
        rounds=options.rounds,
        sizes=public_sizes(clients, options.privacy),
        problems=problems,
        compute=compute,
        device=sharding.local_device(compute.start(), mesh),
    )


# --- stage 2: the folder, the starting point of the run, its seeds
# -------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A run's folder, its starting point, and its seeds.

    Attributes:
        directory: The run's files.
        identity: Digest of its settings, and its randomness.
        resumed: The checkpoint of this run from which it resumes; None for a new run and for one that extends another
            run.
        earlier: The finished run that this one extends; None for any other run.
        state: The state from which the run continues; None for a new run.
        preceding: The finished run whose releases a new run counts; None for any other run.
    """

    directory: RunDirectory
    identity: RunIdentity
    resumed: Checkpoint | None
    earlier: EarlierRun | None
    state: TrainState | None
    preceding: PrecedingRun | None = None

    @property
    def counted(self) -> EarlierRun | PrecedingRun | None:
        """The run with whose releases the ledger of a new run begins; None if there is none."""
        return self.earlier or self.preceding

    @property
    def origin(self) -> Checkpoint | None:
        """The checkpoint that contains the state from which this run starts. It belongs to this run or to the run that
        it extends; None for a new run.
        """
        if self.earlier is not None:
            return self.earlier.checkpoint
        return self.resumed

    @property
    def origin_folder(self) -> Path | None:
        """The folder of `origin`, for errors."""
        if self.earlier is not None:
            return self.earlier.folder
        return self.directory.path

    @property
    def float64_noise(self) -> tuple[str, ...]:
        """Reasons why all noise of the run's rounds so far was float64 noise, as text."""
        if self.counted is not None:
            return self.counted.float64_noise
        if self.resumed is None or self.directory.path is None:
            return ()
        return self.directory.float64_noise()

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Facts about the data that the run's rounds so far reveal and epsilon does not cover, as text."""
        if self.counted is not None:
            return self.counted.not_covered
        if self.resumed is None or self.directory.path is None:
            return ()
        return self.directory.not_covered()


def open_run(experiment: Experiment, options: TrainingOptions, directory: RunDirectory, mesh: Mesh) -> OpenRun:
    """Reads the checkpoint from which the run continues, and draws its randomness.

    Raises:
        ConfigError: If settings of the computation cannot work, or a run cannot be extended with these options.
        FedprivError: If a folder holds no run, or a run with other settings.
    """
    clients = experiment.clients
    strategy = experiment.strategy
    privacy = experiment.privacy
    compute = experiment.compute
    model = clients[0].model
    loss = clients[0].loss
    earlier = _read_earlier(options, directory, experiment.device, mesh)
    resumed = None
    if options.resume:
        resumed = mesh.world.broadcast(lambda: directory.last(experiment.device))
    preceding = None
    if resumed is None:  # the ledger of a resumed run begins with these releases
        preceding = _read_preceding(options, len(clients), mesh)
    if earlier is not None:
        compatibility.check_extended(privacy, experiment.rounds, earlier.first.rounds)
    compatibility.check_compute(compute, strategy, experiment.network, privacy, model, loss)
    origin = resumed
    if earlier is not None:
        origin = earlier.checkpoint
    if origin is not None:
        compute.check_resumable(origin.client_state)

    identity = _identify(experiment, options, directory, mesh, resumed=resumed, earlier=earlier)
    run = OpenRun(directory, identity, resumed, earlier, None, preceding)
    if origin is None:
        return run
    blank = initial_state(strategy, torch.zeros(1, 1).expand(len(clients), 1))  # with the strategy's state variables
    return replace(run, state=restore_state(origin, blank, run.origin_folder))


def _identify(
    experiment: Experiment,
    options: TrainingOptions,
    directory: RunDirectory,
    mesh: Mesh,
    *,
    resumed: Checkpoint | None,
    earlier: EarlierRun | None,
) -> RunIdentity:
    """Computes the digest of the settings, and draws the randomness of this process.

    Raises:
        FedprivError: If the run to resume or to extend was made with other settings; the message names them.
    """
    clients = experiment.clients
    privacy = experiment.privacy
    compute = experiment.compute
    settings = digest_settings(
        clients,
        options.settings,
        options.seed,
        experiment.strategy,
        privacy,
        experiment.rounds,
        experiment.network,
        experiment.sizes,
        compute.numbers,
        clients[0].loss,
    )
    fixed_settings = _fixed_settings(experiment, options)
    words = _words(experiment, options)
    words = words if resumed is not None else words | directory.config_in_words()
    draws = Draws(options.secret_seed, private=privacy.private)

    def on_main() -> RunIdentity:
        if resumed is not None:
            return RunIdentity.resumed(settings, resumed, directory.path, draws, words)
        if earlier is not None:
            return RunIdentity.extended(settings, earlier.checkpoint, earlier.folder, draws, words, fixed_settings)
        return RunIdentity.new(settings, options.seed, draws, words)

    identity = RunIdentity.from_main(mesh.world.broadcast(lambda: on_main().for_ranks()))
    return replace(identity, rounds=experiment.rounds, fixed_settings=fixed_settings)


def _words(experiment: Experiment, options: TrainingOptions) -> dict[str, str]:
    """Returns the settings as text, for the error that names differences."""
    return format_settings(
        strategy=experiment.strategy,
        privacy=experiment.privacy,
        rounds=experiment.rounds,
        network=experiment.network,
        sizes=experiment.sizes,
        seed=options.seed,
        numbers=experiment.compute.numbers,
        model=experiment.clients[0].model,
        loss=experiment.clients[0].loss,
    )


def _fixed_settings(experiment: Experiment, options: TrainingOptions) -> str:
    """Returns a digest of the settings that a run shares with one that extends it."""
    return digest_settings(
        experiment.clients,
        experiment.strategy,
        get_common_settings(experiment.privacy),
        experiment.network,
        experiment.sizes,
        options.seed,
        experiment.compute.numbers,
        experiment.clients[0].loss,
    )


def _read_earlier(
    options: TrainingOptions, directory: RunDirectory, device: torch.device, mesh: Mesh
) -> EarlierRun | None:
    """Reads the finished run that this one extends; None if it extends none.

    Raises:
        ConfigError: If these options cannot be combined with extending a run.
        FedprivError: If there is no such run, or it is unfinished.
    """
    extend = options.extend
    if extend is None:
        return None
    if options.resume:
        fix = "a run that was extended is resumed like any other: set resume, and leave extend out"
        raise ConfigError("extend", str(extend), fix)
    if mesh.world.world_size > 1:
        raise ConfigError("extend", str(extend), "a run is extended in one process: leave out --processes")
    if directory.path is not None and directory.path.resolve() == Path(extend).resolve():
        raise ConfigError(
            "folder", str(extend), "is the folder of the earlier run, which must stay as it is: use another folder"
        )
    return EarlierRun.read(extend, device)


def _read_preceding(options: TrainingOptions, n_clients: int, mesh: Mesh) -> PrecedingRun | None:
    """Reads the finished run whose releases this one counts; None if there is none.

    Raises:
        ConfigError: If these options cannot be combined with an earlier run.
        FedprivError: If there is no such run, or it is unfinished.
    """
    after = options.after
    if after is None:
        return None
    if options.extend is not None:
        fix = "cannot be combined with extend, which includes all releases of the extended run: leave one of them out"
        raise ConfigError("after", str(after), fix)
    if mesh.world.world_size > 1:
        raise ConfigError("after", str(after), "needs a run in one process: leave out --processes")
    return PrecedingRun.read(after, n_clients)


# --- stage 3: the planned releases, and the check of the budget
# ----------------------------------------------------------


def plan_run(experiment: Experiment, run: OpenRun, options: TrainingOptions, mesh: Mesh) -> Plan:
    """Lists the releases by a dry run without data, calibrates their noise, and checks that all settings fit them.

    Raises:
        ConfigError: If settings do not fit the strategy's queries, or no amount of noise reaches the target epsilon.
    """

    def on_main() -> Plan:
        matrix = None
        first = None
        if run.counted is not None:
            first = run.counted.first
        elif run.resumed is not None:
            matrix = run.directory.matrix()
            first = run.directory.first_part()
        return make_plan(
            experiment.strategy,
            experiment.privacy,
            experiment.sizes,
            experiment.network,
            rounds=experiment.rounds,
            randomness=run.identity.randomness,
            begun=matrix,
            first=first,
        )

    plan: Plan = mesh.world.broadcast(on_main).on(experiment.device, run.float64_noise)
    check_preceding(plan)
    compatibility.check_problem(
        experiment.strategy, experiment.problems, experiment.privacy, plan.queries, compare=options.compare_centralized
    )
    compatibility.check_shared(
        mesh.world.world_size,
        experiment.compute,
        experiment.clients,
        experiment.network,
        experiment.privacy,
        plan.queries,
        optimum=options.optimum,
        compare=options.compare_centralized,
    )
    return plan


def not_covered(privacy: Privacy, options: TrainingOptions, run: OpenRun) -> tuple[str, ...]:
    """Returns the facts about the data that the run reveals, in earlier or in future rounds, and that epsilon does not
    cover.
    """
    from_now_on = privacy_warnings.not_covered(privacy, options.optimum)
    if privacy.private and options.secret_seed is not None:
        from_now_on = (*from_now_on, KNOWN_NOISE)
    return tuple(dict.fromkeys((*run.not_covered, *from_now_on)))


def check_budget(plan: Plan, run: OpenRun, reveals: tuple[str, ...], mesh: Mesh) -> BudgetReservation | None:
    """Returns the run's reservation in a lifetime budget, checked but not yet charged.

    Returns None without a budget, and in processes other than the main process.

    Raises:
        PrivacyError: If the budget does not allow the plan.
        LedgerError: If the budget cannot be read, or the run began with another one.
    """
    if not mesh.is_main:
        return None
    reservation = BudgetReservation.of(
        plan,
        run.identity.name,
        run.directory.path,
        is_resumed=run.resumed is not None,
        not_covered=reveals,
        earlier=run.counted,
    )
    if reservation is not None:
        reservation.check()
    return reservation


# --- stage 4: the data -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LocalData:
    """The clients of this process with their examples, and the computation on them.

    Attributes:
        shard: Indices of the clients in this process.
        population: Their examples, model and loss.
        fingerprints: Keyed digests of the examples, by which a resume detects changed data.
        start: The initial parameters of all clients, `[dim]`.
        backend: Name of the backend that computes clipped sums of gradients.
        why_not_faster: Why faster backends were rejected; empty if none was.
        constants: Checksums of frozen parameters and buffers, which no forward pass may change.
        identity: The run's identity, now with the digest of its model.
        warnings: Warnings about properties of data and model that weaken privacy or cost time.
    """

    shard: ClientShard
    population: Population
    fingerprints: DataFingerprints
    start: Tensor
    backend: str
    why_not_faster: str
    constants: Tensor
    identity: RunIdentity
    warnings: list[str]


def load_public_data(options: TrainingOptions, mesh: Mesh) -> EvaluationData:
    """Returns public test data and metrics, on the main process, which is the only one that reports.

    Raises:
        ConfigError: If there are metrics without test data, or test sets or names for another number of clients.
    """
    if not mesh.is_main:
        return EvaluationData.nothing()
    return EvaluationData.create(
        options.test, options.client_tests, options.metrics, options.stop, options.client_names, len(options.clients)
    )


def load_data(experiment: Experiment, run: OpenRun, public: EvaluationData, mesh: Mesh) -> LocalData:
    """Reads the examples, checks data and model, and chooses the backend.

    Raises:
        ConfigError: If data, loss and model do not fit together.
        DataError: If examples cannot be read or used.
        PrivacyError: If examples have several owners.
        FedprivError: If the run continues from a run with other data or another model.
    """
    clients = experiment.clients
    compute = experiment.compute
    origin = run.origin
    shared_memory = ownership.check_ownership(clients, public.everything, experiment.privacy)

    # the examples of this process's clients; a resumed run splits batches as before
    chunk_before = None
    if origin is not None:
        chunk_before = origin.max_physical_batch_size
    chunk = compute.examples_at_once(experiment.device, Layout.of(clients[0].model).dim, chunk_before)
    shard = sharding.shard_clients(ClientShard.whole(clients), mesh)
    local_clients = shard.select(clients)
    dtype = getattr(torch, compute.dtype)
    population = Population(local_clients, experiment.device, dtype, chunk, shard, pad_batches=compute.pad_batches)
    check_kinds(mesh.world.all_gather_object(population.kind))
    sharding.check_replicated(lambda: ownership.example_fingerprints(population), mesh)
    fingerprints = _check_same_data(population, run, experiment.privacy, mesh)

    # model and loss: the same everywhere, right for single examples, and fast if that gives the same numbers
    start = population.reset_models(mesh.world.broadcast(population.reset_models))
    model_warnings = mesh.clients.all_gather_object(validate_per_example(population, experiment.privacy))
    backend, slow, why_not_faster = mesh.world.broadcast(
        lambda: select_backend(compute.backend, population, chunk, compute.precision).report
    )
    compatibility.check_batched(experiment.problems, population.model, slow)
    identity = run.identity.with_model(population.model, origin, run.origin_folder)
    check_models(mesh.world.all_gather_object(identity.model))
    loader_warnings = mesh.clients.all_gather_object(
        loaders.list_ignored_settings(local_clients, experiment.privacy, is_random=population.examples.random)
    )
    return LocalData(
        shard=shard,
        population=population,
        fingerprints=fingerprints,
        start=start,
        backend=backend,
        why_not_faster=why_not_faster,
        constants=checksum_constants(population.model),
        identity=identity,
        warnings=[
            *_distinct(model_warnings),
            *_distinct([*loader_warnings, shared_memory]),
            *public.warn_of_copies(experiment.sizes, experiment.privacy),
            *slow,
        ],
    )


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The measurements of a run's models.

    Attributes:
        public: Public data that models are tested on.
        measures: Computes metrics.
        stopping: Number of rounds without improvement of the metric of `stop`.
        health: First rounds in which a value was not finite.
        warnings: Metrics that are left out, with reasons.
        best: The models of the round with the best test metric; up to date on the main process only.
    """

    public: EvaluationData
    measures: ModelMetrics
    stopping: EarlyStopping
    health: FiniteCheck
    warnings: list[str]
    best: BestModel


def prepare_evaluation(
    experiment: Experiment,
    run: OpenRun,
    data: LocalData,
    public: EvaluationData,
    options: TrainingOptions,
    mesh: Mesh,
) -> Evaluation:
    """Tests the metrics on the first model, and restores the metrics of earlier rounds.

    Raises:
        ConfigError: If test data or metrics do not fit the model; or if the run to extend ended for a reason that would
            end this run at once.
        DataError: If test data cannot be read or used.
        PrivacyError: If test data are copies of training data.
    """
    population = data.population
    origin = run.origin
    evaluator = public.evaluator(population.model, population.loss, batched=experiment.compute.backend != "loop")
    _check_test_data(public, population, experiment.privacy, mesh)
    warnings = list[str]()
    if evaluator is not None:
        evaluator.try_out(data.start)
        warnings = evaluator.warnings
    stored = dict[str, float]()
    first_nonfinite = dict[str, int]()
    if origin is not None:
        stored = origin.stopping
        first_nonfinite = origin.first_nonfinite
    compatibility.check_keep(options.keep, experiment.problems)
    names: Collection[str] = ()
    if public.stop is not None or options.keep == "best":
        names = public.metric_names(evaluator, data.start)
    stopping = mesh.world.broadcast(lambda: _stopping(public, names, experiment).restored(stored))
    best = mesh.world.broadcast(lambda: BestModel.begin(options.keep, names, public.stop))
    if origin is not None:
        best = best.restored(origin.kept)
    health = FiniteCheck(options.stop_on, first_nonfinite)
    if run.earlier is not None and (health.stops or stopping.stops):
        fix = (
            "this run cannot be extended: its model is not finite, or its metric stopped improving, so further "
            "rounds would end at once"
        )
        raise ConfigError("extend", str(run.earlier.folder), fix)
    central = None
    if options.compare_centralized:
        central = data.start
    client_tests = public.client_tests(evaluator)
    measures = ModelMetrics(
        population, experiment.strategy, evaluator, options.optimum, central, client_tests, public.names
    )
    return Evaluation(public, measures, stopping, health, warnings, best)


def _stopping(public: EvaluationData, names: Collection[str], experiment: Experiment) -> EarlyStopping:
    """Returns the early stopping of a run before its first round."""
    if public.stop is None:
        return EarlyStopping()
    return public.stop.begin(names, experiment.rounds, private=experiment.privacy.private)


def all_example_fingerprints(population: Population, mesh: Mesh) -> list[list[bytes]]:
    """Returns the fingerprints of every client's examples, of all processes."""
    return list(chain.from_iterable(mesh.clients.all_gather_object(ownership.example_fingerprints(population))))


def _check_same_data(population: Population, run: OpenRun, privacy: Privacy, mesh: Mesh) -> DataFingerprints:
    """Compares the data with those at the start of the run; see `fedpriv.clients.data_fingerprints`."""
    stored = None
    if run.origin is not None:
        stored = run.origin.data
    key = mesh.world.broadcast(lambda: secrets.token_bytes(32))
    fingerprints = DataFingerprints(stored, key, is_fixed=privacy.orders_examples)
    if mesh.world.broadcast(lambda: run.directory.path is not None):
        fingerprints.watch(population)
        fingerprints.merge(mesh.clients.all_gather_object(fingerprints.stored()))
    return fingerprints


def _check_test_data(public: EvaluationData, population: Population, privacy: Privacy, mesh: Mesh) -> None:
    """Raises an error for test data that are copies of the training examples of all processes."""
    count = sum(mesh.clients.all_gather_object(int(population.counts.sum())))
    if mesh.world.broadcast(lambda: public.as_many(count, privacy)):
        public.check(population, all_example_fingerprints(population, mesh))


def _distinct(warnings: Iterable[Iterable[str]]) -> list[str]:
    """Returns the warnings of all processes, each once."""
    return list(dict.fromkeys(chain.from_iterable(warnings)))


# --- stage 5: the only way from data to released values ---------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ReleasePath:
    """The only path from data to released values. Every query result is clipped, noised, counted and recorded before it
    is released.

    Attributes:
        accountant: The epsilon of the run.
        ledger: The ledger of the run's releases; in processes other than the main process, an object that follows this
            ledger.
        sums: Clipped sums of gradients of this process's clients.
        oracle: Computes the results of the strategy's queries.
        state_check: Tests if the run's code kept state from earlier examples; None in a run without privacy.
        first_round: The first round with new releases. Each release is made only once, so a resumed run releases
            nothing in rounds that are already in the ledger.
        lost_oracle: Oracle for the rounds before `first_round`; it returns zeros, without access to the data.
    """

    accountant: RunAccountant
    ledger: Ledger | FollowerLedger
    sums: ClippedSums
    oracle: Oracle[DataQueryEngine]
    state_check: StateCheck | None
    first_round: int
    lost_oracle: Oracle[LostRoundsEngine]


def open_release_path(
    experiment: Experiment,
    run: OpenRun,
    plan: Plan,
    data: LocalData,
    reservation: BudgetReservation | None,
    reveals: tuple[str, ...],
    options: TrainingOptions,
    mesh: Mesh,
) -> ReleasePath:
    """Opens the accountant, the ledger and the oracle.

    Raises:
        LedgerError: If the ledger in the folder belongs to another run or is damaged, or a new one cannot be written.
    """
    randomness = run.identity.randomness
    accountant = RunAccountant(plan, randomness.attempt, reveals, plan.float64_noise)
    settings = None
    if run.directory.path is not None:
        settings = describe_settings(experiment, options)
    ledger = _open_ledger(accountant, run, plan, reservation, reveals, settings, mesh)
    backend = make_backend(data.backend, data.population, data.population.chunk, experiment.compute.precision)
    unused = copy_unused_backend(backend)
    backend = wrap_in_threads(backend, insist=experiment.compute.threads is not None)
    if plan.privacy.private:
        state_check = StateCheck(data.population, backend, unused)
    else:
        state_check = None
    sums = ClippedSums(backend, len(data.population), experiment.device, mesh.examples)
    oracle = data_oracle(
        data.population,
        sums,
        plan.privacy,
        ledger,
        randomness,
        sum_clients=mesh.sum_clients,
        max_clients=mesh.max_clients,
        table=plan.releases,
    )
    oracle.engine.prepare(plan.queries)
    first_round = mesh.world.broadcast(lambda: _first_round(run, plan, ledger))
    lost = LostRoundsEngine(data.population, is_aggregate=oracle.is_aggregate)
    lost_oracle = Oracle(oracle.queries, lost, data.population.params)
    return ReleasePath(accountant, ledger, sums, oracle, state_check, first_round, lost_oracle)


def _first_round(run: OpenRun, plan: Plan, ledger: Ledger | FollowerLedger) -> int:
    """Returns the first round with new releases, on the main process."""
    if run.origin is None:
        return 0
    finished = run.origin.round
    if run.resumed is None or not plan.privacy.private or not isinstance(ledger, Ledger):
        return finished
    first_round = max(ledger.next_round, finished)
    # an epoch is over if its secret draw was lost with the process: another draw would have an additional cost
    epoch_rounds = plan.privacy.allocation_rounds
    if epoch_rounds is not None and first_round % epoch_rounds:
        epoch = first_round // epoch_rounds
        if epoch not in run.identity.randomness.epochs:
            first_round = (epoch + 1) * epoch_rounds
    return min(first_round, len(plan.evaluations))


def warn_of_lost_rounds(run: OpenRun, path: ReleasePath) -> list[str]:
    """Returns a warning if query results of some rounds were lost when the run stopped, else an empty list."""
    if run.resumed is None or path.first_round <= run.resumed.round:
        return []
    first = run.resumed.round + 1
    return [
        f"rounds {first} to {path.first_round} were released before this run was stopped, or belong to an epoch "
        "that was interrupted. Their privacy cost was charged once and remains; their results are lost, and "
        "count as zero. A smaller checkpoint_every loses fewer rounds"
    ]


def _open_ledger(
    accountant: RunAccountant,
    run: OpenRun,
    plan: Plan,
    reservation: BudgetReservation | None,
    reveals: tuple[str, ...],
    settings: dict[str, Any] | None,
    mesh: Mesh,
) -> Ledger | FollowerLedger:
    """Opens the ledger in the main process, and an object that follows it in the other processes."""
    finished = 0
    if run.origin is not None:
        finished = run.origin.round

    def on_main() -> Ledger:
        budget_id = None
        if reservation is not None:
            budget_id = reservation.budget.terms.id
        ledger = run.directory.ledger(
            accountant.guard,
            plan,
            run.identity.name,
            run.resumed,
            budget=budget_id,
            earlier=run.counted,
            float64_noise=plan.float64_noise,
            not_covered=reveals,
            settings=settings,
        )
        if reservation is not None:
            # a copy of the folder may have released them
            missing = [record for record in plan.records if ledger.next_round <= record.round < reservation.seen]
            ledger.note(accountant.allowed(missing))
        accountant.follow(ledger, finished)
        return ledger

    return sharding.open_ledger(on_main, mesh)


# --- the first state --------------------------------------------------------------------------------------------------


def load_first_state(
    experiment: Experiment, run: OpenRun, data: LocalData, store: StateStore, mesh: Mesh
) -> TrainState:
    """Returns the state of this process's clients at the start of the next round."""
    local_state = None
    if run.state is not None:
        local_state = sharding.shard_state(run.state, data.shard, mesh)
    # a process without clients also has one row: the row of the client with the model that it borrows
    n_rows = len(data.population.clients)
    return store.begin(experiment.strategy, data.start.expand(n_rows, -1), local_state)


def read_seconds_before(run: OpenRun) -> float:
    """Returns the seconds that the rounds so far have taken."""
    if run.origin is None:
        return 0.0
    return run.origin.seconds


def make_monitor(
    experiment: Experiment,
    run: OpenRun,
    evaluation: Evaluation,
    path: ReleasePath,
    options: TrainingOptions,
    mesh: Mesh,
) -> RunMonitor:
    """Returns the monitor that watches and reports the rounds, with the rows of rounds before a resume."""
    rows = list[dict[str, Any]]()
    if run.earlier is not None:
        rows = run.earlier.rows
    elif run.resumed is not None:
        finished = run.resumed.round
        rows = mesh.world.broadcast(lambda: run.directory.rows(finished))
    is_void = mesh.world.broadcast(lambda: isinstance(path.ledger, Ledger) and path.ledger.is_void)
    return RunMonitor(
        strategy=experiment.strategy,
        rounds=experiment.rounds,
        target=experiment.privacy.epsilon,
        log=MetricLog(evaluation.measures, options.evaluate_every, rows),
        accountant=path.accountant,
        health=evaluation.health,
        stopping=evaluation.stopping,
        is_void=is_void,
        best=evaluation.best,
    )


def collect_warnings(experiment: Experiment, plan: Plan, data: LocalData, options: TrainingOptions) -> list[str]:
    """Returns warnings about weaker privacy or longer run time: from the plan, and from data and model."""
    model = experiment.clients[0].model
    by_plan = privacy_warnings.privacy_warnings(
        plan, experiment.sizes, model, optimum=options.optimum, secret_seed=options.secret_seed
    )
    by_network = list[str]()
    if options.network is None:
        by_network = warn_of_missing_network(experiment.strategy, len(experiment.clients), "python")
    of_reach = reach_warnings(
        experiment.strategy, plan.privacy, experiment.network, experiment.rounds, float(data.start.norm())
    )
    return [*by_plan, *by_network, *of_reach, *data.warnings]
