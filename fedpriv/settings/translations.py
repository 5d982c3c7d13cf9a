"""What to write for a name or a word that fedpriv does not have, as the fix of an error.

The words of other libraries are in `words.yaml`, one table for Python, configurations and the command line: an unknown
name is looked up in it before the nearest known name is suggested. It is read once an error needs it.
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
"""Where a name was written, and so how its fix is written."""

_LEAVE_OUT = "leave it out"
_SECTIONS = {"partition": "data.partition", "regularizer": "strategy.regularizer", "stop": "log.stop"}
"""The section of a configuration that a function of Python stands for, where it has another name in its errors."""


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of an error message: `; did you mean 'x'?` if a name is close, else every name there is."""
    known = sorted(names)
    close = difflib.get_close_matches(name[:100], known, n=3)  # a longer one is like no other
    if close:
        return "; did you mean " + " or ".join(repr(match) for match in close) + "?"
    if known:
        return "; choose one of " + ", ".join(known)
    return ""


@dataclass(frozen=True)
class Setting:
    """A row of `words.yaml`: one setting of fedpriv, under the names that others give it.

    In the texts `{value}` stands for the value that was given.

    Attributes:
        setting: Its path in a configuration; its name, if a configuration has no such setting.
        words: Names that others give it, separated by spaces. Without `name` the last part of the path is one too.
        name: The parameter's name in Python; by default the last part of the path.
        python: The parameter's value.
        yaml: The setting's value in a configuration; or whole advice that begins with "leave it out".
        choice: A word that is the value in both.
        call: How Python passes `{argument}` where the called function has no such parameter; by default as `calls` in
            `words.yaml` has it for the section.
        also: Parameters that mean it in some functions, where they take the value as it is, separated by spaces.
        where: What a letter in the texts means. The setting then follows from the value, and is not another name.
        note: What else to know, as a sentence fragment.
        advice: Instead of all other texts, what to do about a word that no setting stands for.
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
        """The section of a configuration that has it, e.g. `data.partition`; empty for the run itself."""
        if self.yaml.startswith(("{name:", "{kind:")):  # the section itself
            return self.setting
        return self.setting.rpartition(".")[0]

    def is_called(self, word: str, place: str = "") -> bool:
        """Whether somebody calls it by this word.

        Args:
            word: The word.
            place: The section or function in which the word is written, e.g. `data.partition`; empty for the run
                itself. A word of many meanings has this one there and in the setting's own section alone.
        """
        own = "" if self.name else self.parameter
        if word not in (own, *self.words.split()):
            return False
        is_ambiguous = word in _table()["ambiguous"].split()
        return not is_ambiguous or place == "" or f"{_SECTIONS.get(place, place)}.".startswith(f"{self.section}.")

    def argument(self, value: str) -> str:
        """Returns how Python passes it to a function that has the parameter."""
        text = f'"{self.choice}"' if self.choice else self.python.replace("{value}", value)
        return f"{self.parameter}={text}"

    def in_call(self, argument: str) -> str:
        """Returns how Python passes an argument where the function has no such parameter."""
        section = self.setting.partition(".")[0]
        call = self.call or entries("calls").get(section, "fedpriv.train(..., {argument})")
        return call.replace("{argument}", argument)

    def in_configuration(self, value: str, language: Language) -> str:
        """Returns how a configuration or the command line writes it."""
        text = self.choice or self.yaml.replace("{value}", value)
        if text.startswith(_LEAVE_OUT):
            return text
        return _assigned(self.setting, text, language)


@cache
def _table() -> dict[str, Any]:
    """Returns the contents of `words.yaml`, whose values are all text."""
    path = Path(__file__).with_name("words.yaml")
    return yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)


@cache
def settings() -> tuple[Setting, ...]:
    """Returns the rows for settings."""
    return tuple(Setting(**row) for row in _table()["settings"])


@cache
def entries(*keys: str) -> Mapping[str, str]:
    """Returns a section of `words.yaml` by single words, e.g. `entries("functions", "fit")`; empty if there is none."""
    section = _table()
    for key in keys:
        section = section.get(key, {})
    return {word: text for words, text in section.items() for word in words.split()}


def usual(kind: type) -> str | None:
    """Returns what usually gives an object of a kind; None if it has an obvious constructor."""
    by_kind = entries("kinds")
    return next((by_kind[name] for name in _names(kind) if name in by_kind), None)


def meant_object(kind: type, word: str) -> str | None:
    """Returns the object that a word means where one of this kind is wanted; None if it means none."""
    return next((text for name in _names(kind) if (text := entries("objects", name).get(word))), None)


def _names(kind: type) -> tuple[str, str]:
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}", kind.__name__


def example(name: str, owner: str = "") -> str:
    """Text of a good value of a parameter; `...` if there is no usual one."""
    examples = entries("examples")
    return examples.get(f"{owner}.{name}", examples.get(name, "..."))


def advice_of_function(function: str, word: str, value: object) -> str | None:
    """Returns what to write for a word that is no argument of one function; None for the usual answer."""
    text = entries("functions", function).get(word.lower())
    if text is None:
        return None
    return text.replace("{value}", _written(value, "python"))


def attribute_error(owner: str, name: str, section: str) -> str:
    """Returns the text of an AttributeError: what to write for a name, if a section of `words.yaml` has it."""
    write = entries(section).get(name)
    if write is None:
        return f"{owner} has no {name}"
    return f"{owner} has no {name}: write {write}"


def settings_called(word: str, place: str = "") -> list[Setting]:
    """Returns the settings that somebody calls by a word, the usual one first; see `Setting.is_called`."""
    plain = word.lower().replace("-", "_")
    return [setting for setting in settings() if setting.is_called(plain, place)]


def suggestion(word: str, value: object, known: Collection[str], language: Language, place: str = "") -> str:
    """What to write for an unknown name, as the fix of an error.

    Args:
        word: The unknown name.
        value: Its value.
        known: The names that are known where it stands.
        language: In which language to write it.
        place: The section or function in which it is written; empty for the run itself.
    """
    shown = _written(value, language)
    meant = settings_called(word, place)
    if known:
        names = f" (there are: {', '.join(sorted(known))})"
    else:
        names = ""

    # a setting of this very object
    for setting in meant:
        for name in (setting.parameter, *setting.also.split()):
            if name in known and name != word:
                meaning = f"{name} replaces it here" if setting.where else f"it is called {name} here"
                return _fix(meaning, _text(setting, name, shown, language, place))

    # a slip of the pen; where other libraries have this very word, of one letter in ten at most
    cutoff = 0.8
    if meant:
        cutoff = 0.9
    if difflib.get_close_matches(word, known, n=1, cutoff=cutoff):
        return f"unknown{nearest(word, known)}{names}"

    # a setting of another object
    if meant:
        return _fix("it is a setting of another part", _text(meant[0], None, shown, language, place))

    close = nearest(word, known) or "; there are no options here"
    return f"unknown{close}{names if 'did you mean' in close else ''}"


def _fix(meaning: str, text: str) -> str:
    if text.startswith(_LEAVE_OUT):
        return f"unknown; {text}"
    return f"is unknown; {meaning}: write {text}"


def setting_for_option(option: str) -> str | None:
    """The setting of the command line that an option such as `--max-grad-norm` means; None if it means none.

    Example:
        >>> setting_for_option("--max-grad-norm")
        "'privacy.clip={bound: VALUE}'"
    """
    meant = settings_called(option.lstrip("-"))
    if not meant or meant[0].advice or meant[0].yaml.startswith(_LEAVE_OUT):
        return None
    return meant[0].in_configuration("VALUE", "command line")


def _text(setting: Setting, name: str | None, value: str, language: Language, place: str) -> str:
    """What to write for a setting: as the parameter `name`, or where it belongs."""
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
    """A setting and its value, as a configuration or the command line writes it."""
    if language == "yaml":
        return f"{path}: {value}"
    if "{" in value or "[" in value:  # a shell needs quotes
        return f"'{path}={value}'"
    return f"{path}={value}"


def _written(value: object, language: Language) -> str:
    """A value as the language writes it; `...` for one that is no number or short text."""
    if not (value is None or isinstance(value, bool | int | float | str)):
        return "..."
    if language == "python":
        text = repr(value)
    elif isinstance(value, bool) or value is None:
        text = {True: "true", False: "false", None: "null"}[value]
    else:
        text = str(value)
    return text if len(text) <= 40 else "..."
