"""What an audit sees of noise that cancels between pairs and over rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from audit_targets import audit_target, run_check
from pairs_over_time import ROUNDS
from torch import Tensor

import fedpriv as fp
from fedpriv.audit.noise import check_noise as noise_check
from fedpriv.privacy.correlated import Factor
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.privacy.normal_combinations import NormalCombinations, Term
from fedpriv.privacy.pairwise import Pairwise
from fedpriv.privacy.release.pairwise import PairwiseRelease

PROMISE = {"trust": Pairwise(1, 3.0), "noise": fp.BSR(4), "sampling": fp.Cyclic(2)}


def test_correct_noise_passes_audit() -> None:
    found = run_check(noise_check, audit_target(fp.fedavg(0.5), rounds=8, **PROMISE))
    assert found.verdict == "held" and "no correlation between rounds" in found.evidence, found


def one_end_by_another_matrix(planting: pytest.MonkeyPatch) -> None:
    """Client 0 filters its row, and with it its end of every pair's noise, by another C than the others."""
    right, other = NoiseHistory.filtered, NoiseHistory(Factor((0.9, 0.8)))

    def filtered(self: NoiseHistory, unit: Tensor, rows: slice, round_index: int) -> Tensor:
        other.begin(round_index, 1, unit.shape[1], unit.device)
        own, made = unit[:1].clone(), right(self, unit, rows, round_index)
        if rows.start == 0:
            made[:1] = right(other, own, slice(0, 1), round_index)
            other.finish(round_index)
        return made

    planting.setattr(NoiseHistory, "filtered", filtered)


def combined(noises: list[Any], weights: np.ndarray) -> NormalCombinations:
    """The weighted sum of the noise of several rounds; weights are positive."""
    keys, rows = list[bytes](), [list[Term]() for _ in noises[0].terms]
    for noise, weight in zip(noises, weights.tolist(), strict=True):
        for row, terms in zip(rows, noise.terms, strict=True):
            row += [term._replace(draw=term.draw + len(keys), weight=term.weight * weight) for term in terms]
        keys += noise.keys
    return replace(noises[0], keys=keys, terms=rows)


def pairs_without_filter(planting: pytest.MonkeyPatch) -> None:
    """Noise of pairs is new in every round, and only a client's own is filtered."""
    right_noise = PairwiseRelease._pair_noise

    def unfiltered(self: PairwiseRelease, *arguments: Any) -> Any:
        right = right_noise(self, *arguments)
        assert right is not None and self.privacy.over_time is not None
        column = self.privacy.over_time.factor.column(ROUNDS)
        # multiplied with C, so that the filter takes the sum apart again
        return lambda t, clients: combined([right(r, clients) for r in range(t + 1)], column[t::-1])

    planting.setattr(PairwiseRelease, "_pair_noise", unfiltered)


def one_round_of_pairs_for_all(planting: pytest.MonkeyPatch) -> None:
    """The pairs draw once and for all."""
    right_noise = PairwiseRelease._pair_noise

    def first_round(self: PairwiseRelease, *arguments: Any) -> Any:
        right = right_noise(self, *arguments)
        assert right is not None
        return lambda _, clients: right(0, clients)

    planting.setattr(PairwiseRelease, "_pair_noise", first_round)


@pytest.mark.parametrize("plant", [one_end_by_another_matrix, pairs_without_filter, one_round_of_pairs_for_all])
def test_audit_detects_planted_filter_mistake(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = run_check(noise_check, audit_target(fp.fedavg(0.5), rounds=8, **PROMISE))
    assert found.verdict == "found", found
