from . import plugins as plugins
from .checks import (
    Bound,
    Count,
    Fraction,
    NonNegative,
    Positive,
    PositiveOrInfinite,
    Probability,
    Ratio,
    Whole,
    check_finite,
    join_alternatives,
    suggest_similar,
    validate_arguments,
)
from .pace import wait_for_pace
from .plugins import Registry, RegistryEntry, refuse_plugins, resolve_function
from .translations import get_example, renamed_option, setting_for_option, suggest_fix, suggest_nearest

__all__ = [
    "Bound",
    "Count",
    "Fraction",
    "NonNegative",
    "Positive",
    "PositiveOrInfinite",
    "Probability",
    "Ratio",
    "Registry",
    "RegistryEntry",
    "Whole",
    "check_finite",
    "get_example",
    "join_alternatives",
    "plugins",
    "refuse_plugins",
    "renamed_option",
    "resolve_function",
    "setting_for_option",
    "suggest_fix",
    "suggest_nearest",
    "suggest_similar",
    "validate_arguments",
    "wait_for_pace",
]
