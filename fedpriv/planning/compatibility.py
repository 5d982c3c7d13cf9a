"""Checks of combinations of settings that do not work together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from fedpriv.clients.client import Client, Loss
from fedpriv.clients.lazy import LazyClients
from fedpriv.errors import ConfigError, format_count
from fedpriv.models.problem import Problem
from fedpriv.network.graph import Graph
from fedpriv.network.local import Star
from fedpriv.network.rounds import ClientInput, RoundNetwork, client_update, initial_state, run_rounds
from fedpriv.oracle.backends import build_backend
from fedpriv.oracle.backends.precision import check_bfloat16
from fedpriv.oracle.synthetic import random_oracle
from fedpriv.planning.compute import Compute
from fedpriv.planning.correlated_rounds import count_blocks
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.pairwise import Pairwise
from fedpriv.privacy.record_table import RecordTable
from fedpriv.privacy.settings import Central, Local, Privacy, SecureAggregation
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.fedavg import LocalSteps
from fedpriv.strategies.proximal import Zero
from fedpriv.strategies.state import has_rows, shared_leaves

N = TypeVar("N", bound=RoundNetwork)


def choose_network(n_clients: int, network: N | None) -> N | Star:
    """Returns the network of a run: the given one, or a star of all clients if it is None.

    Raises:
        ConfigError: If the network was made for another number of clients.
    """
    if network is None:
        return Star(n_clients)
    check_size(network, n_clients)
    return network


def check_size(network: RoundNetwork, n_clients: int) -> None:
    """Raises an error for a network of another number of clients, which would leave clients out or wait for missing
    ones.

    Raises:
        ConfigError: If the numbers differ.
    """
    if network.n_clients != n_clients:
        fix = f"the run has {format_count(n_clients, 'client')}: create the {type(network).__name__} for {n_clients}"
        raise ConfigError("network.n_clients", network.n_clients, fix)


def check(strategy: Strategy, privacy: Privacy, network: RoundNetwork, n_clients: int) -> None:
    """Raises an error for a strategy with which the privacy settings would not hold.

    Raises:
        ConfigError: If noise is added to messages only, but clients keep state that is not computed from messages (by
            their declaration or by a test with random query results); if messages would be clipped to another norm than
            the declared `message_norm`; if the server may see only sums, but sums of messages depend on more than sums
            of private query results; or if this function has no rules for the trust assumption.
    """
    step = strategy.local_step
    bound = strategy.message_norm
    name = type(step).__name__
    if privacy.noise_on == "message" and bound is not None and privacy.clip != Clip(bound, "l2"):
        fix = f"messages of {strategy.name} have l2 norm {bound:g}: use {{norm: l2, bound: {bound:g}}}"
        raise ConfigError("privacy.clip", f"{{norm: {privacy.clip.norm}, bound: {privacy.clip.bound:g}}}", fix)
    if privacy.noise_on == "message" and step.memory != "none":
        raise ConfigError(
            "privacy.noise_on",
            "message",
            f"clients of {name} keep state that does not depend on released messages alone, and this state would enter "
            "later messages without noise; set privacy.noise_on to 'gradient'",
        )
    if privacy.private and privacy.noise_on == "message":
        check_memory(strategy, n_clients)
    if privacy.statistics.ratio and not isinstance(privacy.trust, Pairwise):
        fix = "applies only to noise that cancels between pairs of clients: leave the ratio out, or use pairwise trust"
        raise ConfigError("privacy.statistics.ratio", privacy.statistics.ratio, fix)
    if privacy.private and isinstance(privacy.trust, Pairwise) and privacy.trust.colluders >= n_clients:
        fix = f"must be at most {n_clients - 1}: of the {n_clients} clients, at least one must not be a colluder"
        raise ConfigError("privacy.trust.pairwise.colluders", privacy.trust.colluders, fix)
    trust = privacy.trust
    if isinstance(trust, Central | SecureAggregation):
        _check_sums(strategy, privacy, network, n_clients)
    # under Local and Pairwise each message is noised; a trust that is added later must add its own rules here
    elif not isinstance(trust, Local | Pairwise):  # pyright: ignore[reportUnnecessaryIsInstance]
        fix = (
            "it is not known which strategies keep the guarantee of this trust: add rules for it to "
            "fedpriv/planning/compatibility.py"
        )
        raise ConfigError("privacy.trust", str(trust), fix)


def _check_sums(strategy: Strategy, privacy: Privacy, network: RoundNetwork, n_clients: int) -> None:
    """Raises an error if sums of the strategy's messages depend on more than sums of private query results."""
    step = strategy.local_step
    trust = str(privacy.trust)
    name = type(step).__name__
    in_turns = privacy.over_time is not None and count_blocks(network) > 1
    if isinstance(privacy.trust, Central) and not network.everyone and not in_turns:
        rate = 0.1
        if isinstance(network, Star | Graph):
            rate = network.active_fraction
        fix = (
            f"central trust draws its cohorts in secret: set its cohort_rate to {rate:.4g}, and leave "
            "network.cohort out"
        )
        raise ConfigError("network.cohort", _cohort_of(network), fix)
    if privacy.cohort_rounds is not None and not network.everyone:
        fix = "cohort_rounds draws the clients of each round in secret; leave network.cohort out"
        raise ConfigError("network.cohort", _cohort_of(network), fix)
    if not strategy.aggregator.is_sum:
        raise ConfigError(
            "privacy.trust",
            trust,
            f"{type(strategy.aggregator).__name__} needs each client's message, but this trust reveals only sums: use "
            "local trust",
        )
    if privacy.noise_on == "gradient" and not step.linear:
        fix = f"sums of {name}'s messages are not sums of private query results; use local trust"
        if isinstance(step, LocalSteps) and step.local_steps == 1:
            fix += (
                ", or plain client updates without an optimizer, with momentum at the server: fedavg with "
                "server_momentum, or fedopt for adaptive optimizers such as Adam"
            )
        if privacy.unit == "client" and step.memory == "none":
            fix += ", or noise on messages, privacy.noise_on: message"
        raise ConfigError("privacy.trust", trust, fix)
    if step.memory != "none" and not network.everyone:
        raise ConfigError(
            "network.cohort",
            _cohort_of(network),
            f"messages of {name} contain query results of earlier rounds, which sums over another cohort would "
            "not cover; use all clients, or a strategy without memory such as fedavg",
        )
    if privacy.noise_on == "gradient":
        check_linear(strategy, n_clients, network)


