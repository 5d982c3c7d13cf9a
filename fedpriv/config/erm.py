"""Private empirical risk minimisation in a configuration, and as Wang, Ye, Xu (2017) publish it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedpriv.config.recipes import Recipe, StrategyEntry
from fedpriv.config.regularizers import RegularizerChoice
from fedpriv.errors import ConfigError
from fedpriv.privacy import claims
from fedpriv.privacy.as_published import Published
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.erm import gradient_descent
from fedpriv.strategies.mirror_descent import EuclideanBall, L1Ball, accelerated_mirror_descent
from fedpriv.strategies.proximal import Proximal
from fedpriv.strategies.svrg import AnchorBudget, Epochs, proven, svrg

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Steps = Annotated[int, Field(ge=1)]
LOGISTIC = 0.25  # smoothness of the logistic loss of rows of norm 1
NONE = RegularizerChoice()


def dp_gd(
    rounds: int,
    learning_rate: Positive | None = None,
    smoothness: Positive = LOGISTIC,
    regularizer: RegularizerChoice = NONE,
    momentum: Fraction = 0.0,
    report: Literal["last", "average", "random"] = "last",
    average: NonNegative | None = None,
    seed: int | None = None,
) -> Strategy:
    """Step 1 / smoothness unless given; see `fedpriv.gradient_descent`."""
    if average is not None and report != "average":
        raise ConfigError("strategy.average", average, "is a weight of iterates: say report: average")
    if seed is not None and report != "random":
        raise ConfigError("strategy.seed", seed, "chooses the iterate to report: say report: random")
    return gradient_descent(
        learning_rate or 1 / smoothness,
        regularizer.build(),
        momentum=momentum,
        average=(average or 0.0) if report == "average" else None,
        random_iterate=rounds if report == "random" else None,
        seed=seed or 0,
    )


def dp_svrg(
    epoch_length: Steps | None = None,
    learning_rate: Positive | None = None,
    smoothness: Positive = LOGISTIC,
    regularizer: RegularizerChoice = NONE,
    difference_bound: Literal["smoothness", "twice_clip"] = "smoothness",
    anchor_share: Positive = 1.0,
) -> Recipe:
    """The paper's step and epoch unless given, see `fedpriv.strategies.svrg.proven`; else `fedpriv.svrg`."""
    h = regularizer.build()
    step, length = proven(smoothness, h.strong_convexity, learning_rate=learning_rate, epoch_length=epoch_length)
    return _svrg(Epochs(length), step, smoothness, h, difference_bound, anchor_share)


def dp_svrg_plus_plus(
    epoch_length: Steps = 10,
    learning_rate: Positive | None = None,
    smoothness: Positive = LOGISTIC,
    regularizer: RegularizerChoice = NONE,
    difference_bound: Literal["smoothness", "twice_clip"] = "smoothness",
    anchor_share: Positive = 1.0,
) -> Recipe:
    """Step 1 / (13 smoothness) unless given (theorem 4.4); m = 10 in the paper's experiment; see `fedpriv.svrg`."""
    step, epochs = learning_rate or 1 / (13 * smoothness), Epochs(epoch_length, True)
    return _svrg(epochs, step, smoothness, regularizer.build(), difference_bound, anchor_share)


def dp_accmd(radius: Positive, ball: Literal["l1", "l2"] = "l2", smoothness: Positive = LOGISTIC) -> Strategy:
    """See `fedpriv.accelerated_mirror_descent`."""
    return accelerated_mirror_descent(L1Ball(radius) if ball == "l1" else EuclideanBall(radius), smoothness)


def published_svrg(
    epsilon_bar: float,
    rounds: int,
    n_examples: Steps,
    epoch_length: Steps,
    learning_rate: Positive,
    regularizer: RegularizerChoice = NONE,
    delta_bar: Annotated[float, Field(gt=0, lt=1)] = 1e-3,
) -> Recipe:
    """Algorithm 1 as published, c = 1; use `privacy: {sampling: {fixed_size: {size: 1}}}`."""
    return _published(epsilon_bar, rounds, n_examples, Epochs(epoch_length), learning_rate, regularizer, delta_bar)


def published_svrg_plus_plus(
    epsilon_bar: float,
    rounds: int,
    n_examples: Steps,
    epoch_length: Steps,
    learning_rate: Positive,
    regularizer: RegularizerChoice = NONE,
    delta_bar: Annotated[float, Field(gt=0, lt=1)] = 1e-3,
) -> Recipe:
    """Algorithm 2 as published, c = 1."""
    epochs = Epochs(epoch_length, True)
    return _published(epsilon_bar, rounds, n_examples, epochs, learning_rate, regularizer, delta_bar)


def published_accmd(
    epsilon_bar: float,
    rounds: int,
    n_examples: Steps,
    radius: Positive,
    ball: Literal["l1", "l2"] = "l2",
    smoothness: Positive = LOGISTIC,
    delta_bar: Annotated[float, Field(gt=0, lt=1)] = 1e-3,
) -> Recipe:
    """Algorithm 3 as published, c = 1: the gradient of the y-step has no noise."""
    feasible = L1Ball(radius) if ball == "l1" else EuclideanBall(radius)
    sigma = claims.svrg_deviation(epsilon_bar, n_examples, rounds, 1, delta=delta_bar)
    return Recipe(
        accelerated_mirror_descent(feasible, smoothness, published=True),
        published=Published(epsilon_bar, "gaussian", delta_bar, scale=sigma, exact=("full_gradient",)),
        claim=lambda _: claims.accelerated_mirror_descent(epsilon_bar, rounds, delta_bar),
    )


def _svrg(
    epochs: Epochs,
    step: float,
    smoothness: float,
    regularizer: Proximal,
    difference_bound: Literal["smoothness", "twice_clip"],
    anchor_share: float,
) -> Recipe:
    known = smoothness if difference_bound == "smoothness" else None
    strategy = svrg(step, epochs.length, regularizer, smoothness=known, doubling=epochs.doubling)
    return Recipe(strategy, schedule=AnchorBudget(epochs, anchor_share))


def _published(
    epsilon_bar: float,
    rounds: int,
    n_examples: int,
    epochs: Epochs,
    step: float,
    regularizer: RegularizerChoice,
    delta_bar: float,
) -> Recipe:
    given = (epsilon_bar, n_examples, epochs.whole(rounds - 1) + 1, epochs.length)
    sigma = claims.svrg_deviation(*given, delta=delta_bar, doubling=epochs.doubling)
    return Recipe(
        svrg(step, epochs.length, regularizer.build(), doubling=epochs.doubling),
        published=Published(epsilon_bar, "gaussian", delta_bar, scale=sigma, exact=("full_gradient",)),
        claim=lambda _: claims.svrg(*given, delta=delta_bar, doubling=epochs.doubling),
    )


STRATEGIES: dict[str, StrategyEntry] = {
    "dp_gd": StrategyEntry(dp_gd, "proximal gradient descent on private gradients (Wang, Ye, Xu, DP-GD)"),
    "dp_svrg": StrategyEntry(dp_svrg, "variance reduction with anchors (Wang, Ye, Xu, DP-SVRG)", published_svrg),
    "dp_svrg_plus_plus": StrategyEntry(
        dp_svrg_plus_plus, "the same with doubling epochs (Wang, Ye, Xu, DP-SVRG++)", published_svrg_plus_plus
    ),
    "dp_accmd": StrategyEntry(
        dp_accmd, "accelerated mirror descent on an l2 or l1 ball (Wang, Ye, Xu, DP-AccMD)", published_accmd
    ),
}
