"""Compares each backend's sums on synthetic examples with the sums that are computed one example at a time.

Sums are compared in double precision if the model supports it. In single precision, an input of a ReLU that is zero up
to rounding may be positive in a batch but negative for a single example, so a correct backend could be rejected by
chance. For the same reason, no trial uses the initial parameters: they may be zeros, which put many inputs of ReLUs at
zero. If only single precision is possible, a correct backend may still be rejected by chance; the next backend is
slower but also correct.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from fedpriv.clients.batch import Batch
from fedpriv.clients.client import Loss
from fedpriv.clients.population import Population
from fedpriv.errors import summarize_error
from fedpriv.models.copies import copy_module
from fedpriv.models.nested import first_leaf, map_tree
from fedpriv.oracle.backends import BACKENDS
from fedpriv.oracle.backends.functional import Functional
from fedpriv.oracle.backends.loop import LoopBackend
from fedpriv.oracle.backends.precision import Bfloat16
from fedpriv.oracle.traced_model import TracedModel, select_examples
from fedpriv.oracle.validation import Point, synthetic_points
from fedpriv.privacy.clipping import Clip

# largest relative differences between the sums of two backends
_SAME_DOUBLE = 1e-6
_SAME_SINGLE = 1e-3
_CLIP = Clip(1.0)
_BATCH_SIZE = 16  # examples in the batch that one example at a time is compared with
DIFFERENT = "its gradients differ from those computed one example at a time"


@dataclass(frozen=True)
class Trial:
    """A model at one point, and its sums for two clients with two synthetic examples each. The sums are computed twice:
    with the same parameters for both clients, and with different parameters.

    Attributes:
        model: The model, in the precision of the trial.
        loss: The clients' loss.
        point: Parameters `[dim]`, inputs and targets.
        rows: Parameters of the two clients, `[2, dim]`: first one row that is expanded to both, then two different
            rows.
        tolerance: Sums count as equal up to this relative difference.
        views: Number of views (augmented copies) of an example.
        expected: Sums computed one example at a time; empty if there is nothing to compare with.
    """

    model: nn.Module
    loss: Loss
    point: Point
    rows: tuple[Tensor, Tensor]
    tolerance: float
    views: int
    expected: tuple[Tensor, ...] = ()

    @cached_property
    def batch(self) -> Batch:
        """Returns two examples of each of two clients. If examples have views, returns two views of one example of each
        client.
        """
        shape = (2, 2) if self.views == 1 else (2, 1, 2)
        x, y = (map_tree(lambda values: values[:4].unflatten(0, shape), tree) for tree in self.point[1:])
        mask = torch.ones(shape[:2], dtype=torch.bool, device=self.rows[0].device)
        return Batch(torch.arange(2), x, y, mask, views=min(self.views, 2))

    def failure(self, name: str) -> str | None:
        """Returns the reason why a backend does not support the model, or None if it does."""
        try:
            sums = self._sums(name)
        except Exception as error:  # whatever a user's model raises, or torch if it cannot batch the model
            return explain_batching_error(error)
        for actual, expected in zip(sums, self.expected, strict=False):
            if not bool((actual - expected).norm() <= self.tolerance * expected.norm()):
                return DIFFERENT
        return None

    def _sums(self, name: str) -> list[Tensor]:
        """Returns the sums of one backend: clipped with equal parameters, clipped with different parameters, and exact
        with different parameters of the clients.
        """
        backend = BACKENDS[name](copy_module(self.model), self.loss)  # a forward pass may change the model
        calls = [(self.rows[0], _CLIP), (self.rows[1], _CLIP), (self.rows[1], None)]
        return [backend.clipped_sum(rows, self.batch, clip)[0] for rows, clip in calls]

    def with_expected(self) -> Trial:
        """Returns the trial with the expected sums, computed one example at a time; each gradient is computed only
        once.
        """
        loop = LoopBackend(copy_module(self.model), self.loss)
        batch = self.batch
        cells = [(client, example) for client in range(2) for example in range(batch.mask.shape[1])]

        def gradients(row: Tensor, client: int) -> Tensor:
            """`[examples, dim]`"""
            rows = [_single_example(batch, *cell) for cell in cells if cell[0] == client]
            return torch.cat([loop.clipped_sum(row.unsqueeze(0), single, None)[0] for single in rows])

        one_row = [gradients(self.rows[0][client], client) for client in range(2)]
        two_rows = [one_row[0], gradients(self.rows[1][1], 1)]
        clipped = [torch.stack([_CLIP.rows(rows)[0].sum(0) for rows in pair]) for pair in (one_row, two_rows)]
        exact = torch.stack([rows.sum(0) for rows in two_rows])
        return replace(self, expected=(*clipped, exact))

    def slowness_warning(self, reason: str) -> str:
        """Returns a warning that computing one example at a time is slow, with the measured slowdown and the reason."""
        functional = Functional(copy_module(self.model), self.loss)
        row, x, y = self.point
        indices = [i % len(first_leaf(x)) for i in range(_BATCH_SIZE)]
        batch = select_examples(x, indices), select_examples(y, indices)

        def seconds(rows: slice) -> float:
            start = time.perf_counter()
            leaf = row.detach().clone().requires_grad_()
            x, y = (map_tree(lambda values: values[rows], tree) for tree in batch)
            loss = functional.loss(functional.outputs(functional.unflatten(leaf), x), y)
            torch.autograd.grad(loss.sum(), leaf)
            return time.perf_counter() - start

        # keep the better of two measurements, since the first pass may load kernels
        alone = min(seconds(slice(1)), seconds(slice(1)))
        together = min(seconds(slice(_BATCH_SIZE)), seconds(slice(_BATCH_SIZE)))
        slower = max(_BATCH_SIZE * alone / together, 1)  # on a busy machine the measured ratio may be smaller
        return (
            f"this model's gradients are computed one example at a time, about {slower:.0f} times slower than "
            f"in one pass: torch.func.vmap cannot batch it ({reason}). See docs/howto/own_model.md (Speed) for "
            "replacements; compute.backend: loop accepts the slow method and hides this warning"
        )


def make_trial(population: Population, model: nn.Module) -> Trial | None:
    """Returns a trial with sums computed one example at a time, in double precision if the model supports it.

    A model that draws random numbers is set to eval mode. If it still draws random numbers, the trial has no expected
    sums.

    Args:
        population: The clients, at their initial parameters.
        model: The model as the backends use it. For a run in bfloat16, pass the model in full precision, because
            rounding in bfloat16 differs so much between a batch and single examples that sums could not be compared.

    Returns:
        The trial; None if model and loss cannot be computed on synthetic examples.
    """
    for point in synthetic_points(population):
        try:
            draws = TracedModel(population, point[0]).draws(point[1])
            if draws:
                model = copy_module(model).eval()
                quiet = TracedModel(population, point[0])
                quiet.model.eval()
                draws = quiet.draws(point[1])
            draws = draws or TracedModel(population, point[0]).loss_draws(point[1], point[2])
        except Exception:  # whatever a user's model or loss raises
            continue
        for trial in _precisions(population, model, point):
            try:
                complete = trial.with_expected()
            except Exception:  # whatever a user's model or loss raises, also if it accepts single precision only
                continue
            if all(bool(torch.isfinite(sums).all()) for sums in complete.expected):
                if draws:
                    return trial
                return complete
    return None


def trial_in_bfloat16(population: Population, trial: Trial) -> Trial:
    """Returns a trial that runs the model in bfloat16 on the same examples, without a comparison, because rounding
    would hide differences.
    """
    row = trial.point[0].to(population.params)
    x, y = (map_tree(lambda values: _as_type(values, row.dtype), tree) for tree in trial.point[1:])
    rows = trial.rows[0].to(row), trial.rows[1].to(row)
    return replace(trial, model=Bfloat16(population.model), point=(row, x, y), rows=rows, expected=())


def _precisions(population: Population, model: nn.Module, point: Point) -> list[Trial]:
    """Yields trials at a point: first in double precision, if the model can be converted to it, then in the model's own
    precision.
    """
    row, x, y = point
    views = population.multiplicity
    # a second row close to the first
    generator = torch.Generator().manual_seed(1)
    second = row + 0.05 * torch.randn(row.shape, generator=generator).to(row)
    rows = row.expand(2, -1), torch.stack([row, second])
    trials: list[Trial] = []
    with suppress(Exception):  # a module that cannot be copied or converted
        double_x, double_y = (map_tree(lambda values: _as_type(values, torch.float64), tree) for tree in (x, y))
        in_double = row.double(), double_x, double_y
        double_rows = in_double[0].expand(2, -1), rows[1].double()
        model_in_double = copy_module(model).double()
        trials.append(Trial(model_in_double, population.loss, in_double, double_rows, _SAME_DOUBLE, views))
    trials.append(Trial(model, population.loss, point, rows, _SAME_SINGLE, views))
    return trials


def _single_example(batch: Batch, client: int, example: int) -> Batch:
    """Returns a batch that contains one example of the given batch."""
    cell = slice(client, client + 1), slice(example, example + 1)
    x, y = (map_tree(lambda values: values[cell], tree) for tree in (batch.inputs, batch.targets))
    return Batch(torch.zeros(1, dtype=torch.long), x, y, batch.mask[cell], views=batch.views)


def explain_batching_error(error: Exception) -> str:
    """Returns a short reason for an error. It replaces torch.func's message about a missing vmap rule, which is meant
    for developers of torch.
    """
    missing = re.search(r"Batching rule not implemented for ([\w:.]+?)\.?(?:\s|$)", str(error))
    if missing is None:
        return summarize_error(error)
    operation = missing[1].removeprefix("aten::").split(".")[0]
    return f"torch.func.vmap has no rule for torch's {operation}"


def _as_type(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts floating-point tensors to `dtype`; returns other tensors unchanged."""
    if values.is_floating_point():
        return values.to(dtype)
    return values
