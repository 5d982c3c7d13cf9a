"""Algorithms of Wang, Ye and Xu (2017) with their parameters; `published_...` also with their noise, not private."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fedpriv.algorithms.mirror_descent import EuclideanBall, L1Ball, accelerated_mirror_descent
from fedpriv.algorithms.svrg import AnchorBudget, Epochs, Lengths, proven, svrg
from fedpriv.errors import ConfigError
from fedpriv.papers import claims
from fedpriv.papers.published import Published
from fedpriv.papers.recipe import Recipe, Variants
from fedpriv.settings import Count, Fraction, Positive, PositiveOrInfinite, Ratio, RegistryEntry, validate_arguments
from fedpriv.strategies import (
    Average,
    Optimizer,
    Proximal,
    Rate,
    Sgd,
    Strategy,
    Zero,
    flatten_parameters,
    gradient_descent,
)

LOGISTIC = 0.25  # smoothness of the logistic loss of rows of norm 1


@validate_arguments("strategy")
def dp_gd(
    rounds: int,
    learning_rate: Rate | None = None,
    smoothness: Positive = LOGISTIC,
    regularizer: Proximal = Zero(),
    optimizer: Optimizer[Any] = Sgd(),
    momentum: Fraction = 0.0,
    output: Literal["last", "average", "random"] = "last",
    average: Average | None = None,
    seed: int | None = None,
) -> Strategy:
    """DP-GD with step size 1 / smoothness unless given; see `fedpriv.gradient_descent`."""
    if average is not None and output != "average":
        raise ConfigError(
            "strategy.average", average, "is the weight of iterates in an average: set output: average, or leave it out"
        )
    if seed is not None and output != "random":
        raise ConfigError(
            "strategy.seed", seed, "is the seed that draws a random iterate: set output: random, or leave it out"
        )
    return gradient_descent(
        learning_rate or 1 / smoothness,
        regularizer,
        optimizer=optimizer,
        momentum=momentum,
        average=(average or 0.0) if output == "average" else None,
        random_iterate=rounds if output == "random" else None,
        seed=seed or 0,
    )


@validate_arguments("strategy")
@dataclass(frozen=True)
class Inner:
    """Options that DP-SVRG and DP-SVRG++ share.

    Args:
        learning_rate: Step size of inner steps; the paper's unless given.
        smoothness: Smoothness of the loss of an example.
        regularizer: h.
        difference_bound: True to clip the difference of two gradients of an example to the bound implied by
            `smoothness`, False to twice the clip bound of a gradient.
        anchor_share: See `fedpriv.AnchorBudget`.
    """

    learning_rate: Rate | None = None
    smoothness: Positive = LOGISTIC
    regularizer: Proximal = Zero()
    difference_bound: Literal["smoothness", "twice_clip"] = "smoothness"
    anchor_share: Positive = 1.0

    def recipe(self, step: Rate, epochs: Epochs, *, barzilai_borwein: bool = False) -> Recipe:
        """Returns the algorithm with this step size and these epochs."""
        if self.difference_bound == "smoothness":
            smoothness = self.smoothness
        else:
            smoothness = None
        strategy = svrg(
            step,
            epochs.length,
            self.regularizer,
            smoothness=smoothness,
            doubling=epochs.doubling,
            barzilai_borwein=barzilai_borwein,
        )
        return Recipe(strategy, schedule=AnchorBudget(epochs, self.anchor_share))


@validate_arguments("strategy")
def dp_svrg(inner: Inner, epoch_length: Lengths | None = None, barzilai_borwein: bool = False) -> Recipe:
    """DP-SVRG with the paper's step size and epoch length unless given; see `fedpriv.svrg`."""
    convexity, step = inner.regularizer.strong_convexity, inner.learning_rate
    length = epoch_length
    if callable(step):
        if length is None:
            raise ConfigError(
                "strategy.epoch_length",
                None,
                "is required with a learning rate that changes over rounds, since the paper's formula for it needs a "
                "constant one: set epoch_length, or use a constant learning_rate",
            )
    elif isinstance(length, int | None):
        step, length = proven(inner.smoothness, convexity, learning_rate=step, epoch_length=length)
    else:
        step, _ = proven(inner.smoothness, convexity, learning_rate=step, epoch_length=length[0])
    return inner.recipe(step, Epochs(length), barzilai_borwein=barzilai_borwein)


@validate_arguments("strategy")
def dp_svrg_plus_plus(inner: Inner, epoch_length: Lengths = 10) -> Recipe:
    """DP-SVRG++ with step size 1 / (13 smoothness) unless given (theorem 4.4); see `fedpriv.svrg`."""
    return inner.recipe(inner.learning_rate or 1 / (13 * inner.smoothness), Epochs(epoch_length, True))


