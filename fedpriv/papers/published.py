"""Noise as papers publish it, to reproduce them. It is not private: its scale is too small, or depends on the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedpriv.errors import ConfigError
from fedpriv.privacy import Gaussian, Laplace, Mechanism, Record, UnprotectedNoise
from fedpriv.settings import NonNegative, Positive, PositiveOrInfinite, Ratio, validate_arguments


@validate_arguments("privacy.published")
@dataclass(frozen=True)
class Published(UnprotectedNoise):
    """Noise as a paper publishes it, for reproduction; by default the noise of Ryu and Kim (2022).

    It is not private: runs with it report epsilon = inf and the reason.

    Args:
        epsilon_bar: The epsilon that the paper states (of one round, for Ryu and Kim); `inf` means no noise.
        mechanism: `"laplace"` is eq 20 of Ryu and Kim: the scale is the largest l1 norm among the client's per-example
            gradients, divided by `epsilon_bar`. `"gaussian"` is the baseline of Huang et al. (2020), which assumes
            `gradient_bound`.
        delta_bar: The delta that the paper states (`"gaussian"`).
        gradient_bound: Norm of per-example gradients that the paper assumes; nothing enforces it (`"gaussian"`).
        scale: Scale of the noise in round 0, instead of the formulas above: the standard deviation of Gaussian noise,
            or b of Laplace noise; 0 if `epsilon_bar` is infinite.
        growth: Factor by which `scale` changes from round to round.
        noise_on: The value that noise of this `scale` is added to: a client's mean `"gradient"` or its whole
            `"message"`.
        exact_queries: Names of the queries that the paper leaves without noise.
        flaw: Reason why noise of that scale is not private, for reports.

    Raises:
        ConfigError: If an argument is out of range, or noise on messages has no `scale`.

    Examples:
        >>> import fedpriv
        >>> fedpriv.Privacy(published=fedpriv.Published(epsilon_bar=3.0)).private
        False
    """

    epsilon_bar: PositiveOrInfinite
    mechanism: Literal["laplace", "gaussian"] = "laplace"
    delta_bar: Ratio = 1e-6
    gradient_bound: Positive = 1.0
    scale: NonNegative | None = None
    growth: Positive = 1.0
    noise_on: Literal["gradient", "message"] = "gradient"
    exact_queries: tuple[str, ...] = ()
    flaw: str = "the paper's noise does not cover what is released"

    @property
    def why_not(self) -> str:
        """The reason why this noise is not private, as reports print it."""
        if math.isinf(self.epsilon_bar):
            return "exact query results, no noise"
        if self.scale is not None:
            return f"as published: {self.flaw}"
        if self.mechanism == "gaussian":
            return "as published: the gradient bound is assumed, not enforced"
        return "as published: the noise scale is measured on the client's own data (eq 20)"

    def __post_init__(self) -> None:
        if self.scale == 0 and math.isfinite(self.epsilon_bar):
            raise ConfigError(
                "privacy.published.scale", 0.0, "must be positive; for no noise, set epsilon_bar to infinity"
            )
        if self.noise_on == "message" and self.scale is None and math.isfinite(self.epsilon_bar):
            raise ConfigError(
                "privacy.published.scale", None, "is required for noise on messages: set the scale of the noise"
            )

    @property
    def noise_mechanism(self) -> Mechanism:
        """See `UnprotectedNoise`."""
        if self.mechanism == "gaussian":
            return Gaussian()
        return Laplace()

    def deviation(self, round_index: int) -> float:
        """Returns the scale of the noise in round `round_index` (from 0), where `scale` is given."""
        assert self.scale is not None
        return self.scale * self.growth**round_index

    def scales(
        self, record: Record, factors: Sequence[float], largest_norms: Callable[[], Sequence[float]]
    ) -> Sequence[float] | None:
        """See `UnprotectedNoise`. The norms are needed only for eq 20 of Ryu and Kim (2022)."""
        if self.scale is None and record.query == "gradient_difference":
            raise ConfigError(
                "privacy.published",
                "gradient_difference",
                "is a query for which the paper has no noise: set scale, or use another query",
            )
        if math.isinf(self.epsilon_bar) or record.query in self.exact_queries:
            return None
        if self.scale is not None:
            return [self.deviation(record.round)] * len(factors)
        if self.mechanism == "gaussian":
            width = 2 * self.gradient_bound * math.sqrt(2 * math.log(1.25 / self.delta_bar))
            return [factor * width / self.epsilon_bar for factor in factors]
        norms = largest_norms()
        return [factor * norm / self.epsilon_bar for factor, norm in zip(factors, norms, strict=True)]
