"""Selects the backend that computes a run's gradients, by trying backends on the real model with synthetic examples.

The choice must not depend on private data: backends round differently, so that a choice by private examples would
change every answer a little, which no noise covers.
"""

from __future__ import annotations

import copy
import re
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from fedpriv.clients.batch import Batch
from fedpriv.clients.client import Loss
from fedpriv.clients.population import Population
from fedpriv.data.nested import each, first
from fedpriv.errors import ConfigError, in_short
from fedpriv.oracle.backends import BACKENDS, BackendName, candidates, choose
from fedpriv.oracle.backends.base import Backend
from fedpriv.oracle.backends.functional import Functional
from fedpriv.oracle.backends.precision import SERVING, Bfloat16
from fedpriv.oracle.traced_model import TracedModel, select_examples
from fedpriv.oracle.validation import Point, synthetic_points
from fedpriv.privacy.clipping import Clip

_SAME = 1e-3  # relative difference of two backends' sums
_SAME_BFLOAT16 = 2.0**-4
_BATCH_SIZE = 16  # examples in the batch that one example at a time is compared with


@dataclass(frozen=True)
class BackendSelection:
    """A backend that serves a model.

    Attributes:
        name: A key of `BACKENDS`.
        backend: The backend, built for the run's model and loss.
        warnings: Warnings for the user.
        why_not_faster: Why a faster backend was refused, if one was: its name, and its error on synthetic examples.
    """

    name: str
    backend: Backend
    warnings: tuple[str, ...] = ()
    why_not_faster: str = ""

    @property
    def report(self) -> tuple[str, tuple[str, ...], str]:
        """Name, warnings and `why_not_faster`: all but the backend, which cannot be sent to other processes."""
        return self.name, self.warnings, self.why_not_faster


def make_backend(name: str, population: Population, chunk: int | None = None, precision: str = "full") -> Backend:
    """Builds the backend of this name for the clients' model without a trial; arguments as of `select_backend`."""
    if precision == "bfloat16":
        model = Bfloat16(population.model)
    else:
        model = population.model
    return choose(cast("BackendName", name), model, population.loss, chunk)


def select_backend(
    name: BackendName, population: Population, chunk: int | None = None, precision: str = "full"
) -> BackendSelection:
    """Returns the first of linear, ghost, vmap and loop that computes the same sums as loop on synthetic examples.

    If model and loss cannot be computed on these, the first backend that supports the kind of model is returned.

    Args:
        name: The only key of `BACKENDS` to try, or `"auto"`.
        population: The clients, at their initial parameters.
        chunk: Largest number of examples whose gradients are computed at once.
        precision: `"bfloat16"` for forward and backward passes in it; only `SERVING` backends are private then.

    Raises:
        ConfigError: the named backend does not serve the model.
    """
    model = population.model
    loss = population.loss
    device = population.device
    if name == "auto":
        names: list[BackendName] = candidates(model, population.multiplicity)
    else:
        names = [name]
    tolerance = _SAME
    if precision == "bfloat16":
        model = Bfloat16(model)
        tolerance = _SAME_BFLOAT16
        names = [key for key in names if key in SERVING]
    backends = {key: choose(key, model, loss, chunk) for key in names}
    if names == ["loop"]:
        return BackendSelection("loop", backends["loop"])
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        rehearsal = _rehearsal(population, model, tolerance, double=precision == "full")
        if rehearsal is None:
            return BackendSelection(names[0], backends[names[0]])
        reason = ""
        for key in names:
            failure = rehearsal.failure(key)
            if failure is None:
                if key == "loop":
                    warnings = (rehearsal.slowness_warning(reason),)
                else:
                    warnings = ()
                return BackendSelection(key, backends[key], warnings, reason)
            # keep the failure of the fastest backend
            if not reason:
                reason = f"not {key}: {failure}"
    raise ConfigError("compute.backend", name, f"does not serve this model ({reason}); use 'auto' or 'loop'")


