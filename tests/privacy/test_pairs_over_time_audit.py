"""What an audit sees of noise that cancels between pairs and over rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from audit_worlds import checked, subject
from pairs_over_time import ROUNDS
from torch import Tensor

import fedpriv as fp
from fedpriv.audit.noise import check_noise as noise_check
from fedpriv.privacy.correlated import Factor
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.privacy.pairwise import Pairwise
from fedpriv.privacy.release.pairwise import PairwiseRelease

PROMISE = {"trust": Pairwise(1, 3.0), "noise": fp.BSR(4), "sampling": fp.Cyclic(2)}


def test_an_audit_knows_the_noise() -> None:
    found = checked(noise_check, subject(fp.fedavg(0.5), rounds=8, **PROMISE))
    assert found.verdict == "held" and "no correlation between rounds" in found.evidence, found


def one_end_by_another_matrix(planting: pytest.MonkeyPatch) -> None:
    """Client 0 filters its row, and with it its end of every pair's noise, by another C than the others."""
    right, other = NoiseHistory.filtered, NoiseHistory(Factor((0.9, 0.8)))

    def filtered(self: NoiseHistory, unit: Tensor, rows: slice, round_index: int) -> Tensor:
        other.missing(round_index, 1, unit.shape[1], unit.device)
        own, made = unit[:1].clone(), right(self, unit, rows, round_index)
        if rows.start == 0:
            made[:1] = right(other, own, slice(0, 1), round_index)
            other.finish(round_index)
        return made

    planting.setattr(NoiseHistory, "filtered", filtered)


def pairs_without_filter(planting: pytest.MonkeyPatch) -> None:
    """Noise of pairs is new in every round, and only a client's own is filtered."""
    noise_by_round = PairwiseRelease._pair_noise_by_round

    def unfiltered(self: PairwiseRelease, *given: Any) -> Any:
        right, rows = noise_by_round(self, *given), given[-1]
        assert right is not None and self.privacy.over_time is not None
        column, kept = self.privacy.over_time.factor.column(ROUNDS), dict[int, Tensor]()

        def drawn(t: int) -> Tensor:
            kept.update({r: right(r) for r in range(t + 1) if r not in kept})
            return sum((column[t - r] * kept[r] for r in range(t + 1)), torch.zeros_like(rows, dtype=torch.float64))

        return drawn

    planting.setattr(PairwiseRelease, "_pair_noise_by_round", unfiltered)


def one_round_of_pairs_for_all(planting: pytest.MonkeyPatch) -> None:
    """The pairs draw once and for all."""
    noise_by_round = PairwiseRelease._pair_noise_by_round

    def first_round(self: PairwiseRelease, *given: Any) -> Any:
        right = noise_by_round(self, *given)
        assert right is not None
        return lambda _: right(0)

    planting.setattr(PairwiseRelease, "_pair_noise_by_round", first_round)


@pytest.mark.parametrize("plant", [one_end_by_another_matrix, pairs_without_filter, one_round_of_pairs_for_all])
def test_an_audit_finds_ends_that_filter_in_different_ways(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = checked(noise_check, subject(fp.fedavg(0.5), rounds=8, **PROMISE))
    assert found.verdict == "found", found
