"""Small runs to audit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from privacy_worlds import Data, clients_of, digits_of
from torch import nn

import fedpriv as fp
from fedpriv.audit import AuditTarget, CheckResult
from fedpriv.strategies.base import Strategy

SIZES, ROUNDS = (40, 25, 60), 20
TWO_OF_A_KIND = fp.Problem(constraints=(fp.ClassLossAtMost(1, 0.3, fraction=0.1), fp.LossAtMost(0.5)))


def audit_target(
    strategy: Strategy | None = None,
    *,
    data: Data | None = None,
    sizes: Sequence[int] = SIZES,
    model: nn.Module | None = None,
    rounds: int = ROUNDS,
    problem: fp.Problem | None = None,
    more: dict[str, Any] | None = None,
    **promise: Any,
) -> AuditTarget:
    """A run on digits."""
    clients = clients_of(digits_of(sizes) if data is None else data, model)
    for client in clients:
        client.problem = problem or client.problem
    privacy = fp.Privacy(**{"epsilon": 3.0, "delta": 1e-5, **promise})
    return AuditTarget.of(clients, strategy or fp.inexact_admm(), privacy, rounds=rounds, **(more or {}))


def run_check(check: Callable[..., CheckResult], made: AuditTarget) -> CheckResult:
    """What a check says of it."""
    return check(made, made.data())
