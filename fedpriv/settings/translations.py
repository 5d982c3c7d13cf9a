"""Suggests fixes in errors for names and words that fedpriv does not have.

The words of other libraries are in `words.yaml`, one table for Python, configurations and the command line. An unknown
name is looked up in it before the nearest known name is suggested. The table is read when an error first needs it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

Language = Literal["python", "yaml", "command line"]
"""The place of a name, which determines the spelling of the fix."""

_LEAVE_OUT = "leave it out"
_SECTIONS = {"partition": "data.partition", "regularizer": "strategy.regularizer", "stop": "log.stop"}
"""The section of a configuration for a function in Python, if errors use another name for it."""


def suggest_nearest(name: str, names: Iterable[str]) -> str:
    """Returns the end of an error message: `; did you mean 'x'?` if a name is close, else all known names."""
    known = sorted(names)
    close = difflib.get_close_matches(name[:100], known, n=3)  # a longer one is similar to no other
    if close:
        return "; did you mean " + " or ".join(repr(match) for match in close) + "?"
    if known:
        return "; choose one of " + ", ".join(known)
    return ""


@dataclass(frozen=True)
class Setting:
    """A row of `words.yaml`: one setting of fedpriv, with its names in other libraries.

    In the texts `{value}` represents the given value.

    Attributes:
        setting: Path of the setting in a configuration; its name, if a configuration has no such setting.
        words: Other names for the setting, separated by spaces. If `name` is not given, the last part of the path is
            also one of them.
        name: The parameter's name in Python; by default the last part of the path.
        python: The parameter's value.
        yaml: The setting's value in a configuration; or complete advice that begins with "leave it out".
        choice: A word that is the value in Python and in a configuration.
        call: Python expression that passes `{argument}` if the called function has no such parameter; by default the
            entry for the section in `calls` of `words.yaml`.
        also: Parameters with this meaning in some functions that accept the same value, separated by spaces.
        where: Meaning of a letter in the texts. In this case the value of the setting is computed from the given value;
            the word is not just another name of the setting.
        note: Further information, as a sentence fragment.
        advice: Replacement of all other texts: advice for a word that corresponds to no setting.
    """

    setting: str
    words: str = ""
    name: str = ""
    python: str = "{value}"
    yaml: str = "{value}"
    choice: str = ""
    call: str = ""
    also: str = ""
    where: str = ""
    note: str = ""
    advice: str = ""

    @property
    def parameter(self) -> str:
        """The parameter's name in Python."""
        return self.name or self.setting.rpartition(".")[2]

    @property
    def section(self) -> str:
        """The section of a configuration that contains the setting, e.g. `data.partition`; empty for the run itself."""
        if self.yaml.startswith(("{name:", "{kind:")):  # the section itself
            return self.setting
        return self.setting.rpartition(".")[0]

    def is_called(self, word: str, place: str = "") -> bool:
        """True if this word is used for the setting elsewhere.

        Args:
            word: The word.
            place: The section or function in which the word is written, e.g. `data.partition`; empty for the run
                itself. An ambiguous word has this meaning only there and in the setting's own section.
        """
        own = "" if self.name else self.parameter
        if word not in (own, *self.words.split()):
            return False
        is_ambiguous = word in _table()["ambiguous"].split()
        return not is_ambiguous or place == "" or f"{_SECTIONS.get(place, place)}.".startswith(f"{self.section}.")

    def argument(self, value: str) -> str:
        """Returns the expression that passes the setting to a Python function with this parameter."""
        text = f'"{self.choice}"' if self.choice else self.python.replace("{value}", value)
        return f"{self.parameter}={text}"

    def in_call(self, argument: str) -> str:
        """Returns the expression that passes an argument in Python if the function has no such parameter."""
        section = self.setting.partition(".")[0]
        call = self.call or read_entries("calls").get(section, "fedpriv.train(..., {argument})")
        return call.replace("{argument}", argument)

    def in_configuration(self, value: str, language: Language) -> str:
        """Returns the spelling of the setting in a configuration or on the command line."""
        text = self.choice or self.yaml.replace("{value}", value)
        if text.startswith(_LEAVE_OUT):
            return text
        return _assigned(self.setting, text, language)


@cache
def _table() -> dict[str, Any]:
    """Returns the contents of `words.yaml`, with all values as text."""
    path = Path(__file__).with_name("words.yaml")
    return yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)


@cache
def settings() -> tuple[Setting, ...]:
    """Returns the rows for settings."""
    return tuple(Setting(**row) for row in _table()["settings"])


@cache
def read_entries(*keys: str) -> Mapping[str, str]:
    """Returns a section of `words.yaml` by single words, e.g. `read_entries("functions", "fit")`, or {}."""
    section = _table()
    for key in keys:
        section = section.get(key, {})
    return {word: text for words, text in section.items() for word in words.split()}


def find_usual_expression(kind: type) -> str | None:
    """Returns the usual expression for an object of a kind; None if it has an obvious constructor."""
    by_kind = read_entries("kinds")
    return next((by_kind[name] for name in _names(kind) if name in by_kind), None)


