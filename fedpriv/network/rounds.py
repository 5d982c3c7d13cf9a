"""A round, as a client half and a server half that exchange only messages."""

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
    """An oracle that is told which round it is and who takes part."""

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> Tensor | None:
        """Start a round.

        Returns:
            Where not all participants work: those who do, as places among those here, `[j]`. They alone compute and
            send messages, and which they are is as secret as the data. None: all.
        """
        ...

    @property
    def is_aggregate(self) -> bool:
        """Whether an answer is one for all participants, who may then be asked for as one: `[1, dim] -> [1, dim]`."""
        ...

    def release_message(self, message: Tensor) -> Tensor:
        """With `at: message`, clip, noise and record messages; else return them unchanged."""
        ...


class RoundNetwork(Network, Protocol):
    """A network that says who takes part in a round."""

    @property
    def numbers_sent(self) -> int:
        """Numbers that clients have sent since the round began."""
        ...

    @property
    def answers(self) -> int:
        """Number of clients that the server sends a row to at the end of the round."""
        ...

    @property
    def spectral_gap(self) -> float:
        """One minus the factor by which mixing shrinks disagreement."""
        ...

    @property
    def everyone(self) -> bool:
        """Whether all clients take part in every round."""
        ...

    def here(self, cohort: Tensor, like: Tensor) -> Tensor:
        """Positions of a cohort's clients among the rows that this engine holds, `[k]`.

        Of a part of the clients they are where `like` is, and with them what else the round needs there: one copy.
        """
        ...

    def participants(self, round_index: int, randomness: Randomness) -> Tensor:
        """Sorted indices of this round's clients, `[k]`."""
        ...


