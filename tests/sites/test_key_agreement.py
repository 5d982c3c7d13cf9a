"""Two clients agree on a secret unknown to all others, and each client draws its pair noise from its own secrets."""

from __future__ import annotations

import hashlib
import hmac
from itertools import combinations

import networkx as nx
import pytest
import torch

from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.privacy.pair_noise import draw_pair_noise
from fedpriv.privacy.pairwise import Pairs, sort_pairs
from fedpriv.randomness.streams import Randomness, normal
from fedpriv.sites.agreement import AgreedSecrets, fingerprint_of, new_key, public_key

PRIME = 2**255 - 19


SESSION = b"a run"


def keys(n: int) -> tuple[list[bytes], dict[int, bytes]]:
    private = [new_key() for _ in range(n)]
    return private, {client: public_key(key) for client, key in enumerate(private)}


def owners(n: int) -> list[AgreedSecrets]:
    private, public = keys(n)
    return [AgreedSecrets(client, private[client], public, SESSION) for client in range(n)]


def times(scalar: bytes, point: int) -> int:
    """A scalar times a point of Curve25519, both coordinates by plain addition and doubling of `y^2 = x^3 + A x^2 + x`.

    Its own way: affine, with square roots and inverses modulo the prime, where RFC 7748 climbs a ladder in x alone.
    """
    k = (int.from_bytes(scalar, "little") & ~7 & ~(128 << 8 * 31)) | (64 << 8 * 31)
    right = (point**3 + 486662 * point**2 + point) % PRIME
    y = pow(right, (PRIME + 3) // 8, PRIME)
    y = y if y * y % PRIME == right else y * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    assert y * y % PRIME == right, "not on the curve"
    total, step = None, (point, y)
    while k:
        if k & 1:
            total = step if total is None else added(total, step)
        step, k = added(step, step), k >> 1
    assert total is not None
    return total[0]


def added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    (a, b), (c, d) = one, other
    over, under = (3 * a * a + 2 * 486662 * a + 1, 2 * b) if one == other else (d - b, c - a)
    slope = over * pow(under, -1, PRIME) % PRIME
    x = (slope * slope - 486662 - a - c) % PRIME
    return x, (slope * (a - x) - b) % PRIME


def test_pair_secret_matches_reference() -> None:
    """Computes curve arithmetic and HKDF from their definitions."""
    private, public = keys(3)
    assert int.from_bytes(public[1], "little") == times(private[1], 9)
    shared = times(private[2], int.from_bytes(public[1], "little")).to_bytes(32, "little")
    extracted = hmac.digest(bytes(32), shared, "sha256")
    info = b"fedpriv/noise/1/2/" + public[1] + public[2] + SESSION
    assert AgreedSecrets(1, private[1], public, SESSION).pair_secret(1, 2, "noise") == hmac.digest(
        extracted, info + b"\x01", hashlib.sha256
    )


def test_pair_secret_symmetric_and_distinct() -> None:
    made = owners(5)
    found = set()
    for (i, j), purpose in ((pair, p) for pair in combinations(range(5), 2) for p in ("noise", "other")):
        secret = made[i].pair_secret(i, j, purpose)
        assert secret == made[j].pair_secret(i, j, purpose) == made[i].pair_secret(j, i, purpose)
        assert len(secret) == 32
        found.add(secret)
    assert len(found) == 20


def test_pair_secret_of_other_pair_raises() -> None:
    first, second, third = owners(3)
    for i, j in ((1, 2), (0, 0), (0, 7)):
        with pytest.raises(PrivacyError, match=rf"client 0 has no secret of clients {i} and {j}"):
            first.pair_secret(i, j, "noise")
    # with the other's number but one's own private key one computes something else
    posing = AgreedSecrets(1, third.private, {0: first.public[0], 1: public_key(third.private)}, SESSION)
    assert posing.pair_secret(0, 1, "noise") != second.pair_secret(0, 1, "noise")


def test_intercepted_keys_give_different_secrets() -> None:
    """The fingerprints that both owners compare differ too."""
    private, public = keys(2)
    middle = public_key(new_key())
    ends = (
        AgreedSecrets(0, private[0], {**public, 1: middle}, SESSION),
        AgreedSecrets(1, private[1], {**public, 0: middle}, SESSION),
    )
    assert ends[0].pair_secret(0, 1, "noise") != ends[1].pair_secret(0, 1, "noise")
    assert fingerprint_of(middle) != fingerprint_of(public[1])
    assert len(fingerprint_of(middle)) == 39


@pytest.mark.parametrize("graph", [nx.complete_graph(5), nx.cycle_graph(5)], ids=["complete", "ring"])
def test_separately_drawn_pair_noise_cancels(graph: nx.Graph) -> None:
    randomness, made = Randomness(0, 3, run="a run"), owners(5)
    pairs = Pairs(1.0, 1, "some", sort_pairs(graph.edges))
    noises = [draw_pair_noise(pairs, randomness, 4, 1, range(5), [client], 64, made[client]) for client in range(5)]
    rows = [noise.in_float64()[0] for noise in noises if noise is not None]
    assert float(torch.stack(rows).sum(0).abs().max()) < 1e-12
    expected = torch.zeros(5, 64).double()
    for i, j in sort_pairs(graph.edges):
        draw = normal(randomness.pair_stream(i, j, 4, 1, made[i]), 64)
        expected[i] += draw
        expected[j] -= draw
    torch.testing.assert_close(torch.stack(rows), expected, rtol=0, atol=1e-12)
    simulated = draw_pair_noise(pairs, randomness, 4, 1, range(5), range(5), 64)
    assert simulated is not None
    assert not torch.allclose(expected, simulated.in_float64())  # the run's own secret knows nothing of it


def test_invalid_keys_raise() -> None:
    private, public = keys(3)
    with pytest.raises(ConfigError, match="client 1 = '31 bytes': a public key must have 32 bytes"):
        AgreedSecrets(0, private[0], {**public, 1: public[1][1:]}, SESSION)
    with pytest.raises(ConfigError, match="each client needs its own pair of keys"):
        AgreedSecrets(0, private[0], {**public, 1: public[2]}, SESSION)
    for own, table in ((private[1], public), (private[0], {1: public[1]}), (b"short", public)):
        with pytest.raises(ConfigError, match="does not belong to the client's private key"):
            AgreedSecrets(0, own, table, SESSION)
    with pytest.raises(PrivacyError, match="the public key of client 1 is not a valid X25519 key"):
        AgreedSecrets(0, private[0], {**public, 1: bytes(32)}, SESSION).pair_secret(0, 1, "noise")


def test_sessions_have_different_pair_secrets() -> None:
    """Otherwise two runs with the same keys would share pair noise, and their difference would cancel it."""
    private, public = keys(2)
    found = {AgreedSecrets(0, private[0], public, run).pair_secret(0, 1, "noise") for run in (b"one", b"two")}
    assert len(found) == 2
    with pytest.raises(ConfigError, match="pass bytes that no other run uses"):
        AgreedSecrets(0, private[0], public, b"")


def test_repr_hides_private_key() -> None:
    first = owners(2)[0]
    assert first.private.hex() not in repr(first) and str(first.private) not in repr(first)
