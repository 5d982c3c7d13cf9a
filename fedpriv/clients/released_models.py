"""Marks parameters that contain the result of a run, because the epsilon of a run that starts from them would omit
their privacy cost.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from fedpriv.errors import ConfigError

EARLIER_RESULT = "holds the result of an earlier run, and the epsilon of this run would not include the earlier one"
GO_ON = "To continue from a released model, use copy.deepcopy(model), and add up the privacy costs with fedpriv.total"


@dataclass(frozen=True)
class _Note:
    """The note on a parameter that holds a result.

    Attributes:
        cost: The privacy cost of its value, in words.
        version: Torch's counter of in-place changes. If the counter has changed, the user has set other values.
    """

    cost: str
    version: int


# keyed by the parameter, so that a module around a trained one is recognised; a copy has new parameters
_NOTES = WeakTensorKeyDictionary()


def record_result(model: nn.Module, cost: str) -> None:
    """Notes that a run has written its result into the trainable parameters of a model, with its cost."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            _NOTES[parameter] = _Note(cost, parameter._version)  # noqa: SLF001 - torch counts changes there


def find_privacy_cost(model: nn.Module) -> str | None:
    """Returns the privacy cost of a result that the parameters of a model (including frozen ones) contain; None if they
    contain no result.
    """
    for parameter in model.parameters():
        note: _Note | None = _NOTES.get(parameter)
        if note is not None and note.version == parameter._version:  # noqa: SLF001 - see above
            return note.cost
    return None


def check_untrained(field: str, model: nn.Module) -> None:
    """Raises an error if a model contains the result of a run. Call this before a copy of the model is made, because
    copies do not have the note.

    Raises:
        ConfigError: If the model contains a result; the message names the field and the privacy cost of the model.
    """
    cost = find_privacy_cost(model)
    if cost is not None:
        raise ConfigError(field, cost, f"{EARLIER_RESULT}; create a new model. {GO_ON}")
