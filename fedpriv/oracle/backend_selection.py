"""Which backend computes a run's gradients: by trying them on the real model, with numbers that are made up.

What is tried must not depend on private data: backends round differently, so that a choice by private examples would
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
from fedpriv.oracle.traced_model import TracedModel, at
from fedpriv.oracle.validation import Point, made_up
from fedpriv.privacy.clipping import Clip

_SAME = 1e-3  # relative difference of two backends' sums
_SAME_BFLOAT16 = 2.0**-4
_AT_ONCE = 16  # examples in the batch that one example at a time is compared with


@dataclass(frozen=True)
class BackendSelection:
    """A backend that serves a model.

    Attributes:
        name: A key of `BACKENDS`.
        backend: Made for the run's model and loss.
        warnings: What to tell the user of it.
        why_not_faster: Why a faster backend was refused, if one was: its name, and what it did on made-up examples.
    """

    name: str
    backend: Backend
    warnings: tuple[str, ...] = ()
    why_not_faster: str = ""

    @property
    def told(self) -> tuple[str, tuple[str, ...], str]:
        """All but the backend, which cannot be sent to other processes."""
        return self.name, self.warnings, self.why_not_faster


def make_backend(name: str, population: Population, chunk: int | None = None, precision: str = "full") -> Backend:
    """The backend of this name for the clients' model, untried; arguments as of `select_backend`."""
    if precision == "bfloat16":
        model = Bfloat16(population.model)
    else:
        model = population.model
    return choose(cast("BackendName", name), model, population.loss, chunk)


def select_backend(
    name: BackendName, population: Population, chunk: int | None = None, precision: str = "full"
) -> BackendSelection:
    """The first of linear, ghost, vmap and loop that gives the loop's sums on made-up examples.

    Where model and loss cannot be computed on those, the kind of model decides.

    Args:
        name: A key of `BACKENDS` to insist on, or `"auto"`.
        population: The clients, at their initial parameters.
        chunk: Largest number of examples whose gradients are computed at once.
        precision: `"bfloat16"`: forward and backward passes in it, by the backends whose promise then holds.

    Raises:
        ConfigError: the backend that is insisted on does not serve the model.
    """
    model, loss, device = population.model, population.loss, population.device
    if name == "auto":
        tried: list[BackendName] = candidates(model, population.multiplicity)
    else:
        tried = [name]
    same = _SAME
    if precision == "bfloat16":
        model, same = Bfloat16(model), _SAME_BFLOAT16
        tried = [key for key in tried if key in SERVING]
    backends = {key: choose(key, model, loss, chunk) for key in tried}
    if tried == ["loop"]:
        return BackendSelection("loop", backends["loop"])
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        rehearsal = _rehearsal(population, model, same, double=precision == "full")
        if rehearsal is None:
            return BackendSelection(tried[0], backends[tried[0]])
        why = ""
        for key in tried:
            failure = rehearsal.failure(key)
            if failure is None:
                return BackendSelection(key, backends[key], (rehearsal.told(why),) if key == "loop" else (), why)
            why = why or f"not {key}: {failure}"
    raise ConfigError("compute.backend", name, f"does not serve this model ({why}); use 'auto' or 'loop'")


