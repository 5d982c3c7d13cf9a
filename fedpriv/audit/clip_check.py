"""Check 5: where only sums may be seen, messages spread in another way over clients change nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedpriv.audit.check_result import CheckResult, summarize
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.errors import PrivacyError
from fedpriv.network.rounds import SumOnlyView, initial_state, run_rounds
from fedpriv.oracle.dry_run import recording_oracle
from fedpriv.privacy.settings import Independent
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Aggregator, Network
from fedpriv.strategies.state import flatten_with_names

NAME = "sums only"
_ROUNDS, _WIDTH = 3, 7
_SAME = 1e-6


def sums(subject: AuditTarget, data: Data) -> CheckResult:
    """Give the aggregator two sets of messages of one sum."""
    if not subject.privacy.trust.sums_only:
        held = f"trust: {subject.privacy.trust} shows every message: each is noised by itself"
        return CheckResult(NAME, "held", held, "nothing was tried: no sums are promised")
    try:
        one, other = (_made(subject, spread) for spread in (0.0, 100.0))
    except PrivacyError as error:
        return CheckResult(
            NAME, "found", f"{type(subject.strategy.aggregator).__name__} looks at single messages: {error}"
        )
    apart = max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))
    name = type(subject.strategy.aggregator).__name__
    broken = [f"{name} is no function of sums: messages of one sum that are spread otherwise change it by {apart:.3g}"]
    held = f"{name} gives the same for messages of one sum, however they are spread"
    return summarize(NAME, broken if apart > _SAME else [], held, f"tried with random messages, {_ROUNDS} rounds")


@dataclass(frozen=True)
class _Scattered:
    """An aggregator that hears random messages, to which something is added that sums to zero."""

    inner: Aggregator[Any]
    spread: float
    draw: torch.Generator
    found: list[Tensor]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - what the inner one says, hears and promises
        return getattr(self.inner, name)

    def __call__(self, message: Tensor, network: Network, state: Any) -> tuple[Tensor, Any]:  # noqa: ANN401 - the inner one's
        rows, apart = (torch.randn(message.shape, generator=self.draw, dtype=torch.float64) for _ in range(2))
        received, state = self.inner(rows + self.spread * (apart - apart.mean(0)), network, state)
        self.found.extend(
            [received.double(), *(torch.as_tensor(p).double() for p in flatten_with_names(state).values())]
        )
        return received, state


def _made(subject: AuditTarget, spread: float) -> list[Tensor]:
    """What the aggregator makes of messages that are as long as those of a run, which answers zeros here."""
    found, privacy = list[Tensor](), replace(subject.privacy, epsilon=None, noise_multiplier=1.0, noise=Independent())
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(1, _WIDTH, generator=draw, dtype=torch.float64).expand(len(subject.clients), -1)
    scattered: Any = _Scattered(subject.strategy.aggregator, spread, draw, found)
    strategy = replace(subject.strategy, aggregator=scattered)
    run = recording_oracle(privacy, subject.sizes), subject.network, initial_state(strategy, start), Randomness(0, 0)
    for _ in run_rounds(strategy, *run, rounds=_ROUNDS, seen=SumOnlyView(subject.network)):
        pass
    return found
