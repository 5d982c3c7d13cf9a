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
    checked,
    either,
    similar,
)
from .pace import wait_for_pace
from .plugins import Registry, RegistryEntry, refuse_plugins
from .translations import example, nearest, renamed_option, setting_for_option, suggestion

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
    "checked",
    "either",
    "example",
    "nearest",
    "plugins",
    "refuse_plugins",
    "renamed_option",
    "setting_for_option",
    "similar",
    "suggestion",
    "wait_for_pace",
]
