"""Bugs that are planted in the library or in a user's code, each found by the check that is there for it, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from audit_targets import SIZES, TWO_OF_A_KIND, audit_target, run_check
from privacy_worlds import digits_of
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.audit import AuditTarget, CheckResult
from fedpriv.audit.arithmetic import check_arithmetic
from fedpriv.audit.data_check import check_data
from fedpriv.audit.ledger_check import check_ledger
from fedpriv.audit.noise import check_noise
from fedpriv.audit.shapes import check_interaction
from fedpriv.models import Loss
from fedpriv.oracle import data_query_engine
from fedpriv.oracle.backends import summation
from fedpriv.oracle.clipped_sums import ClippedSums
from fedpriv.oracle.data_query_engine import DataQueryEngine
from fedpriv.privacy import pair_noise
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.ledger import Ledger, Release
from fedpriv.privacy.mechanisms import add_noise
from fedpriv.privacy.normal_combinations import Term
from fedpriv.privacy.pairwise import Links, Pairwise
from fedpriv.privacy.release import PlannedRelease
from fedpriv.privacy.release import local as local_release
from fedpriv.privacy.release.local import LocalRelease
from fedpriv.randomness.streams import Randomness

Planting = pytest.MonkeyPatch
PLAIN = dict[str, Any]()


@dataclass(frozen=True)
class Less(fp.Gaussian):
    """Says that it is Gaussian noise of unit scale, and draws a part of it."""

    part: float = 0.5

    def draw(self, keys: Tensor, dim: int, amount: float = 1.0) -> Tensor:
        return self.part * super().draw(keys, dim, amount)


@dataclass(frozen=True)
class Uniform(fp.Gaussian):
    """Another law of the same deviation."""

    def draw(self, keys: Tensor, dim: int, amount: float = 1.0) -> Tensor:
        return (torch.special.ndtr(super().draw(keys, dim)) - 0.5) * (12 * amount) ** 0.5


@dataclass(frozen=True)
class Repeating(fp.Gaussian):
    """The second half of every row is the first one."""

    def draw(self, keys: Tensor, dim: int, amount: float = 1.0) -> Tensor:
        half = super().draw(keys, dim // 2, amount)
        return torch.cat([half, half], 1)


def smaller_noise_scales(planting: Planting) -> None:
    """Scales of noise nine tenths of what the record says."""
    right = LocalRelease.noise_scales

    def noise_scales(self: LocalRelease, planned: PlannedRelease, factors: Sequence[float]) -> Sequence[float]:
        return [0.9 * scale for scale in right(self, planned, factors)]

    planting.setattr(LocalRelease, "noise_scales", noise_scales)


def batch_clipped(planting: Planting) -> None:
    """The mean of a batch is clipped instead of each example."""
    exact = ClippedSums.gradients

    def gradients(
        self: ClippedSums, batches: Any, cohort: Any, params: Tensor, anchor: Any = None, clip: Any = None, weights=None
    ):
        batches = list(batches)
        total = exact(self, iter(batches), cohort, params, anchor, None, weights)
        count = torch.zeros(len(params)).index_add_(0, batches[0].rows, batches[0].mask.sum(1).float()).clamp_min(1)
        return total if clip is None else clip.rows(total / count[:, None])[0] * count[:, None]

    planting.setattr(ClippedSums, "gradients", gradients)


def wrong_divisor(planting: Planting) -> None:
    """Rows are divided by another number than the noise."""
    planting.setattr(
        data_query_engine, "scale_rows", lambda rows, factors: scale_rows(rows, [1.25 * factor for factor in factors])
    )


scale_rows = data_query_engine.scale_rows


def weighted_after_clipping(planting: Planting) -> None:
    """Rows are weighted by their clients' sizes once they are clipped, and nobody prices that."""
    weights = torch.tensor(SIZES, dtype=torch.float64) / (sum(SIZES) / len(SIZES))
    release = DataQueryEngine._release
    planting.setattr(
        DataQueryEngine, "_release", lambda self, p, c, rows, f: release(self, p, c, rows * weights[:, None], f)
    )


def float32_sums(planting: Planting) -> None:
    """Sums of clipped examples in float32, one example after another."""

    def add_products(sums: Tensor, left: Tensor, right: Tensor) -> None:
        total = sums.float()
        for j in range(right.shape[1]):
            total += left[:, :, j, None].float() * right[:, None, j].float()
        sums.copy_(total)

    planting.setattr(summation, "add_products", add_products)


def rows_leak_to_neighbours(planting: Planting) -> None:
    """A client's row has a little of the next one's."""
    gradients = ClippedSums.gradients
    planting.setattr(
        ClippedSums, "gradients", lambda *a, **k: (lambda rows: rows + 0.01 * rows.roll(1, 0))(gradients(*a, **k))
    )


