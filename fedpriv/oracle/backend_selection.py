"""Selects the backend that computes a run's gradients, by testing backends on the real model with synthetic examples.

Backends compute each example separately by construction, for any model (docs/design/0019-examples-apart.md). The trial
is therefore not needed for privacy; it only shows which backends support the model. A chain of known layers with a
known loss needs no trial.

The choice must not depend on private data. Backends round differently. If the choice depended on private examples, it
would change every query result a little, and the noise is not calibrated for such a change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch

from fedpriv.clients.population import Population
from fedpriv.errors import ConfigError
from fedpriv.models.example_losses import is_mean_of_losses
from fedpriv.models.known_code import is_known
from fedpriv.oracle.backend_trial import make_trial, trial_in_bfloat16
from fedpriv.oracle.backends import BackendName, build_backend, list_candidates
from fedpriv.oracle.backends.base import Backend
from fedpriv.oracle.backends.chains import find_chain
from fedpriv.oracle.backends.functional import Functional
from fedpriv.oracle.backends.precision import SERVING, Bfloat16
from fedpriv.oracle.validation import synthetic_points


@dataclass(frozen=True)
class BackendSelection:
    """A backend that serves a model.

    Attributes:
        name: A key of `BACKENDS`.
        backend: The backend, built for the run's model and loss.
        warnings: Warnings for the user.
        why_not_faster: Why faster backends were rejected, in one line: their names and their errors on synthetic
            examples. Empty if none was rejected.
    """

    name: str
    backend: Backend
    warnings: tuple[str, ...] = ()
    why_not_faster: str = ""

    @property
    def report(self) -> tuple[str, tuple[str, ...], str]:
        """Returns name, warnings and `why_not_faster`, without the backend, which other processes cannot receive."""
        return self.name, self.warnings, self.why_not_faster


def make_backend(name: str, population: Population, chunk: int | None = None, precision: str = "full") -> Backend:
    """Builds the named backend for the clients' model without a trial; see `select_backend` for the arguments."""
    if precision == "bfloat16":
        model = Bfloat16(population.model)
    else:
        model = population.model
    return build_backend(cast("BackendName", name), model, population.loss, chunk)


def select_backend(
    name: BackendName, population: Population, chunk: int | None = None, precision: str = "full"
) -> BackendSelection:
    """Returns the first of linear, ghost, vmap and loop that computes the same sums as loop on synthetic examples.

    If model and loss cannot be computed on synthetic examples, the first backend that supports the kind of model is
    returned.

    Args:
        name: The key of the only backend in `BACKENDS` to test, or `"auto"` to test all.
        population: The clients, at their initial parameters.
        chunk: Largest number of examples for which gradients are computed at once.
        precision: `"bfloat16"` runs forward and backward passes in bfloat16. Only the backends in `SERVING` keep the
            privacy guarantee in this case.

    Raises:
        ConfigError: If the named backend does not support the model.
    """
    device = population.device
    if name == "auto":
        names: list[BackendName] = list_candidates(population.model, population.multiplicity)
    else:
        names = [name]
    if precision == "bfloat16":
        names = [key for key in names if key in SERVING]
    backends = {key: make_backend(key, population, chunk, precision) for key in names}
    if names == ["loop"] or (precision == "full" and _is_exact(names[0], population)):
        return BackendSelection(names[0], backends[names[0]])
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        trial = make_trial(population, population.model)
        if trial is None:
            return BackendSelection(names[0], backends[names[0]])
        reasons: list[str] = []
        for key in names:
            failure = trial.failure(key)
            if failure is None and precision == "bfloat16":
                failure = trial_in_bfloat16(population, trial).failure(key)
            if failure is None:
                if key == "loop":
                    warnings = (trial.slowness_warning(reasons[0]),)
                else:
                    warnings = ()
                return BackendSelection(key, backends[key], warnings, "; ".join(reasons))
            # an error that occurs twice for the same reason is reported once
            if not reasons or failure not in reasons[-1]:
                reasons.append(f"not {key}: {failure}")
    if name == "auto":  # there is no other backend to try
        remedy = "change the model, e.g. its in-place changes of inputs: x.mul_(2) becomes x = x * 2"
    else:
        remedy = "use 'auto' or 'loop'"
    raise ConfigError("compute.backend", name, f"cannot be used for this model ({'; '.join(reasons)}); {remedy}")


def _is_exact(name: str, population: Population) -> bool:
    """Returns True if the backend has a gradient formula for this model and loss, and all their code is known.

    A trace does not contain code around layers. The model classes of fedpriv and torch have no such code that affects
    this check.
    """
    model, loss = population.model, population.loss
    is_chain = name == "ghost" and population.multiplicity == 1 and find_chain(model) is not None
    if not is_known(model) or not (name == "linear" or is_chain):
        return False
    row, x, y = synthetic_points(population)[0]
    functional = Functional(model, loss)
    with torch.no_grad():
        outputs = functional.outputs(functional.unflatten(row), x)
    return is_mean_of_losses(loss, outputs, y)
