"""The privacy cost of a run, computed without data.

The strategy runs with an oracle that returns zeros for a model of one parameter and lists the releases. This works for
any strategy, also a custom one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from fedpriv.clients.augmentation import Augmentation
from fedpriv.clients.public_info import PublicDataInfo
from fedpriv.errors import ConfigError, LedgerError, format_count, summarize_error
from fedpriv.models.problem import Problem
from fedpriv.network.graph import Graph
from fedpriv.network.local import Star
from fedpriv.network.rounds import RoundNetwork, initial_state, run_rounds, server_view
from fedpriv.oracle.dry_run import RecordingEngine, recording_oracle
from fedpriv.oracle.oracle import Oracle
from fedpriv.planning import compatibility
from fedpriv.planning.correlated_rounds import check_queries, with_matrix
from fedpriv.planning.impulses import compute_responses
from fedpriv.privacy.accounting.accountant import account
from fedpriv.privacy.accounting.calibration import calibrate, calibrate_rest, delta_warning
from fedpriv.privacy.accounting.spent import PrivacySpent, round_up
from fedpriv.privacy.correlated import Factor
from fedpriv.privacy.float64_noise import float64_noise_of_run
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.pairwise import Links, Pairwise, Topology, sort_pairs
from fedpriv.privacy.record import Record
from fedpriv.privacy.record_table import RecordTable
from fedpriv.privacy.release import release_scheme
from fedpriv.privacy.release.table import ReleaseTable
from fedpriv.privacy.settings import LEAST_AMOUNT, Cyclic, Privacy
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Ends, PeriodicQueries, Strategy

BEFORE = -1
"""Round of the releases of an earlier run that a run counts: they were made before its first round."""
_MOST_NOISE = 10.0  # times the noise of the first rounds: more would drown the signal of the further rounds


@dataclass(frozen=True)
class FirstPart:
    """The rounds of an earlier run that a run extends, or the releases of an earlier run that it only counts.

    Attributes:
        rounds: Number of these rounds; 0 if the run has rounds of its own only.
        records: The releases of the earlier run, from the ledger.
    """

    rounds: int
    records: tuple[Record, ...]

    @staticmethod
    def counted(records: Sequence[Record]) -> FirstPart:
        """Returns the releases of an earlier run as releases before the first round of a run that counts them."""
        return FirstPart(0, tuple(record.changed(round=BEFORE, index=index) for index, record in enumerate(records)))

    @staticmethod
    def of(ledger: LedgerFile) -> FirstPart | None:
        """Returns the rounds of the earlier run that the run of a ledger extends; None if it extends no run.

        Raises:
            LedgerError: If the ledger is damaged, or contains fewer records than the earlier run had.
        """
        extended = ledger.header.extended
        if extended is None:
            return None
        if len(ledger.records) < extended.records:
            fix = "part of the ledger is lost: restore the file from a copy"
            raise LedgerError(f"{ledger.path} lacks records of the run that it extends; {fix}")
        return FirstPart(extended.rounds, tuple(ledger.records[: extended.records]))


@dataclass(frozen=True)
class Plan:
    """A run's releases and the noise that they need.

    Attributes:
        privacy: The settings with their noise multiplier filled in.
        releases: The releases that the run may make, without the releases of an earlier run that it extends.
        records: The records of these releases. If the run extends an earlier run, the records of the earlier run come
            first.
        n_clients: Number of clients.
        evaluations: Expected number of per-example gradients in each round.
        queries: Names of the queries that the strategy makes.
        calibrated: True if the noise was computed from the target epsilon, so that the whole plan meets the target.
        first: The rounds of the earlier run that this run extends; None if there is none.
        float64_noise: Noise that will be added in float64 and that the records do not mark as float64.
        not_covered: Information about the data that the run will reveal and epsilon does not cover, in words.
    """

    privacy: Privacy
    releases: ReleaseTable
    records: RecordTable
    n_clients: int
    evaluations: Sequence[float] = ()
    queries: frozenset[str] = frozenset()
    calibrated: bool = False
    first: FirstPart | None = None
    float64_noise: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()

    def spent(self) -> PrivacySpent:
        """Returns a tight upper bound on the cost of the whole run."""
        spent = account(self.records, self.n_clients, self.privacy.delta)
        return replace(spent, float64_noise=(*spent.float64_noise, *self.float64_noise), not_covered=self.not_covered)

    @property
    def enforced_target(self) -> float | None:
        """The target epsilon if the whole run stays within it; None without a target, or if an earlier run has already
        spent more.
        """
        target = self.privacy.epsilon
        if target is None or self.first is None:
            return target
        earlier = account(self.first.records, self.n_clients, self.privacy.delta)
        return target if earlier.epsilon <= target else None

    @property
    def comparable_epsilon(self) -> float | None:
        """The epsilon of the whole run, for use as the target epsilon of other settings; None if no noise can be
        computed for this target.

        No noise can be computed for epsilon 0 (noise that hides everything, or a run without releases) and for infinite
        epsilon.
        """
        epsilon = self.spent().epsilon
        if LEAST_AMOUNT <= epsilon <= 1 / LEAST_AMOUNT:
            return epsilon
        return None

    def on(self, device: torch.device, before: tuple[str, ...] = ()) -> Plan:
        """Returns this plan for noise that is drawn on a device.

        Args:
            device: The device.
            before: The reason why all noise of earlier rounds is float64 noise, in words.
        """
        now = float64_noise_of_run(self.privacy, device)
        return replace(self, float64_noise=tuple(dict.fromkeys((*before, *now))))

    def warnings(self, sizes: Sequence[int]) -> list[str]:
        """Returns warnings about too little noise for the target epsilon, and about a delta that is too large for
        clients of these sizes.
        """
        privacy = self.privacy
        warnings = list[str]()
        if not privacy.private:
            return warnings
        if privacy.epsilon is not None and not self.calibrated and self.spent().epsilon > privacy.epsilon:
            warnings.append(
                f"noise_multiplier={privacy.noise_multiplier:g} is too small for epsilon={privacy.epsilon:g}: the run "
                "will stop early, before its epsilon exceeds this target; leave noise_multiplier out, and it is "
                "computed such that all rounds fit"
            )
        epoch = privacy.allocation_rounds
        rounds = len(self.evaluations)
        if epoch is not None and rounds % epoch:
            warnings.append(_cut_epoch(epoch, rounds))
        delta_text = delta_warning(privacy.delta, sum(sizes) if privacy.unit == "sample" else len(sizes))
        if delta_text:
            warnings.append(delta_text)
        return warnings


def _cut_epoch(length: int, rounds: int) -> str:
    done = rounds % length
    return (
        f"the last epoch of random allocation ends after {done} of {length} rounds but costs as much as a whole "
        f"epoch: rounds={rounds - done + length} costs the same epsilon"
    )


def make_plan(
    strategy: Strategy,
    privacy: Privacy,
    sizes: Sequence[int],
    network: RoundNetwork,
    *,
    rounds: int,
    randomness: Randomness | None = None,
    begun: Factor | None = None,
    first: FirstPart | None = None,
) -> Plan:
    """Lists a run's releases and calibrates their noise to the target.

    Args:
        strategy: The algorithm.
        privacy: The privacy settings; with a target `epsilon` and no `noise_multiplier` the noise is computed.
        sizes: Public number of examples of each client.
        network: Determines the participants of a round.
        rounds: Number of rounds.
        randomness: The run's random streams, so that the plan has the cohorts of the run.
        begun: The matrix of the noise of a resumed run, from its ledger.
        first: The rounds of the earlier run that this run extends. Their releases count towards epsilon, and their
            noise is not changed.

    Raises:
        ConfigError: If the network is for another number of clients, settings do not fit the strategy, no noise reaches
            the target, or rounds with correlated noise would be extended.
    """
    compatibility.check_size(network, len(sizes))
    strategy = strategy.for_rounds(rounds)
    randomness = randomness or Randomness(0)
    privacy = with_secrets(privacy, network)
    # a matrix may be optimised for how the strategy passes on noise, which is followed with independent noise
    without_matrix = privacy
    privacy = with_matrix(
        privacy,
        network,
        rounds,
        lambda: compute_responses(strategy, without_matrix, network, rounds, randomness),
        begun,
    )
    compatibility.check(strategy, privacy, network, len(sizes))
    compatibility.check_extended(privacy, rounds, None if first is None else first.rounds)
    if privacy.private:
        relative = replace(privacy, epsilon=None, noise_multiplier=1.0)
    else:
        relative = privacy
    # a dry run with a noise multiplier of 1; then the cost of each kind of release is computed with the run's noise
    oracle = recording_oracle(relative, sizes)
    _dry_run(strategy, oracle, network, randomness, rounds)
    table = oracle.engine.table
    n_clients = len(sizes)
    check_queries(privacy, table.records, rounds)
    compatibility.check_shares(privacy, table.records, n_clients)
    records = table.records
    if first is not None:
        table = table.since(first.rounds)
    factor = privacy.noise_multiplier
    if privacy.private:
        if factor is None and first is not None:
            factor = _noise_of_further(first, privacy, sizes, records, table)
        elif factor is None:
            assert privacy.epsilon is not None
            factor = calibrate(records, n_clients, privacy.epsilon, privacy.delta)
        table = _with_noise(table, privacy, sizes, factor)
    records = table.records
    if first is not None:
        records = RecordTable.of(first.records) + records
    return Plan(
        replace(privacy, noise_multiplier=factor),
        table,
        records,
        n_clients,
        oracle.engine.evaluations,
        frozenset(oracle.engine.names),
        calibrated=privacy.private and privacy.noise_multiplier is None,
        first=first,
    )


def _with_noise(table: ReleaseTable, privacy: Privacy, sizes: Sequence[int], factor: float) -> ReleaseTable:
    return table.priced(release_scheme(replace(privacy, noise_multiplier=factor), sizes))


def _noise_of_further(
    first: FirstPart, privacy: Privacy, sizes: Sequence[int], relative: RecordTable, further: ReleaseTable
) -> float:
    """Returns the noise multiplier of further rounds with which all rounds together meet the target.

    Args:
        first: The rounds of the earlier run.
        privacy: The privacy settings.
        sizes: Public number of examples of each client.
        relative: The records of all rounds for a noise multiplier of 1.
        further: The releases of the further rounds for a noise multiplier of 1.

    Raises:
        ConfigError: If the rest of the target epsilon is too small for the further rounds. The message contains the
            cost of the further rounds with the noise of the first rounds.
    """
    assert privacy.epsilon is not None
    first_multiplier = _noise_multiplier_of(first, relative)
    n_clients, delta = len(sizes), privacy.delta
    try:
        factor = calibrate_rest(first.records, further.records, n_clients, privacy.epsilon, delta)
    except ConfigError:
        if first_multiplier == 0:
            raise
        factor = math.inf
    if first_multiplier == 0 or factor <= first_multiplier * _MOST_NOISE:
        return factor
    spent = round_up(account(first.records, n_clients, delta).epsilon)
    longer = [*first.records, *_with_noise(further, privacy, sizes, first_multiplier).records]
    whole = round_up(account(longer, n_clients, delta).epsilon)
    fix = (
        f"the first {format_count(first.rounds, 'round')} spent {spent}, which leaves too little for more rounds. "
        f"With the same noise, all rounds together cost {whole}: set privacy.epsilon={whole}, or a "
        "noise_multiplier for the further rounds"
    )
    raise ConfigError("privacy.epsilon", privacy.epsilon, fix)


def _noise_multiplier_of(first: FirstPart, relative: RecordTable) -> float:
    """Returns the noise multiplier of an earlier run, which is its noise divided by the noise of a dry run with
    multiplier 1.
    """
    planned = {
        (record.round, record.query, record.index): largest_multiplier(record.noise_multiplier)
        for record in relative[: relative.positions(first.rounds).start]
    }
    ratios = list[float]()
    for record in first.records:
        multiplier = planned.get((record.round, record.query, record.index), 0.0)
        if multiplier > 0:
            ratios.append(largest_multiplier(record.noise_multiplier) / multiplier)
    return max(ratios, default=0.0)


def largest_multiplier(multiplier: float | tuple[float, ...]) -> float:
    """Returns the largest of the noise multipliers of a record; 0 without participants."""
    if isinstance(multiplier, tuple):
        return max(multiplier, default=0.0)
    return multiplier


def _dry_run(
    strategy: Strategy,
    oracle: Oracle[RecordingEngine],
    network: RoundNetwork,
    randomness: Randomness,
    rounds: int,
) -> None:
    """Runs the strategy against the recording oracle, for the first period of rounds only if its queries repeat.

    Raises:
        ConfigError: If the strategy's options lead to numbers that overflow.
    """
    step = strategy.local_step
    privacy = oracle.privacy
    progress = initial_state(strategy, torch.zeros(1, 1).expand(oracle.n_clients, 1))
    may_repeat = privacy.private and isinstance(network, Graph) and not isinstance(progress.server, Ends)
    first = rounds
    if may_repeat and isinstance(step, PeriodicQueries) and step.period is not None:
        first = min(step.period, rounds)
    try:
        view = server_view(network, privacy)
        for _ in run_rounds(strategy, oracle, network, progress, randomness, rounds=first, seen=view):
            pass
    except ArithmeticError as error:
        fix = (
            f"its options lead to numbers outside the floating-point range ({summarize_error(error)}): use other "
            "options"
        )
        raise ConfigError("strategy", strategy.name, fix) from error
    if first < rounds and isinstance(network, Graph):
        oracle.engine.repeat(first, rounds, lambda index: network.active(index, randomness))


def with_neighbours(privacy: Privacy, problems: Sequence[Problem], *, sizes_declared: bool) -> Privacy:
    """Fills in `Privacy.invariants`: exact numbers about the data, such as sizes, that a run uses without noise.

    Args:
        privacy: The privacy settings.
        problems: The clients' objectives and constraints.
        sizes_declared: True if each client has a declared `public_size` (then its true size stays private).
    """
    invariants = list[str]()
    # the number of clients is always exact: no client declares another one
    count_changes = privacy.relation == "add_remove" and (privacy.unit == "client" or not sizes_declared)
    if count_changes or (privacy.unit == "client" and not sizes_declared):
        invariants.append("sizes public")
    if privacy.statistics.public_counts and any(problem.counts_are_public for problem in problems):
        invariants.append("within group")
    if privacy.unit == "sample" and isinstance(privacy.sampling, Cyclic):
        invariants.append("same blocks")
    return replace(privacy, invariants=", ".join(invariants))


@dataclass(frozen=True)
class RunSketch:
    """A run that has no data yet.

    Attributes:
        strategy: The algorithm.
        privacy: The privacy settings.
        network: The network.
        rounds: Number of rounds.
        outline: The public facts of the data.
        problems: The clients' objectives and constraints.
        model: The model that is trained.
        loss: The loss that is minimised.
        seed: Public seed of cohorts and links.
        augmentation: Random views of examples, if there are any.
        sizes_declared: True if each client has a declared `public_size`.
        first: The releases of an earlier run that this one counts.
    """

    strategy: Strategy
    privacy: Privacy
    network: Star | Graph
    rounds: int
    outline: PublicDataInfo
    problems: Sequence[Problem]
    model: nn.Module
    loss: nn.Module
    seed: int = 0
    augmentation: Augmentation | None = None
    sizes_declared: bool = False
    first: FirstPart | None = None

    def plan(self, privacy: Privacy | None = None, first: FirstPart | None = None) -> Plan:
        """Returns the run's plan; see `make_plan`.

        Args:
            privacy: Privacy settings other than the run's.
            first: The rounds of an earlier run that this one extends; by default the sketch's own `first`.
        """
        first = first or self.first
        privacy = with_neighbours(privacy or self.privacy, self.problems, sizes_declared=self.sizes_declared)
        randomness = Randomness(self.seed)
        sizes = self.outline.sizes
        return make_plan(
            self.strategy, privacy, sizes, self.network, rounds=self.rounds, randomness=randomness, first=first
        )


def with_secrets(privacy: Privacy, network: RoundNetwork) -> Privacy:
    """Fills in the pairs of clients that share secrets, if the setting is that neighbours in the network share them.

    Raises:
        ConfigError: If the network is not a graph.
    """
    trust = privacy.trust
    if not (isinstance(trust, Pairwise) and isinstance(trust.secrets, Topology)):
        return privacy
    if not isinstance(network, Graph):
        fix = "the network has no graph: use complete or random_regular, or set network.topology"
        raise ConfigError("privacy.trust.pairwise.secrets", "topology", fix)
    links = Links(sort_pairs(network.graph.edges), str(trust.secrets))
    return replace(privacy, trust=replace(trust, secrets=links))
