"""The YAML formats of parameters that are objects in Python; all others are written as in Python.

`YAML_FORMATS` is a table by annotation; `with_wrapper_options` is for one factory around another. Names, bounds and
defaults are read from the factories.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, Union, get_args

from pydantic import AfterValidator, BaseModel, Discriminator, Field, PlainSerializer, Tag, TypeAdapter, create_model
from torch import Tensor

from fedpriv.algorithms import admm
from fedpriv.config import rates
from fedpriv.config.base import Choice, YamlFormat, options_model, with_field_errors
from fedpriv.errors import ConfigError
from fedpriv.settings import NonNegative, Positive, PositiveOrInfinite, plugins, resolve_function
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


def keyed_format(neither: str, nothing: object, **classes: Any) -> Any:  # noqa: ANN401 - an annotation
    """Returns the YAML format `{l2: {lam: 0.1}}`: a class and its fields; or the word `neither` for `nothing`.

    A class with fields that have a YAML format is passed as the result of `fields_format`.
    """
    options: dict[str, Any] = {key: (with_field_errors(kind) | None, None) for key, kind in classes.items()}
    model = create_model("Choice", __base__=Choice, **options)
    model.neither = neither
    model.words = {neither: type(nothing)}
    model.words |= {key: get_args(kind)[0] if get_args(kind) else kind for key, kind in classes.items()}
    keys = {kind: key for key, kind in model.words.items()}

    def write(value: Any) -> object:  # noqa: ANN401 - a dataclass
        if value == nothing:
            return neither
        key = keys[type(value)]
        if get_args(classes[key]):  # some of its fields have a YAML format
            return {key: TypeAdapter(classes[key]).dump_python(value, mode="json")}
        return {key: asdict(value)}

    return Annotated[model, AfterValidator(lambda chosen: chosen.value(nothing)), PlainSerializer(write)]


def get_choice(yaml_format: Any) -> type[Choice]:  # noqa: ANN401 - an annotation
    """Returns the section behind a format of `keyed_format`."""
    return get_args(yaml_format)[0]


def tagged_format(**classes: type) -> Any:  # noqa: ANN401 - an annotation
    """Returns the YAML format `{kind: box, bound: 3}`: a class as `kind`, and its fields."""
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


def fields_format(kind: type, yaml_formats: Mapping[Any, Any]) -> Any:  # noqa: ANN401 - an annotation
    """Returns the YAML format of a class by its fields.

    Args:
        kind: The class.
        yaml_formats: YAML format for values of some annotations.
    """
    model = options_model(kind, yaml_formats=yaml_formats)

    def read(chosen: BaseModel) -> object:
        fields = dict(chosen)
        return kind(**{name: fields[name] for name in inspect.signature(kind).parameters})

    def write(value: Any) -> object:  # noqa: ANN401 - a dataclass
        return model.model_construct(**vars(value)).model_dump(mode="json")

    form = Annotated[model, AfterValidator(read), PlainSerializer(write)]
    return Annotated[kind, YamlFormat(form)]


def word_format(**objects: object) -> Any:  # noqa: ANN401 - an annotation
    """Returns the YAML format `newton`: one word for an object."""

    def write(value: object) -> str:
        return next(word for word, candidate in objects.items() if candidate == value)

    words: Any = Literal[tuple(objects)]
    return Annotated[words, AfterValidator(objects.__getitem__), PlainSerializer(write)]


def number_or_fields_format(number: Any, kind: type) -> Any:  # noqa: ANN401 - annotations
    """Returns the YAML format of a number, or of an object of this class by its fields."""

    def which(raw: object) -> str:
        if isinstance(raw, dict | kind):
            return "@fields"
        return "@number"

    by_number = Annotated[number, Tag("@number")]
    by_fields = Annotated[with_field_errors(kind), Tag("@fields")]
    return Annotated[Union[by_number, by_fields], Discriminator(which)]  # noqa: UP007 - made at run time


@dataclass(frozen=True)
class NamedRegularizer:
    """The regularizer that your own function returns, which a configuration names as `package.module:name`."""

    reference: str
    regularizer: Proximal

    @property
    def strong_convexity(self) -> float:
        """Coefficient of the quadratic term."""
        return self.regularizer.strong_convexity

    @property
    def remainder(self) -> Proximal:
        """The function without its quadratic term."""
        return self.regularizer.remainder

    def value(self, x: Tensor) -> Tensor:
        """Returns h of each row."""
        return self.regularizer.value(x)

    def prox(self, x: Tensor, step: float | Tensor) -> Tensor:
        """Returns the proximal map of each row."""
        return self.regularizer.prox(x, step)


def _named_regularizer(reference: str) -> NamedRegularizer:
    """Calls the function that `package.module:name` names, which returns a regularizer."""
    field = "strategy.regularizer.function"
    function = resolve_function(reference, Proximal, field, ())
    regularizer = plugins.call(function, reference, {}, field=field)
    missing = [name for name in ("strong_convexity", "remainder", "value", "prox") if not hasattr(regularizer, name)]
    if missing:
        lacking = f"returned a {type(regularizer).__name__} without {' and '.join(missing)}"
        raise ConfigError(field, reference, f"{lacking}: return an object like fedpriv.strategies.L2")
    return NamedRegularizer(reference, regularizer)


OWN_REGULARIZER: Any = Annotated[
    NamedRegularizer,
    YamlFormat(Annotated[str, AfterValidator(_named_regularizer), PlainSerializer(lambda named: named.reference)]),
]

YAML_FORMATS: Mapping[Any, Any] = {
    Union[Average, None]: Union[number_or_fields_format(NonNegative, Ema), None],  # noqa: UP007 - made at run time
    Proximal: keyed_format(
        "zero",
        Zero(),
        l2=L2,
        l1=L1,
        elastic_net=ElasticNet,
        ball=Ball,
        box=Box,
        simplex=Simplex,
        function=OWN_REGULARIZER,
    ),
    Solver: word_format(
        lbfgs=LBFGS(), newton=Newton(), accelerated_gradient=AcceleratedGradient(), quadratic=Quadratic()
    ),
    Optimizer[Any]: keyed_format("sgd", Sgd(), momentum=Momentum, adam=Adam, adamw=AdamW),
    Rate: rates.rate_format(Positive, StepSize),
    Union[Rate, None]: Union[rates.rate_format(Positive, StepSize), None],  # noqa: UP007 - made at run time
    RateOrInfinite: rates.rate_format(PositiveOrInfinite, Decay),
    PenaltyRate: rates.rate_format(Positive, Penalty),
    Union[PenaltyRate, None]: Union[rates.rate_format(Positive, Penalty), None],  # noqa: UP007 - made at run time
    admm.Unconstrained | admm.BoxSet | admm.BallSet: tagged_format(
        everywhere=admm.Unconstrained, box=admm.BoxSet, ball=admm.BallSet
    ),
}


def with_wrapper_options(
    factory: Callable[..., Strategy], **around: Callable[..., Strategy]
) -> Callable[..., Strategy]:
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
