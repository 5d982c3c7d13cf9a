"""Detects NaN and infinity in released models and in test metrics on public data.

Clients' gradients are not checked here, because it is private information if they are finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from fedpriv.errors import check_choice

StopOn = Literal["nonfinite", "nonfinite_loss", "nothing"]
_STOPS: dict[str, tuple[str, ...]] = {
    "nonfinite": ("model",),
    "nonfinite_loss": ("model", "test_loss"),
    "nothing": (),
}
_WATCHED = ("test_loss", "model")
_FIX = "use a smaller step size, e.g. a lower learning_rate"


@dataclass(frozen=True)
class FiniteCheck:
    """The values of a run that were not finite, and the first round of each.

    Args:
        stop_on: The event that ends the run: `"nonfinite"`, a released model with NaN or infinity; `"nonfinite_loss"`,
            also such a test loss; or `"nothing"`.
        first: For `"model"` and `"test_loss"` the first round, counted from 1, in which it was not finite.

    Raises:
        ConfigError: If `stop_on` is unknown.
    """

    stop_on: StopOn = "nonfinite"
    first: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        check_choice("stop_on", self.stop_on, *_STOPS)

    def after(self, round_number: int, values: Mapping[str, Tensor | float]) -> FiniteCheck:
        """Returns the state after a round, from its models `[n, dim]` (named `"model"`) or metrics.

        Returns this same object if nothing has changed.
        """
        broken = [name for name in _WATCHED if name in values and not is_finite(values[name])]
        if all(name in self.first for name in broken):
            return self
        return replace(self, first={**dict.fromkeys(broken, round_number), **self.first})

    @property
    def stops(self) -> bool:
        """True if the run ends after this round."""
        return not self.first.keys().isdisjoint(_STOPS[self.stop_on])

    def warning(self, before: FiniteCheck, models: Tensor, spent: str) -> str | None:
        """Returns a warning if something is not finite for the first time; else None.

        Args:
            before: The state before this round.
            models: The reported models, `[n, dim]`.
            spent: The epsilon spent so far, in words; empty without privacy.
        """
        new = {name: round_number for name, round_number in self.first.items() if name not in before.first}
        if not new:
            return None
        if "model" in new:
            subject = f"the released model is not finite ({_count(models)})"
        else:
            subject = "the test loss is not finite"
        consequence = "later query results may contain only noise"
        if self.stops:
            consequence = "the run ends here, and its whole plan is charged"
        elif "model" not in new:
            consequence += " (set stop_on: nonfinite_loss to end a run in this case)"
        texts = [f"round {next(iter(new.values()))}: {subject}", consequence, _FIX]
        if spent:
            texts.append(spent)
        return "; ".join(texts)


def format_first_rounds(first: Mapping[str, int]) -> str:
    """Formats the first rounds in which values were not finite; returns an empty text if all values were finite.

    >>> format_first_rounds({"test_loss": 3, "model": 12})
    'test loss in round 3, model in round 12'
    """
    return ", ".join(f"{name.replace('_', ' ')} in round {first[name]}" for name in _WATCHED if name in first)


def is_finite(values: Tensor | float) -> bool:
    """True if all values are finite.

    The sum is tested first, in one pass. It is not finite if a value is NaN or infinite, but finite values may also
    overflow. Therefore, if the sum is not finite, the values themselves are tested.
    """
    distinct = _distinct(torch.as_tensor(values))
    return math.isfinite(distinct.sum().item()) or bool(torch.isfinite(distinct).all())


def _count(models: Tensor) -> str:
    distinct = _distinct(models)
    return f"{int((~torch.isfinite(distinct)).sum())} of {distinct.numel()} values"


def _distinct(values: Tensor) -> Tensor:
    """Returns one row of values if all rows are the same row in memory, else the values."""
    if values.ndim == 2 and values.stride(0) == 0:
        return values[:1]
    return values
