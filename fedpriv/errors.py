"""Errors and warnings. Each error names the setting, its value and the fix."""

from __future__ import annotations


class FedprivError(Exception):
    """Base class of all errors that fedpriv raises intentionally.

    Attributes:
        reported_elsewhere: True if another process of the run reports the error to the user.

    Examples:
        >>> import fedpriv
        >>> issubclass(fedpriv.ConfigError, fedpriv.FedprivError)
        True
    """

    reported_elsewhere = False


class PromiseWarning(UserWarning):
    """Warns of settings that weaken the privacy of a run, or of a run that ended early."""


class ConfigError(FedprivError, ValueError):
    """A setting cannot be used. This error is also a `ValueError`.

    Args:
        field: Dotted name of the setting, e.g. `"privacy.epsilon"`.
        value: The value that was given.
        fix: The fix, as a sentence fragment.

    Examples:
        >>> import fedpriv
        >>> try:
        ...     fedpriv.Clip(-1.0)
        ... except fedpriv.ConfigError as error:
        ...     print(error.field, error.value)
        privacy.clip.bound -1.0
    """

    def __init__(self, field: str, value: object, fix: str) -> None:
        super().__init__(f"{truncate(field)} = {format_value(value)}: {truncate(fix, 600)}")
        self.field = field
        self.value = value
        self.fix = fix


def check_choice(field: str, value: object, *choices: str) -> None:
    """Raises if a value is none of the choices.

    Raises:
        ConfigError: If the value is not one of the choices.
    """
    if value not in choices:
        raise ConfigError(field, value, f"is unknown; choose {' or '.join(map(repr, choices))}")


def check_count(field: str, value: object, fix: str) -> None:
    """Raises if a value is not a whole number of at least 1.

    Raises:
        ConfigError: If it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(field, value, fix)


class DataError(FedprivError, ValueError):
    """Data are missing, broken or out of range. This error is also a `ValueError`.

    Examples:
        >>> import fedpriv
        >>> try:
        ...     fedpriv.count_examples(lambda i: [], n_clients=1)
        ... except fedpriv.DataError as error:
        ...     print(type(error).__name__)
        DataError
    """


class PrivacyError(FedprivError):
    """The operation would break the privacy guarantee and was not performed.

    Examples:
        >>> import fedpriv
        >>> try:
        ...     fedpriv.from_opacus([(1.5, 0.01, 100)], "shuffled batches", poisson_sampling=False)
        ... except fedpriv.PrivacyError as error:
        ...     print(type(error).__name__)
        PrivacyError
    """


class BudgetExhausted(PrivacyError):
    """The next noised query result would exceed the target epsilon or the lifetime budget, so it was not released.

    Examples:
        >>> import fedpriv
        >>> issubclass(fedpriv.BudgetExhausted, fedpriv.PrivacyError)
        True
    """


class LedgerError(PrivacyError):
    """The ledger or the budget file cannot be read or written, or does not fit the run.

    Examples:
        >>> import fedpriv
        >>> try:
        ...     fedpriv.Budget("missing.budget")
        ... except fedpriv.LedgerError as error:
        ...     print(type(error).__name__)
        LedgerError
    """


class ProcessError(FedprivError):
    """Another process of the run failed, or can no longer be reached."""


def format_value(value: object) -> str:
    """Returns the `repr` of a value for an error message: on one line, cut if long."""
    try:
        return truncate(repr(value))
    except (ValueError, RecursionError):  # an integer with thousands of digits, lists in lists without end
        return f"a {type(value).__name__} too large to show"


def truncate(text: str, longest: int = 120) -> str:
    """Returns a text on one line, cut after `longest` characters."""
    line = " ".join(text[: 2 * longest].split())
    if len(line) <= longest and len(text) <= 2 * longest:
        return line
    return f"{line[:longest]}... ({len(text)} characters)"


def format_count(number: int, noun: str) -> str:
    """Returns a number and its noun, with an s unless the number is 1.

    >>> format_count(1, "client"), format_count(3, "client")
    ('1 client', '3 clients')
    """
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"


def summarize_error(error: BaseException) -> str:
    """Returns the class and message of another library's error, on one line."""
    return f"{type(error).__name__}: {truncate(str(error))}"