def keys_of(change: Callable[[int, Sequence[int]], tuple[int, Sequence[int]]]) -> Callable[[Planting], None]:
    """Streams of noise under other names."""
    keys = Randomness._keys

    def plant(planting: Planting) -> None:
        def other(self: Randomness, purpose: Any, at: int, index: int, clients: Sequence[int]) -> Iterator[bytes]:
            at, clients = change(at, clients) if purpose == "noise" else (at, clients)
            return keys(self, purpose, at, index, clients)

        planting.setattr(Randomness, "_keys", other)

    return plant


def last_without_noise(planting: Planting) -> None:
    """What stands last in a row, as a dual variable might, has no noise."""

    def add(bounded: Tensor, *given: Any, **more: Any) -> Release:
        release = add_noise(bounded, *given, **more)
        release._value[:, -3:] = bounded[:, -3:]
        return release

    planting.setattr(local_release, "add_noise", add)


def exact_duals(planting: Planting) -> None:
    """Constraint values, of which dual variables are made, are answered as they are, and nothing is written down."""

    def constraint_values(self: DataQueryEngine, query: Any, context: Any, params: Tensor) -> Tensor:
        return self.problem(params)[1].detach().to(params.dtype)

    planting.setattr(DataQueryEngine, "constraint_values", constraint_values)


def unrecorded_releases(planting: Planting) -> None:
    """Every second release has no line."""
    opened, count = Ledger.open, [0]

    def open_some(self: Ledger, release: Release) -> Tensor:
        count[0] += 1
        return release._value if count[0] % 2 == 0 else opened(self, release)

    planting.setattr(Ledger, "open", open_some)


def wrong_sign(planting: Planting) -> None:
    """Clients 0 and 1 both add what they share."""
    pair_terms = pair_noise.pair_terms

    def other(ends: Any, clients: Any) -> list[list[Term]]:
        rows = pair_terms(ends, clients)
        rows[1] = [term._replace(multiple=1) if ends[term.draw] == (0, 1) else term for term in rows[1]]
        return rows

    planting.setattr(pair_noise, "pair_terms", other)


LINKS = {"trust": Pairwise(1, 3.0, Links(((0, 1), (0, 2), (1, 2)))), "noise_multiplier": 1.0}
CONSTRAINED = {"strategy": fp.private_al(beta=2), "problem": TWO_OF_A_KIND}
PLANTED: dict[str, tuple[Callable[[Planting], None] | None, dict[str, Any], Callable[..., CheckResult], str]] = {
    "noise x .9": (
        None,
        {"mechanism": Less(part=0.9)},
        check_noise,
        r"the noise is 0\.[89]\d* of the one in the ledger",
    ),
    "noise halved": (
        None,
        {"mechanism": Less(part=0.5)},
        check_noise,
        r"the noise is 0\.[45]\d* of the one in the ledger",
    ),
    "noise of another law": (
        None,
        {"mechanism": Uniform()},
        check_noise,
        "does not follow the gaussian distribution of the ledger",
    ),
    "noise x .9 in its price": (smaller_noise_scales, PLAIN, check_arithmetic, r"by 1\.11 times the sensitivity"),
    "the batch clipped": (
        batch_clipped,
        PLAIN,
        check_arithmetic,
        r"the batch is clipped.*by 59\.9\d times the sensitivity",
    ),
    "wrong 1/n": (wrong_divisor, PLAIN, check_arithmetic, "1.249 times the sensitivity.*divided by another number"),
    "weights after clipping": (
        weighted_after_clipping,
        {"unit": "client"},
        check_arithmetic,
        r"1\.439 times the sensitivity.*weighted after clipping",
    ),
    "float32 sums": (float32_sums, {"sizes": (180, 20)}, check_arithmetic, "not accumulated in float64"),
    "mixing rows": (
        rows_leak_to_neighbours,
        PLAIN,
        check_arithmetic,
        "one client's data change another client's row",
    ),
    "noise reused every round": (
        keys_of(lambda _, who: (0, who)),
        PLAIN,
        check_noise,
        "round 0 occurs again in round 1",
    ),
    "one seed on two clients": (
        keys_of(lambda at, who: (at, [max(c, 1) for c in who])),
        PLAIN,
        check_noise,
        "clients 0 and 1 draw the same noise",
    ),
    "shared noise of coordinates": (
        None,
        {"mechanism": Repeating()},
        check_noise,
        "coordinates at distance 320 share",
    ),
    "coordinates without noise": (last_without_noise, PLAIN, check_noise, "3 coordinates of gradient have no noise"),
    "an un-noised dual variable": (
        exact_duals,
        CONSTRAINED,
        check_ledger,
        r"query results \(statistic\) were released without a ledger line",
    ),
    "release without ledger record": (unrecorded_releases, PLAIN, check_ledger, "released without a ledger line"),
    "one pair's sign": (wrong_sign, LINKS, check_noise, "the noise that clients 0 and 1 share does not cancel"),
    "too little individual noise among pairs": (
        None,
        {**LINKS, "mechanism": Less(part=0.5)},
        check_noise,
        r"the noise of the sum in round \d+ has 0\.[45]\d* of the standard deviation in the ledger",
    ),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_audit_detects_planted_bug(bug: str, monkeypatch: Planting) -> None:
    plant, settings, check, words = PLANTED[bug]
    if plant is None:
        right = run_check(check, audit_target(**{**settings, "mechanism": fp.Gaussian()}))
    else:
        right = run_check(check, audit_target(**settings))
        plant(monkeypatch)
    assert right.verdict == "held", right
    found = run_check(check, audit_target(**settings))
    assert found.verdict == "found" and re.search(words, found.evidence), found


class MovingMean(nn.Module):
    """Like a BatchNorm that only keeps statistics, which no list of known layers has."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.copy_(0.9 * self.mean + 0.1 * x.detach().mean(0))
        return x - self.mean


class Counting(nn.Module):
    """Keeps something that is no tensor."""

    seen = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1.0
        return x * self.seen


class BatchMean(nn.Module):
    """Inputs less the batch's mean."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.BatchNorm1d(64), "normalises over the batch"),
        (MovingMean(), "depends on the other examples"),
        (Counting(), "returns different outputs for the same batch in two calls"),
        (BatchMean(), "depends on the other examples"),
    ],
    ids=["BatchNorm", "running statistics", "hidden state", "mixing examples"],
)
def test_audit_detects_mixing_or_stateful_model(layer: nn.Module, words: str) -> None:
    found = run_check(check_interaction, audit_target(model=nn.Sequential(layer, nn.Linear(64, 10))))
    assert found.verdict == "found" and re.search(words, found.evidence), found


