"""Tests during and after a run if its code kept state from the examples that it processed.

Clipping bounds the influence of an example only if the gradients of all other examples do not depend on it. Backends
keep the examples of one call apart, but not the examples of different calls: a running mean of losses, for example, may
change other examples' losses only after thousands of calls, which tests before the run do not show. Query results at
fixed points are therefore computed before the run, at random rounds, and after it, with the objects that the run uses.
If a result has changed, no bound on epsilon holds.

Code that is entirely from fedpriv and torch keeps no state and is not tested.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from fedpriv.clients.batch import Batch
from fedpriv.clients.extremes import extreme_examples
from fedpriv.clients.population import Population
from fedpriv.clients.reading import Pair
from fedpriv.models.copies import copy_module
from fedpriv.models.known_code import is_known
from fedpriv.models.nested import concatenate_trees, first_leaf, list_leaves, map_tree
from fedpriv.oracle.backends.base import Backend
from fedpriv.oracle.backends.loop import LoopBackend
from fedpriv.oracle.backends.per_example import PerExample
from fedpriv.oracle.backends.threaded import copy_backend
from fedpriv.oracle.differences import SAME_KERNEL, differ
from fedpriv.oracle.traced_model import select_examples
from fedpriv.oracle.validation import synthetic_points
from fedpriv.privacy.clipping import Clip
from fedpriv.randomness.global_rng import Seed, global_generators

_CHECKS = 4  # random rounds after which a run is tested
_REAL = 12  # real examples at most
_READ = 4  # number of clients from which an example is read again
_CLIP = Clip(1.0)
_SCALES = (1.0, 30.0, 1000.0)  # factors of synthetic inputs: far examples have losses above any running mean
KEPT = (
    "the model, the loss or the data set keeps state of earlier examples: its result for the same input "
    "changed during the run, so one example could change the gradients of others"
)


def draw_check_rounds(rounds: int) -> frozenset[int]:
    """Draws the rounds after which a run is tested for state, in addition to its end. The draws are secret and
    independent.
    """
    return frozenset(secrets.SystemRandom().sample(range(rounds), min(_CHECKS, rounds)))


def copy_unused_backend(backend: Backend) -> Backend:
    """Returns a backend with a copy of the model that has processed no example, for the results before a run."""
    if isinstance(backend, PerExample):
        return copy_backend(backend)
    return backend  # it has no user code


class StateCheck:
    """Compares query results at fixed points, which code without state reproduces at any time.

    Args:
        population: The clients, at their initial parameters.
        backend: Computes the run's clipped sums, with the model and the loss of the run.
        unused: A backend with a separate copy of the model that has processed no examples, for the results before the
            run.
    """

    def __init__(self, population: Population, backend: Backend, unused: Backend) -> None:
        self._population = population
        self._backend: Backend | None = unused
        unused_model = copy_module(population.model)
        self._points: Pair | None = None
        if len(population) and not (is_known(population.model) and is_known(population.loss)):
            self._row, *_ = synthetic_points(population)[0]
            self._points = _choose_points(population, unused_model)
        self._reads: list[int] = []
        views = population.views
        if views is not None and (population.examples.random or not is_known(views.augmentation)):
            # user code creates the views: for a few clients, one is created again
            clients = population.validated_clients
            self._reads = list(clients[:: -(-len(clients) // _READ)])
        self._expected = self._answers(unused_model)
        # a backend may draw random numbers in a different order each time: then there is nothing to compare
        if self._differs(self._answers(unused_model)):
            self._backend = None
            self._expected = self._answers(unused_model)
        else:
            self._backend = backend

    def has_changed(self) -> bool:
        """Returns True if a result differs from the one before the run, or can no longer be computed."""
        try:
            return self._differs(self._answers(self._population.model))
        except Exception:  # whatever a user's code raises that it did not raise before
            return True

    def _differs(self, answers: list[Tensor]) -> bool:
        return any(differ(new, old, SAME_KERNEL) for new, old in zip(answers, self._expected, strict=True))

    def _answers(self, model: nn.Module) -> list[Tensor]:
        """Returns summaries of the gradients of the test examples, computed one at a time and in one batch, and
        summaries of views of examples.
        """
        if self._points is None and not self._reads:
            return []
        device = self._population.device
        cuda = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda), global_generators() as seed:
            answers: list[Tensor] = []
            if self._points is not None:
                answers += self._gradients(model, self._points, seed)
            for client in self._reads:
                seed(0)
                answers += [_summary(leaf[None])[0] for leaf in list_leaves(self._view(client))]
        return answers

    def _gradients(self, model: nn.Module, points: Pair, seed: Seed) -> list[Tensor]:
        count = len(first_leaf(points[0]))
        row = self._row.unsqueeze(0)
        loop = LoopBackend(model, self._population.loss)
        answers: list[Tensor] = []
        for index in range(count):
            seed(0)
            answers.append(_summary(loop.clipped_sum(row, _batch(points, [index]), None)[0])[0])
        if self._backend is not None:
            seed(0)
            answers.append(_summary(self._backend.clipped_sum(row, _batch(points, range(count)), _CLIP)[0])[0])
        return answers

    def _view(self, client: int) -> Pair:
        """Returns a view of a client's first example, with the same random numbers each time."""
        population = self._population
        assert population.views is not None
        generator = torch.Generator().manual_seed(0)

        def numbers(clients: Sequence[int], positions: Sequence[int], size: int) -> Tensor:
            return torch.rand(len(clients), size, generator=generator, dtype=torch.float64)

        where = population.starts[client].view(1, 1).to(population.device)
        mask = torch.ones(1, 1, dtype=torch.bool)
        return population.views.take(torch.tensor([client]), torch.zeros(1, 1).long(), mask, where, numbers)


