"""Loads pre-trained weights from a file on this machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from fedpriv.errors import ConfigError, summarize_error
from fedpriv.models.tuning import match_names
from fedpriv.settings.checks import validate_arguments

_FIELD = "model.weights"
_MAX_NAMES = 3  # names of each kind in an error


@validate_arguments("model.weights")
@dataclass(frozen=True)
class Weights:
    """Initial weights of a model.

    Args:
        file: Path of a `.safetensors` file, or of a `.pt` or `.pth` file with a `state_dict`, such as a run's
            `model.pt`. Code in it is not executed.
        exclude: Patterns of names of parameters that keep the model's initial values, such as `head.*` if the model in
            the file has other classes.
    """

    file: str
    exclude: tuple[str, ...] = ()

    def digest(self) -> str:
        """Returns the SHA-256 digest of the file's contents.

        Raises:
            ConfigError: If the file cannot be read.
        """
        try:
            with Path(self.file).open("rb") as opened:
                return hashlib.file_digest(opened, "sha256").hexdigest()
        except OSError as error:
            raise ConfigError(_FIELD, self.file, f"cannot be read ({error.strerror}): correct the path") from error


@validate_arguments("load_weights")
def load_weights(model: nn.Module, file: str | Path, *, exclude: Sequence[str] = ()) -> nn.Module:
    """Copies parameters and buffers from a file into the model, in place.

    The file must have exactly the names of `model.state_dict()`, with the same shapes; types are converted. Epsilon
    does not cover the data that the weights were fitted on. Therefore the weights must be public, or the privacy cost
    of the run that produced them must be added to the cost of this run.

    Args:
        model: Any module.
        file: See `Weights`.
        exclude: See `Weights`.

    Returns:
        The model.

    Raises:
        ConfigError: If the file cannot be read, names or shapes differ, or a number is not finite.
    """
    model_tensors = dict(model.state_dict())
    file_tensors = _read(Path(file))
    skipped = {name for pattern in exclude for name in match_names(pattern, model_tensors, f"{_FIELD}.exclude")}
    file_tensors = {name: value for name, value in file_tensors.items() if name not in skipped}
    # tensors that two names share may be in the file once
    shared_memory = {model_tensors[name].data_ptr() for name in file_tensors if name in model_tensors}
    expected = [
        name
        for name, value in model_tensors.items()
        if name not in skipped and (name in file_tensors or value.data_ptr() not in shared_memory)
    ]
    _check_same_names_and_shapes(file, {name: model_tensors[name] for name in expected}, file_tensors)
    for name in expected:
        model_tensors[name].copy_(file_tensors[name])
    return model


def _read(file: Path) -> Mapping[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        tensors: object = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ConfigError(_FIELD, str(file), f"cannot be read ({error.strerror or error}): correct the path") from error
    except Exception as error:  # torch raises many kinds of errors for damaged files
        fix = (
            f"is damaged or not a file of weights ({summarize_error(error)}): use a .safetensors file, or a state_dict "
            "saved as .pt"
        )
        raise ConfigError(_FIELD, str(file), fix) from error
    if isinstance(tensors, Mapping) and all(isinstance(value, Tensor) for value in tensors.values()):
        return tensors
    raise ConfigError(
        _FIELD, str(file), "contains no state_dict (a mapping of names to tensors): save model.state_dict() to the file"
    )


def _check_same_names_and_shapes(
    file: str | Path, expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]
) -> None:
    common = [name for name in expected if name in actual]
    shapes = [
        f"{name} {list(actual[name].shape)} instead of {list(expected[name].shape)}"
        for name in common
        if actual[name].shape != expected[name].shape
    ]
    broken = [name for name in common if not bool(torch.isfinite(actual[name]).all())]
    wrong = {
        "lacks": [name for name in expected if name not in actual],
        "contains names that the model does not have,": [name for name in actual if name not in expected],
        "has other shapes for": shapes,
        "has numbers that are not finite in": broken,
    }
    problems = "; ".join(f"{verb} {_join_names(names)}" for verb, names in wrong.items() if names)
    if problems:
        fix = (
            "use weights of this model, or list in model.weights.exclude the names that shall keep their initial values"
        )
        raise ConfigError(_FIELD, str(file), f"{problems}: {fix}")


def _join_names(names: Sequence[str]) -> str:
    if len(names) > _MAX_NAMES:
        more = f" and {len(names) - _MAX_NAMES} more"
    else:
        more = ""
    return ", ".join(names[:_MAX_NAMES]) + more
