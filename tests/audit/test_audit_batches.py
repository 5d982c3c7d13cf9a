"""How batches are drawn: bugs that are planted in the draws are found, and right draws are not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from audit_targets import audit_target, run_check
from numpy.typing import NDArray

import fedpriv as fp
from fedpriv.audit.batches import check_batches
from fedpriv.audit.canaries import compute_reach, run_game
from fedpriv.clients.index_batches import IndexBatches
from fedpriv.oracle.sampler import BatchSampler
from fedpriv.randomness.keystream import uniform_below

Allocated = Callable[[BatchSampler, int, int, list[int], NDArray[np.int64]], IndexBatches]
ALLOCATED = BatchSampler._allocated


def in_two_batches(
    self: BatchSampler, n: int, index: int, clients: Sequence[int], sizes: NDArray[np.int64]
) -> IndexBatches:
    """An example is in its batch and in the next one."""
    epoch, batch = divmod(self._round, n)
    words = self._randomness.first_words("allocation", epoch, index, list(clients), sizes.tolist())
    assigned = uniform_below(words, n)
    return IndexBatches.marked(sizes, (assigned == batch) | ((assigned + 1) % n == batch))


def same_in_all_epochs(
    self: BatchSampler, n: int, index: int, clients: Sequence[int], sizes: NDArray[np.int64]
) -> IndexBatches:
    """The assignment of the first epoch is used in the others."""
    words = self._randomness.first_words("allocation", 0, index, list(clients), sizes.tolist())
    return IndexBatches.marked(sizes, uniform_below(words, n) == self._round % n)


def from_public_seed(
    self: BatchSampler, n: int, index: int, clients: Sequence[int], sizes: NDArray[np.int64]
) -> IndexBatches:
    """The stream is that of public cohorts."""
    epoch, batch = divmod(self._round, n)
    words = self._randomness.first_words("cohort", epoch, index, list(clients), sizes.tolist())  # pyright: ignore
    return IndexBatches.marked(sizes, uniform_below(words, n) == batch)


def fixed_size_batches(
    self: BatchSampler, n: int, index: int, clients: Sequence[int], sizes: NDArray[np.int64]
) -> IndexBatches:
    """A shuffled epoch is cut into equal batches."""
    epoch, batch = divmod(self._round, n)
    cut = list[NDArray[np.int64]]()
    for client, size in zip(clients, sizes.tolist(), strict=True):
        order = self._randomness.stream("allocation", epoch, index, client).permutation(size)
        cut.append(np.sort(np.array_split(order, n)[batch]))
    return IndexBatches.listed(cut)


def same_in_all_queries(
    self: BatchSampler, n: int, index: int, clients: Sequence[int], sizes: NDArray[np.int64]
) -> IndexBatches:
    """The second answer of a round uses the batch of the first."""
    return ALLOCATED(self, n, 0, list(clients), sizes)


def neighbours_share_batch(
    self: BatchSampler, n: int, index: int, clients: Sequence[int], sizes: NDArray[np.int64]
) -> IndexBatches:
    """Four examples side by side always share a batch."""
    epoch, batch = divmod(self._round, n)
    words = self._randomness.first_words("allocation", epoch, index, list(clients), sizes.tolist())
    return IndexBatches.marked(sizes, uniform_below(words[np.arange(len(words)) // 4 * 4], n) == batch)


PLANTED = {
    in_two_batches: "several batches of an epoch",
    same_in_all_epochs: "several epochs use the same draws",
    from_public_seed: "public seed",
    fixed_size_batches: "vary less than with independent draws",
    same_in_all_queries: "results of one round use one assignment",
    neighbours_share_batch: "vary more than with independent draws",
}


@pytest.mark.parametrize("relation", ["add_remove", "replace_one"])
@pytest.mark.parametrize("sampling", [fp.Allocation(4), fp.Allocation(30), fp.Poisson(0.1), fp.Poisson(0.9)])
def test_correct_sampler_passes_audit(sampling: fp.Allocation | fp.Poisson, relation: str) -> None:
    found = run_check(check_batches, audit_target(sampling=sampling, relation=relation))
    assert found.verdict == "held", found
    assert found.numbers["draws"] > 100


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_audit_detects_allocation_bug(plant: Allocated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchSampler, "_allocated", plant)
    found = run_check(check_batches, audit_target(sampling=fp.Allocation(4)))
    assert found.verdict == "found"
    assert re.search(PLANTED[plant], found.evidence), found


def test_audit_detects_wrong_poisson_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    right = BatchSampler._draw_batches

    def more(self: BatchSampler, sampling: fp.Poisson, *others: object) -> IndexBatches:
        return right(self, fp.Poisson(sampling.rate * 1.1), *others)  # pyright: ignore

    monkeypatch.setattr(BatchSampler, "_draw_batches", more)
    found = run_check(check_batches, audit_target(sampling=fp.Poisson(0.5)))
    assert found.verdict == "found"
    assert "an example is drawn with probability 0.5" in found.evidence

    def old(self: BatchSampler, *others: object) -> IndexBatches:
        self._round = 0
        return right(self, *others)  # pyright: ignore

    monkeypatch.setattr(BatchSampler, "_draw_batches", old)
    assert (
        "several rounds use the same draws" in run_check(check_batches, audit_target(sampling=fp.Poisson(0.5))).evidence
    )


def test_audit_without_secret_sampling() -> None:
    for settings in ({"sampling": fp.FullBatch()}, {"sampling": fp.Allocation(5), "unit": "client"}):
        assert (
            run_check(check_batches, audit_target(**settings)).evidence
            == "the privacy cost assumes no secret sampling of examples"
        )


@pytest.mark.parametrize(("relation", "noise"), [("add_remove", 0.4), ("replace_one", 0.2)])
def test_batch_guessing_attack_beats_sums(relation: str, noise: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little noise the batch of the canary stands out; in the sum over all batches it does not."""
    made = audit_target(
        fp.fedavg(0.5),
        sizes=(40, 40),
        sampling=fp.Allocation(10),
        relation=relation,
        noise_multiplier=noise,
        epsilon=None,
    )
    game = run_game(made, 600, 10, compute_reach(made, 600, 10))
    here, away = game.scores[game.took_part], game.scores[~game.took_part]
    advantage = (here[:, None] > away).mean()
    assert 0.65 < advantage < 0.999
    from fedpriv.audit import canaries

    monkeypatch.setattr(
        canaries, "_log_ratio_of_epoch", lambda ratios: sum(batch.present - batch.absent for batch in ratios)
    )
    summed = run_game(made, 600, 10, compute_reach(made, 600, 10))
    by_sums = (summed.scores[summed.took_part][:, None] > summed.scores[~summed.took_part]).mean()
    assert advantage > by_sums + 0.03
