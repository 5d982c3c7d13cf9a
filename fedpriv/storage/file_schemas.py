"""Defines the fields and types of a run's files, so that damaged files are detected before they are used."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Required

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict  # pydantic reads the standard library's from Python 3.12 on

from fedpriv.errors import FedprivError, format_value


def _infinite(value: object) -> object:
    # JSON has no infinity
    if value == "inf":
        return math.inf
    return value


Number = Annotated[float, Field(strict=True), BeforeValidator(_infinite)]
Epsilon = Annotated[Number, Field(ge=0)]  # NaN is not
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=0, le=10**12)]
Text = Annotated[str, Field(strict=True)]


class _Named(TypedDict):
    name: Text


class _Strategy(_Named):
    variant: Text


class _Network(TypedDict):
    topology: _Named


class _Privacy(TypedDict):
    epsilon: Finite | None


class _Config(TypedDict):
    data: _Named
    model: _Named
    strategy: _Strategy
    privacy: _Privacy
    network: _Network


class _Round(TypedDict, total=False):
    round: Required[Count]
    releases: Count
    head: Text
    epsilon: Epsilon
    violation: Number | None
    stationarity: Number | None


class _Converged(TypedDict):
    converged: bool


class _Spread(TypedDict):
    min: Number | None
    mean: Number | None
    max: Number | None


class _Width(TypedDict):
    half_width: list[list[Finite]]


class _Parameters(TypedDict):
    trained: Count
    frozen: Count


class _Backend(TypedDict, total=False):
    name: Required[Text]
    refused: Text


class _Kept(TypedDict):
    round: Count
    metric: Text
    rounds_tested: Count


class _Result(TypedDict, total=False):
    rounds: Required[Count]
    planned_rounds: Required[Count]
    ended: Required[Text]
    releases: Required[Count]
    head: Text
    epsilon: Required[Epsilon]
    per_client_epsilon: Required[list[Epsilon]]
    accountant: Required[Text]
    not_covered: Required[list[Text]]
    float64_noise: Required[list[Text]]
    first_nonfinite: dict[str, Count]
    status: Text | None
    kkt: dict[str, Number | None]
    noise_multiplier: Finite | None
    seconds: Finite | None
    centralised: _Converged
    parameters: _Parameters
    backend: _Backend
    kept: _Kept
    constraint_confidence: _Width
    constraint_estimates: list[list[Finite | None]]
    constraints: Text
    multipliers: list[list[Finite | None]]
    max_violation_estimate: Finite | None
    estimates_of_reported_model: bool
    client_names: list[Text]
    client_tests: dict[str, dict[str, Number | None]]


CONFIG: TypeAdapter[Any] = TypeAdapter(_Config)
RESULT: TypeAdapter[Any] = TypeAdapter(_Result)
ROUND: TypeAdapter[Any] = TypeAdapter(_Round)
_NUMBERS = TypeAdapter(dict[str, Number | None])
_SPREADS = TypeAdapter(dict[str, _Spread])


def validate_fields(  # JSON and YAML hold anything
    kind: TypeAdapter[Any],
    content: Any,  # noqa: ANN401
    path: Path | str,
    fix: str,
    metrics: Collection[str] = (),
) -> Any:  # noqa: ANN401
    """Returns the content of a file if it has the required fields; it may have more.

    Args:
        kind: The required fields and their types.
        content: The content.
        path: The file, for error messages.
        fix: Suggested fix if the file is damaged, for error messages.
        metrics: Fields that are numbers, or the smallest, the mean and the largest of several, or null.

    Raises:
        FedprivError: If a field is missing or has the wrong type; the message names it.
    """
    try:
        kind.validate_python(content)
        measured = {name: content[name] for name in metrics if name in content}
        spreads = {name: value for name, value in measured.items() if isinstance(value, dict)}
        _SPREADS.validate_python(spreads)
        _NUMBERS.validate_python({name: value for name, value in measured.items() if name not in spreads})
    except ValidationError as error:
        raise FedprivError(f"{path} is damaged{_describe_error(error.errors()[0])}; {fix}") from None
    return content


def _describe_error(first: ErrorDetails) -> str:
    """Returns the damaged field, for an error message."""
    path = ".".join(str(key) for key in first["loc"][:4])
    if first["type"] == "missing":
        return f" or was written by an earlier fedpriv (it has no {path})"
    return f" ({path + ' = ' if path else ''}{format_value(first['input'])}: {first['msg']})"