def _cohort_of(network: RoundNetwork) -> object:
    """Describes the participants of a round, for an error."""
    if isinstance(network, Star):
        return network.cohort
    if isinstance(network, Graph):
        return network.activity
    return "not everyone"


def check_compute(
    compute: Compute, strategy: Strategy, network: RoundNetwork, privacy: Privacy, model: nn.Module, loss: Loss
) -> None:
    """Raises an error for settings of the computation that do not suit the run.

    Raises:
        ConfigError: If the guarantee is not proved for bfloat16; if the backend does not support the model; or if the
            clients' state should be on disk, but the strategy's clients keep no state, or a round needs the state of
            all clients.
    """
    if compute.precision == "bfloat16":
        check_bfloat16(privacy, compute.dtype, compute.backend)
    if compute.backend != "auto":
        build_backend(compute.backend, model, loss)
    state = compute.client_state
    if state == "memory":
        return
    if not has_rows(strategy.local_step.init(torch.zeros(1, 1))):
        fix = (
            f"clients of {strategy.name} keep no state between rounds, and the server's state is always in memory; "
            "leave this setting out"
        )
        raise ConfigError("compute.client_state", state, fix)
    if network.everyone and not privacy.samples_clients_before_compute:
        fix = (
            "every client takes part in every round, so all state must be in memory; leave this setting out, or draw "
            "cohorts"
        )
        raise ConfigError("compute.client_state", state, fix)


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
    """Raises an error for settings that several processes do not support; one process supports everything.

    Args:
        size: Number of processes.
        compute: The settings of the computation, which include the location of clients' state.
        clients: All clients of the run.
        network: The network.
        privacy: The privacy settings.
        query_names: Names of the queries that the strategy makes.
        optimum: Smallest value of the objective, if the gap to it is to be reported.
        compare: True if the problem is also solved with all data in one place.

    Raises:
        ConfigError: If a setting needs one process; the message names the setting.
    """
    if size == 1:
        return
    alone = "train in one process (without --processes, or with compute.parallelism 'none')"
    if compute.client_state != "memory":
        fix = f"works in one process only: use memory, or {alone}"
        raise ConfigError("compute.client_state", compute.client_state, fix)
    if not isinstance(network, Star | Graph):
        fix = f"only a star or a graph can be divided among processes: {alone}"
        raise ConfigError("network", type(network).__name__, fix)
    if isinstance(clients, LazyClients):
        fix = f"lazy clients work in one process only: use make_clients, or {alone}"
        raise ConfigError("clients", "lazy_clients", fix)
    if privacy.published is not None:
        fix = f"a paper's noise may depend on the data of all clients, which no single process has: {alone}"
        raise ConfigError("strategy.variant", "published", fix)
    if optimum is not None:
        fix = (
            "the gap to the optimum is computed on the data of all clients in one process: leave log.optimum out, or "
            f"{alone}"
        )
        raise ConfigError("log.optimum", optimum, fix)
    if compare:
        raise ConfigError(
            "problem.compare_centralized",
            True,
            f"the comparison needs all data in one process: leave this setting out, or {alone}",
        )
    if "exact" in query_names and size > len(clients) // 2:
        fix = (
            f"exact query results need at least two clients in every process: use at most {max(len(clients) // 2, 1)} "
            "processes"
        )
        raise ConfigError("processes", size, fix)