@dataclass(frozen=True)
class _Rehearsal:
    """Sums of two clients' two made-up examples each, at one row for both and at two rows."""

    model: nn.Module
    loss: Loss
    point: Point
    rows: tuple[Tensor, Tensor]  # of one row, and of two
    same: float  # relative difference of sums that count as equal
    wanted: list[Tensor]  # what the loop gives; empty where the model draws random numbers
    views: int  # of an example

    def failure(self, name: str) -> str | None:
        """Why a backend does not serve the model, if so."""
        try:
            found = self.sums(name)
        except Exception as error:  # whatever a user's model raises, or torch where it cannot batch it
            return _why_not_batched(error)
        for one, other in zip(found, self.wanted, strict=False):
            if not bool((one - other).norm() <= self.same * other.norm()):
                return "it gives other gradients than one example at a time"
        return None

    def sums(self, name: str) -> list[Tensor]:
        """The sums of one backend: clipped in both ways, and exact."""
        model = copy.deepcopy(self.model)  # which a forward pass may change
        backend, cells = BACKENDS[name](model, self.loss), torch.arange(2)
        # two clients' two examples, or the two views of one example of each
        shape = (2, 2) if self.views == 1 else (2, 1, 2)
        x, y = (each(lambda values: values[:4].unflatten(0, shape), part) for part in self.point[1:])
        mask = torch.ones(shape[:2], dtype=torch.bool, device=self.rows[0].device)
        batch = Batch(cells, x, y, mask, views=min(self.views, 2))
        asked = (self.rows[0], Clip(1.0)), (self.rows[1], Clip(1.0)), (self.rows[1], None)
        return [backend.clipped_sum(rows, batch, clip)[0] for rows, clip in asked]

    def told(self, why: str) -> str:
        """A warning that one example at a time is slow; names the reason."""
        functional = Functional(copy.deepcopy(self.model), self.loss)
        row, x, y = self.point
        places = [i % len(first(x)) for i in range(_AT_ONCE)]
        both = at(x, places), at(y, places)

        def seconds(rows: slice) -> float:
            begun, leaf = time.perf_counter(), row.detach().clone().requires_grad_()
            x, y = (each(lambda values: values[rows], part) for part in both)
            loss = self.loss(functional.outputs(functional.unflatten(leaf), x), y)
            torch.autograd.grad(loss.sum(), leaf)
            return time.perf_counter() - begun

        alone, together = (min(seconds(slice(n)) for _ in range(2)) for n in (1, _AT_ONCE))
        slower = max(_AT_ONCE * alone / together, 1)  # on a busy machine it may seem to be less
        return (
            f"this model's gradients are computed one example at a time, about {slower:.0f} times "
            f"slower than in one pass: torch.func.vmap cannot batch it ({why}). compute.backend: loop says that you "
            "know"
        )


def _why_not_batched(error: Exception) -> str:
    """What an error says of the model; torch.func's text about a missing rule is for its own developers."""
    missing = re.search(r"Batching rule not implemented for ([\w:.]+?)\.?(?:\s|$)", str(error))
    if missing is None:
        return in_short(error)
    operation = missing[1].removeprefix("aten::").split(".")[0]
    return f"torch.func.vmap has no rule for torch's {operation}"


def _rehearsal(population: Population, model: nn.Module, same: float, *, double: bool) -> _Rehearsal | None:
    """Returns the sums that one example at a time gives on made-up numbers; None if there are none.

    They are computed in double precision where the model can: in single precision an input of a ReLU that is zero up to
    rounding is on one side in a batch and on the other alone, and a right backend would be refused by such luck.

    Args:
        population: The clients, at their initial parameters.
        model: Their model, as the backends use it.
        same: Relative difference of sums that count as equal.
        double: False keeps the types of the run.
    """
    loss, start = population.loss, population.params[0]
    for point in made_up(population):
        try:
            draws = TracedModel(population, point[0]).draws(point[1])
        except Exception:  # whatever a user's model or loss raises
            continue
        row, x, y = point
        in_types_of_run = model, (row, x, y), start
        attempts = [in_types_of_run]
        if double:
            with suppress(Exception):  # a module that cannot be copied or converted
                in_double = each(_as_double, x), each(_as_double, y)
                attempts.insert(0, (copy.deepcopy(model).double(), (row.double(), *in_double), start.double()))
        for tried, at_point, at_start in attempts:
            rows = at_point[0].expand(2, -1), torch.stack([at_point[0], at_start])
            found = _Rehearsal(tried, loss, at_point, rows, same, [], population.multiplicity)
            try:
                wanted = found.sums("loop")
            except Exception:  # whatever a user's model or loss raises, also where it takes single precision only
                continue
            if all(bool(torch.isfinite(sums).all()) for sums in wanted):
                return replace(found, wanted=[] if draws else wanted)
    return None


def _as_double(values: Tensor) -> Tensor:
    if values.is_floating_point():
        return values.double()
    return values
