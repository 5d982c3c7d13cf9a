"""Federated averaging and its kin in a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from fedpriv.config.recipes import StrategyEntry
from fedpriv.strategies import fedavg as family
from fedpriv.strategies.adaptive_clipping import adaptive_clipping
from fedpriv.strategies.base import Strategy, Weighting
from fedpriv.strategies.scaffold import scaffold

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Steps = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class AdaptiveClip:
    """Options of `fedpriv.adaptive_clipping`; needs `privacy: {at: message, unit: client, clip: {bound: 1}}`."""

    initial: float = 0.1
    quantile: float = 0.5
    clip_learning_rate: float = 0.2
    share: float = 0.1


def fedavg(
    learning_rate: Positive,
    local_steps: Steps = 1,
    server_learning_rate: Positive = 1.0,
    server_momentum: Fraction = 0.0,
    weighting: Weighting = "examples",
    average: NonNegative | None = None,
    adaptive_clip: AdaptiveClip | None = None,
) -> Strategy:
    """See `fedpriv.fedavg`."""
    strategy = family.fedavg(
        learning_rate,
        local_steps,
        server_learning_rate=server_learning_rate,
        server_momentum=server_momentum,
        weighting=weighting,
        average=average,
    )
    return _clipped(strategy, adaptive_clip)


def fedprox(
    learning_rate: Positive,
    proximal: NonNegative,
    local_steps: Steps = 1,
    server_learning_rate: Positive = 1.0,
    weighting: Weighting = "examples",
    average: NonNegative | None = None,
    adaptive_clip: AdaptiveClip | None = None,
) -> Strategy:
    """See `fedpriv.fedprox`."""
    strategy = family.fedprox(
        learning_rate,
        proximal,
        local_steps,
        server_learning_rate=server_learning_rate,
        weighting=weighting,
        average=average,
    )
    return _clipped(strategy, adaptive_clip)


def fedopt(
    learning_rate: Positive,
    local_steps: Steps = 1,
    server: Literal["adagrad", "adam", "yogi"] = "adam",
    server_learning_rate: Positive = 0.01,
    beta1: Fraction = 0.9,
    beta2: Fraction = 0.99,
    tau: Positive = 1e-3,
    weighting: Weighting = "examples",
    average: NonNegative | None = None,
    adaptive_clip: AdaptiveClip | None = None,
) -> Strategy:
    """See `fedpriv.fedopt`."""
    strategy = family.fedopt(
        learning_rate,
        local_steps,
        server=server,
        server_learning_rate=server_learning_rate,
        beta1=beta1,
        beta2=beta2,
        tau=tau,
        weighting=weighting,
        average=average,
    )
    return _clipped(strategy, adaptive_clip)


def _clipped(strategy: Strategy, clip: AdaptiveClip | None) -> Strategy:
    if clip is None:
        return strategy
    return adaptive_clipping(
        strategy,
        clip.initial,
        quantile=clip.quantile,
        clip_learning_rate=clip.clip_learning_rate,
        share=clip.share,
    )


STRATEGIES: dict[str, StrategyEntry] = {
    "fedavg": StrategyEntry(fedavg, "federated averaging (McMahan et al.); with one local step, FedSGD"),
    "fedprox": StrategyEntry(fedprox, "FedAvg with local steps held near the received model (Li et al.)"),
    "fedopt": StrategyEntry(fedopt, "FedAvg with an adaptive server: Adagrad, Adam or Yogi (Reddi et al.)"),
    "scaffold": StrategyEntry(scaffold, "FedAvg with control variates against client drift (Karimireddy et al.)"),
}
