"""Fine-tuning: selects the parameters of a model that a run trains."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from torch import nn

from fedpriv.errors import ConfigError
from fedpriv.settings.checks import validate_arguments
from fedpriv.settings.translations import suggest_nearest


@validate_arguments("train_only")
def train_only(model: nn.Module, names: Sequence[str]) -> nn.Module:
    """Makes the parameters of these names trainable and freezes all others, in place.

    A run sends, noises and changes only trainable parameters. Frozen parameters are constants that are released with
    the model. They must be public, because epsilon does not cover the data that they were fitted on.

    Args:
        model: Any module.
        names: Patterns of names as in `model.named_parameters()`. For example, `head.*` matches all parameters of the
            head and `*.bias` every bias. `*` matches any text, `?` one letter, and `[ab]` one of these letters.

    Returns:
        The model.

    Raises:
        ConfigError: If a pattern matches no parameter; the message contains the most similar names.
    """
    all_names = [name for name, _ in model.named_parameters()]
    trained = {name for pattern in names for name in match_names(pattern, all_names, "model.train")}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    return model


def match_names(pattern: str, names: Collection[str], field: str) -> list[str]:
    """Returns the names that match a pattern.

    Args:
        pattern: A pattern with wildcards, see `train_only`.
        names: All names.
        field: The setting with the pattern, for errors.

    Raises:
        ConfigError: If no name matches; the message contains the most similar names.
    """
    matches = [name for name in names if fnmatchcase(name, pattern)]
    if not matches:
        prefixes = {f"{name.rpartition('.')[0]}.*" for name in names if "." in name}
        raise ConfigError(
            field, pattern, f"matches no name in the model{suggest_nearest(pattern, {*names, *prefixes})}"
        )
    return matches
