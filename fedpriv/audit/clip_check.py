"""Sums-only check: if only sums may be used, the aggregator computes the same from messages with the same sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedpriv.audit.check_result import CheckResult, summarize
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.errors import PrivacyError
from fedpriv.network import SumOnlyView, initial_state, run_rounds
from fedpriv.oracle import recording_oracle
from fedpriv.privacy import Independent
from fedpriv.randomness import Randomness
from fedpriv.strategies import Aggregator, Network, flatten_with_names

NAME = "sums only"
_ROUNDS = 3
_WIDTH = 7  # of the messages
_SAME = 1e-6


def check_sums_only(subject: AuditTarget, data: Data) -> CheckResult:
    """Passes two sets of messages with the same sum to the aggregator, and compares its results."""
    if not subject.privacy.trust.sums_only:
        evidence = f"trust: {subject.privacy.trust} exposes every message, and each message has its own noise"
        return CheckResult(NAME, "held", evidence, "nothing to test: this run does not claim that only sums are seen")
    name = type(subject.strategy.aggregator).__name__
    try:
        expected = _aggregate_random(subject, 0.0)
        spread = _aggregate_random(subject, 100.0)
    except PrivacyError as error:
        return CheckResult(NAME, "found", f"{name} uses single messages: {error}")
    difference = max(float((a - b).abs().max()) for a, b in zip(expected, spread, strict=True))
    if difference > _SAME:
        broken = [
            f"{name} is not a function of the sum: other messages with the same sum change its output by "
            f"{difference:.3g}"
        ]
    else:
        broken = []
    evidence = f"{name} gives the same output for all messages with the same sum"
    return summarize(NAME, broken, evidence, f"tested with random messages, {_ROUNDS} rounds")


@dataclass(frozen=True)
class _RandomMessages:
    """Wraps an aggregator, and passes it random messages, plus random terms that sum to zero.

    Attributes:
        inner: The aggregator.
        spread: Factor of the terms that sum to zero.
        draw: Generator of the messages.
        results: Everything that the aggregator has returned so far.
    """

    inner: Aggregator[Any]
    spread: float
    draw: torch.Generator
    results: list[Tensor]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the inner one has
        return getattr(self.inner, name)

    def __call__(self, message: Tensor, network: Network, state: Any) -> tuple[Tensor, Any]:  # noqa: ANN401 - the inner one's
        rows = torch.randn(message.shape, generator=self.draw, dtype=torch.float64)
        terms = torch.randn(message.shape, generator=self.draw, dtype=torch.float64)
        received, state = self.inner(rows + self.spread * (terms - terms.mean(0)), network, state)
        self.results.append(received.double())
        self.results.extend(torch.as_tensor(value).double() for value in flatten_with_names(state).values())
        return received, state


def _aggregate_random(subject: AuditTarget, spread: float) -> list[Tensor]:
    """Returns the aggregator's results for random messages in a run with an oracle that returns zeros."""
    results: list[Tensor] = []
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(1, _WIDTH, generator=draw, dtype=torch.float64).expand(len(subject.clients), -1)
    aggregator: Any = _RandomMessages(subject.strategy.aggregator, spread, draw, results)
    strategy = replace(subject.strategy, aggregator=aggregator)
    privacy = replace(subject.privacy, epsilon=None, noise_multiplier=1.0, noise=Independent())
    rounds = run_rounds(
        strategy,
        recording_oracle(privacy, subject.sizes),
        subject.network,
        initial_state(strategy, start),
        Randomness(0, 0),
        rounds=_ROUNDS,
        seen=SumOnlyView(subject.network),
    )
    for _ in rounds:
        pass
    return results
