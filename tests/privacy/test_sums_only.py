"""Where only sums are seen, an aggregator that looks at single messages finds nothing in them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
import torch
from privacy_worlds import clients_of, digits_of
from torch import Tensor

import fedpriv as fp
from fedpriv.privacy.release import release_scheme
from fedpriv.strategies.base import Network, Strategy
from fedpriv.strategies.fedavg import AddMeanUpdate, Served

SIZES = (9, 14, 11, 6)
TRUSTS = [fp.Central(), fp.SecureAggregation(3)]
BOUNDARIES = [
    fp.Privacy(noise_multiplier=1.0, unit="client", noise_on="message"),
    fp.Privacy(noise_multiplier=1.0, unit="client", noise_on="gradient"),
    fp.Privacy(noise_multiplier=1.0, noise_on="gradient"),
]


class Peeking(AddMeanUpdate):
    """Claims to use sums alone and looks at messages."""


@dataclass(frozen=True)
class Watching(Peeking):
    seen: list[Tensor] = field(default_factory=list)

    def __call__(self, message: Tensor, network: Network, state: Served) -> tuple[Tensor, Served]:
        self.seen.append(message.clone())
        return super().__call__(message, network, state)


class Gathering(Peeking):
    def __call__(self, message: Tensor, network: Network, state: Served) -> tuple[Tensor, Served]:
        return super().__call__(network.gather(message), network, state)


class Mixing(Peeking):
    def __call__(self, message: Tensor, network: Network, state: Served) -> tuple[Tensor, Served]:
        return super().__call__(network.mix(message), network, state)


def with_aggregator(aggregator: AddMeanUpdate) -> Strategy:
    return replace(fp.fedavg(0.5), aggregator=aggregator)


def messages_seen(aggregator: Watching, privacy: fp.Privacy) -> list[Tensor]:
    training = fp.Training(clients_of(digits_of(SIZES)), with_aggregator(aggregator), privacy, rounds=3)
    aggregator.seen.clear()  # the plan's
    assert len(list(training)) == len(aggregator.seen) == 3
    return aggregator.seen


@pytest.mark.parametrize("trust", TRUSTS, ids=str)
@pytest.mark.parametrize("privacy", BOUNDARIES, ids=lambda p: f"{p.noise_on}, {p.unit}")
def test_aggregator_receives_mean_only(trust, privacy: fp.Privacy) -> None:
    """So a median, a first row or whatever else is made of messages is a function of their mean."""
    for message in messages_seen(Watching(), replace(privacy, trust=trust)):
        torch.testing.assert_close(message, message.mean(0, keepdim=True).expand_as(message))
    for message in messages_seen(Watching(), privacy):
        assert (message - message.mean(0)).abs().max() > 1e-3


@pytest.mark.parametrize("aggregator", [Gathering(), Mixing()])
@pytest.mark.parametrize("trust", TRUSTS, ids=str)
@pytest.mark.parametrize("privacy", BOUNDARIES, ids=lambda p: f"{p.noise_on}, {p.unit}")
def test_gather_or_mix_of_messages_raises(aggregator: AddMeanUpdate, trust, privacy: fp.Privacy) -> None:
    with pytest.raises(fp.PrivacyError, match="only sums of messages are visible"):
        fp.Training(clients_of(digits_of(SIZES)), with_aggregator(aggregator), replace(privacy, trust=trust), rounds=2)


def test_central_noise_drawn_once_on_sum() -> None:
    """One draw and one rounding: the released sum lies on the grid of its own scale."""
    privacy = replace(BOUNDARIES[0], trust=fp.Central())
    training = fp.Training(clients_of(digits_of(SIZES)), fp.fedavg(0.5), privacy, rounds=1, seed=0, secret_seed=0)
    training.oracle.begin_round(0, torch.arange(4), training.population.params)
    training.oracle.client_gradient(training.population.params)
    answer = training.oracle.release_message(torch.zeros_like(training.population.params))
    released = answer[0].double() * 4
    scale = 2 * (1 + 2**-10)
    assert float(released.std()) == pytest.approx(scale, rel=0.1)
    grid = 2.0 ** (2 - 20)
    assert torch.equal(released / grid, (released / grid).round())


@pytest.mark.parametrize(
    ("sampling", "depends"), [(fp.FullBatch(), False), (fp.Poisson(0.1), False), (fp.FixedSize(2), True)]
)
@pytest.mark.parametrize("trust", TRUSTS)
def test_cost_of_sum_depends_on_participants_only_with_own_rates(trust, sampling, depends):
    privacy = fp.Privacy(noise_multiplier=1.0, delta=1e-5, trust=trust, sampling=sampling)
    assert release_scheme(privacy, SIZES).depends_on_clients("gradient") is depends
