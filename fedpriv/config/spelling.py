"""How YAML writes what a factory of Python takes as objects; everything else it writes as Python does.

`SPELLINGS` says it for annotations of parameters, whoever has them. `spread` and `wrapped` say it for parameters of one
factory. None of them repeats a name, a bound or a default: those are read from the factory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator, BaseModel, Field, PlainSerializer, create_model

from fedpriv.config.base import Choice, named_fields, options_model
from fedpriv.strategies import admm
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.proximal import L1, L2, Ball, Box, ElasticNet, Proximal, Simplex, Zero
from fedpriv.strategies.solvers import LBFGS, AcceleratedGradient, Newton, Quadratic, Solver


def by_key(neither: str, nothing: object, **classes: type) -> Any:  # noqa: ANN401 - an annotation
    """`{l2: {lam: 0.1}}`: the name of a class and its fields; or one word for the object that does nothing."""
    options: dict[str, Any] = {key: (named_fields(kind) | None, None) for key, kind in classes.items()}
    model = create_model("Choice", __base__=Choice, **options)
    model.neither = neither
    keys = {kind: key for key, kind in classes.items()}

    def write(made: Any) -> object:  # noqa: ANN401 - a dataclass
        return neither if made == nothing else {keys[type(made)]: asdict(made)}

    return Annotated[model, AfterValidator(lambda chosen: chosen.value(nothing)), PlainSerializer(write)]


def by_kind(**classes: type) -> Any:  # noqa: ANN401 - an annotation
    """`{kind: box, bound: 3}`: the fields of a class, and its name beside them."""
    tags: dict[str, Any] = {key: {"kind": (Literal[key], key)} for key in classes}
    models: list[Any] = [create_model(key, __base__=options_model(classes[key]), **tag) for key, tag in tags.items()]
    keys = {kind: key for key, kind in classes.items()}

    def read(chosen: BaseModel) -> object:
        given = dict(chosen)
        return classes[given.pop("kind")](**given)

    def write(made: Any) -> object:  # noqa: ANN401 - a dataclass
        return {"kind": keys[type(made)], **asdict(made)}

    union = Annotated[reduce(or_, models), Field(discriminator="kind")]
    return Annotated[union, AfterValidator(read), PlainSerializer(write)]


def by_word(**objects: object) -> Any:  # noqa: ANN401 - an annotation
    """`newton`: one word for an object."""

    def write(made: object) -> str:
        return next(word for word, known in objects.items() if known == made)

    words: Any = Literal[tuple(objects)]
    return Annotated[words, AfterValidator(objects.__getitem__), PlainSerializer(write)]


SPELLINGS: Mapping[Any, Any] = {
    Proximal: by_key("zero", Zero(), l2=L2, l1=L1, elastic_net=ElasticNet, ball=Ball, box=Box, simplex=Simplex),
    Solver: by_word(lbfgs=LBFGS(), newton=Newton(), accelerated_gradient=AcceleratedGradient(), quadratic=Quadratic()),
    admm.Everywhere | admm.Box | admm.Ball: by_kind(everywhere=admm.Everywhere, box=admm.Box, ball=admm.Ball),
}


def spread(factory: Callable[..., Strategy], **parts: type) -> Callable[..., Strategy]:
    """A factory whose parameters named here take the fields of a dataclass instead, beside the other options."""

    def build(**options: object) -> Strategy:
        for name, kind in parts.items():
            own = {field.name: options.pop(field.name) for field in fields(kind) if field.name in options}
            options[name] = kind(**own)
        return factory(**options)

    found: list[inspect.Parameter] = []
    for parameter in _parameters(factory):
        kind = parts.get(parameter.name)
        found += [parameter] if kind is None else _fields_of(kind)
    return _signed(build, factory, found)


def wrapped(factory: Callable[..., Strategy], **around: Callable[..., Strategy]) -> Callable[..., Strategy]:
    """A factory with more options: each holds those of a function that makes a strategy of a strategy, or is null."""

    def build(**options: Any) -> Strategy:  # noqa: ANN401 - checked by the factory
        given = {name: options.pop(name, None) for name in around}
        strategy = factory(**options)
        for name, section in given.items():
            strategy = strategy if section is None else around[name](strategy, **dict(section))
        return strategy

    more = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=options_model(function, {"strategy"}) | None
        )
        for name, function in around.items()
    ]
    return _signed(build, factory, [*_parameters(factory), *more])


def _parameters(factory: Callable[..., Any]) -> list[inspect.Parameter]:
    """As keyword parameters, whose annotations are read."""
    hints, given = get_type_hints(factory, include_extras=True), inspect.signature(factory).parameters.values()
    return [p.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[p.name]) for p in given]


def _fields_of(kind: type) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    found: list[inspect.Parameter] = []
    for field in fields(kind):
        made = field.default if field.default_factory is MISSING else field.default_factory()
        default = inspect.Parameter.empty if made is MISSING else made
        keyword = inspect.Parameter.KEYWORD_ONLY
        found.append(inspect.Parameter(field.name, keyword, default=default, annotation=hints[field.name]))
    return found


def _signed(
    build: Callable[..., Strategy], factory: Callable[..., Strategy], parameters: list[inspect.Parameter]
) -> Callable[..., Strategy]:
    """`build`, which says of itself what it takes."""
    build.__name__, build.__doc__ = factory.__name__, factory.__doc__
    build.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    build.__dict__["__signature__"] = inspect.Signature(parameters)
    return build
