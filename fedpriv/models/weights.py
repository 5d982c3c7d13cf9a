"""Pre-trained weights, from a file on this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedpriv.errors import ConfigError, in_short
from fedpriv.models.tuning import matching
from fedpriv.settings.checks import checked

_FIELD = "model.weights"
_SHOWN = 3  # names of each kind in an error


@checked("model.weights")
@dataclass(frozen=True)
class Weights:
    """Weights that a model starts from.

    Args:
        file: Path of a `.safetensors` file, or of a `.pt` or `.pth` file with a `state_dict`, such as a run's
            `model.pt`. No code in it is run.
        without: Patterns of names that keep the values that the model gives them, such as `head.*` where the file is of
            a model with other classes.
    """

    file: str
    without: tuple[str, ...] = ()

    def digest(self) -> str:
        """SHA-256 of the file's contents.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            with Path(self.file).open("rb") as opened:
                return hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            raise ConfigError(_FIELD, self.file, f"cannot be read ({error.strerror}): correct the path") from error


@checked("load_weights")
def load_weights(model: nn.Module, file: str | Path, *, without: Sequence[str] = ()) -> nn.Module:
    """Copy parameters and buffers from a file into the model, in place.

    The file must hold just the names of `model.state_dict()`, each of the same shape; types are converted. What was
    fitted on is not covered by epsilon: weights must be public, or those of a run whose price is added to this one's.

    Args:
        model: Any module.
        file: See `Weights`.
        without: See `Weights`.

    Returns:
        The model.

    Raises:
        ConfigError: the file cannot be read, names or shapes differ, or a number is not finite.
    """
    wanted, found = dict(model.state_dict()), _read(Path(file))
    kept = {name for pattern in without for name in matching(pattern, wanted, f"{_FIELD}.without")}
    found = {name: value for name, value in found.items() if name not in kept}
    # tensors that two names share may be in the file once
    there = {wanted[name].data_ptr() for name in found if name in wanted}
    expected = [n for n, value in wanted.items() if n not in kept and (n in found or value.data_ptr() not in there)]
    _check_alike(file, {name: wanted[name] for name in expected}, found)
    for name in expected:
        wanted[name].copy_(found[name])
    return model


def _read(file: Path) -> Mapping[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        found: object = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ConfigError(_FIELD, str(file), f"cannot be read ({error.strerror or error}): correct the path") from error
    except Exception as error:  # each damage makes torch raise its own
        fix = f"is damaged, or no file of weights ({in_short(error)}): give a .safetensors file, or a state_dict as .pt"
        raise ConfigError(_FIELD, str(file), fix) from error
    if isinstance(found, Mapping) and all(isinstance(value, Tensor) for value in found.values()):
        return found
    raise ConfigError(_FIELD, str(file), "holds no state_dict, a mapping of names to tensors: save model.state_dict()")


def _check_alike(file: str | Path, wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    both = [name for name in wanted if name in found]
    shapes = [
        f"{name} {list(found[name].shape)} instead of {list(wanted[name].shape)}"
        for name in both
        if found[name].shape != wanted[name].shape
    ]
    broken = [name for name in both if not bool(torch.isfinite(found[name]).all())]
    wrong = {
        "lacks": [name for name in wanted if name not in found],
        "has, and the model has not,": [name for name in found if name not in wanted],
        "has of other shapes": shapes,
        "has numbers that are not finite in": broken,
    }
    said = "; ".join(f"{what} {_listed(names)}" for what, names in wrong.items() if names)
    if said:
        fix = "give the file of this model, or name what is to keep its initial values in model.weights.without"
        raise ConfigError(_FIELD, str(file), f"{said}: {fix}")


def _listed(names: Sequence[str]) -> str:
    if len(names) > _SHOWN:
        more = f" and {len(names) - _SHOWN} more"
    else:
        more = ""
    return ", ".join(names[:_SHOWN]) + more