def check_extended(privacy: Privacy, rounds: int, before: int | None) -> None:
    """Raises an error for a run that cannot be extended.

    Args:
        privacy: The privacy settings of the run, its correlated noise filled in.
        rounds: Its number of rounds.
        before: Number of these rounds that an earlier run has made, 0 if the run only counts the releases of an earlier
            run; None if there is no earlier run.

    Raises:
        ConfigError: If there are no further rounds; or if the noise is correlated between rounds, because its matrix is
            made for the number of rounds that was planned first.
    """
    if before is None:
        return
    if rounds <= before:
        fix = f"is the total number of rounds, but the earlier run already has {before} rounds: use a larger number"
        raise ConfigError("rounds", rounds, fix)
    if privacy.over_time is not None and before == 0:
        fix = (
            "a run with correlated noise, cyclic batches or cyclic cohorts cannot count releases of an earlier run: "
            "account for both runs with a lifetime budget (privacy.budget)"
        )
        raise ConfigError("after", "(the earlier run)", fix)
    if privacy.over_time is not None:
        fix = (
            "a run with correlated noise, cyclic batches or cyclic cohorts cannot be extended, because these were "
            f"created and accounted for exactly the planned {before} rounds: start a new run"
        )
        raise ConfigError("extend", before, fix)
    epoch = privacy.allocation_rounds
    if epoch is not None and before % epoch:
        fix = (
            f"the earlier run ended within an epoch of random allocation, which has {epoch} rounds and is charged as a "
            "whole, so it cannot be extended: extend only runs of whole epochs, or start a new run"
        )
        raise ConfigError("extend", before, fix)


def check_linear(strategy: Strategy, n_clients: int, network: RoundNetwork, rounds: int = 3) -> None:
    """Tests a declared `linear` strategy: sums of its messages must depend on sums of query results only.

    Two runs get query results with the same sum, but with different values for single clients. The sums of their first
    messages must agree. This test finds mistakes, but is no proof, because it uses only a few random query results.

    Raises:
        ConfigError: If the sums differ.
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
            f"{type(strategy.local_step).__name__} declares linear = True, but its messages depend on more than "
            "the sum of the query results; use local trust",
        )


def check_memory(strategy: Strategy, n_clients: int) -> None:
    """Tests that a client update without declared private `memory` keeps nothing of its query results.

    In two runs, clients get different query results in the first round, and the same query results at the same
    parameters in the second round. The messages of the second round must agree. This test finds mistakes, but is no
    proof, because it uses only a few random query results.

    Raises:
        ConfigError: If the messages differ.
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
            f"{type(strategy.local_step).__name__} keeps state of its query results, which have no noise if "
            "noise is on messages, and a later message depends on that state: declare memory = 'private', and "
            "set privacy.noise_on to 'gradient'",
        )


def check_shares(privacy: Privacy, records: RecordTable, n_clients: int) -> None:
    """Raises an error for a run in which no round has the `min_honest` participants that its noise needs.

    Raises:
        ConfigError: If even the largest cohort has fewer participants; the message contains its size.
    """
    required = privacy.trust.shares(n_clients)
    largest_cohort = max(records.sizes(n_clients), default=required)
    if privacy.trust.sums_only and largest_cohort < required:
        fix = (
            f"must be at most {largest_cohort}, the largest number of participants of a round: each participant adds "
            "a part of the noise"
        )
        raise ConfigError("privacy.trust.secure_aggregation.min_honest", required, fix)


