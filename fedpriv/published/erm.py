"""Algorithms of Wang, Ye and Xu (2017) with their parameters; `published_...` also with their noise, not private."""

from __future__ import annotations

from typing import Literal

from fedpriv.checks import Count, Fraction, NonNegative, Positive, PositiveOrInfinite, Ratio, checked
from fedpriv.errors import ConfigError
from fedpriv.plugins import Entry
from fedpriv.privacy import claims
from fedpriv.privacy.as_published import Published
from fedpriv.published.recipe import Recipe, Variants
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.erm import gradient_descent
from fedpriv.strategies.mirror_descent import EuclideanBall, L1Ball, accelerated_mirror_descent
from fedpriv.strategies.proximal import Proximal, Zero
from fedpriv.strategies.svrg import AnchorBudget, Epochs, proven, svrg

LOGISTIC = 0.25  # smoothness of the logistic loss of rows of norm 1


@checked("strategy")
def dp_gd(
    rounds: int,
    learning_rate: Positive | None = None,
    smoothness: Positive = LOGISTIC,
    regularizer: Proximal = Zero(),
    momentum: Fraction = 0.0,
    report: Literal["last", "average", "random"] = "last",
    average: NonNegative | None = None,
    seed: int | None = None,
) -> Strategy:
    """DP-GD with step size 1 / smoothness unless given; see `fedpriv.gradient_descent`."""
    if average is not None and report != "average":
        raise ConfigError("strategy.average", average, "is a weight of iterates: say report: average")
    if seed is not None and report != "random":
        raise ConfigError("strategy.seed", seed, "chooses the iterate to report: say report: random")
    return gradient_descent(
        learning_rate or 1 / smoothness,
        regularizer,
        momentum=momentum,
        average=(average or 0.0) if report == "average" else None,
        random_iterate=rounds if report == "random" else None,
        seed=seed or 0,
    )


@checked("strategy")
def dp_svrg(
    epoch_length: Count | None = None,
    learning_rate: Positive | None = None,
    smoothness: Positive = LOGISTIC,
    regularizer: Proximal = Zero(),
    difference_bound: Literal["smoothness", "twice_clip"] = "smoothness",
    anchor_share: Positive = 1.0,
) -> Recipe:
    """DP-SVRG with the paper's step size and epoch length unless given; see `fedpriv.svrg`."""
    convexity = regularizer.strong_convexity
    step, length = proven(smoothness, convexity, learning_rate=learning_rate, epoch_length=epoch_length)
    return _svrg(Epochs(length), step, smoothness, regularizer, difference_bound, anchor_share)


@checked("strategy")
def dp_svrg_plus_plus(
    epoch_length: Count = 10,
    learning_rate: Positive | None = None,
    smoothness: Positive = LOGISTIC,
    regularizer: Proximal = Zero(),
    difference_bound: Literal["smoothness", "twice_clip"] = "smoothness",
    anchor_share: Positive = 1.0,
) -> Recipe:
    """DP-SVRG++ with step size 1 / (13 smoothness) unless given (theorem 4.4); see `fedpriv.svrg`."""
    step, epochs = learning_rate or 1 / (13 * smoothness), Epochs(epoch_length, True)
    return _svrg(epochs, step, smoothness, regularizer, difference_bound, anchor_share)


@checked("strategy")
def dp_accmd(radius: Positive, ball: Literal["l1", "l2"] = "l2", smoothness: Positive = LOGISTIC) -> Strategy:
    """DP-AccMD on an l1 or l2 ball; see `fedpriv.accelerated_mirror_descent`."""
    return accelerated_mirror_descent(L1Ball(radius) if ball == "l1" else EuclideanBall(radius), smoothness)


@checked("strategy")
def published_svrg(
    epsilon_bar: PositiveOrInfinite,
    rounds: int,
    n_examples: Count,
    epoch_length: Count,
    learning_rate: Positive,
    regularizer: Proximal = Zero(),
    delta_bar: Ratio = 1e-3,
) -> Recipe:
    """Algorithm 1 (DP-SVRG) as published, its constant c as 1. Not private.

    Use `privacy: {sampling: {fixed_size: {size: 1}}}`.
    """
    return _published(epsilon_bar, rounds, n_examples, Epochs(epoch_length), learning_rate, regularizer, delta_bar)


@checked("strategy")
def published_svrg_plus_plus(
    epsilon_bar: PositiveOrInfinite,
    rounds: int,
    n_examples: Count,
    epoch_length: Count,
    learning_rate: Positive,
    regularizer: Proximal = Zero(),
    delta_bar: Ratio = 1e-3,
) -> Recipe:
    """Algorithm 2 (DP-SVRG++) as published, its constant c as 1. Not private."""
    epochs = Epochs(epoch_length, True)
    return _published(epsilon_bar, rounds, n_examples, epochs, learning_rate, regularizer, delta_bar)


@checked("strategy")
def published_accmd(
    epsilon_bar: PositiveOrInfinite,
    rounds: int,
    n_examples: Count,
    radius: Positive,
    ball: Literal["l1", "l2"] = "l2",
    smoothness: Positive = LOGISTIC,
    delta_bar: Ratio = 1e-3,
) -> Recipe:
    """Algorithm 3 (DP-AccMD) as published, its constant c as 1. Not private: the y-step's gradient has no noise."""
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
    regularizer: Proximal,
    delta_bar: float,
) -> Recipe:
    given = (epsilon_bar, n_examples, epochs.whole(rounds - 1) + 1, epochs.length)
    sigma = claims.svrg_deviation(*given, delta=delta_bar, doubling=epochs.doubling)
    return Recipe(
        svrg(step, epochs.length, regularizer, doubling=epochs.doubling),
        published=Published(epsilon_bar, "gaussian", delta_bar, scale=sigma, exact=("full_gradient",)),
        claim=lambda _: claims.svrg(*given, delta=delta_bar, doubling=epochs.doubling),
    )


NAMES = {
    "dp_gd": Entry(dp_gd, "proximal gradient descent on private gradients (Wang, Ye, Xu, DP-GD)"),
    "dp_svrg": Entry(dp_svrg, "variance reduction with anchors (Wang, Ye, Xu, DP-SVRG)"),
    "dp_svrg_plus_plus": Entry(dp_svrg_plus_plus, "variance reduction with doubling epochs (Wang, Ye, Xu, DP-SVRG++)"),
    "dp_accmd": Entry(dp_accmd, "accelerated mirror descent on an l2 or l1 ball (Wang, Ye, Xu, DP-AccMD)"),
}
VARIANTS = {
    "dp_svrg": Variants(published_svrg),
    "dp_svrg_plus_plus": Variants(published_svrg_plus_plus),
    "dp_accmd": Variants(published_accmd),
}
