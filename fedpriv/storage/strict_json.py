"""JSON as in RFC 8259, which has no NaN and no infinity; both become null."""

from __future__ import annotations

import json
import math
from typing import Any, cast

__all__ = ["dumps", "encode_epsilon", "to_plain"]


def dumps(value: object, *, indent: int | None = None) -> str:
    """Returns the text of a JSON value.

    >>> dumps({"test_loss": float("nan"), "rounds": (1, 2)})
    '{"test_loss": null, "rounds": [1, 2]}'
    """
    return json.dumps(to_plain(value), indent=indent, allow_nan=False)


def to_plain(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Returns the value as dicts, lists and finite numbers, with None for numbers that are not finite."""
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in cast("dict[str, object]", value).items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in cast("list[object]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def encode_epsilon(value: float) -> float | str:
    """Returns an epsilon for JSON: the string `"inf"`, not null, if it is infinite (not private)."""
    if value == math.inf:
        return "inf"
    return value
