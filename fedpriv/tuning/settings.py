"""The settings of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from fedpriv.errors import ConfigError
from fedpriv.evaluation import metrics
from fedpriv.privacy.accounting import NegativeBinomial, NumberOfTrials, PoissonTrials
from fedpriv.settings import Bound, Positive, PositiveOrInfinite, Whole, validate_arguments

METRIC = "test_accuracy"
"""The only score that may be private."""
Sampler = Literal["tpe", "random"]
TrialsDistribution = Literal["logarithmic", "geometric", "poisson"]
Better = Literal["higher", "lower"]
Trials = Annotated[int, Bound("must be a whole number from 1 to 10000", 1, 10_000, "[]")]


@validate_arguments("search")
@dataclass(frozen=True)
class SearchSettings:
    """The settings of a search.

    Args:
        trials: Number of runs; with `secret_trials` the expected number.
        sampler: `"tpe"` learns from the scores so far; `"random"` chooses all settings beforehand.
        metric: The score: a metric on public test data, e.g. `"test_accuracy"`.
        score_noise: Standard deviation of the noise of scores, relative to the change due to one example, for private
            test data: each trial then releases `test_accuracy` alone, which is included in the cost. None: test data
            are public.
        better: `"higher"` or `"lower"` scores are better; required for user-defined metrics.
        epsilon: Largest cost of the search; None for no limit.
        secret_trials: Distribution of the number of trials, which is drawn in secret: one model is published, and
            everything else stays secret. None: every trial is visible.
        seed: Public seed of the choices.

    Raises:
        ConfigError: If an argument is out of range, or the score would be computed from private data.
    """

    trials: Trials
    sampler: Sampler = "tpe"
    metric: str = "test_accuracy"
    better: Better | None = None
    epsilon: PositiveOrInfinite | None = None
    secret_trials: TrialsDistribution | None = None
    seed: Whole = 0
    score_noise: Positive | None = None

    def __post_init__(self) -> None:
        if not self.metric.startswith(("test_", "client_test_")):
            fix = (
                "must be a metric on test data, e.g. test_accuracy, since a metric on training data would reveal more "
                "about these data. Use test data that may be public, or set score_noise for private test data"
            )
            raise ConfigError("search.metric", self.metric, fix)
        if self.score_noise is not None and self.metric != METRIC:
            fix = (
                "cannot be used with score_noise, which needs a metric that changes little with one example: use "
                f"{METRIC}"
            )
            raise ConfigError("search.metric", self.metric, fix)
        if self.better is None and metrics.get_direction(self.metric) is None:
            raise ConfigError("search.better", None, f"is required for {self.metric}: set better to higher or lower")
        if self.secret_trials is not None and self.sampler != "random":
            fix = (
                "cannot be combined with a secret number of trials, whose privacy cost is known only if settings do "
                "not depend on earlier trials: use random"
            )
            raise ConfigError("search.sampler", self.sampler, fix)
        if self.secret_trials is not None:
            self.number  # noqa: B018 - raises for an expected number that the distribution cannot have

    @property
    def scored_on(self) -> str:
        """The score and its data, as text."""
        if self.score_noise is None:
            return f"{self.metric} on public test data"
        return f"{self.metric} on private test data, with noise of {self.score_noise:g} times what one example changes"

    @property
    def maximizes(self) -> bool:
        """True if larger scores are better."""
        return (self.better or metrics.get_direction(self.metric)) == "higher"

    @property
    def number(self) -> NumberOfTrials:
        """The distribution of the secret number of trials."""
        if self.secret_trials == "poisson":
            return PoissonTrials(float(self.trials))
        if self.secret_trials == "geometric":
            return NegativeBinomial(float(self.trials), 1.0)
        return NegativeBinomial(float(self.trials), 0.0)  # logarithmic