@validate_arguments("strategy")
@dataclass(frozen=True)
class OnBall:
    """Options of DP-AccMD.

    Args:
        radius: Radius of the ball that contains the model.
        ball: Its norm.
        smoothness: Smoothness of the mean loss, in the 2-norm.
    """

    radius: Positive
    ball: Literal["l1", "l2"] = "l2"
    smoothness: Positive = LOGISTIC

    def strategy(self, *, published: bool = False) -> Strategy:
        """The algorithm."""
        if self.ball == "l1":
            feasible = L1Ball(self.radius)
        else:
            feasible = EuclideanBall(self.radius)
        return accelerated_mirror_descent(feasible, self.smoothness, published=published)


@validate_arguments("strategy")
def dp_accmd(on: OnBall) -> Strategy:
    """DP-AccMD on an l1 or l2 ball; see `fedpriv.accelerated_mirror_descent`."""
    return on.strategy()


@validate_arguments("strategy")
@dataclass(frozen=True)
class Printed:
    """Parameters of the paper's noise.

    Args:
        epsilon_bar: The epsilon that the paper states.
        rounds: Number of rounds of the run.
        n_examples: Number of examples of all clients.
        delta_bar: The delta that the paper states.
    """

    epsilon_bar: PositiveOrInfinite
    rounds: int
    n_examples: Count
    delta_bar: Ratio = 1e-3

    def noise(self, epochs: int, length: int, *, doubling: bool = False) -> Published:
        """Returns the noise for this many epochs of this length; the gradient at an anchor has none."""
        sigma = claims.svrg_deviation(
            self.epsilon_bar, self.n_examples, epochs, length, delta=self.delta_bar, doubling=doubling
        )
        return Published(self.epsilon_bar, "gaussian", self.delta_bar, scale=sigma, exact_queries=("full_gradient",))


@validate_arguments("strategy")
def published_svrg(
    printed: Printed,
    epoch_length: Count,
    learning_rate: Positive,
    regularizer: Proximal = Zero(),
    barzilai_borwein: bool = False,
) -> Recipe:
    """Algorithm 1 (DP-SVRG) as published, its constant c as 1. Not private.

    Use `privacy: {sampling: {fixed_size: {size: 1}}}`, and `barzilai_borwein` as in the paper's figure 1.
    """
    return _published(printed, Epochs(epoch_length), learning_rate, regularizer, barzilai_borwein=barzilai_borwein)


@validate_arguments("strategy")
def published_svrg_plus_plus(
    printed: Printed, epoch_length: Count, learning_rate: Positive, regularizer: Proximal = Zero()
) -> Recipe:
    """Algorithm 2 (DP-SVRG++) as published, its constant c as 1. Not private."""
    return _published(printed, Epochs(epoch_length, True), learning_rate, regularizer)


@validate_arguments("strategy")
def published_accmd(printed: Printed, on: OnBall) -> Recipe:
    """Algorithm 3 (DP-AccMD) as published, its constant c as 1. Not private: the y-step's gradient has no noise."""
    return Recipe(
        on.strategy(published=True),
        published=printed.noise(printed.rounds, 1),
        claim=lambda _: claims.accelerated_mirror_descent(printed.epsilon_bar, printed.rounds, printed.delta_bar),
    )


def _published(
    printed: Printed, epochs: Epochs, step: float, regularizer: Proximal, *, barzilai_borwein: bool = False
) -> Recipe:
    count = epochs.whole(printed.rounds - 1) + 1
    doubling = epochs.doubling
    length = epochs.inner_steps(1) // (2 if doubling else 1)
    return Recipe(
        svrg(step, epochs.length, regularizer, doubling=doubling, barzilai_borwein=barzilai_borwein),
        published=printed.noise(count, length, doubling=doubling),
        claim=lambda _: claims.svrg(
            printed.epsilon_bar,
            printed.n_examples,
            count,
            length,
            delta=printed.delta_bar,
            doubling=doubling,
        ),
    )


NAMES = {
    "dp_gd": RegistryEntry(dp_gd, "proximal gradient descent on private gradients (Wang, Ye, Xu, DP-GD)"),
    "dp_svrg": RegistryEntry(
        flatten_parameters(dp_svrg, inner=Inner), "variance reduction with anchors (Wang, Ye, Xu, DP-SVRG)"
    ),
    "dp_svrg_plus_plus": RegistryEntry(
        flatten_parameters(dp_svrg_plus_plus, inner=Inner),
        "variance reduction with doubling epochs (Wang, Ye, Xu, DP-SVRG++)",
    ),
    "dp_accmd": RegistryEntry(
        flatten_parameters(dp_accmd, on=OnBall),
        "accelerated mirror descent on an l2 or l1 ball (Wang, Ye, Xu, DP-AccMD)",
    ),
}
VARIANTS = {
    "dp_svrg": Variants(flatten_parameters(published_svrg, printed=Printed)),
    "dp_svrg_plus_plus": Variants(flatten_parameters(published_svrg_plus_plus, printed=Printed)),
    "dp_accmd": Variants(flatten_parameters(published_accmd, printed=Printed, on=OnBall)),
}
