"""Compares backends in larger batches than `backend_trial`, for models and losses with code of a user's own.

A batch repeats the few examples of a trial, so its sum follows from gradients that are known. A model's forward pass
sees no size of a batch (`batched_forward`, vmap); but a backward pass of a user's own does, as do a rule for vmap, a
hook on gradients or saved tensors, and a loss's per-example form. One that mixes the examples of large batches only
would make one example change others' gradients, which no clipping bounds. So models with such code are tried in batches
as large as the backend computes at once, others in one of 17 examples.

Batches are computed in the run's own precision first. Only where sums differ, by more than rounding in the same
operations explains, double precision decides, as in `backend_trial`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedpriv.clients.batch import Batch
from fedpriv.clients.population import Population
from fedpriv.data.nested import each, leaves
from fedpriv.models.copies import copy_module
from fedpriv.models.known_code import is_known
from fedpriv.oracle.backend_trial import CLIP, Rehearsal, Trial, why_not_batched
from fedpriv.oracle.backends import BACKENDS
from fedpriv.oracle.backends.base import Backend
from fedpriv.oracle.backends.in_threads import copy_backend
from fedpriv.oracle.backends.per_example import PerExample
from fedpriv.oracle.batch_sizes import LARGEST, batch_sizes, repeat_examples, repeated
from fedpriv.oracle.traced_model import TracedModel

_SAME_ROUNDING = 1e-4  # largest relative difference of sums that is not looked at in double precision
_SMALL = 17  # examples in the only batch for models whose backward pass is torch's: odd, and more than a trial has
_FEW = 8  # examples of each client where there are many: of so many, exact sums are computed of many clients at once


@dataclass(frozen=True)
class BatchShape:
    """How the examples of a batch lie.

    Attributes:
        clients: Number of clients.
        examples: Number of examples of each.
        one_row: Whether there is one client with the examples of both clients of the trial; else every second client
            has the row and the examples of one of them.
    """

    clients: int
    examples: int
    one_row: bool


def batch_shapes(size: int) -> list[BatchShape]:
    """Returns the shapes in which a batch of about `size` examples is tried: backends compute each otherwise."""
    shapes = [BatchShape(1, size, one_row=True), BatchShape(2, size // 2, one_row=False)]
    if size >= 4 * _FEW:
        shapes.append(BatchShape(size // _FEW, _FEW, one_row=False))
    return shapes


class LargerBatches:
    """Trials of the backends of one run in larger batches.

    Args:
        rehearsal: The trials of the same backends in small batches.
    """

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._population = rehearsal.population
        self._rehearsal = rehearsal

    def failure(self, trial: Trial, name: str, backend: Backend) -> str | None:
        """Returns why a backend that serves small batches does not serve larger ones, or None if it does.

        Args:
            trial: The trial that it has passed.
            name: Its key in `BACKENDS`.
            backend: The backend as the run has it.
        """
        if not trial.gradients or name == "loop" or (is_known(trial.model) and is_known(trial.loss)):
            return None
        quick = in_run_precision(trial, self._population)
        row, x, y = quick.point
        if TracedModel(self._population, row).has_own_backward(x, y):
            try:
                sizes = self._sizes(quick, backend)
            except Exception as error:  # whatever a user's model raises
                return why_not_batched(error)
        else:
            sizes = [_SMALL]
        for size in sizes:
            for shape in batch_shapes(size):
                reason = failure_at(quick, name, shape, _SAME_ROUNDING)
                if reason is not None:
                    reason = self._decide(trial, name, shape)
                if reason is not None:
                    return reason
        return None

    def _decide(self, trial: Trial, name: str, shape: BatchShape) -> str | None:
        """Returns the reason in double precision or, where the model has only single precision, at all points."""
        reason = failure_at(trial, name, shape, trial.tolerance)
        if reason is None or trial.is_double:
            return reason
        for other in self._rehearsal.others:
            if other is None or not other.gradients or failure_at(other, name, shape, other.tolerance) is not None:
                return reason
        return None

    def _sizes(self, trial: Trial, backend: Backend) -> list[int]:
        """Returns numbers of examples up to the largest that the backend computes at once."""
        largest = LARGEST
        if isinstance(backend, PerExample):
            # of a copy: to measure is to call the model, which may change
            largest = min(largest, copy_backend(backend).examples_at_once(trial.rows[0][:1], trial.batch, CLIP))
        memory = sum(values[:1].numel() * values.element_size() for tree in trial.point[1:] for values in leaves(tree))
        # a copy of the parameters for each few examples where clients' rows differ
        memory += trial.point[0].numel() * 8 // _FEW
        return batch_sizes(self._population.most_examples, largest, memory)


def in_run_precision(trial: Trial, population: Population) -> Trial:
    """Returns the trial at the same point in the precision of the run."""
    like = population.params

    def converted(values: Tensor) -> Tensor:
        if values.is_floating_point():
            return values.to(like.dtype)
        return values

    row, x, y = trial.point
    point = converted(row), each(converted, x), each(converted, y)
    rows = trial.rows[0].to(like.dtype), trial.rows[1].to(like.dtype)
    return replace(trial, model=copy_module(trial.model).to(like.dtype), point=point, rows=rows)


def failure_at(trial: Trial, name: str, shape: BatchShape, tolerance: float) -> str | None:
    """Returns why a backend does not serve batches of one shape, or None if it does.

    Args:
        trial: The model at one point, with the gradients of single examples.
        name: A key of `BACKENDS`.
        shape: The shape.
        tolerance: Largest relative difference of sums that count as equal.
    """
    backend = BACKENDS[name](copy_module(trial.model), trial.loss)
    size = shape.clients * shape.examples
    if isinstance(backend, PerExample):
        backend.insist_on(4 * size)  # several clients are computed at once where four of them fit
    rows, batch, gradients = _batch(trial, shape)
    different = gradients.shape[1]
    counts = torch.bincount(torch.tensor(repeated(different, shape.examples)), minlength=different).to(gradients)
    for clip in (CLIP, None):
        bounded = gradients
        if clip is not None:
            bounded = torch.stack([clip.rows(of_client)[0] for of_client in gradients])
        expected = torch.einsum("m,cmd->cd", counts.to(bounded), bounded)
        try:
            actual = backend.clipped_sum(rows, batch, clip)[0]
        except Exception as error:  # whatever a user's code raises in a batch of this size
            return why_not_batched(error)
        expected = expected[torch.tensor(repeated(len(expected), shape.clients), device=expected.device)]
        if not bool((actual.to(expected) - expected).norm() <= tolerance * expected.norm()):
            return (
                f"it gives other gradients in a batch of {size} examples than one example at a time: a backward pass, "
                "a hook or a rule for vmap of your own reads the batch's size or its other examples"
            )
    return None


def _batch(trial: Trial, shape: BatchShape) -> tuple[Tensor, Batch, Tensor]:
    """Returns the rows of a batch `[c, dim]`, the batch, and its different examples' gradients `[1 or 2, m, dim]`.

    The examples of a client are the m of its row of gradients, again and again, and so are the clients.
    """
    at_first_row, at_own_rows = trial.gradients
    small = trial.batch
    if shape.one_row:
        rows = trial.rows[0][:1]
        gradients = at_first_row.flatten(0, 1).unsqueeze(0)
        x, y = (each(lambda values: values.flatten(0, 1).unsqueeze(0), tree) for tree in (small.inputs, small.targets))
    else:
        rows = trial.rows[1][torch.tensor(repeated(2, shape.clients))]
        gradients = at_own_rows
        x, y = small.inputs, small.targets
    clients = repeated(len(gradients), shape.clients)
    examples = repeated(gradients.shape[1], shape.examples)
    x, y = (repeat_examples(repeat_examples(tree, clients), examples, 1) for tree in (x, y))
    mask = torch.ones(shape.clients, shape.examples, dtype=torch.bool, device=rows.device)
    return rows, Batch(torch.arange(shape.clients), x, y, mask, views=small.views), gradients
