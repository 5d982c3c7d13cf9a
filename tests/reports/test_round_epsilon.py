"""The epsilon that is shown for every round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from reported_runs import clients
from torch import Tensor

import fedpriv as fp
from fedpriv.oracle.dry_run import RecordingEngine
from fedpriv.privacy.accounting.accountant import account


@pytest.mark.parametrize(
    "privacy",
    [
        fp.Privacy(epsilon=3, delta=1e-3, sampling=fp.Poisson(0.3)),
        fp.Privacy(epsilon=3, delta=1e-3, sampling=fp.FixedSize(5)),
        fp.Privacy(noise_multiplier=8.0, delta=1e-3, mechanism=fp.Laplace(), clip=fp.Clip(1.0, "l1")),
        fp.Privacy(epsilon=3, delta=1e-3, schedule=fp.Geometric(1.2)),
    ],
    ids=["poisson", "fixed size", "laplace", "gaussian"],
)
@pytest.mark.parametrize("rounds", [3, 16])
def test_round_epsilon_is_tight_upper_bound(privacy: fp.Privacy, rounds: int) -> None:
    """Never below the tight bound of what was released (its last bits aside), never above the target."""
    training = fp.Training(clients(), fp.fedavg(0.5), privacy, rounds=rounds)
    shown, true = list[float](), list[float]()
    for report in training:
        shown.append(report.epsilon)
        true.append(account(training.ledger.records, 3, 1e-3).epsilon)
    assert len(shown) == rounds
    assert shown == sorted(shown)
    assert shown[-1] <= min(privacy.epsilon or 100.0, 1.001 * true[-1])
    for value, truth in zip(shown, true, strict=True):
        assert truth <= value * (1 + 1e-9)
        assert value <= 1.001 * truth or (rounds > 3 and value <= truth + true[-1] / 8)


@pytest.mark.parametrize("target", [None, 50.0])
def test_query_outside_plan_raises(target: float | None) -> None:
    """A run is held to its plan, with and without a target epsilon."""

    @dataclass(frozen=True)
    class AsksAgain:
        inner: object

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

        def __call__(self, received: Tensor, state: Any, oracle: fp.Oracle) -> tuple[Tensor, Any]:
            if not isinstance(oracle.engine, RecordingEngine):  # pyright: ignore
                oracle.gradient(received)
            return self.inner(received, state, oracle)  # pyright: ignore

    plain = fp.fedavg(0.5)
    training = fp.Training(
        clients(),
        replace(plain, local_step=AsksAgain(plain.local_step)),  # pyright: ignore
        fp.Privacy(epsilon=target, noise_multiplier=2.0, delta=1e-3, sampling=fp.Poisson(0.3)),
        rounds=4,
    )
    with pytest.raises(fp.PrivacyError, match="round 0, gradient: the plan has no such query with this privacy cost"):
        list(training)
    assert len(training.ledger.records) == 1
