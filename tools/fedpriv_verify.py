"""Counts the epsilon of a fedpriv ledger without fedpriv: one file, numpy and scipy, to be read in twenty minutes.

    python fedpriv_verify.py runs/a/ledger.jsonl [DELTA]       (or python -m fedpriv_verify, where fedpriv is installed)

A ledger has a line for each answer about the data: its noise, never the answer. This program checks the lines' hashes,
makes each line an `Event` for each client, and bounds epsilon by privacy loss distributions that are rounded up. It
stops at what it does not know. Whether the noise was really drawn no ledger can say: `fedpriv audit` looks for that.
"""

import base64
import hashlib
import json
import math
import sys
import zlib
from collections import Counter, namedtuple
from pathlib import Path

import numpy as np
from scipy import fft
from scipy.special import log_ndtr, logsumexp, ndtr

FACTS = "fedpriv_ledger run n_clients delta config planned secrets factor budget extended float64_noise not_covered"
FIXED = "query index clients mechanism norm bound noise_multiplier sampling rate unit relation shared trust attempt"
FIELDS = {*FIXED.split(), "round", "non_private"}
# noise: the scale of a normal or Laplace distribution over the sensitivity; rate: probability that a unit is drawn
Event = namedtuple("Event", "law noise sampling rate")


def require(condition, message):
    if not condition:
        raise SystemExit(f"refused: {message}")


def read(path):
    """Returns the header and the records. A last line without its end belongs to an answer that never came."""
    chain, objects = "0" * 64, []
    for number, line in enumerate(Path(path).read_bytes().split(b"\n")[:-1], start=1):
        text, _, link = line.rpartition(b',"chain":"')
        chain = hashlib.sha256(chain.encode() + text).hexdigest()
        require(link[:64].decode() == chain, f"line {number} does not follow from the lines before it")
        objects.append(json.loads(text + b"}"))
    require(objects and objects[0].get("fedpriv_ledger") == 9 and {*objects[0]} <= {*FACTS.split()}, "other header")
    for record in objects[1:]:
        require(not (odd := sorted({*record} - {"pairs", "time"} ^ FIELDS)), f"unknown or missing fields: {odd}")
    return objects[0], objects[1:]


def unpacked(value, count):
    """Returns whole numbers from a text, or one number for each of `count` clients from a list or one for all."""
    if isinstance(value, str):  # compressed: the lowest bytes of all numbers, then all second ones, and so on
        planes = np.frombuffer(zlib.decompress(base64.b64decode(value)), np.uint8).reshape(4, -1)
        return planes.T.copy().view("<u4")[:, 0].astype(int)
    if isinstance(value, dict):
        value = [value["levels"][index] for index in unpacked(value["of"], count)]
    return value if isinstance(value, list) else [value] * count


def histories_of(header, records):
    """Returns the distinct histories of clients: how often each event concerned them."""
    histories = [Counter() for _ in range(header["n_clients"])]
    everybody, in_time = range(len(histories)), []
    require(len({(r["round"], r["index"], r["attempt"]) for r in records}) == len(records), "noise that is used twice")
    for r in records:
        law, sampling, relation = r["mechanism"], r["sampling"], r["relation"]
        require(law != "none" and r["non_private"] is None, f"epsilon is infinite: {r['non_private']}")
        require(all(r[name] == records[0][name] for name in ("unit", "relation", "shared")), "units that differ")
        require(relation in ("add_remove", "replace_one"), f"relation {relation}")
        require((law, r["norm"]) in (("gaussian", "l2"), ("laplace", "l1")), f"{law} noise under a clip of {r['norm']}")
        clients = r["clients"] if r["clients"] is not None else everybody
        if isinstance(clients, str):
            clients = np.cumsum(unpacked(clients, 0) + 1) - 1
        require(len({*clients}) == len(clients) and {*clients} <= {*everybody}, "clients that do not exist")
        growth = 1.0  # of correlated noise, to independent noise with the same price
        if "time" in r:
            in_time.append([r[name] for name in FIXED.split()] + [r["time"]["separation"]])
            is_next = r["round"] == len(in_time) - 1 and r["time"]["block"] == r["round"] % in_time[-1][-1]
            require(is_next and in_time[0] == in_time[-1], "correlated noise that changes, or whose rounds have gaps")
            require((law, sampling, r["clients"]) == ("gaussian", "full", None), "correlated noise with secret draws")
            growth *= sensitivity_of_round(header["factor"], r["round"], r["time"]["separation"]) ** -0.5
        if "pairs" in r and header.get("secrets") is None:  # else pairs' noise, not shared by all, counts for nothing
            require(law == "gaussian" and r["pairs"]["secrets"] == "complete", "pairs that are not on record")
            h = max(1, len(clients) - r["pairs"]["colluders"])  # exposure: the diagonal of (I + ratio^2 Laplacian)^-1
            growth *= (1 / h + (1 - 1 / h) / (1 + r["pairs"]["ratio"] ** 2 * h)) ** -0.5
        if sampling == "poisson" and (law, relation) != ("laplace", "replace_one"):
            sampling = f"poisson {relation}"
        elif sampling != "full":
            require(sampling in ("poisson", "without_replacement") and relation == "replace_one", f"{sampling} batches")
            sampling = "amplified"
        noises, rates = unpacked(r["noise_multiplier"], len(clients)), unpacked(r["rate"], len(clients))
        for client, noise, rate in zip(clients, noises, rates, strict=True):
            require(noise > 0 and 0 <= rate <= 1, f"noise {noise}, rate {rate}")
            if rate > 0:
                histories[client][Event(law, noise * growth, "full" if rate == 1 else sampling, rate)] += 1
    return [dict(items) for items in {frozenset(history.items()) for history in histories}]


