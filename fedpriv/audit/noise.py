"""Check 6: the noise is the one that the ledger says, in law and scale, and new for every round, client and number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedpriv.audit.check_result import CheckResult, summarize
from fedpriv.audit.probing import Trace, listen
from fedpriv.audit.residuals import NUMBERS, Residual, residuals
from fedpriv.audit.target import AuditTarget, Data

Array = NDArray[np.float64]
NAME = "noise"
_ROUNDS, _MOST = 6, 24
_ENOUGH = 100_000  # draws: they show a deficit of two percent
_SURE = 6.0  # standard deviations: with some thousand comparisons a false alarm has a probability below 1e-5
_CLEARLY = 0.9  # a row is named where its noise is less than this of that of all
_TINY = 2.0**-16  # of the scale: noise this small is none
_LAW = 1e-8  # p-value
_DRAWS = 20_000  # whose law is tested


def noise(subject: AuditTarget, data: Data) -> CheckResult:
    """Compare what was added to every release with the noise that its record was priced for."""
    width = sum(p.numel() for p in subject.model.parameters() if p.requires_grad)
    if subject.privacy.trust.sums_only:
        rows = 1
    else:
        rows = len(data)
    wanted = math.ceil(_ENOUGH / (rows * min(width, NUMBERS)))
    return judge(listen(subject, data, min(max(wanted, _ROUNDS), _MOST)))


def judge(transcript: Trace) -> CheckResult:
    """The same for rounds that were heard already."""
    found = residuals(transcript)
    draws = sum(one.own.size for one in found)
    if not draws:
        return CheckResult(NAME, "not checked", "nothing was released with noise: there is no promise to hold")
    ratio = math.sqrt(sum(float((one.own**2).sum()) for one in found) / draws)
    spread = math.sqrt(max(one.fourth for one in found) - 1) / 2
    tested = (
        _silent(found),
        _too_small(found, ratio, draws),
        _law(found),
        _rounds(found),
        _clients(found),
        _pairs(found),
    )
    broken = [text for texts in (*tested, _coordinates(found)) for text in texts]
    held = (
        f"{draws} draws of noise have {ratio:.4f} of the deviation that the ledger says, its law, and no correlation "
        "between rounds, clients or coordinates"
    )
    power = f"a deficit of {(_SURE + 2) * spread / math.sqrt(draws):.2%} in all noise would have been seen"
    return summarize(NAME, broken, held, power, ratio=ratio, draws=draws, deviation_of_ratio=spread / math.sqrt(draws))


def _silent(found: Sequence[Residual]) -> Iterator[str]:
    """Coordinates without noise, which by chance there are hardly any."""
    still: Mapping[tuple[str, int], list[Array]] = {}
    for one in found:
        still.setdefault((one.query, one.own.shape[1]), []).append((abs(one.raw) < _TINY).sum(0))
    for (query, _), counts in still.items():
        total, rows = np.sum(counts, 0), sum(len(one.raw) for one in found if one.query == query)
        chance = stats.binom.sf(total - 1, rows, 2 * _TINY)
        if (dead := int((chance < 1e-9).sum() if rows > 1 else 0)) or total.sum() > 20 + 4 * rows * len(total) * _TINY:
            yield f"{max(dead, 1)} coordinates of {query} have no noise"


def _too_small(found: Sequence[Residual], ratio: float, draws: int) -> Iterator[str]:
    def deviations(squares: float, count: int, fourth: float) -> float:
        return (squares / count - 1) * math.sqrt(count / (fourth - 1))

    if deviations(ratio**2 * draws, draws, max(one.fourth for one in found)) < -_SURE:
        yield f"the noise is {ratio:.3f} of what the ledger says"
    rows = [(one, row, name) for one in found for row, name in zip(one.own, one.names, strict=True)]
    one, row, name = min(rows, key=lambda each: deviations(float((each[1] ** 2).sum()), len(each[1]), each[0].fourth))
    part = math.sqrt(float((row**2).mean()))
    if deviations(part**2 * len(row), len(row), one.fourth) < -_SURE and part < _CLEARLY * ratio:
        yield f"the noise of {name} in round {one.round} is {part:.3f} of what the ledger says"


def _law(found: Sequence[Residual]) -> Iterator[str]:
    laws = {one.law.name: one.law for one in found if one.law is not None}
    for name, law in laws.items():
        draws = np.concatenate([one.own.ravel() for one in found if one.law is not None and one.law.name == name])
        known = getattr(stats, name)(scale=law.scale)
        if stats.kstest(draws[:: max(len(draws) // _DRAWS, 1)], known.cdf).pvalue < _LAW:
            said, spread = "gaussian" if name == "norm" else name, draws.std() / known.std()
            yield f"the noise does not have the {said} law of the ledger (deviation {spread:.3f} of it)"


def _rounds(found: Sequence[Residual]) -> Iterator[str]:
    """Noise that two releases share."""
    for one, other in combinations(found, 2):
        if one.raw.shape[1] != other.raw.shape[1]:
            continue
        both = [(one.clients.index(who), other.clients.index(who)) for who in one.clients if who in other.clients]
        products = [float(_alike(one.raw[a], other.raw[b])) for a, b in both]
        shape = one.raw.shape[1]
        if both and abs(sum(products)) * math.sqrt(shape / len(both)) > _SURE:
            corr = sum(products) / len(both)
            yield f"noise of round {one.round} is in round {other.round} again (correlation {corr:.2f})"
            return


def _alike(a: Array, b: Array) -> float:
    """Correlation of rows of mean zero."""
    return float(a @ b) / max(math.sqrt(float(a @ a) * float(b @ b)), 1e-300)


def _clients(found: Sequence[Residual]) -> Iterator[str]:
    """Rows of one release that belong together, though by the record they do not."""
    total: dict[tuple[int, int], tuple[float, int]] = {}
    for one in found:
        products, dim = np.asarray(one.own @ one.own.T), one.own.shape[1]
        for a, b in combinations(range(min(len(one.own), 64)), 2):
            before = total.get((one.clients[a], one.clients[b]), (0.0, 0))
            total[one.clients[a], one.clients[b]] = before[0] + float(products[a, b]), before[1] + dim
    for (a, b), (product, count) in total.items():
        if abs(product) / math.sqrt(count) > _SURE and found[0].pairs is None:
            yield f"clients {a} and {b} draw the same noise (correlation {product / count:.2f})"
            return


def _pairs(found: Sequence[Residual]) -> Iterator[str]:
    """Noise of pairs: what two clients share has opposite signs, and a sum has none of it."""
    paired = [one for one in found if one.pairs is not None and one.expected is not None]
    for a, b in combinations(range(min((len(one.raw) for one in paired), default=0)), 2):
        measured = sum(float(one.raw[a] @ one.raw[b]) for one in paired)
        wanted = sum(float(one.expected[a, b]) * one.raw.shape[1] for one in paired if one.expected is not None)
        norm = sum(
            (float(one.expected[a, a] * one.expected[b, b]) + float(one.expected[a, b]) ** 2) * one.raw.shape[1]
            for one in paired
            if one.expected is not None
        )
        if abs(measured - wanted) > _SURE * math.sqrt(norm):
            dims = sum(one.raw.shape[1] for one in paired)
            who = f"{paired[0].clients[a]} and {paired[0].clients[b]}"
            yield (
                f"the noise that clients {who} share does not cancel (covariance {measured / dims:.3g} where "
                f"{wanted / dims:.3g} was priced: a sign, a scale or a secret is wrong)"
            )
            return


def _coordinates(found: Sequence[Residual]) -> Iterator[str]:
    """Noise that repeats itself along a row, at any distance."""
    lengths = {one.own.shape[1] for one in found}
    for dim in lengths:
        rows = np.concatenate([one.own for one in found if one.own.shape[1] == dim])
        if dim < 3:
            continue
        power = (abs(np.fft.rfft(rows, axis=1)) ** 2).sum(0)
        along = np.fft.irfft(power, dim)[1 : dim // 2 + 1] / math.sqrt(rows.size)
        at = int(abs(along).argmax())
        # halfway round each product is there twice
        if 2 * (at + 1) == dim:
            twice = math.sqrt(2)
        else:
            twice = 1.0
        if abs(along[at]) > twice * (_SURE + 1):
            yield f"coordinates at distance {at + 1} share noise (correlation {along[at] / math.sqrt(rows.size):.2f})"
            return
