"""Transformers that learn from private rows with a guarantee of their own."""

from __future__ import annotations

import hashlib
from abc import ABC
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpriv.privacy.accounting import PrivacySpent
from fedpriv.runs import Result

_GUESSABLE = 2**64


class PrivateStep(ABC):
    """A transformer that learns from rows with differential privacy, and states what that costs.

    `check_pipeline` accepts it, and a private estimator later in the same pipeline adds its cost to `spent_`.

    Attributes:
        result_: The run that released what the last fit learned.
        spent_: The privacy cost of the last fit.
    """

    result_: Result
    spent_: PrivacySpent


def derive_seed(random_state: int | None, params: Mapping[str, Any], data: Iterable[NDArray[np.float64]]) -> int | None:
    """Returns a secret seed that depends on the parameters and the data, not on `random_state` alone.

    Otherwise two fits with other parameters or other data would share their noise, and the difference of their results
    would contain no noise at all. Cross-validation and grid search make such fits.

    Args:
        random_state: As in scikit-learn; None returns None.
        params: The parameters of the estimator.
        data: The data of the fit.
    """
    if random_state is None:
        return None
    hasher = hashlib.blake2b(repr(sorted(params.items())).encode(), digest_size=16)
    for values in data:
        hasher.update(np.ascontiguousarray(values).tobytes())
    return int.from_bytes(hasher.digest(), "little")


def is_guessable(random_state: int | None) -> bool:
    """Returns True if somebody can find `random_state` by trying all numbers."""
    return random_state is not None and abs(random_state) < _GUESSABLE
