"""What leaves a run beside its recorded answers is found, whoever let it out; so is an aggregator that is no sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from audit_targets import SIZES, audit_target, run_check
from privacy_worlds import clients_of, digits_of
from torch import Tensor
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.audit import AuditTarget
from fedpriv.audit.clip_check import check_sums_only
from fedpriv.audit.replay import check_by_replay
from fedpriv.strategies.base import Network, Strategy
from fedpriv.strategies.fedavg import AddMeanUpdate, Served

TEST = TensorDataset(*digits_of([sum(SIZES), 30])[1])


@dataclass(frozen=True)
class Stepping:
    """A gradient step of a user's own; `more` may be what it should not be."""

    more: Callable[[Any, Tensor], Tensor]

    receives = ("model",)
    sends = ("update",)
    memory = "none"
    linear = True

    def init(self, params: Tensor) -> None:
        """Nothing is kept."""

    def __call__(self, received: Tensor, state: None, oracle: Any) -> tuple[Tensor, None]:
        return -0.5 * oracle.gradient(received) + self.more(oracle, received), state


def no_extra_term(oracle: Any, received: Tensor) -> Tensor:
    return torch.zeros(())


def mean_of_inputs(oracle: Any, received: Tensor) -> Tensor:
    """Looks behind the oracle."""
    population = getattr(getattr(oracle, "engine", None), "_population", None)  # there is none while a run is planned
    if population is None:
        return torch.zeros(())
    # not the same for all weights: softmax regression gives the same probabilities when all are moved alike
    direction = torch.linspace(-1, 1, received.shape[-1], dtype=received.dtype)
    return 1e-2 * population.examples_of(0)[0].mean() * direction


@dataclass(frozen=True)
class Dual:
    """Steps with a dual variable, of which `exact` ones follow from exact gradients."""

    exact: bool

    receives = ("model",)
    sends = ("update",)
    memory = "private"
    linear = True

    def init(self, params: Tensor) -> Tensor:
        return torch.zeros_like(params)

    def __call__(self, received: Tensor, state: Tensor, oracle: Any) -> tuple[Tensor, Tensor]:
        gradient = oracle.gradient(received)
        state = state + 0.1 * (self.of_examples(oracle, gradient) if self.exact else gradient)
        return -0.5 * (gradient + state), state

    @staticmethod
    def of_examples(oracle: Any, gradient: Tensor) -> Tensor:
        population = getattr(getattr(oracle, "engine", None), "_population", None)
        if population is None:
            return gradient
        return torch.cat([x.mean(0).repeat(10)[None] for x, _ in map(population.examples_of, range(3))])


@dataclass(frozen=True)
class Ended:
    """A state that ends the run."""

    round: int
    ends: int

    @property
    def done(self) -> bool:
        return self.round >= self.ends


@dataclass(frozen=True)
class Ending:
    """Adds mean updates, and ends after so many rounds as `when` says."""

    when: Callable[[], int]

    receives = ("update",)
    sends = ("model",)
    is_sum = True

    def init(self, params: Tensor) -> tuple[Tensor, Ended]:
        return params, Ended(0, 100)

    def __call__(self, message: Tensor, network: Network, state: Ended) -> tuple[Tensor, Ended]:
        return network.mean(message), Ended(state.round + 1, self.when())


def audited(strategy: Strategy, **settings: Any) -> Any:
    return run_check(check_by_replay, audit_target(strategy, more={"test": TEST}, **settings))


def strategy_with_step(step: Any) -> Strategy:
    return Strategy(step, fp.fedavg(0.5).aggregator)


def test_replay_of_correct_strategy_holds() -> None:
    found = audited(strategy_with_step(Stepping(no_extra_term)))
    assert found.verdict == "held", found
    assert "messages, models, metrics, result.json, ledger, TensorBoard of 4 rounds" in found.evidence
    assert "of 4 recorded query results" in found.evidence


def test_audit_detects_data_access_by_strategy() -> None:
    found = audited(strategy_with_step(Stepping(mean_of_inputs)))
    assert found.verdict == "found"
    assert "these differ: messages, models, metrics, result.json, TensorBoard" in found.evidence


def test_audit_detects_data_kept_by_strategy() -> None:
    """The strategy holds a reference to the tensors given at its construction."""
    data = digits_of(SIZES)
    step = Stepping(lambda oracle, received: 1e-3 * data[1][0].mean())
    clients = clients_of(data)
    made = AuditTarget.of(clients, strategy_with_step(step), fp.Privacy(epsilon=3.0), rounds=20, test=TEST)
    before = [x.clone() for x, _ in data]
    assert run_check(check_by_replay, made).verdict == "found"
    assert all(torch.equal(x, old) for (x, _), old in zip(data, before, strict=True))  # all is put back


def test_audit_detects_unnoised_dual() -> None:
    assert audited(strategy_with_step(Dual(exact=False))).verdict == "held"
    found = audited(strategy_with_step(Dual(exact=True)))
    assert found.verdict == "found" and "messages" in found.evidence


def test_audit_detects_data_dependent_stop() -> None:
    data = digits_of(SIZES)

    def by_data() -> int:
        return 2 if float(data[0][0].mean()) > 0.2 else 3

    def made(when: Callable[[], int]) -> Any:
        strategy = Strategy(Stepping(no_extra_term), Ending(when))
        return run_check(
            check_by_replay, AuditTarget.of(clients_of(data), strategy, fp.Privacy(epsilon=3.0), rounds=20, test=TEST)
        )

    assert made(lambda: 2).verdict == "held"
    found = made(by_data)
    assert (
        found.verdict == "found"
        and "the run ends after 3 rounds instead of 2: the data decide when it ends" in found.evidence
    )


def test_audit_detects_metric_on_training_data() -> None:
    data = digits_of(SIZES)
    options = {"metrics": {"own": lambda outputs, targets: float(data[0][0].mean())}}
    made = AuditTarget.of(
        clients_of(data), fp.fedavg(0.5), fp.Privacy(epsilon=3.0), rounds=20, test=TEST, options=options
    )
    found = run_check(check_by_replay, made)
    assert found.verdict == "found" and "these differ: metrics, result.json, TensorBoard" in found.evidence


class Largest(AddMeanUpdate):
    """Claims to be a sum, and takes the largest of single messages."""

    def __call__(self, message: Tensor, network: Network, state: Served) -> tuple[Tensor, Served]:
        return super().__call__(message.amax(0, keepdim=True).expand_as(message), network, state)


class Gathering(AddMeanUpdate):
    """Claims to be a sum, and asks for single messages."""

    def __call__(self, message: Tensor, network: Network, state: Served) -> tuple[Tensor, Served]:
        return super().__call__(network.gather(message), network, state)


@pytest.mark.parametrize("trust", [fp.SecureAggregation(2), fp.Central()], ids=str)
@pytest.mark.parametrize(
    ("aggregator", "words"),
    [(Largest(), "Largest is not a function of the sum"), (Gathering(), "Gathering uses single messages")],
)
def test_audit_detects_aggregator_without_sums(trust: Any, aggregator: Any, words: str) -> None:
    strategy = fp.fedavg(0.5)
    assert run_check(check_sums_only, audit_target(strategy, trust=trust)).verdict == "held"
    found = run_check(check_sums_only, audit_target(replace(strategy, aggregator=aggregator), trust=trust))
    assert found.verdict == "found" and words in found.evidence
    seen = run_check(check_sums_only, audit_target(replace(strategy, aggregator=aggregator)))
    assert seen.verdict == "held" and "exposes every message" in seen.evidence