def _choose_points(population: Population, model: nn.Module) -> Pair | None:
    """Returns examples for which model and loss can be computed: synthetic ones, some of them with large values, and
    real ones.
    """
    loop = LoopBackend(model, population.loss)
    row = synthetic_points(population)[0][0].unsqueeze(0)
    x, y = extreme_examples(population)
    candidates = [map_tree(lambda values: values[:_REAL], (x, y))]
    for _, made_x, made_y in synthetic_points(population)[:1]:
        for scale in _SCALES:
            candidates.append((map_tree(lambda values, scale=scale: _scaled(values, scale), made_x), made_y))
    usable: list[Pair] = []
    for candidate in candidates:
        for index in range(len(first_leaf(candidate[0]))):
            single = map_tree(lambda values, index=index: values[index : index + 1], candidate)
            with suppress(Exception):  # whatever a user's model or loss raises for synthetic numbers
                loop.clipped_sum(row, _batch(single, [0]), None)
                usable.append(single)
    if usable:
        return concatenate_trees(usable)
    return None


def _batch(points: Pair, indices: Sequence[int]) -> Batch:
    """Returns some of the test examples as the examples of one client."""
    x, y = (select_examples(tree, indices) for tree in points)
    x, y = (map_tree(lambda values: values.unsqueeze(0), tree) for tree in (x, y))
    mask = torch.ones(1, len(indices), dtype=torch.bool, device=first_leaf(x).device)
    return Batch(torch.zeros(1, dtype=torch.long), x, y, mask)


def _scaled(values: Tensor, factor: float) -> Tensor:
    if values.is_floating_point():
        return values * factor
    return values


def _summary(rows: Tensor) -> Tensor:
    """Returns a few numbers for each row, which need little memory: `[n, ...] -> [n, 3]`."""
    flat = rows.reshape(len(rows), -1).double()
    weights = torch.arange(flat.shape[1], device=flat.device, dtype=torch.float64).cos_()
    return torch.stack([flat.sum(1), flat.abs().sum(1), flat @ weights], 1)