@dataclass(frozen=True)
class _Rehearsal:
    """A trial of backends: sums for two clients of two synthetic examples each, at one row for both and at two rows."""

    model: nn.Module
    loss: Loss
    point: Point
    rows: tuple[Tensor, Tensor]  # [2, dim]: one row expanded, and two different rows
    tolerance: float  # largest relative difference of sums that count as equal
    expected: list[Tensor]  # sums of the loop backend; empty if the model draws random numbers
    views: int  # number of views of an example

    def failure(self, name: str) -> str | None:
        """Returns why a backend does not serve the model, or None if it does."""
        try:
            sums = self.sums(name)
        except Exception as error:  # whatever a user's model raises, or torch where it cannot batch it
            return _why_not_batched(error)
        for actual, expected in zip(sums, self.expected, strict=False):
            if not bool((actual - expected).norm() <= self.tolerance * expected.norm()):
                return "it gives other gradients than one example at a time"
        return None

    def sums(self, name: str) -> list[Tensor]:
        """Returns the sums of one backend: clipped at one row, clipped at two rows, and exact at two rows."""
        model = copy.deepcopy(self.model)  # a forward pass may change it
        backend = BACKENDS[name](model, self.loss)
        clients = torch.arange(2)
        # two clients' two examples, or the two views of one example of each
        shape = (2, 2) if self.views == 1 else (2, 1, 2)
        x, y = (each(lambda values: values[:4].unflatten(0, shape), tree) for tree in self.point[1:])
        mask = torch.ones(shape[:2], dtype=torch.bool, device=self.rows[0].device)
        batch = Batch(clients, x, y, mask, views=min(self.views, 2))
        calls = [(self.rows[0], Clip(1.0)), (self.rows[1], Clip(1.0)), (self.rows[1], None)]
        return [backend.clipped_sum(rows, batch, clip)[0] for rows, clip in calls]

    def slowness_warning(self, reason: str) -> str:
        """Returns a warning that one example at a time is slow, with the measured factor and the reason."""
        functional = Functional(copy.deepcopy(self.model), self.loss)
        row, x, y = self.point
        indices = [i % len(first(x)) for i in range(_BATCH_SIZE)]
        batch = select_examples(x, indices), select_examples(y, indices)

        def seconds(rows: slice) -> float:
            start = time.perf_counter()
            leaf = row.detach().clone().requires_grad_()
            x, y = (each(lambda values: values[rows], tree) for tree in batch)
            loss = self.loss(functional.outputs(functional.unflatten(leaf), x), y)
            torch.autograd.grad(loss.sum(), leaf)
            return time.perf_counter() - start

        # the better of two, since the first pass may load kernels
        alone = min(seconds(slice(1)), seconds(slice(1)))
        together = min(seconds(slice(_BATCH_SIZE)), seconds(slice(_BATCH_SIZE)))
        slower = max(_BATCH_SIZE * alone / together, 1)  # on a busy machine it may seem to be less
        return (
            f"this model's gradients are computed one example at a time, about {slower:.0f} times "
            f"slower than in one pass: torch.func.vmap cannot batch it ({reason}). compute.backend: loop says that you "
            "know"
        )


def _why_not_batched(error: Exception) -> str:
    """Returns an error's reason in short; torch.func's own text about a missing rule addresses its developers."""
    missing = re.search(r"Batching rule not implemented for ([\w:.]+?)\.?(?:\s|$)", str(error))
    if missing is None:
        return in_short(error)
    operation = missing[1].removeprefix("aten::").split(".")[0]
    return f"torch.func.vmap has no rule for torch's {operation}"


def _rehearsal(population: Population, model: nn.Module, tolerance: float, *, double: bool) -> _Rehearsal | None:
    """Returns a trial with the sums of the loop backend on synthetic examples; None if it cannot be computed on any.

    They are computed in double precision where the model can: in single precision an input of a ReLU that is zero up to
    rounding is on one side in a batch and on the other alone, and a right backend would be refused by such luck.

    Args:
        population: The clients, at their initial parameters.
        model: Their model, as the backends use it.
        tolerance: Largest relative difference of sums that count as equal.
        double: Whether to try double precision first; False keeps the types of the run.
    """
    loss = population.loss
    start = population.params[0]
    for point in synthetic_points(population):
        try:
            draws = TracedModel(population, point[0]).draws(point[1])
        except Exception:  # whatever a user's model or loss raises
            continue
        row, x, y = point
        attempts = [(model, (row, x, y), start)]
        if double:
            with suppress(Exception):  # a module that cannot be copied or converted
                in_double = each(_as_double, x), each(_as_double, y)
                attempts.insert(0, (copy.deepcopy(model).double(), (row.double(), *in_double), start.double()))
        for candidate, trial_point, trial_start in attempts:
            rows = trial_point[0].expand(2, -1), torch.stack([trial_point[0], trial_start])
            rehearsal = _Rehearsal(candidate, loss, trial_point, rows, tolerance, [], population.multiplicity)
            try:
                expected = rehearsal.sums("loop")
            except Exception:  # whatever a user's model or loss raises, also where it takes single precision only
                continue
            if all(bool(torch.isfinite(sums).all()) for sums in expected):
                if draws:
                    expected = []
                return replace(rehearsal, expected=expected)
    return None


def _as_double(values: Tensor) -> Tensor:
    if values.is_floating_point():
        return values.double()
    return values
