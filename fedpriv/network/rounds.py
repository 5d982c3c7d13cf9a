"""Runs rounds. Each round has a client half and a server half, which exchange only the broadcast and the messages."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor

from fedpriv.clients.population import Population
from fedpriv.errors import BudgetExhausted, ConfigError, PrivacyError, check_count
from fedpriv.privacy.settings import Privacy
from fedpriv.randomness.streams import Randomness, torch_generators
from fedpriv.strategies.base import Network, Oracle, Strategy
from fedpriv.strategies.state import (
    Leaf,
    flatten_with_names,
    has_rows,
    replace_shared,
    scatter_rows,
    select_rows,
    shared_leaves,
    take_rows,
    unflatten_like,
)


class RoundOracle(Oracle, Protocol):
    """An oracle that is notified of each round and its participants."""

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> Tensor | None:
        """Starts a round.

        Args:
            round_index: The round, from 0.
            cohort: Indices of the round's participants, in all processes.
            received: The rows that the participants in this process received.

        Returns:
            The participants that compute and send messages, as positions among the participants in this process, `[j]`;
            None if all of them do. These positions are as secret as the data.
        """
        ...

    @property
    def is_aggregate(self) -> bool:
        """True if all participants get the same result, so that one query is sufficient: `[1, dim] -> [1, dim]`."""
        ...

    def release_message(self, message: Tensor) -> Tensor:
        """With `noise_on: message`, clips, noises and records messages; otherwise returns the messages unchanged."""
        ...


class RoundNetwork(Network, Protocol):
    """A network that also draws the participants of each round."""

    @property
    def numbers_sent(self) -> int:
        """Numbers that clients have sent since the round began."""
        ...

    @property
    def answers(self) -> int:
        """Number of clients to which the server sends a row at the end of the round."""
        ...

    @property
    def spectral_gap(self) -> float:
        """One minus the factor by which mixing shrinks differences between clients."""
        ...

    @property
    def everyone(self) -> bool:
        """True if all clients take part in every round."""
        ...

    def local_positions(self, cohort: Tensor, like: Tensor) -> Tensor:
        """Returns the positions of a cohort's clients among the rows in this process, `[k]`.

        If the cohort is only a part of the clients, the positions are on the device of `like`. Other values that the
        round needs on that device are moved there in the same copy.
        """
        ...

    def participants(self, round_index: int, randomness: Randomness) -> Tensor:
        """Draws the clients of this round, and returns their sorted indices, `[k]`."""
        ...


class SumOnlyView:
    """A network that gives an aggregator only sums over the participants."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.mean = network.mean
        self.total = network.total
        # these two use no messages
        self.replace_rows = network.replace_rows
        self.scatter = network.scatter

    @property
    def n_clients(self) -> int:
        """See `Network`."""
        return self._network.n_clients

    def mix(self, rows: Tensor) -> Tensor:
        """Not available, like `gather` and `largest`, which use single messages.

        Raises:
            PrivacyError: Always.
        """
        raise PrivacyError(
            "under this trust, only sums of messages are visible, so network.mix, gather and largest cannot be used: "
            "use network.mean, or trust: local"
        )

    gather = largest = mix


def server_view(network: RoundNetwork, privacy: Privacy) -> Network:
    """Returns the network as the aggregator may use it: a `SumOnlyView` if `trust` allows only sums."""
    if privacy.private and privacy.trust.sums_only:
        return SumOnlyView(network)
    return network


@dataclass(frozen=True)
class ClientInput:
    """The input of the clients in a round: public or released values.

    Attributes:
        round: The round, from 0.
        cohort: Sorted indices of the clients that take part, in this process or others.
        received: The row that each participant in this process received, `[k, dim]`.
        common: Public parts of the clients' state, by name. They replace the old values of clients that skipped rounds.
    """

    round: int
    cohort: Tensor
    received: Tensor
    common: Mapping[str, Leaf]