def check_batched(problems: Sequence[Problem], model: nn.Module, warnings: Sequence[str]) -> None:
    """Raises an error for constraints on a model that is computed one example at a time because vmap cannot batch it.

    Args:
        problems: The clients' objectives and constraints.
        model: Their model.
        warnings: Warnings from the choice of a backend, which contain the reason why it computes one example at a time.

    Raises:
        ConfigError: If there are such constraints.
    """
    if warnings and not all(problem.is_mean_loss for problem in problems):
        fix = f"the values of constraints need a model that torch.func.vmap can batch; {warnings[0]}"
        raise ConfigError("problem.constraints", type(model).__name__, fix)


def check_keep(keep: str, problems: Sequence[Problem]) -> None:
    """Raises an error if the best model is to be chosen by a metric in a run with constraints.

    Raises:
        ConfigError: If the problems have constraints, which the metric ignores.
    """
    if keep == "best" and any(problem.constraints for problem in problems):
        fix = "a test metric ignores the constraints, so the kept model could violate them: leave keep out"
        raise ConfigError("keep", keep, fix)


def check_problem(
    strategy: Strategy, problems: Sequence[Problem], privacy: Privacy, query_names: Collection[str], *, compare: bool
) -> None:
    """Raises an error for a strategy that does not fit the clients' objectives and constraints.

    Args:
        strategy: The algorithm.
        problems: The clients' objectives and constraints.
        privacy: The privacy settings.
        query_names: Names of the queries that the strategy makes.
        compare: True if the run is compared with a centralised solver.

    Raises:
        ConfigError: If the strategy would ignore an objective or a constraint; if it queries private constraint values,
            but there are no constraints, or the values are unbounded, or they need group sizes that are not public; or
            if `compare_centralized` is set for a strategy that has no centralised counterpart.
    """
    needs_sums = "lagrangian_gradient" in query_names or ("statistic:constraints" in query_names and privacy.private)
    sees_problem = needs_sums or not {"exact", "statistic:constraints"}.isdisjoint(query_names)
    if privacy.private and needs_sums:
        _check_public(strategy, problems, privacy)
    if compare and (privacy.private or not sees_problem):
        fix = (
            "only a run of proximal_al without noise (privacy.noise_on 'none') can be compared with a centralised "
            "solver; leave this setting out"
        )
        raise ConfigError("problem.compare_centralized", True, fix)
    if compare and not isinstance(strategy.regularizer.remainder, Zero):
        fix = (
            f"the centralised solver supports only l2 or no regularizer, but the strategy has {strategy.regularizer}; "
            "leave this setting out"
        )
        raise ConfigError("problem.compare_centralized", True, fix)
    if needs_sums:
        for term in (term for problem in problems for term in problem.terms if term.sums() is None):
            fix = (
                f"the influence of one example on this term has no bound; {strategy.name} accepts only sums of losses: "
                "LossAtMost, ClassLossAtMost, SubsetLossAtMost (of your function), GroupLossGap. Use these, or "
                "proximal_al with privacy.noise_on 'none'"
            )
            raise ConfigError("problem", type(term).__name__, fix)
    for problem in problems:
        if not (sees_problem or problem.is_mean_loss):
            names = ", ".join(type(term).__name__ for term in problem.terms)
            fix = f"{strategy.name} minimises the mean loss and would ignore this part; use private_al or proximal_al"
            raise ConfigError("problem", names, fix)


def _check_public(strategy: Strategy, problems: Sequence[Problem], privacy: Privacy) -> None:
    """Raises an error if a strategy queries private constraint values, but there are no constraints, or if the values
    would reveal private counts.
    """
    if privacy.unit == "client":
        fix = "constraint values cannot be made private for whole clients; set unit to 'sample'"
        raise ConfigError("privacy.unit", "client", fix)
    if not any(problem.constraints for problem in problems):
        fix = (
            f"the problem has no constraints, but {strategy.name} spends part of the epsilon on their values; add "
            "constraints, or use fedavg or dp_gd"
        )
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
        fix = (
            "under the relation add_remove, public counts reveal whether an example is present; state the groups' "
            "public fractions, or set relation to 'replace_one'"
        )
        raise ConfigError("privacy.statistics.public_counts", True, fix)
