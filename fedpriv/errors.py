"""Errors that name the field, the value and the fix."""

from __future__ import annotations


class FedprivError(Exception):
    """Every error that fedpriv raises on purpose."""


class PromiseWarning(UserWarning):
    """What weakens the promise of a run, or ends it, and is no error."""


class ConfigError(FedprivError, ValueError):
    """A setting cannot be used.

    Args:
        field: Dotted path of the setting.
        value: What was given.
        fix: What to do about it, as a sentence fragment.
    """

    def __init__(self, field: str, value: object, fix: str) -> None:
        super().__init__(f"{cut(field)} = {shown(value)}: {cut(fix, 600)}")
        self.field, self.value, self.fix = field, value, fix


def check_choice(field: str, value: object, *choices: str) -> None:
    """Refuse a word that is none of the choices.

    Raises:
        ConfigError: it is another one, or no word at all.
    """
    if value not in choices:
        raise ConfigError(field, value, f"choose {' or '.join(map(repr, choices))}")


def check_count(field: str, value: object, fix: str) -> None:
    """Refuse what is no whole number of at least 1.

    Raises:
        ConfigError: it is another number, or none at all.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(field, value, fix)


class DataError(FedprivError, ValueError):
    """Data is missing, broken or out of range."""


class PrivacyError(FedprivError):
    """Going on would break the privacy guarantee. Always fails closed."""


class BudgetExhausted(PrivacyError):
    """The next release would overspend the target; it was not made."""


class LedgerError(PrivacyError):
    """The ledger could not be written or does not fit the run."""


def shown(value: object) -> str:
    """A value as an error shows it: what Python writes, on one line, cut where it is long."""
    try:
        return cut(repr(value))
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists in lists without end
        return f"a {type(value).__name__} too large to show"


def cut(text: str, longest: int = 120) -> str:
    """A text on one line, without what follows its first `longest` characters."""
    line = " ".join(text[: 2 * longest].split())
    return (
        line if len(line) <= longest and len(text) <= 2 * longest else f"{line[:longest]}... ({len(text)} characters)"
    )


def in_short(error: BaseException) -> str:
    """What an error of somebody else's code says, on one line."""
    return f"{type(error).__name__}: {cut(str(error))}"
