"""Refuse combinations of settings that do not work together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedpriv.clients.client import Client, Loss
from fedpriv.clients.lazy import LazyClients
from fedpriv.errors import ConfigError, counted
from fedpriv.models.problem import Problem
from fedpriv.network.graph import Graph
from fedpriv.network.local import Star
from fedpriv.network.rounds import ClientInput, RoundNetwork, client_update, initial_state, run_rounds
from fedpriv.oracle.backends import choose
from fedpriv.oracle.backends.precision import check_bfloat16
from fedpriv.oracle.synthetic import random_oracle
from fedpriv.planning.compute import Compute
from fedpriv.planning.rounds_together import blocks_of
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.pairwise import Pairwise
from fedpriv.privacy.record_table import RecordTable
from fedpriv.privacy.settings import Central, Privacy
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.fedavg import LocalSteps
from fedpriv.strategies.proximal import Zero
from fedpriv.strategies.state import has_rows, shared_leaves

N = TypeVar("N", bound=RoundNetwork)


def network_for(n_clients: int, network: N | None) -> N | Star:
    """Returns the network of a run: the given one, or a star of all clients if it is None.

    Raises:
        ConfigError: the network was made for another number of clients.
    """
    if network is None:
        return Star(n_clients)
    check_size(network, n_clients)
    return network


def check_size(network: RoundNetwork, n_clients: int) -> None:
    """Refuses a network for another number of clients, which would leave clients out or wait for missing ones.

    Raises:
        ConfigError: the numbers differ.
    """
    if network.n_clients != n_clients:
        fix = f"the run has {counted(n_clients, 'client')}: make the {type(network).__name__} for {n_clients}"
        raise ConfigError("network.n_clients", network.n_clients, fix)


def check(strategy: Strategy, privacy: Privacy, network: RoundNetwork, n_clients: int) -> None:
    """Refuse a strategy for which the privacy settings would not hold.

    Raises:
        ConfigError: with noise on messages only, clients keep state that is not computed from messages, by their
            declaration or by a test with random answers; messages would be clipped to another norm than their own; or
            only sums may be seen, and sums of messages depend on more than sums of private answers.
    """
    step = strategy.local_step
    trust = str(privacy.trust)
    bound = strategy.message_norm
    name = type(step).__name__
    if privacy.at == "message" and bound is not None and privacy.clip != Clip(bound, "l2"):
        fix = f"messages of {strategy.name} have l2 norm {bound:g}: use {{norm: l2, bound: {bound:g}}}"
        raise ConfigError("privacy.clip", f"{{norm: {privacy.clip.norm}, bound: {privacy.clip.bound:g}}}", fix)
    if privacy.at == "message" and step.memory != "none":
        raise ConfigError(
            "privacy.at",
            "message",
            f"{name} keeps state that is not a function of released messages and would enter later messages un-noised; "
            "set at to 'gradient'",
        )
    if privacy.private and privacy.at == "message":
        check_memory(strategy, n_clients)
    if privacy.statistics.ratio and not isinstance(privacy.trust, Pairwise):
        fix = "is for noise that cancels between pairs: leave it out, or use pairwise trust"
        raise ConfigError("privacy.statistics.ratio", privacy.statistics.ratio, fix)
    if privacy.private and isinstance(privacy.trust, Pairwise) and privacy.trust.colluders >= n_clients:
        fix = f"at most all but one of {n_clients} clients collude against that one: give at most {n_clients - 1}"
        raise ConfigError("privacy.trust.pairwise.colluders", privacy.trust.colluders, fix)
    if not privacy.trust.sums_only:
        return
    in_turns = privacy.over_time is not None and blocks_of(network) > 1
    if isinstance(privacy.trust, Central) and not network.everyone and not in_turns:
        rate = 0.1
        if isinstance(network, Star | Graph):
            rate = network.active_fraction
        fix = (
            f"with central trust cohorts are drawn in secret: set its cohort_rate to {rate:.4g}, and leave "
            "network.cohort out"
        )
        raise ConfigError("network.cohort", _cohort_of(network), fix)
    if privacy.cohort_rounds is not None and not network.everyone:
        fix = "cohort_rounds draws the clients of each round in secret; leave network.cohort out"
        raise ConfigError("network.cohort", _cohort_of(network), fix)
    if not strategy.aggregator.is_sum:
        raise ConfigError("privacy.trust", trust, f"{type(strategy.aggregator).__name__} needs single messages")
    if privacy.at == "gradient" and not step.linear:
        fix = f"sums of {name}'s messages are not sums of private answers; use local trust"
        if isinstance(step, LocalSteps) and step.local_steps == 1:
            fix += (
                ", or plain steps of the clients, without an optimizer, and the momentum at the server: fedavg with "
                "server_momentum, or fedopt for the kin of Adam"
            )
        if privacy.unit == "client" and step.memory == "none":
            fix += ", or let the noise be on what clients send, privacy.at: message"
        raise ConfigError("privacy.trust", trust, fix)
    if step.memory != "none" and not network.everyone:
        raise ConfigError(
            "network.cohort",
            _cohort_of(network),
            f"messages of {name} hold answers of earlier rounds, which sums over another cohort would not cover; let "
            "everyone take part, or use a strategy without memory such as fedavg",
        )
    if privacy.at == "gradient":
        check_linear(strategy, n_clients, network)


def _cohort_of(network: RoundNetwork) -> object:
    """Returns who takes part in a round, for an error."""
    if isinstance(network, Star):
        return network.cohort
    if isinstance(network, Graph):
        return network.activity
    return "not everyone"


def check_compute(
    compute: Compute, strategy: Strategy, network: RoundNetwork, privacy: Privacy, model: nn.Module, loss: Loss
) -> None:
    """Refuse settings of speed that do not suit the run.

    Raises:
        ConfigError: the promise is not shown for bfloat16; the backend is for other models; or state is to be on disk
            where the strategy's clients keep nothing, or a round needs the state of all of them.
    """
    if compute.precision == "bfloat16":
        check_bfloat16(privacy, compute.dtype, compute.backend)
    if compute.backend != "auto":
        choose(compute.backend, model, loss)
    state = compute.state
    if state == "memory":
        return
    if not has_rows(strategy.local_step.init(torch.zeros(1, 1))):
        fix = f"clients of {strategy.name} keep nothing between rounds (what a server keeps is in memory); leave it out"
        raise ConfigError("compute.state", state, fix)
    if network.everyone and not privacy.samples_clients_before_compute:
        fix = "every client takes part in every round, which needs all state in memory; leave it out, or draw cohorts"
        raise ConfigError("compute.state", state, fix)


def check_shared(
    size: int,
    compute: Compute,
    clients: Sequence[Client],
    network: RoundNetwork,
    privacy: Privacy,
    query_names: Collection[str],
    *,
    optimum: float | None,
    compare: bool,
) -> None:
    """Refuses what several processes cannot do yet; one process can do everything.

    Args:
        size: Number of processes.
        compute: Where clients' state is kept.
        clients: All clients of the run.
        network: Who sends messages to whom.
        privacy: The privacy settings.
        query_names: Names of the queries that the strategy makes.
        optimum: Smallest value of the objective, if the gap to it is to be reported.
        compare: Whether the problem is solved with all data in one place, too.

    Raises:
        ConfigError: a setting needs one process; the message names it.
    """
    if size == 1:
        return
    alone = "train in one process (leave out --processes, or engine 'local' of compute)"
    if compute.state != "memory":
        raise ConfigError("compute.state", compute.state, f"is for one process: take memory, or {alone}")
    if not isinstance(network, Star | Graph):
        fix = f"only a star or a graph can be shared by processes: {alone}"
        raise ConfigError("network", type(network).__name__, fix)
    if isinstance(clients, LazyClients):
        fix = f"clients that are read when they are drawn are for one process: take make_clients, or {alone}"
        raise ConfigError("clients", "lazy_clients", fix)
    if privacy.published is not None:
        fix = f"a paper's noise may depend on the data of all clients, which no process has: {alone}"
        raise ConfigError("strategy.variant", "published", fix)
    if optimum is not None:
        fix = f"the gap to it is computed on the data of all clients in one process: leave it out, or {alone}"
        raise ConfigError("log.optimum", optimum, fix)
    if compare:
        raise ConfigError("problem.compare", True, f"it needs all data in one process: leave it out, or {alone}")
    if "exact" in query_names and size > len(clients) // 2:
        fix = f"for exact answers every process needs two clients: give at most {max(len(clients) // 2, 1)}"
        raise ConfigError("processes", size, fix)


def check_extended(privacy: Privacy, rounds: int, before: int | None) -> None:
    """Refuse to extend a run that cannot be extended.

    Args:
        privacy: The privacy settings of the run, its noise over time filled in.
        rounds: Its number of rounds.
        before: How many of these an earlier run has made; None for a run that extends none.

    Raises:
        ConfigError: there are no further rounds; or the noise of all rounds belongs together, and was made for the
            rounds that were planned.
    """
    if before is None:
        return
    if rounds <= before:
        fix = f"is the number of all rounds, and the run has made {before}: give more"
        raise ConfigError("rounds", rounds, fix)
    if privacy.over_time is not None:
        fix = (
            "noise that is correlated between rounds, and batches or cohorts that take turns, were made and priced for "
            f"the planned {before} rounds: begin a new run"
        )
        raise ConfigError("extend", before, fix)
    epoch = privacy.allocation_rounds
    if epoch is not None and before % epoch:
        fix = (
            f"the run ended within an epoch of random allocation, which has {epoch} rounds and is charged whole: "
            "extend runs of whole epochs, or begin a new run"
        )
        raise ConfigError("extend", before, fix)


def check_linear(strategy: Strategy, n_clients: int, network: RoundNetwork, rounds: int = 3) -> None:
    """Tests whether a strategy that declares itself `linear` is: sums of its messages depend on sums of answers only.

    Two runs get answers with the same sum that are spread differently over the clients; their first messages, summed,
    must agree. This finds mistakes, but proves nothing: only a few random answers are tried.

    Raises:
        ConfigError: the sums differ.
    """
    messages: list[Tensor] = []
    for spread in (0.0, 1.0):
        start = initial_state(strategy, torch.zeros(n_clients, 2, dtype=torch.float64))
        oracle = random_oracle(n_clients, rounds, spread)
        rounds_made = run_rounds(strategy, oracle, network, start, Randomness(0), rounds=rounds)
        messages.append(torch.stack([result.progress.received[0] for result in rounds_made]))
    if not torch.allclose(messages[0], messages[1], rtol=1e-6, atol=1e-9):
        raise ConfigError(
            "privacy.trust",
            "secure_aggregation",
            f"{type(strategy.local_step).__name__} calls itself linear, but what it sends depends on more than the sum "
            "of the answers; use local trust",
        )


def check_memory(strategy: Strategy, n_clients: int) -> None:
    """Tests whether a local step that declares no private `memory` keeps nothing of its answers.

    In two runs clients get other answers in the first round, and the same ones at the same point in the second; what
    they send then must agree. This finds mistakes, but proves nothing: only a few random answers are tried.

    Raises:
        ConfigError: the messages differ.
    """
    start = initial_state(strategy, torch.zeros(n_clients, 2, dtype=torch.float64))
    everyone = torch.arange(n_clients)
    messages: list[Tensor] = []
    for seed in (1, 2):
        local = start.local
        message = start.received
        for index, seed_of_round in enumerate((seed, 0)):
            oracle = random_oracle(n_clients, rounds=2, seed=seed_of_round)
            call = ClientInput(index, everyone, start.received, shared_leaves(local))
            message, local = client_update(strategy, oracle, call, local)
        messages.append(message)
    if not torch.equal(messages[0], messages[1]):
        raise ConfigError(
            "strategy.local_step.memory",
            strategy.local_step.memory,
            f"{type(strategy.local_step).__name__} keeps something of its answers, which have no noise where it is on "
            "messages, and a later message depends on it: write 'private', and set at to 'gradient'",
        )


def check_shares(privacy: Privacy, records: RecordTable, n_clients: int) -> None:
    """Refuses a run in which no round has the `min_honest` participants that its noise needs.

    Raises:
        ConfigError: the largest cohort, which the message names, is smaller.
    """
    required = privacy.trust.shares(n_clients)
    largest_cohort = max(records.sizes(n_clients), default=required)
    if privacy.trust.sums_only and largest_cohort < required:
        fix = f"a round has at most {largest_cohort} participants, who share the noise; give at most that many"
        raise ConfigError("privacy.trust.secure_aggregation.min_honest", required, fix)


def check_batched(problems: Sequence[Problem], model: nn.Module, warnings: Sequence[str]) -> None:
    """Refuse constraints on a model that is computed one example at a time because vmap cannot batch it.

    Args:
        problems: The clients' objectives and constraints.
        model: Their model.
        warnings: Warnings from the choice of a backend, why it computes one example at a time.

    Raises:
        ConfigError: there are such constraints.
    """
    if warnings and not all(problem.is_mean_loss for problem in problems):
        fix = f"values of constraints need a model that vmap can batch: {warnings[0]}"
        raise ConfigError("problem.constraints", type(model).__name__, fix)


def check_keep(keep: str, problems: Sequence[Problem]) -> None:
    """Refuses to choose the best model by a metric in a run with constraints.

    Raises:
        ConfigError: the problems have constraints, of which the metric knows nothing.
    """
    if keep == "best" and any(problem.constraints for problem in problems):
        fix = (
            "a test metric knows nothing of the constraints, and could choose a model that violates them: leave it out"
        )
        raise ConfigError("keep", keep, fix)


def check_problem(
    strategy: Strategy, problems: Sequence[Problem], privacy: Privacy, query_names: Collection[str], *, compare: bool
) -> None:
    """Refuse a strategy that does not fit the clients' objectives and constraints.

    Args:
        strategy: The algorithm.
        problems: The clients' objectives and constraints.
        privacy: The privacy settings.
        query_names: Names of the queries that the strategy makes.
        compare: Whether the run is compared with a centralised solver.

    Raises:
        ConfigError: the strategy would ignore an objective or a constraint; it asks for private constraint values, and
            there are none, or they are unbounded, or need group sizes that are not public; or `compare` is set for a
            strategy that has no centralised counterpart.
    """
    needs_sums = "lagrangian_gradient" in query_names or ("statistic:constraints" in query_names and privacy.private)
    sees_problem = needs_sums or not {"exact", "statistic:constraints"}.isdisjoint(query_names)
    if privacy.private and needs_sums:
        _check_public(strategy, problems, privacy)
    if compare and (privacy.private or not sees_problem):
        fix = "only an exact run of proximal_al (privacy.at 'none') has a centralised counterpart; leave it out"
        raise ConfigError("problem.compare", True, fix)
    if compare and not isinstance(strategy.regularizer.remainder, Zero):
        fix = f"the centralised solver takes no regulariser or l2, not {strategy.regularizer}; leave it out"
        raise ConfigError("problem.compare", True, fix)
    if needs_sums:
        for term in (term for problem in problems for term in problem.terms if term.sums() is None):
            fix = (
                f"nothing bounds what one example adds to it, and {strategy.name} takes sums of losses alone: "
                "LossAtMost, ClassLossAtMost, GroupLossGap. Use those, or proximal_al with privacy.at 'none'"
            )
            raise ConfigError("problem", type(term).__name__, fix)
    for problem in problems:
        if not (sees_problem or problem.is_mean_loss):
            names = ", ".join(type(term).__name__ for term in problem.terms)
            fix = f"{strategy.name} minimises the mean loss and would ignore it; use private_al or proximal_al"
            raise ConfigError("problem", names, fix)


def _check_public(strategy: Strategy, problems: Sequence[Problem], privacy: Privacy) -> None:
    """Refuses private constraint values where there are no constraints, or where they would reveal private counts."""
    if privacy.unit == "client":
        fix = "constraint values cannot be made private for whole clients; set unit to 'sample'"
        raise ConfigError("privacy.unit", "client", fix)
    if not any(problem.constraints for problem in problems):
        fix = f"{strategy.name} spends a part of its budget on their values; give some, or use fedavg or dp_gd"
        raise ConfigError("problem.constraints", [], fix)
    if not any(problem.counts_are_public for problem in problems):
        return
    if not privacy.statistics.public_counts:
        fix = (
            "a constraint divides by the number of a client's examples in a group, which must be public: state the "
            "group's public fraction in the constraint, or set privacy.statistics.public_counts: true"
        )
        raise ConfigError("privacy.statistics.public_counts", False, fix)
    if privacy.relation == "add_remove":
        fix = "presence shows in the counts; state the groups' public fractions, or set relation to 'replace_one'"
        raise ConfigError("privacy.statistics.public_counts", True, fix)