@dataclass(frozen=True)
class ServerUpdate:
    """The result of the server half of a round.

    Attributes:
        received: The rows that clients receive next, `[n, dim]`.
        server: State of the aggregator.
        output: State of the output.
        models: The reported models, `[n, dim]`, or `[1, dim]` when all are equal.
    """

    received: Tensor
    server: Any
    output: Any
    models: Tensor


@dataclass(frozen=True)
class TrainState:
    """The state of a run between two rounds, which a checkpoint holds.

    Attributes:
        round: Number of finished rounds.
        received: The rows that clients receive next, `[n, dim]`.
        local: State of the local steps: rows `[n, ...]` and public numbers. With `trust: local` and `noise_on:
            gradient` this state is computed from released values only. Otherwise it must be protected like the data.
        server: State of the aggregator.
        output: State of the output.
        models: The reported models, `[n, dim]`, or `[1, dim]` when all are equal; computed from releases only.
        numbers_sent: Number of values exchanged so far in both directions.
    """

    round: int
    received: Tensor
    local: Any
    server: Any
    output: Any
    models: Tensor
    numbers_sent: int

    @property
    def reply(self) -> ServerUpdate:
        """The part of the state that the server half needs."""
        return ServerUpdate(self.received, self.server, self.output, self.models)

    def stored(self) -> dict[str, Any]:
        """Returns all tensors and numbers by name, for a checkpoint."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return plain | {name: flatten_with_names(plain[name]) for name in _STATES}

    def restored(self, stored: Mapping[str, Any]) -> TrainState:
        """Returns a copy with the values that `stored` returned.

        Raises:
            KeyError: If the values belong to a strategy with other state.
        """
        trees = {name: unflatten_like(getattr(self, name), stored[name]) for name in _STATES}
        return TrainState(**{**stored, **trees})


_STATES = ("local", "server", "output")


@dataclass(frozen=True)
class RoundResult:
    """A finished round. All values except `progress.local` are public or released.

    Attributes:
        index: The round, from 0.
        participants: Indices of the clients that took part, `[k]`.
        progress: State of the run after this round.
    """

    index: int
    participants: Tensor
    progress: TrainState


def init_in_memory(init: Callable[[Tensor], Any], params: Tensor) -> Any:  # noqa: ANN401 - any state
    """Returns the clients' initial state in memory, from the client update's `init`."""
    return init(params)


def initial_state(
    strategy: Strategy, params: Tensor, start: Callable[[Callable[[Tensor], Any], Tensor], Any] = init_in_memory
) -> TrainState:
    """Returns the state before round 0, from initial parameters `[n, dim]`.

    Args:
        strategy: The algorithm.
        params: The initial parameters.
        start: Makes the clients' state from the client update's `init` and the parameters.

    Raises:
        ConfigError: If `monitor` names a number that the aggregator's state does not have.
    """
    received, server = strategy.aggregator.init(params)
    unknown = [name for name in strategy.monitor if name not in dir(server)]
    if unknown:
        fix = (
            f"must be a number in the server's state, {type(server).__name__}, of {type(strategy.aggregator).__name__}"
        )
        raise ConfigError("strategy.monitor", unknown[0], fix)
    output = strategy.output.init(received)
    return TrainState(0, received, start(strategy.local_step.init, params), server, output, params, 0)


def run_rounds(
    strategy: Strategy,
    oracle: RoundOracle,
    network: RoundNetwork,
    progress: TrainState,
    randomness: Randomness,
    *,
    rounds: int,
    seen: Network | None = None,
    stream: int = 0,
) -> Iterator[RoundResult]:
    """Runs rounds of the clients in this process until `rounds` are done or the privacy budget is exhausted.

    Args:
        strategy: The algorithm.
        oracle: Computes the results of the strategy's queries.
        network: Exchanges the strategy's messages.
        progress: The state to start from: `initial_state(...)`, or a checkpoint.
        randomness: The run's random streams (for cohorts, and for dropout).
        rounds: Total number of rounds of the run.
        seen: The network as the aggregator may use it (`server_view`); `network` by default.
        stream: Number of this process's stream of torch's random draws.

    Yields:
        Each finished round. The generator ends early if the next release would exceed the target epsilon.
    """
    check_count("rounds", rounds, "a run needs at least one round")
    for index in range(progress.round, rounds):
        if strategy.is_done(progress.server):
            return
        cohort = network.participants(index, randomness)
        try:
            with seed_torch_draws(randomness.torch_seed("local", index, stream), progress.received.device):
                progress = _run_round(strategy, oracle, network, seen or network, progress, cohort)
        except BudgetExhausted:
            return
        yield RoundResult(index, cohort, progress)


@contextmanager
def seed_torch_draws(seed: int, device: torch.device) -> Generator[None]:
    """Seeds torch's global generators, so that models that use them (dropout) draw the same numbers after a resume.

    The generators' states are restored when the context ends.
    """
    generators = torch_generators(device)
    states = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def client_update(strategy: Strategy, oracle: RoundOracle, call: ClientInput, local: Any) -> tuple[Tensor, Any]:  # noqa: ANN401
    """Runs the client half of a round: clients receive, query the oracle, make their step and send.

    Args:
        strategy: The algorithm, the same on both sides.
        oracle: Computes the results of these clients' queries.
        call: The broadcast to the clients.
        local: The clients' state, rows `[k, ...]`.

    Returns:
        The clients' messages `[k, dim]`, private if the run is, and their new state. Only messages leave the clients.
    """
    working = oracle.begin_round(call.round, call.cohort, call.received)
    local = replace_shared(local, call.common)

    # clients with the same input, the same query results and no state make the same step: compute it once
    if oracle.is_aggregate and call.received.stride(0) == 0 and not has_rows(local):
        message, local = strategy.local_step(call.received[:1], local, oracle)
        return oracle.release_message(message).expand(len(call.received), -1), local

    message, working_local = strategy.local_step(take_rows(call.received, working), select_rows(local, working), oracle)
    return oracle.release_message(message), scatter_rows(local, working, working_local)


def server_update(strategy: Strategy, network: Network, message: Tensor, before: ServerUpdate) -> ServerUpdate:
    """Runs the server half of a round, on the messages `[k, dim]` and the server's state."""
    received, server = strategy.aggregator(message, network, before.server)
    models, output = strategy.output(received, before.output)
    return ServerUpdate(received, server, output, models)


