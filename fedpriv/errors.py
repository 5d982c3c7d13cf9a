"""Errors that name the field, the value and the fix."""

from __future__ import annotations


class FedprivError(Exception):
    """Every error that fedpriv raises on purpose."""


class ConfigError(FedprivError, ValueError):
    """A setting cannot be used.

    Args:
        field: Dotted path of the setting.
        value: What was given.
        fix: What to do about it, as a sentence fragment.
    """

    def __init__(self, field: str, value: object, fix: str) -> None:
        super().__init__(f"{field} = {value!r}: {fix}")
        self.field, self.value, self.fix = field, value, fix


def check_choice(field: str, value: object, *choices: str) -> None:
    """Refuse a word that is none of the choices.

    Raises:
        ConfigError: it is another one, or no word at all.
    """
    if value not in choices:
        raise ConfigError(field, value, f"choose {' or '.join(map(repr, choices))}")


class DataError(FedprivError, ValueError):
    """Data is missing, broken or out of range."""


class PrivacyError(FedprivError):
    """Going on would break the privacy guarantee. Always fails closed."""


class BudgetExhausted(PrivacyError):
    """The next release would overspend the target; it was not made."""


class LedgerError(PrivacyError):
    """The ledger could not be written or does not fit the run."""