def find_meant_object(kind: type, word: str) -> str | None:
    """Returns the object that a word means where an object of this kind is expected; None if the word means no such
    object.
    """
    return next((text for name in _names(kind) if (text := read_entries("objects", name).get(word))), None)


def _names(kind: type) -> tuple[str, str]:
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}", kind.__name__


def get_example(name: str, owner: str = "") -> str:
    """Returns the text of a valid value of a parameter; `...` if there is no usual one."""
    examples = read_entries("examples")
    return examples.get(f"{owner}.{name}", examples.get(name, "..."))


def find_function_advice(function: str, word: str, value: object) -> str | None:
    """Returns the fix for a word that is not an argument of one function; None for the default fix."""
    text = read_entries("functions", function).get(word.lower())
    if text is None:
        return None
    return text.replace("{value}", _written(value, "python"))


def format_attribute_error(owner: str, name: str, section: str) -> str:
    """Returns the text of an AttributeError: the fix for a name, if a section of `words.yaml` contains it."""
    write = read_entries(section).get(name)
    if write is None:
        return f"{owner} has no {name}"
    return f"{owner} has no {name}: write {write}"


def find_settings_called(word: str, place: str = "") -> list[Setting]:
    """Returns the settings for which a word is used elsewhere, the usual one first; see `Setting.is_called`."""
    plain = word.lower().replace("-", "_")
    return [setting for setting in settings() if setting.is_called(plain, place)]


def suggest_fix(word: str, value: object, known: Collection[str], language: Language, place: str = "") -> str:
    """Returns the fix for an unknown name in an error.

    Args:
        word: The unknown name.
        value: Its value.
        known: The names that are known at that place.
        language: Language of the fix.
        place: The section or function in which it is written; empty for the run itself.
    """
    shown = _written(value, language)
    meant = find_settings_called(word, place)
    if known:
        names = f" (all names: {', '.join(sorted(known))})"
    else:
        names = ""

    # a setting of this very object
    for setting in meant:
        for name in (setting.parameter, *setting.also.split()):
            if name in known and name != word:
                meaning = f"{name} replaces it here" if setting.where else f"it is called {name} here"
                return _fix(meaning, _text(setting, name, shown, language, place))

    # a typing error; for a word that other libraries use, at most one letter in ten may differ
    cutoff = 0.8
    if meant:
        cutoff = 0.9
    if difflib.get_close_matches(word, known, n=1, cutoff=cutoff):
        return f"is unknown{suggest_nearest(word, known)}{names}"

    # a setting of another object
    if meant:
        return _fix("it is a setting of another part", _text(meant[0], None, shown, language, place))

    close = suggest_nearest(word, known) or "; there are no options here, so leave it out"
    return f"is unknown{close}{names if 'did you mean' in close else ''}"


def _fix(meaning: str, text: str) -> str:
    if text.startswith(_LEAVE_OUT):
        return f"is unknown; {text}"
    return f"is unknown; {meaning}: write {text}"


def renamed_option(option: str, known: Collection[str]) -> str | None:
    """Returns the present name of a command-line option, if it is one of the known options of the command.

    Examples:
        >>> renamed_option("--why", ["--reason", "--json"])
        '--reason'
    """
    present = read_entries("options").get(option)
    if present not in known:
        return None
    return present


def setting_for_option(option: str) -> str | None:
    """Returns the command-line setting for an option such as `--max-grad-norm`; None if there is none.

    Examples:
        >>> setting_for_option("--max-grad-norm")
        "'privacy.clip={bound: VALUE}'"
    """
    meant = find_settings_called(option.lstrip("-"))
    if not meant or meant[0].advice or meant[0].yaml.startswith(_LEAVE_OUT):
        return None
    return meant[0].in_configuration("VALUE", "command line")


def _text(setting: Setting, name: str | None, value: str, language: Language, place: str) -> str:
    """Returns the spelling of a setting: as the parameter `name`, or at its own place."""
    if setting.advice:
        return setting.advice
    if name not in (None, setting.parameter):
        if language == "python":
            return f"{name}={value}"
        return _assigned(f"{place}.{name}" if place else name, value, language)
    if language == "python":
        text = setting.argument(value)
        if name is None:
            text = setting.in_call(text)
    else:
        text = setting.in_configuration(value, language)
    note = ": ".join(part for part in (setting.where, setting.note) if part)
    if note:
        return f"{text} ({note})"
    return text


def _assigned(path: str, value: str, language: Language) -> str:
    """Returns a setting and its value as written in a configuration or on the command line."""
    if language == "yaml":
        return f"{path}: {value}"
    if "{" in value or "[" in value:  # a shell needs quotes
        return f"'{path}={value}'"
    return f"{path}={value}"


def _written(value: object, language: Language) -> str:
    """Returns a value as written in the language; `...` for a value that is not a number or a short text."""
    if not (value is None or isinstance(value, bool | int | float | str)):
        return "..."
    if language == "python":
        text = repr(value)
    elif isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "null"}[value]
    else:
        text = str(value)
    return text if len(text) <= 40 else "..."