def sensitivity_of_round(factor, t, B):
    """Returns what round t adds to the squared sensitivity of C G, where G + s C^-1 Z is released (Denisov 2022)."""
    band, scales, decays = (np.array(factor[name]) for name in ("band", "scales", "decays"))
    require(np.all(scales >= 0) and np.all((decays >= 0) & (decays < 1)), "a matrix that grows")
    column = np.zeros(max(t, len(band)) + 1)
    column[0], column[1 : 1 + len(band)] = 1.0, band  # of C, which is lower-triangular and Toeplitz
    column[1:] += scales @ decays[:, None] ** np.arange(len(column) - 1)
    if len(scales) or len(band) >= B:  # answers about one unit, B rounds apart, overlap: no later number may be larger
        column = np.maximum.accumulate(np.abs(column)[::-1])[::-1]
    return max(float(np.abs(column[t % B : t + 1 : B]).sum()) ** 2, 1e-300)


def curves(event, t):
    """Returns H_t = sup_A P(A) - e^t Q(A), the smallest delta at epsilon t >= 0, of the worst (P, Q), and of (Q, P)."""
    q, y, mu = event.rate, np.exp(t), 1 / event.noise

    def unsampled(t):
        if event.law == "laplace":
            return -np.expm1(np.minimum((t - mu) / 2, 0.0))
        return np.maximum(ndtr(mu / 2 - t / mu) - np.exp(t + log_ndtr(-mu / 2 - t / mu)), 0.0)  # Balle and Wang 2018

    # (1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1), deviation s (Lebeda, Regehr, Kamath, Steinke 2025). The loss
    # exceeds t where the sample exceeds x, and w = e^(x / s^2) solves c w^2 - (1-q) (y-1) w - c y = 0.
    if event.sampling == "poisson replace_one":
        s = 2 * event.noise
        c, b = q * math.exp(-1 / (2 * s * s)), (1 - q) * np.expm1(t)
        x = s * s * np.log((b + np.sqrt(b * b + 4 * y * c * c)) / (2 * c))
        p_above, q_above = ((1 - q) * ndtr(-x / s) + q * ndtr((mean - x) / s) for mean in (1, -1))
        return (np.maximum(p_above - y * q_above, 0.0),) * 2
    forward = q * unsampled(np.log1p(np.expm1(t) / q))  # Balle, Barthe, Gaboardi 2018, theorem 8
    if event.sampling != "poisson add_remove":
        return forward, forward
    rest = np.maximum(1 - (1 - q) * y, 1e-300)
    return forward, rest * unsampled(np.log(q * y / rest))


def losses(forward, backward, h):
    """Returns losses kh, -n <= k <= n, their probabilities and that of an infinite one: their curve is not better."""
    # In y = e^t the curve of losses t_k is sum_k p_k (1 - y / y_k)_+ + p_inf. It joins points of the true curve, which
    # is convex, by straight lines if p_k = y_k (slope after k - slope before it): Doroshenko et al. 2022.
    n = len(forward) - 1
    k = np.arange(-n, n + 1)
    y = np.exp(h * k)
    below = y[: n + 1] * backward[::-1]  # for t < 0, H_t(P||Q) = 1 - y + y H_-t(Q||P): here without 1 - y
    slopes = [below[:1] / y[0], np.diff(below) / np.diff(y[: n + 1]), np.diff(forward) / np.diff(y[n:]), [0.0]]
    p = y * np.diff(np.concatenate(slopes))
    p[n] += 1.0  # where 1 - y ends
    return k, np.maximum(p, 0.0), float(forward[-1])


