"""Fine-tuning: which parameters of a model a run trains."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from torch import nn

from fedpriv.errors import ConfigError
from fedpriv.settings.checks import checked
from fedpriv.settings.translations import nearest


@checked("train_only")
def train_only(model: nn.Module, names: Sequence[str]) -> nn.Module:
    """Train the parameters of these names and freeze all others, in place.

    A run sends, noises and moves only what it trains. Frozen parameters are constants that are released with the model
    as they are: epsilon does not cover data that they were fitted on, so they must be public.

    Args:
        model: Any module.
        names: Patterns of names as in `model.named_parameters()`: `head.*` is all of the head, `*.bias` every bias; `*`
            stands for any text, `?` for a letter and `[ab]` for one of these.

    Returns:
        The model.

    Raises:
        ConfigError: a pattern fits no parameter; names the nearest ones.
    """
    known = [name for name, _ in model.named_parameters()]
    trained = {name for pattern in names for name in matching(pattern, known, "model.train")}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    return model


def matching(pattern: str, known: Collection[str], field: str) -> list[str]:
    """The names that a pattern stands for.

    Raises:
        ConfigError: there is none; names those that are nearest to it, of the setting `field`.
    """
    found = [name for name in known if fnmatchcase(name, pattern)]
    if not found:
        parts = {f"{name.rpartition('.')[0]}.*" for name in known if "." in name}
        raise ConfigError(field, pattern, f"no such name in the model{nearest(pattern, {*known, *parts})}")
    return found
