"""The round, on half a screen."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor

from fedpriv.clients.population import Population
from fedpriv.errors import BudgetExhausted, ConfigError, PrivacyError, check_count
from fedpriv.privacy.settings import Privacy
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Network, Oracle, Strategy
from fedpriv.strategies.state import named, restored, rows_of, with_rows


class RoundOracle(Oracle, Protocol):
    """An oracle that is told which round it is and who takes part."""

    def begin_round(self, round_index: int, cohort: Tensor, received: Tensor | None = None) -> None:
        """Start a round."""
        ...

    def release_message(self, message: Tensor) -> Tensor:
        """Clip, noise and record messages when the boundary is there."""
        ...


class RoundNetwork(Network, Protocol):
    """A network that says who takes part in a round."""

    @property
    def numbers_sent(self) -> int:
        """Numbers that clients have sent since the round began."""
        ...

    @property
    def answers(self) -> int:
        """Clients that a server answers at the end of the round, each with its row of what is received."""
        ...

    @property
    def spectral_gap(self) -> float:
        """One minus the factor by which a mixing step shrinks disagreement."""
        ...

    @property
    def everyone(self) -> bool:
        """Whether all clients take part in every round."""
        ...

    def participants(self, round_index: int, randomness: Randomness) -> Tensor:
        """Sorted indices of this round's clients, `[k]`."""
        ...


class SumsOnly:
    """A network on which an aggregator gets sums over the participants and nothing else."""

    def __init__(self, network: RoundNetwork) -> None:
        self._network = network

    @property
    def numbers_sent(self) -> int:
        """See `RoundNetwork`."""
        return self._network.numbers_sent

    @property
    def answers(self) -> int:
        """See `RoundNetwork`."""
        return self._network.answers

    @property
    def spectral_gap(self) -> float:
        """See `RoundNetwork`."""
        return self._network.spectral_gap

    @property
    def everyone(self) -> bool:
        """See `RoundNetwork`."""
        return self._network.everyone

    def participants(self, round_index: int, randomness: Randomness) -> Tensor:
        """See `RoundNetwork`."""
        return self._network.participants(round_index, randomness)

    def mean(self, rows: Tensor) -> Tensor:
        """See `Network`."""
        return self._network.mean(rows)

    def fill(self, rows: Tensor, others: Tensor) -> Tensor:
        """See `Network`; nothing is exchanged."""
        return self._network.fill(rows, others)

    def mix(self, rows: Tensor) -> Tensor:
        """Refused."""
        raise _more_than_a_sum("mix")

    def gather(self, rows: Tensor) -> Tensor:
        """Refused."""
        raise _more_than_a_sum("gather")


def _more_than_a_sum(exchange: str) -> PrivacyError:
    return PrivacyError(
        f"only sums of messages are seen, so there is no network.{exchange}: use network.mean, or trust: local"
    )


def seen_by_aggregator(network: RoundNetwork, privacy: Privacy) -> RoundNetwork:
    """The network as far as the settings of trust let an aggregator see it."""
    return SumsOnly(network) if privacy.private and privacy.trust.sums_only else network


@dataclass(frozen=True)
class Progress:
    """All that a run carries from one round to the next: what a checkpoint holds.

    Attributes:
        round: Number of finished rounds.
        received: What the clients hear next, `[n, dim]`.
        local: State of the local steps: rows `[n, ...]` and public numbers. It belongs to the clients: under
            `trust: local` and `at: gradient` it is a function of releases, else it is as private as the data.
        server: State of the aggregator.
        output: State of the output.
        models: The reported models, `[n, dim]` or `[1, dim]` when all are alike. Functions of releases only.
        numbers_sent: Numbers exchanged so far, both ways.
    """

    round: int
    received: Tensor
    local: Any
    server: Any
    output: Any
    models: Tensor
    numbers_sent: int

    def stored(self) -> dict[str, Any]:
        """Tensors and numbers by name, for a checkpoint."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return plain | {name: named(plain[name]) for name in _STATES}

    def restored(self, stored: Mapping[str, Any]) -> Progress:
        """The progress that was `stored`, of a run that began as this one did.

        Raises:
            KeyError: its strategy keeps another state.
        """
        return Progress(**{**stored, **{name: restored(getattr(self, name), stored[name]) for name in _STATES}})


_STATES = ("local", "server", "output")


@dataclass(frozen=True)
class Round:
    """A finished round. All but `progress.local` was released or is public.

    Attributes:
        index: The round, from 0.
        participants: Indices of its clients, `[k]`.
        progress: The run after this round.
    """

    index: int
    participants: Tensor
    progress: Progress


def begin(strategy: Strategy, params: Tensor) -> Progress:
    """The state before round 0 from initial parameters `[n, dim]`.

    Raises:
        ConfigError: `monitor` names what the aggregator's state does not have.
    """
    received, server = strategy.aggregator.init(params)
    if missing := [name for name in strategy.monitor if name not in dir(server)]:
        fix = f"is no number of {type(server).__name__}, which {type(strategy.aggregator).__name__} keeps"
        raise ConfigError("strategy.monitor", missing[0], fix)
    output = strategy.output.init(received)
    return Progress(0, received, strategy.local_step.init(params), server, output, params, 0)


def simulate(
    strategy: Strategy,
    oracle: RoundOracle,
    network: RoundNetwork,
    progress: Progress,
    randomness: Randomness,
    *,
    rounds: int,
) -> Iterator[Round]:
    """Run rounds until `rounds` are done or the budget is.

    Args:
        strategy: The algorithm.
        oracle: Answers its questions.
        network: Exchanges its messages.
        progress: Where to start: `begin(...)`, or a checkpoint.
        randomness: The run's streams (cohorts; dropout).
        rounds: Total number of rounds of the run.

    Yields:
        Each finished round. The generator ends early, cleanly, when the next release would overspend the budget.
    """
    check_count("rounds", rounds, "a run needs at least one round")
    for index in range(progress.round, rounds):
        if strategy.is_done(progress.server):
            return
        cohort = network.participants(index, randomness)
        try:
            with _own_draws(randomness.torch_seed("local", index), progress.received.device):
                progress = _step(strategy, oracle, network, progress, cohort)
        except BudgetExhausted:
            return
        yield Round(index, cohort, progress)


@contextmanager
def _own_draws(seed: int, device: torch.device) -> Generator[None]:
    """Torch's own generators belong to the round: a model that draws from them (dropout) repeats itself on resume."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    before = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def _step(
    strategy: Strategy, oracle: RoundOracle, network: RoundNetwork, progress: Progress, cohort: Tensor
) -> Progress:
    n = len(progress.received)
    everyone = len(cohort) == n
    heard = progress.received if everyone else progress.received[cohort]
    oracle.begin_round(progress.round, cohort, heard)
    state = progress.local if everyone else rows_of(progress.local, cohort)
    message, state = strategy.local_step(heard, state, oracle)
    message = oracle.release_message(message)
    received, server = strategy.aggregator(message, network, progress.server)
    models, output = strategy.output(received, progress.output)
    local = state if everyone else with_rows(progress.local, cohort, state)
    sent = progress.numbers_sent + network.numbers_sent + network.answers * received.shape[1]
    return Progress(progress.round + 1, received, local, server, output, models, sent)


def adopt(population: Population, progress: Progress, price: str) -> None:
    """Write the reported models, and what they have cost, into the clients' modules."""
    population.params.copy_(progress.models.expand_as(population.params))
    for client in population.clients:
        client.outcome_of = price