class SumOnlyView:
    """A network on which an aggregator gets only sums over the participants."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.mean, self.total = network.mean, network.total
        self.fill, self.scatter = network.fill, network.scatter  # nothing is exchanged

    @property
    def n_clients(self) -> int:
        """See `Network`."""
        return self._network.n_clients

    def mix(self, rows: Tensor) -> Tensor:
        """Refused, as are `gather` and `largest`: they use single messages.

        Raises:
            PrivacyError: always.
        """
        raise PrivacyError(
            "only sums of messages are seen, so there is no network.mix, gather or largest: use network.mean, or "
            "trust: local"
        )

    gather = largest = mix


def server_view(network: RoundNetwork, privacy: Privacy) -> Network:
    """The network as the aggregator may use it: `SumOnlyView` if `trust` allows only sums."""
    if privacy.private and privacy.trust.sums_only:
        return SumOnlyView(network)
    return network


@dataclass(frozen=True)
class ClientInput:
    """What clients receive in a round: public or released values.

    Attributes:
        round: The round, from 0.
        cohort: Indices of the clients that take part, sorted, in this process or others.
        heard: What each participant in this process received, `[k, dim]`.
        common: Public parts of the clients' state by name: a client that sat rounds out holds old ones.
    """

    round: int
    cohort: Tensor
    heard: Tensor
    common: Mapping[str, Leaf]


@dataclass(frozen=True)
class ServerUpdate:
    """What the server computes from a round's messages.

    Attributes:
        received: What the clients receive next, `[n, dim]`.
        server: State of the aggregator.
        output: State of the output.
        models: The reported models, `[n, dim]` or `[1, dim]` when all are alike.
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
        received: What the clients receive next, `[n, dim]`.
        local: State of the local steps: rows `[n, ...]` and public numbers. With `trust: local` and `at: gradient` it
            is computed from releases, else it is as private as the data.
        server: State of the aggregator.
        output: State of the output.
        models: The reported models, `[n, dim]`, or `[1, dim]` when all are equal; computed from releases only.
        numbers_sent: Numbers exchanged so far, both ways.
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
        """Tensors and numbers by name, for a checkpoint."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return plain | {name: flatten_with_names(plain[name]) for name in _STATES}

    def restored(self, stored: Mapping[str, Any]) -> TrainState:
        """The progress with the values that were `stored`.

        Raises:
            KeyError: the strategy that was stored keeps other state.
        """
        return TrainState(**{**stored, **{name: unflatten_like(getattr(self, name), stored[name]) for name in _STATES}})


_STATES = ("local", "server", "output")


@dataclass(frozen=True)
class RoundResult:
    """A finished round. Everything but `progress.local` is public or released.

    Attributes:
        index: The round, from 0.
        participants: Indices of the clients that took part, `[k]`.
        progress: State of the run after this round.
    """

    index: int
    participants: Tensor
    progress: TrainState


def init_in_memory(init: Callable[[Tensor], Any], params: Tensor) -> Any:  # noqa: ANN401 - any state
    """The state as it is made, in memory."""
    return init(params)


def initial_state(
    strategy: Strategy, params: Tensor, start: Callable[[Callable[[Tensor], Any], Tensor], Any] = init_in_memory
) -> TrainState:
    """The state before round 0 from initial parameters `[n, dim]`.

    Args:
        strategy: The algorithm.
        params: The parameters.
        start: Makes the clients' state from the local step's `init` and the parameters.

    Raises:
        ConfigError: `monitor` names a number that the aggregator's state does not have.
    """
    received, server = strategy.aggregator.init(params)
    if missing := [name for name in strategy.monitor if name not in dir(server)]:
        fix = f"is no number of {type(server).__name__}, which {type(strategy.aggregator).__name__} keeps"
        raise ConfigError("strategy.monitor", missing[0], fix)
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
    """Run rounds of the clients in this process until `rounds` are done or the budget is.

    Args:
        strategy: The algorithm.
        oracle: Answers its questions.
        network: Exchanges its messages.
        progress: Where to start: `initial_state(...)`, or a checkpoint.
        randomness: The run's random streams (cohorts; dropout).
        rounds: Total number of rounds of the run.
        seen: The network as the aggregator may use it (`server_view`); `network` by default.
        stream: Which of torch's random draws are this process's.

    Yields:
        Each finished round. The generator ends early when the next release would pass the target epsilon.
    """
    check_count("rounds", rounds, "a run needs at least one round")
    for index in range(progress.round, rounds):
        if strategy.is_done(progress.server):
            return
        cohort = network.participants(index, randomness)
        try:
            with seeded_torch_draws(randomness.torch_seed("local", index, stream), progress.received.device):
                progress = _next(strategy, oracle, network, seen or network, progress, cohort)
        except BudgetExhausted:
            return
        yield RoundResult(index, cohort, progress)


@contextmanager
def seeded_torch_draws(seed: int, device: torch.device) -> Generator[None]:
    """Torch's own generators belong to the round: a model that draws from them (dropout) repeats itself on resume."""
    generators = torch_generators(device)
    before = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def client_update(strategy: Strategy, oracle: RoundOracle, call: ClientInput, local: Any) -> tuple[Tensor, Any]:  # noqa: ANN401
    """What clients do in a round: receive, ask the oracle, step and send.

    Args:
        strategy: The algorithm, the same on both sides.
        oracle: Answers these clients' questions.
        call: What they receive.
        local: Their state, rows `[k, ...]`.

    Returns:
        Their messages `[k, dim]`, private where the run is, and their new state. Only messages leave the clients.
    """
    working, local = oracle.begin_round(call.round, call.cohort, call.heard), replace_shared(local, call.common)
    if oracle.is_aggregate and call.heard.stride(0) == 0 and not has_rows(local):
        # who hears the same, is answered the same and keeps nothing does the same
        message, local = strategy.local_step(call.heard[:1], local, oracle)
        return oracle.release_message(message).expand(len(call.heard), -1), local
    message, theirs = strategy.local_step(take_rows(call.heard, working), select_rows(local, working), oracle)
    return oracle.release_message(message), scatter_rows(local, working, theirs)


def server_update(strategy: Strategy, seen: Network, message: Tensor, before: ServerUpdate) -> ServerUpdate:
    """What the server computes from the messages `[k, dim]` and its state."""
    received, server = strategy.aggregator(message, seen, before.server)
    models, output = strategy.output(received, before.output)
    return ServerUpdate(received, server, output, models)


def _next(
    strategy: Strategy, oracle: RoundOracle, network: RoundNetwork, seen: Network, before: TrainState, cohort: Tensor
) -> TrainState:
    """Both halves, with nothing between them but a call, messages and a reply."""
    here = network.here(cohort, before.received)
    if len(here) == len(before.received):
        some = None
    else:
        some = here
    if some is None:
        local = before.local
    else:
        local = select_rows(before.local, some)
    call = ClientInput(before.round, cohort, take_rows(before.received, some), shared_leaves(before.local))
    message, local = client_update(strategy, oracle, call, local)
    reply = server_update(strategy, seen, message, before.reply)
    if some is None:
        local = local
    else:
        local = scatter_rows(before.local, some, local)
    sent = before.numbers_sent + network.numbers_sent + network.answers * reply.received.shape[1]
    return TrainState(before.round + 1, reply.received, local, reply.server, reply.output, reply.models, sent)


def write_back_models(population: Population, progress: TrainState, price: str) -> None:
    """Write the reported models, with a note of what they cost, into the clients' modules."""
    population.adopt(progress.models, price)
