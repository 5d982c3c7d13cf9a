"""Detect NaN and infinity in released models and in test metrics on public data.

Whether a client's gradients are finite is private, so it is not looked at here.
"""

from __future__ import annotations

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
_FIX = "take smaller steps, e.g. a lower learning_rate"


@dataclass(frozen=True)
class FiniteCheck:
    """What has not been finite in a run, and since which round.

    Args:
        stop_on: What ends the run: `"nonfinite"`, a released model with NaN or infinity; `"nonfinite_loss"`, also such
            a test loss; or `"nothing"`.
        first: For `"model"` and `"test_loss"` the first round, counted from 1, in which it was not finite.

    Raises:
        ConfigError: `stop_on` is unknown.
    """

    stop_on: StopOn = "nonfinite"
    first: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        check_choice("stop_on", self.stop_on, *_STOPS)

    def after(self, round_number: int, found: Mapping[str, Tensor | float]) -> FiniteCheck:
        """The state after a round, from its models `[n, dim]` (named `"model"`) or metrics."""
        broken = [name for name in _WATCHED if name in found and not is_finite(found[name])]
        return replace(self, first={**dict.fromkeys(broken, round_number), **self.first})

    @property
    def stops(self) -> bool:
        """Whether the run is to end here."""
        return any(name in self.first for name in _STOPS[self.stop_on])

    def warning(self, before: FiniteCheck, models: Tensor, spent: str) -> str | None:
        """A warning if something is not finite for the first time; else None.

        Args:
            before: The state before this round.
            models: The reported models, `[n, dim]`.
            spent: What the run has spent by now, in words; empty without privacy.
        """
        new = {name: at for name, at in self.first.items() if name not in before.first}
        if not new:
            return None
        if "model" in new:
            what = f"the released model is not finite ({_count(models)})"
        else:
            what = "the test loss is not finite"
        goes_on = "answers from here on may be noise alone"
        if self.stops:
            goes_on = "the run ends here, charged whole"
        elif "model" not in new:
            goes_on += " (stop_on: nonfinite_loss ends such a run)"
        parts = f"round {next(iter(new.values()))}: {what}", goes_on, _FIX, spent
        return "; ".join(filter(None, parts))


def told(first: Mapping[str, int]) -> str:
    """In which rounds something was first not finite, in words; empty if nothing was.

    >>> told({"test_loss": 3, "model": 12})
    'test loss in round 3, model in round 12'
    """
    return ", ".join(f"{name.replace('_', ' ')} in round {first[name]}" for name in _WATCHED if name in first)


def is_finite(values: Tensor | float) -> bool:
    """Whether all values are.

    In one pass where they are: a NaN or an infinity shows in the sum, and so may finite numbers that overflow.
    """
    found = _distinct(torch.as_tensor(values))
    return bool(torch.isfinite(found.sum())) or bool(torch.isfinite(found).all())


def _count(models: Tensor) -> str:
    found = _distinct(models)
    return f"{int((~torch.isfinite(found)).sum())} of {found.numel()} values"


def _distinct(values: Tensor) -> Tensor:
    """Without the copies of rows that are one row."""
    if values.ndim == 2 and values.stride(0) == 0:
        return values[:1]
    return values