def epsilon_on_grid(parts, h, delta):
    """Returns epsilon of a sum of losses; a part is (k, probabilities, probability of an infinite one, how often)."""
    ends = []
    for sign in (1, -1):  # a window that holds all but e^-36 of the sum at each end, by Chernoff's bound
        tilts = sign * np.geomspace(0.02, 5000, 60)
        means = [sum(count * logsumexp(tilt * h * k, b=p) for k, p, _, count in parts) for tilt in tilts]
        ends.append(max(math.ceil(min((np.array(means) + 36) / np.abs(tilts)) / h), 1))
    size = fft.next_fast_len(sum(ends) + 1, real=True)
    unit = 8 * 2.0**-53 * math.log2(size)  # what each number of a transform is wrong by (Higham 2002, section 24.1)
    product, largest, finite = 1.0, 1.0, 1.0
    for k, p, infinite, count in parts:
        transform = fft.rfft(np.bincount(k % size, p, size))
        product = product * transform**count
        largest = largest * (np.abs(transform) + unit) ** count
        finite *= (1 - infinite) ** count
    rounding = 4 * float((largest - np.abs(product) + unit * largest).sum())  # of all probabilities together
    sums = np.maximum(fft.irfft(product, size)[: ends[0] + 1], 0.0)
    t = h * np.arange(len(sums))
    above, weighted = (np.cumsum(values[::-1])[::-1] for values in (sums, sums * np.exp(-t)))
    enough = above - np.exp(t) * weighted + (1 - finite) + 2 * math.exp(-36) + rounding <= delta
    return float(t[enough.argmax()]) if enough.any() else math.inf


def epsilon_of(history, delta):
    """Returns an upper bound on the epsilon of one client's events."""
    counts = {e: count for e, count in history.items() if (e.law, e.sampling) != ("gaussian", "full")}
    if len(counts) < len(history):  # Gaussian answers are together one: Dong, Roth, Su 2022, corollary 3.3
        ratio2 = sum(count / e.noise**2 for e, count in history.items() if e not in counts)
        counts[Event("gaussian", ratio2**-0.5, "full", 1.0)] = 1
    # the losses at which curves end, or are below 1e-18
    ends = [1 / e.noise if e.law == "laplace" else 1 / (2 * e.noise**2) + 9 / e.noise for e in counts]
    require(max(ends, default=0.0) < 300, "an answer with hardly any noise")
    ends = [math.log1p(event.rate * math.expm1(end)) for event, end in zip(counts, ends, strict=True)]
    if delta == 0:
        require(all(event.law == "laplace" for event in counts), "Gaussian noise has no epsilon at delta 0")
        return sum(count * end for count, end in zip(counts.values(), ends, strict=True))
    coarser, best, h = math.inf, math.inf if counts else 0.0, max(ends, default=0.0) / 128
    while (h > 0.002 * best or not coarser - best <= 0.002 * best) and best > 0 and h > max(ends) / 2**20:
        both = [curves(e, h * np.arange(math.ceil(end / h) + 2)) for e, end in zip(counts, ends, strict=True)]
        removed = [(*losses(p, q, h), count) for (p, q), count in zip(both, counts.values(), strict=True)]
        added = [(*losses(q, p, h), count) for (p, q), count in zip(both, counts.values(), strict=True)]
        worst = max(epsilon_on_grid(removed, h, delta), epsilon_on_grid(added, h, delta))
        coarser, best, h = best, min(best, worst), h / 2  # each grid gives an upper bound
    return best


if __name__ == "__main__":
    header, records = read(sys.argv[1])
    delta = float(sys.argv[2]) if len(sys.argv) > 2 else header["delta"]
    require(delta == 0 or 1e-8 <= delta < 1, "delta must be 0, or at least 1e-8 and below 1")
    epsilon = max(epsilon_of(history, delta) for history in histories_of(header, records))
    facts = [", ".join(sorted({r[name] for r in records})) for name in ("unit", "relation", "shared", "trust")]
    print(f"epsilon <= {epsilon:.5g} (delta={delta:g}; {'; '.join(facts)}), {len(records)} answers")
