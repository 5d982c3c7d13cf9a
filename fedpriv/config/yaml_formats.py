"""The spelling in YAML of parameters that are objects in Python; all others are written as in Python.

`SPELLINGS` is a table by annotation; `wrapped` is for one factory around another. Names, bounds and defaults are read
from the factories.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, Union, get_args

from pydantic import AfterValidator, BaseModel, Discriminator, Field, PlainSerializer, Tag, TypeAdapter, create_model

from fedpriv.algorithms import admm
from fedpriv.config import rates
from fedpriv.config.base import Choice, Spelled, named_fields, options_model
from fedpriv.settings import NonNegative, Positive, PositiveOrInfinite
from fedpriv.strategies import (
    L1,
    L2,
    LBFGS,
    AcceleratedGradient,
    Adam,
    AdamW,
    Average,
    Ball,
    Box,
    Decay,
    ElasticNet,
    Ema,
    Momentum,
    Newton,
    Optimizer,
    Penalty,
    PenaltyRate,
    Proximal,
    Quadratic,
    Rate,
    RateOrInfinite,
    Sgd,
    Simplex,
    Solver,
    StepSize,
    Strategy,
    Zero,
    read_keyword_parameters,
    with_signature,
)


def by_key(neither: str, nothing: object, **classes: Any) -> Any:  # noqa: ANN401 - an annotation
    """Returns the spelling `{l2: {lam: 0.1}}`: a class and its fields; or the word `neither` for the object `nothing`.

    A class with fields that have a spelling is passed as the result of `by_fields`.
    """
    options: dict[str, Any] = {key: (named_fields(kind) | None, None) for key, kind in classes.items()}
    model = create_model("Choice", __base__=Choice, **options)
    model.neither = neither
    model.words = {neither: type(nothing)}
    model.words |= {key: get_args(kind)[0] if get_args(kind) else kind for key, kind in classes.items()}
    keys = {kind: key for key, kind in model.words.items()}

    def write(value: Any) -> object:  # noqa: ANN401 - a dataclass
        if value == nothing:
            return neither
        key = keys[type(value)]
        if get_args(classes[key]):  # some of its fields have a spelling
            return {key: TypeAdapter(classes[key]).dump_python(value, mode="json")}
        return {key: asdict(value)}

    return Annotated[model, AfterValidator(lambda chosen: chosen.value(nothing)), PlainSerializer(write)]


def choice_of(spelling: Any) -> type[Choice]:  # noqa: ANN401 - an annotation
    """Returns the section behind a spelling of `by_key`."""
    return get_args(spelling)[0]


def by_kind(**classes: type) -> Any:  # noqa: ANN401 - an annotation
    """Returns the spelling `{kind: box, bound: 3}`: a class as `kind`, and its fields."""
    tags: dict[str, Any] = {key: {"kind": (Literal[key], key)} for key in classes}
    models: list[Any] = [create_model(key, __base__=options_model(classes[key]), **tag) for key, tag in tags.items()]
    keys = {kind: key for key, kind in classes.items()}

    def read(chosen: BaseModel) -> object:
        fields = dict(chosen)
        return classes[fields.pop("kind")](**fields)

    def write(value: Any) -> object:  # noqa: ANN401 - a dataclass
        return {"kind": keys[type(value)], **asdict(value)}

    union = Annotated[reduce(or_, models), Field(discriminator="kind")]
    return Annotated[union, AfterValidator(read), PlainSerializer(write)]


def by_fields(kind: type, spellings: Mapping[Any, Any], words: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401 - an annotation
    """Returns the spelling of a class by its fields.

    Args:
        kind: The class.
        spellings: Spelling in YAML for values of some annotations.
        words: Fields with another name in YAML.
    """
    model = options_model(kind, spellings=spellings, words=words)

    def spelled(name: str) -> str:
        if words is None:
            return name
        return words.get(name, name)

    def read(chosen: BaseModel) -> object:
        fields = dict(chosen)
        return kind(**{name: fields[spelled(name)] for name in inspect.signature(kind).parameters})

    def write(value: Any) -> object:  # noqa: ANN401 - a dataclass
        fields: dict[str, Any] = {spelled(name): content for name, content in vars(value).items()}
        return model.model_construct(**fields).model_dump(mode="json")

    form = Annotated[model, AfterValidator(read), PlainSerializer(write)]
    return Annotated[kind, Spelled(form)]


def by_word(**objects: object) -> Any:  # noqa: ANN401 - an annotation
    """Returns the spelling `newton`: one word for an object."""

    def write(value: object) -> str:
        return next(word for word, candidate in objects.items() if candidate == value)

    words: Any = Literal[tuple(objects)]
    return Annotated[words, AfterValidator(objects.__getitem__), PlainSerializer(write)]


def number_or(number: Any, kind: type) -> Any:  # noqa: ANN401 - annotations
    """Returns the spelling of a number, or of an object of this class by its fields."""

    def which(raw: object) -> str:
        if isinstance(raw, dict | kind):
            return "@fields"
        return "@number"

    by_number = Annotated[number, Tag("@number")]
    by_fields = Annotated[named_fields(kind), Tag("@fields")]
    return Annotated[Union[by_number, by_fields], Discriminator(which)]  # noqa: UP007 - made at run time


SPELLINGS: Mapping[Any, Any] = {
    Union[Average, None]: Union[number_or(NonNegative, Ema), None],  # noqa: UP007 - made at run time
    Proximal: by_key("zero", Zero(), l2=L2, l1=L1, elastic_net=ElasticNet, ball=Ball, box=Box, simplex=Simplex),
    Solver: by_word(lbfgs=LBFGS(), newton=Newton(), accelerated_gradient=AcceleratedGradient(), quadratic=Quadratic()),
    Optimizer[Any]: by_key("sgd", Sgd(), momentum=Momentum, adam=Adam, adamw=AdamW),
    Rate: rates.spelled(Positive, StepSize),
    Union[Rate, None]: Union[rates.spelled(Positive, StepSize), None],  # noqa: UP007 - made at run time
    RateOrInfinite: rates.spelled(PositiveOrInfinite, Decay),
    PenaltyRate: rates.spelled(Positive, Penalty),
    admm.Unconstrained | admm.BoxSet | admm.BallSet: by_kind(
        everywhere=admm.Unconstrained, box=admm.BoxSet, ball=admm.BallSet
    ),
}


def wrapped(factory: Callable[..., Strategy], **around: Callable[..., Strategy]) -> Callable[..., Strategy]:
    """Adds options to a factory, each for a function from strategy to strategy; null omits it."""

    def build(**options: Any) -> Strategy:  # noqa: ANN401 - checked by the factory
        sections = {name: options.pop(name, None) for name in around}
        strategy = factory(**options)
        for name, section in sections.items():
            if section is not None:
                strategy = around[name](strategy, **dict(section))
        return strategy

    more = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=options_model(function, {"strategy"}) | None
        )
        for name, function in around.items()
    ]
    return with_signature(build, factory, [*read_keyword_parameters(factory), *more])
