"""Reads YAML, and raises errors for words that versions of YAML read differently (yes, 020, 1:20), for aliases, and for
huge inputs.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from fedpriv.errors import ConfigError, truncate

__all__ = ["DEEPEST", "read"]

# far above the needs of a configuration, and read within two seconds
LONGEST = 100_000  # characters
MOST_PARTS = 10_000  # values, and starts and ends of lists and mappings
DEEPEST = 40  # levels
MOST_DIGITS = 100

_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_BOOL = "tag:yaml.org,2002:bool"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_AMBIGUOUS = "!ambiguous"


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2. By default PyYAML reads YAML 1.1, where 020 is 16 and 1:20 is
    80.

    It checks the parser's events before any object is built from them.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML's own form

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._count = 0
        self._depth = 0

    def get_event(self) -> yaml.Event:
        """Returns the next event of the parser."""
        event = super().get_event()
        if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._depth += 1
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._depth -= 1
        if self._count > MOST_PARTS:
            raise _wrong(f"the text has more than {MOST_PARTS} parts: shorten it", event)
        if self._depth > DEEPEST:
            raise _wrong(f"the text has more than {DEEPEST} nested levels: use fewer", event)
        if isinstance(event, yaml.NodeEvent):
            _check_node(event)
        self._count += 1
        return event


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(_BOOL, re.compile(rf"({'|'.join(_TRUE + _FALSE)})$"), list("tTfF"))
_Loader.add_implicit_resolver(_INT, re.compile(r"[-+]?(0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)$|[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$|[-+]?\.(inf|Inf|INF)$"
    ),
    list("-+0123456789."),
)
# numbers and booleans of YAML 1.1 that are text or other numbers in 1.2, and .nan
_Loader.add_implicit_resolver(
    _AMBIGUOUS,
    re.compile(
        r"(yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF|\.(nan|NaN|NAN)"
        r"|[-+]?(0[0-9_]+|0[bB][01_]+|0[xX][0-9a-fA-F_]+|0[oO][0-7_]+)"
        r"|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?|[-+]?[0-9.]*_[0-9_.]*([eE][-+]?[0-9]+)?)$"
    ),
    list("yYnNoO.-+0123456789"),
)


def read(text: str, where: str) -> Any:  # noqa: ANN401 - YAML may hold anything
    """Parses YAML into mappings, lists, text, numbers, booleans and None.

    Args:
        text: The YAML text. An error is raised if it has duplicate keys, anchors, aliases, tags, words that versions of
            YAML read differently (yes, 020, 1:20, 1_000) or `.nan`, or if it is too long, too deep or too large.
        where: Name of the text in error messages.

    Raises:
        ConfigError: If the text is not such YAML.
    """
    if len(text) > LONGEST:
        raise ConfigError("configuration", where, f"has {len(text)} characters: use at most {LONGEST}")
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError("configuration", where, _describe_error(error)) from None


def _check_node(event: yaml.NodeEvent) -> None:
    """Raises an error for anchors, aliases, tags and characters that do not occur in text."""
    if event.anchor is not None:
        raise _wrong(
            "anchors and aliases are not allowed: write out the value (quote a text that begins with & or *)", event
        )
    if getattr(event, "tag", None) is not None:
        raise _wrong("tags are not allowed: write only the value (quote a text that begins with !)", event)
    if isinstance(event, yaml.ScalarEvent) and any(c == "\0" or "\ud800" <= c <= "\udfff" for c in event.value):
        raise _wrong("the value contains a character that is not allowed in text: remove it", event)


def _wrong(problem: str, location: yaml.Event | yaml.Node) -> ConstructorError:
    return ConstructorError(None, None, problem, location.start_mark)


def _describe_error(error: yaml.YAMLError) -> str:
    """Returns an error of the parser on one line."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"is not YAML: {truncate(' '.join(str(error).split()))}"
    mark = error.problem_mark
    problem = " ".join((error.problem or "").split())
    if isinstance(error, ConstructorError):
        meaning = ""
    else:
        meaning = "is not YAML: "
    return f"{meaning}{problem} (line {mark.line + 1}, column {mark.column + 1})"


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    """Builds a mapping with distinct keys that are words or numbers."""
    result: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, (str, int, float, bool, type(None))):
            raise _wrong("a key must be a word or a number", key_node)
        if key in result:
            raise _wrong(f"{truncate(str(key))} is given twice: keep one of them", key_node)
        result[key] = loader.construct_object(value_node, deep=True)
    return result


def _ambiguous(_: _Loader, node: yaml.ScalarNode) -> object:
    """Raises an error for a scalar that versions of YAML read differently."""
    if node.value.startswith("."):
        fix = f"{node.value} is not a number: write a finite number"
    elif node.value[0] in "yYnNoO":
        fix = (
            f"{node.value} is a truth value in some versions of YAML and text in others: write true or false, or "
            "quote it"
        )
    else:
        fix = f"versions of YAML read {truncate(node.value)} differently: write a plain decimal number, or quote a text"
    raise _wrong(fix, node)


def _integer(_: _Loader, node: yaml.ScalarNode) -> int:
    if len(node.value) > MOST_DIGITS:
        raise _wrong(f"the number has {len(node.value)} digits: use at most {MOST_DIGITS}", node)
    return int(node.value)


def _float(_: _Loader, node: yaml.ScalarNode) -> float:
    if node.value.lower().endswith(".inf"):
        if node.value.startswith("-"):
            return -math.inf
        return math.inf
    value = float(node.value)
    if math.isinf(value):
        raise _wrong(f"{truncate(node.value)} is too large for a float64 number: write .inf if you mean infinity", node)
    return value


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_constructor(_AMBIGUOUS, _ambiguous)
_Loader.add_constructor(_INT, _integer)
_Loader.add_constructor(_FLOAT, _float)
