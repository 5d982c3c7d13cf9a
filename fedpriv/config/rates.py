"""The YAML format of step sizes: a number, the fields of a decaying sequence, or a schedule by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Self, Union

from pydantic import AfterValidator, Discriminator, PlainSerializer, Tag, create_model, model_validator
from pydantic_core import PydanticCustomError

from fedpriv.config.base import Section, suggest_function_shape, with_field_errors
from fedpriv.settings import plugins
from fedpriv.strategies import Cosine, Steps, Warmup

SCHEDULES: dict[str, type] = {"cosine": Cosine, "warmup": Warmup, "steps": Steps}


@dataclass(frozen=True)
class NamedFunction:
    """A function of the round, counted from 1, that a configuration names as `package.module:name`."""

    reference: str
    function: Callable[[int], float]

    def __call__(self, t: int) -> float:
        """Returns the value in round `t`."""
        return self.function(t)


class _OneSchedule(Section):
    @model_validator(mode="before")
    @classmethod
    def _text_is_no_function(cls, raw: object) -> object:
        if isinstance(raw, str):
            raise PydanticCustomError("choice", "{fix}", {"fix": suggest_function_shape(raw)})
        return raw

    @model_validator(mode="after")
    def _just_one(self) -> Self:
        if len(self.chosen) != 1:
            raise PydanticCustomError(
                "choice", "must set exactly one of {names}", {"names": ", ".join(type(self).model_fields)}
            )
        return self

    @property
    def chosen(self) -> dict[str, Any]:
        """The fields that are set."""
        return {name: value for name, value in self if value is not None}

    def to_schedule(self) -> Any:  # noqa: ANN401 - a schedule
        """Returns the schedule that was chosen."""
        ((name, value),) = self.chosen.items()
        if name in SCHEDULES:
            return value
        return NamedFunction(value, plugins.resolve_round_function(value, float, "strategy.schedule.function"))


_FIELDS: Any = {name: (with_field_errors(kind) | None, None) for name, kind in SCHEDULES.items()}
Schedule = create_model("Schedule", __base__=_OneSchedule, **_FIELDS, function=(str | None, None))
_WORDS = {kind: name for name, kind in SCHEDULES.items()}


def _written(schedule: Any) -> object:  # noqa: ANN401 - a schedule
    if isinstance(schedule, NamedFunction):
        return {"function": schedule.reference}
    return {_WORDS[type(schedule)]: asdict(schedule)}


_SCHEDULE: Any = Annotated[
    Schedule, AfterValidator(_OneSchedule.to_schedule), PlainSerializer(_written), Tag("@schedule")
]


def rate_format(number: Any, fields: type) -> Any:  # noqa: ANN401 - annotations
    """Returns the YAML format of a step size: a number in these bounds, fields of this class, or `{cosine: {...}}`."""

    def which(raw: object) -> str:
        if isinstance(raw, dict):
            names_a_schedule = any(get_close_matches(str(key), Schedule.model_fields) for key in raw)
            if names_a_schedule:
                return "@schedule"
            return "@fields"
        if isinstance(raw, fields):
            return "@fields"
        if callable(raw) or (isinstance(raw, str) and ":" in raw):
            return "@schedule"
        return "@number"

    by_number = Annotated[number, Tag("@number")]
    by_fields = Annotated[with_field_errors(fields), Tag("@fields")]
    return Annotated[Union[by_number, by_fields, _SCHEDULE], Discriminator(which)]  # noqa: UP007 - made at run time
