"""The base class of backends that compute the gradients of many examples at once. It splits batches into blocks, clips
and sums.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from fedpriv.clients.batch import Batch
from fedpriv.clients.client import Loss
from fedpriv.clients.reading import Pair
from fedpriv.models.nested import Nested, map_tree
from fedpriv.oracle.backends.factors import Gradients, add_all, compute_joint_norms
from fedpriv.oracle.backends.functional import Functional, are_finite, count, is_finite, is_on_cpu, is_one_row, unpad
from fedpriv.oracle.backends.group_norm import FoldedGroupNorm
from fedpriv.oracle.backends.padding import PaddedEmbedding
from fedpriv.oracle.backends.recorded import DivergingExamplesError
from fedpriv.privacy.clipping import Clip, NormName
from fedpriv.privacy.hulls import RowClip
from fedpriv.randomness.streams import torch_generators

_MAX_EXAMPLES = 512  # examples at once on a CPU


class PerExample(ABC):
    """Computes clipped sums of the gradients that `_gradients` returns, many examples at a time.

    Guarantee: each example adds a vector with norm at most `clip.bound` to its client's row, and nothing to other rows.

    If clients have different parameters, several clients are computed in one batch where that is faster, and otherwise
    one after another. The table shows the time of a batch divided by the time one after another, with `VmapBackend`. A
    row is a model with its number of parameters (torch 2.13, one CPU thread):

    ===================  =====  =====  =====  =====
    examples per client      2     10     32    100
    ===================  =====  =====  =====  =====
    softmax, 7 840        0.16   0.19   0.45   0.67
    MLP, 50 890           0.21   0.33   0.68   1.23
    CNN, 29 034           0.27   0.52   0.85   1.06
    MLP, 203 530          0.26   0.95   1.24   0.98
    CNN, 1 651 658        1.37   0.96   1.02   1.06
    ===================  =====  =====  =====  =====

    Clients are therefore batched if 4 fit in a chunk, or for exact sums (one gradient a client) up to 16 examples each.

    Args:
        model: The clients' model; its own parameters are not used. Dropout draws a mask for each example.
        loss: Maps the outputs and targets of a batch of one to a scalar.
        chunk: Largest number of examples at once; on a CPU at most the number that suits its cache.
    """

    def __init__(self, model: nn.Module, loss: Loss, chunk: int | None = None) -> None:
        self._functional = Functional(model, loss)
        self._chunk = chunk
        self._cache_sizes: dict[NormName, int] = {}
        # True if torch cannot batch the model's exact sums over clients, or over a client's examples
        self._one_by_one = False
        self._example_by_example = False
        grouped = any(isinstance(module, nn.GroupNorm) for module in model.modules())
        if grouped:
            self._kernels = FoldedGroupNorm()
        else:
            self._kernels = nullcontext()

    @property
    def model(self) -> nn.Module:
        """The clients' model."""
        return self._functional.model

    @abstractmethod
    def _gradients(self, params: Tensor, x: Nested, y: Nested, views: int) -> list[Gradients]:
        """Returns gradients of all parameters, in the order of the parameters.

        Args:
            params: Rows, `[c, dim]`.
            x: Inputs, `[c, b, ...]`, or with several views `[c, b, views, ...]`.
            y: Targets, likewise.
            views: The number of views of an example.
        """

    @abstractmethod
    def _fitting(self, params: Tensor, x: Nested, y: Nested, norm: NormName, views: int) -> int:
        """Returns the number of examples with gradients that fit in a CPU's cache, measured with one example `[1, 1,
        ...]` at the parameters `[1, dim]`.
        """

    def clipped_sum(
        self, params: Tensor, batch: Batch, clip: Clip | None, anchor: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `Backend.clipped_sum`."""
        if clip is None:
            return self._exact_sum(params, batch, anchor)
        if isinstance(clip, RowClip):
            return self._sum_of_rows(params, batch, clip, anchor)
        sums = torch.zeros(params.shape, dtype=torch.float64, device=params.device)
        broken = torch.zeros(len(params), dtype=torch.long, device=params.device)
        for rows, gradients, norms, mask in self._blocks(params, batch, clip, anchor):
            weights = clip.factors(norms) * mask
            if not is_on_cpu(norms) or not are_finite(norms):
                broken[rows] += count(~torch.isfinite(norms) & mask)
                # a weight of 0 is not enough: 0 * inf is nan
                gradients = [gradient.masked(weights > 0) for gradient in gradients]
            add_all(sums[rows].split([gradient.size for gradient in gradients], 1), gradients, weights)
        return sums, broken

    def _sum_of_rows(self, params: Tensor, batch: Batch, clip: RowClip, anchor: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns `clipped_sum` for a clip that needs whole rows."""
        sums = torch.zeros(params.shape, dtype=torch.float64, device=params.device)
        broken = torch.zeros(len(params), dtype=torch.long, device=params.device)
        for rows, gradients, _, mask in self._blocks(params, batch, Clip(1.0), anchor):
            added, is_broken = clip.sums(torch.cat([gradient.whole() for gradient in gradients], -1), mask)
            sums[rows] += added
            broken[rows] += is_broken
        return sums, broken

    def largest_norm(self, params: Tensor, batch: Batch, norm: Clip) -> Tensor:
        """See `Backend.largest_norm`: infinite if a gradient is not finite, 0 for a client without examples."""
        largest = torch.zeros(len(params), dtype=torch.float64, device=params.device)
        for rows, _, norms, mask in self._blocks(params, batch, norm, anchor=None):
            norms = norms.nan_to_num(torch.inf, torch.inf).where(mask, 0)
            largest[rows] = torch.maximum(largest[rows], norms.amax(1))
        return largest

    def clients_per_block(self, params: Tensor, batch: Batch, clip: Clip | None) -> int:
        """Returns the number of clients that are computed in one block.

        If the number of clients is a multiple of this number, their sums are bit for bit the same as in a larger batch.
        Otherwise a client may share a block with other clients than in the larger batch, and torch may round its sum
        differently.
        """
        examples = batch.mask.shape[1]
        if clip is None:
            examples *= batch.views  # exact sums compute views one by one
            chunk = self._max_summed(params)
            is_batched = not is_on_cpu(params) or examples <= 16
        else:
            chunk = self._max_clipped(params, batch, clip)
            is_batched = is_one_row(params) or examples * 4 <= chunk
        if is_batched:
            return max(chunk // max(examples, 1), 1)
        return 1

    def _blocks(
        self, params: Tensor, batch: Batch, norm: Clip, anchor: Tensor | None
    ) -> Iterator[tuple[slice, list[Gradients], Tensor, Tensor]]:
        """Yields pieces of the batch. Each has the positions of its clients, the gradients, the norms of the gradients
        `[c, b]` and the mask `[c, b]`.
        """
        clients, examples = batch.mask.shape
        chunk = self._max_clipped(params, batch, norm)
        height = self.clients_per_block(params, batch, norm)
        for rows, cells in _cut(clients, examples, chunk, height):
            piece = batch.piece(rows, cells)
            for part_rows, part, gradients in self._differences(params, anchor, rows, piece):
                # in place, so that factors are freed as soon as gradients are computed from them
                for index, gradient in enumerate(gradients):
                    if part.weights is not None:
                        gradient = gradient.times(part.weights)
                    gradients[index] = gradient.settled(norm.norm)
                yield part_rows, gradients, compute_joint_norms(gradients, norm, on_cpu=is_on_cpu(params)), part.mask
                gradients.clear()  # frees the memory for the next piece even if the caller still holds the list

    def _differences(
        self, params: Tensor, anchor: Tensor | None, rows: slice, piece: Batch
    ) -> Iterator[tuple[slice, Batch, list[Gradients]]]:
        """Yields the gradients, or gradient differences, of blocks. A block is split if its examples take different
        branches of the model's code.

        Args:
            params: Parameters of all clients, `[k, dim]`.
            anchor: Parameters at which the gradients to subtract are computed, `[k, dim]`, or None.
            rows: The piece's clients.
            piece: Their examples.
        """
        try:
            with self._kernels:
                gradients = self._gradients(params[rows], piece.inputs, piece.targets, piece.views)
                if anchor is not None:
                    anchor_gradients = self._gradients(anchor[rows], piece.inputs, piece.targets, piece.views)
                    gradients = [g.minus(a) for g, a in zip(gradients, anchor_gradients, strict=True)]
            flags = None
        except DivergingExamplesError as diverging:
            flags = diverging.flags.reshape(piece.mask.shape)
            gradients = []
        if flags is None:
            yield rows, piece, gradients
            return
        # each example takes the branch that it takes alone, so no example affects the branch of another
        for index in range(len(flags)):
            client = slice(rows.start + index, rows.start + index + 1)
            for flag in (False, True):
                cells = (flags[index] == flag).nonzero().flatten()
                if len(cells):
                    part = piece.piece(slice(index, index + 1), cells)
                    yield from self._differences(params, anchor, client, part)

    def _max_clipped(self, params: Tensor, batch: Batch, norm: Clip) -> int:
        """Returns the largest number of examples for which clipped gradients are computed at once."""
        if not batch.mask.numel() or (self._chunk and params.device.type != "cpu"):
            return self._chunk or 1
        if norm.norm not in self._cache_sizes:
            first = slice(0, 1)
            x, y = _piece((batch.inputs, batch.targets), first, first)
            # the trial must not advance the run's random draws
            with self._kernels, torch.random.fork_rng(devices=[]):
                self._cache_sizes[norm.norm] = self._fitting(params[first], x, y, norm.norm, batch.views)
        return min(self._chunk or self._cache_sizes[norm.norm], self._cache_sizes[norm.norm])

    def _exact_sum(self, params: Tensor, batch: Batch, anchor: Tensor | None) -> tuple[Tensor, Tensor]:
        sums = None
        if not self._example_by_example:
            with _draws_saved(params.device) as restore_draws:
                try:
                    sums = self._unclipped_sums(params, batch)
                    if anchor is not None:
                        sums -= self._unclipped_sums(anchor, batch)
                except RuntimeError:
                    # outputs that are not tensors are computed one example at a time, which torch may not be able to
                    # batch
                    restore_draws()
                    self._example_by_example = True
        if sums is None or self._example_by_example:
            sums = self._sums_of_gradients(params, batch, anchor)
        if not is_on_cpu(sums):
            # 1 for a client with any broken example, since counting them would wait for the device
            return sums, (~torch.isfinite(sums)).any(1).long()
        broken = torch.zeros(len(params), dtype=torch.long, device=params.device)
        if not is_finite(sums):
            # this is rare, so only then is each example checked
            for rows, gradients, _, mask in self._blocks(params, batch, Clip(1.0), anchor):
                whole = torch.stack([torch.isfinite(g.whole()).all(-1) for g in gradients]).all(0)
                broken[rows] += count(~whole & mask)
        return sums, broken

    def _sums_of_gradients(self, params: Tensor, batch: Batch, anchor: Tensor | None) -> Tensor:
        """Returns the sum of each client's gradients, `[k, dim]`, from single-example gradients."""
        sums = torch.zeros(params.shape, dtype=torch.float64, device=params.device)
        sizes = [shape.numel() for _, shape in self._functional.layout.shapes]
        for rows, gradients, _, mask in self._blocks(params, batch, Clip(1.0), anchor):
            for parameter_sum, gradient in zip(sums[rows].split(sizes, 1), gradients, strict=True):
                gradient.masked(mask).add_to(parameter_sum, mask.double())
        return sums.to(params.dtype)

    def _unclipped_sums(self, params: Tensor, batch: Batch) -> Tensor:
        """Returns the sum of each client's gradients, `[k, dim]`, with one backward pass for each client."""
        batch = batch.split_views(params.dtype)
        sums = params.new_zeros(params.shape)
        pair = unpad(batch)
        clients, examples = batch.mask.shape
        for rows, cells in _cut(
            clients, examples, self._max_summed(params), self.clients_per_block(params, batch, None)
        ):
            mask = batch.mask[rows, cells]
            if batch.weights is None:
                weights = mask
            else:
                weights = mask * batch.weights[rows, cells]
            gradients = self._summed_gradients(params[rows], *_piece(pair, rows, cells), weights)
            sums[rows] += gradients.where(mask.any(1, keepdim=True), 0)
        return sums

    def _max_summed(self, params: Tensor) -> int:
        """Returns the largest number of examples whose gradients are summed at once without clipping."""
        if params.device.type == "cpu":
            return min(self._chunk or _MAX_EXAMPLES, _MAX_EXAMPLES)
        return self._chunk or _MAX_EXAMPLES

    def _summed_of_client(self, rows: Tensor, x: Nested, y: Nested, mask: Tensor, client: int) -> Tensor:
        """Returns the gradient of one client's summed loss, `[1, dim]`."""
        one = slice(client, client + 1)
        x, y = map_tree(lambda values: values[one], (x, y))
        return self._summed_gradients(rows[one], x, y, mask[one])

    def _summed_gradients(self, rows: Tensor, x: Nested, y: Nested, mask: Tensor) -> Tensor:
        """Returns the gradient of each row's summed loss, `[c, dim]`."""
        if len(rows) > 1 and self._one_by_one:
            return torch.cat([self._summed_of_client(rows, x, y, mask, client) for client in range(len(rows))])
        if len(rows) == 1:  # plain autograd is faster than torch.func and needs no vmap
            with torch.enable_grad():
                leaf = rows[0].detach().requires_grad_()
                x, y = map_tree(lambda values: values[0], (x, y))
                loss = self._summed_loss(self._functional.unflatten(leaf), x, y, mask[0])
                return torch.autograd.grad(loss, leaf)[0].unsqueeze(0)
        with self._kernels, PaddedEmbedding(), _draws_saved(rows.device) as restore_draws:
            try:
                return self._functional.gradients_of_clients(rows, x, y, mask)
            except RuntimeError:
                # if torch cannot batch over clients, they are computed one by one from now on
                restore_draws()
                self._one_by_one = True
                return self._summed_gradients(rows, x, y, mask)

    def _summed_loss(self, params: dict[str, Tensor], x: Nested, y: Nested, mask: Tensor) -> Tensor:
        return (self._functional.batch_losses(params, x, y) * mask).sum()


def count_cached_examples(size: int, mebibytes: int = 16) -> int:
    """Returns the number of examples, 4 to 512, with gradients of `size` bytes each that take about the given number of
    mebibytes of a CPU's cache.
    """
    return min(max((mebibytes << 20) // max(size, 1), 4), _MAX_EXAMPLES)


@contextmanager
def _draws_saved(device: torch.device) -> Generator[Callable[[], None]]:
    """A context that yields a function. The function restores torch's random generators, so that a failed attempt does
    not change later draws.
    """
    generators = torch_generators(device)
    states = [generator.get_state() for generator in generators]

    def restore() -> None:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)

    yield restore


def _piece(pair: Pair, rows: slice, cells: slice) -> Pair:
    return map_tree(lambda values: values[rows, cells], pair)


def _cut(clients: int, examples: int, chunk: int, height: int) -> Iterator[tuple[slice, slice]]:
    """Yields blocks of `height` clients and some of their examples, with at most `chunk` examples in each block."""
    # as few pieces as the chunk allows, of equal width: a short last piece would cost a whole call
    width = math.ceil(examples / max(math.ceil(examples / chunk), 1))
    for top in range(0, clients, height):
        for start in range(0, examples, max(width, 1)):
            yield slice(top, top + height), slice(start, start + width)