def test_audit_detects_batch_mixing_loss() -> None:
    good = audit_target()
    mixing = Loss(
        lambda outputs, targets: nn.functional.cross_entropy(outputs - outputs.mean(0), targets, reduction="none")
    )
    data = [TensorDataset(*pair) for pair in digits_of(SIZES)]
    clients = fp.make_clients(nn.Linear(64, 10), mixing, data)
    assert run_check(check_interaction, good).verdict == "held"
    found = run_check(check_interaction, AuditTarget.of(clients, good.strategy, good.privacy, rounds=3))
    assert found.verdict == "found" and "loss" in found.evidence, found


def test_audit_detects_training_data_in_test_data() -> None:
    (x, y), *_ = digits_of(SIZES)
    same = run_check(check_data, audit_target(more={"test": TensorDataset(x[:7].clone(), y[:7].clone())}))
    assert same.verdict == "found" and "7 of 125 training examples equal a test example" in same.evidence
    other = digits_of([sum(SIZES), 20])[1]
    assert run_check(check_data, audit_target(more={"test": TensorDataset(*other)})).verdict == "held"


def test_audit_detects_repeated_rows() -> None:
    data = digits_of(SIZES)
    (x, y), (other_x, other_y), *rest = data
    twice = [(torch.cat([x, x[:2]]), torch.cat([y, y[:2]])), (other_x, other_y), *rest]
    within = run_check(check_data, audit_target(data=twice))
    assert (
        within.verdict == "found"
        and "4 of 127 training examples equal another training example (0 of them" in within.evidence
    )
    shared = [(x, y), (torch.cat([other_x, x[:2]]), torch.cat([other_y, y[:2]])), *rest]
    between = run_check(check_data, audit_target(data=shared))
    assert between.verdict == "found" and "(4 of them one of another client)" in between.evidence


def test_audit_detects_private_statistics() -> None:
    data = digits_of(SIZES)
    rows = torch.cat([x for x, _ in data])
    standard = [((x - rows.mean(0)) / rows.std(0, correction=0).clamp_min(1e-9), y) for x, y in data]
    found = run_check(check_data, audit_target(data=standard))
    assert found.verdict == "found" and "standardized with statistics of private data" in found.evidence
    layer = nn.Linear(64, 10)
    layer.register_buffer("centre", rows.mean(0))
    found = run_check(check_data, audit_target(model=layer))
    assert found.verdict == "found" and "model.centre is the mean of the private inputs" in found.evidence


def test_audit_detects_wrong_clip_norm(monkeypatch: Planting) -> None:
    """Messages that are clipped in another norm than they are priced in."""
    settings = {"unit": "client", "noise_on": "message", "strategy": fp.fedavg(0.5)}
    assert run_check(check_arithmetic, audit_target(**settings)).verdict == "held"
    monkeypatch.setattr(Clip, "_norm", lambda self, rows, dtype=None: rows.abs().amax(-1).to(dtype or rows.dtype))
    found = run_check(check_arithmetic, audit_target(**settings))
    assert found.verdict == "found" and "one privacy unit changes a message by" in found.evidence
