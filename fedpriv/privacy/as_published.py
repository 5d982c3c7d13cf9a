"""Noise as papers publish it: its scale is measured on the data, or too small, so it is recorded as not private."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedpriv.checks import NonNegative, Positive, PositiveOrInfinite, Ratio, checked
from fedpriv.errors import ConfigError
from fedpriv.privacy.ledger import Release
from fedpriv.privacy.mechanisms import Gaussian, Laplace, Mechanism, add_noise
from fedpriv.privacy.record import Record
from fedpriv.randomness.streams import Randomness


@checked("privacy.published")
@dataclass(frozen=True)
class Published:
    """Noise as a paper publishes it, for reproduction. It is not private and is recorded so.

    By default it is that of Ryu and Kim (2022).

    Args:
        epsilon_bar: The paper's epsilon (of a round, for Ryu and Kim); `inf` means no noise.
        law: `"laplace"`: eq 20, scale = largest l1 norm among the client's own per-sample gradients over
            `epsilon_bar`. `"gaussian"`: the baseline of Huang et al. (2020) with `gradient_bound` assumed, not
            enforced.
        delta_bar: Nominal delta of the Gaussian law.
        gradient_bound: Assumed bound on per-sample gradients (Gaussian law).
        scale: Scale of the noise in round 0 where a paper gives it directly: standard deviation of the Gaussian law, b
            of the Laplace law; 0 where `epsilon_bar` is infinite. `epsilon_bar` is then only what the paper says of it.
        growth: Factor by which `scale` changes from round to round.
        at: What the noise is added to, with `scale`: a client's mean gradient or its whole message.
        exact: Queries that the paper leaves without noise.
        lacks: Why noise of that scale is not private.
    """

    epsilon_bar: PositiveOrInfinite
    law: Literal["laplace", "gaussian"] = "laplace"
    delta_bar: Ratio = 1e-6
    gradient_bound: Positive = 1.0
    scale: NonNegative | None = None
    growth: Positive = 1.0
    at: Literal["gradient", "message"] = "gradient"
    exact: tuple[str, ...] = ()
    lacks: str = "the paper's noise does not cover what is released"

    @property
    def why_not(self) -> str:
        """Why it is not private."""
        if math.isinf(self.epsilon_bar):
            return "exact answers, no noise"
        if self.scale is not None:
            return f"as published: {self.lacks}"
        if self.law == "gaussian":
            return "as published: the gradient bound is assumed, not enforced"
        return "as published: the noise scale is measured on the client's own data (eq 20)"

    def __post_init__(self) -> None:
        if self.scale == 0 and math.isfinite(self.epsilon_bar):
            raise ConfigError("privacy.published.scale", 0.0, "must be positive, or epsilon_bar infinite for no noise")
        if self.at == "message" and self.scale is None and math.isfinite(self.epsilon_bar):
            raise ConfigError("privacy.published.scale", None, "must be given for noise on messages")


def add_published_noise(
    exact: Tensor,
    published: Published,
    record: Record,
    randomness: Randomness,
    clients: Sequence[int],
    factors: Sequence[float],
    largest_norms: Callable[[], Sequence[float]],
) -> Release:
    """The release of the exact rows `[k, dim]` with a paper's noise.

    Args:
        exact: What the paper adds noise to.
        published: Which noise.
        record: Says that the answer is not private.
        randomness: The run's streams.
        clients: Whose rows these are, `k` of them.
        factors: Public factor that each row already contains.
        largest_norms: Each client's largest per-example l1 norm of a gradient; asked where eq 20 of Ryu and Kim (2022)
            needs it, for it costs another pass over the data.
    """
    if math.isinf(published.epsilon_bar) or record.query in published.exact:
        return Release(record, exact)
    mechanism: Mechanism = Gaussian() if published.law == "gaussian" else Laplace()
    if published.scale is not None:
        scales = [published.scale * published.growth**record.round] * len(exact)
    elif published.law == "gaussian":
        width = 2 * published.gradient_bound * math.sqrt(2 * math.log(1.25 / published.delta_bar))
        scales = [factor * width / published.epsilon_bar for factor in factors]
    else:
        norms = largest_norms()
        scales = [factor * norm / published.epsilon_bar for factor, norm in zip(factors, norms, strict=True)]
    return add_noise(exact, scales, mechanism, record, randomness, clients)
