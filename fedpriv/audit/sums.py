"""Check 5: where only sums may be seen, messages spread in another way over clients change nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedpriv.audit.finding import Finding, judged
from fedpriv.audit.subject import Data, Subject
from fedpriv.engines.local import SumsOnly
from fedpriv.errors import PrivacyError
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.state import named

NAME = "sums only"
_ROUNDS, _WIDTH = 3, 7
_SAME = 1e-6


def sums(subject: Subject, data: Data) -> Finding:
    """Give the aggregator two sets of messages of one sum."""
    if not subject.privacy.trust.sums_only:
        held = f"trust: {subject.privacy.trust} shows every message: each is noised by itself"
        return Finding(NAME, "held", held, "nothing was tried: no sums are promised")
    try:
        one, other = (_made(subject, spread) for spread in (0.0, 100.0))
    except PrivacyError as error:
        return Finding(NAME, "found", f"{type(subject.strategy.aggregator).__name__} looks at single messages: {error}")
    apart = max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))
    name = type(subject.strategy.aggregator).__name__
    broken = [f"{name} is no function of sums: messages of one sum that are spread otherwise change it by {apart:.3g}"]
    held = f"{name} gives the same for messages of one sum, however they are spread"
    return judged(NAME, broken if apart > _SAME else [], held, f"tried with random messages, {_ROUNDS} rounds")


def _made(subject: Subject, spread: float) -> list[Tensor]:
    """What the aggregator makes of random messages, to which something is added that sums to zero."""
    aggregator, network, count = subject.strategy.aggregator, subject.network, len(subject.clients)
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(1, _WIDTH, generator=draw, dtype=torch.float64).expand(count, -1).clone()
    received, state = aggregator.init(start)
    found, seen = list[Tensor](), SumsOnly(network)
    for at in range(_ROUNDS):
        cohort = network.participants(at, Randomness(0, 0))
        shape = len(cohort), received.shape[1]
        messages = torch.randn(shape, generator=draw, dtype=torch.float64)
        noise = torch.randn(shape, generator=draw, dtype=torch.float64)
        seen_by: Any = seen
        received, state = aggregator(messages + spread * (noise - noise.mean(0)), seen_by, state)
        found += [received.double(), *(torch.as_tensor(part).double() for part in named(state).values())]
    return found