def _run_round(
    strategy: Strategy, oracle: RoundOracle, network: RoundNetwork, seen: Network, before: TrainState, cohort: Tensor
) -> TrainState:
    """Returns the state after one round. The client half and the server half exchange only the input of the clients,
    their messages and the server's reply.
    """
    # the rows of the cohort; None means all rows, which are then not copied
    positions = network.local_positions(cohort, before.received)
    if positions.shape[0] == before.received.shape[0]:
        selected = None
        local = before.local
    else:
        selected = positions
        local = select_rows(before.local, selected)

    call = ClientInput(before.round, cohort, take_rows(before.received, selected), shared_leaves(before.local))
    message, local = client_update(strategy, oracle, call, local)
    reply = server_update(strategy, seen, message, before.reply)

    if selected is not None:
        local = scatter_rows(before.local, selected, local)
    return TrainState(
        round=before.round + 1,
        received=reply.received,
        local=local,
        server=reply.server,
        output=reply.output,
        models=reply.models,
        numbers_sent=before.numbers_sent + network.numbers_sent + network.answers * reply.received.shape[1],
    )


def write_back_models(population: Population, progress: TrainState, cost: str) -> None:
    """Writes the reported models into the clients' modules, with a note of their privacy cost."""
    population.adopt(progress.models, cost)
