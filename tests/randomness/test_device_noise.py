"""Noise that is drawn where the sums lie has the bits of the processor's streams, and no row shares it with another."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from counting_device import DEVICE, CountingDevice
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

import fedpriv as fp
from fedpriv.errors import PrivacyError
from fedpriv.privacy.mechanisms import EVERYBODY, Mechanism, add_noise
from fedpriv.privacy.record import Record
from fedpriv.randomness import chacha
from fedpriv.randomness.rows import laplace_rows, may_draw, normal_rows
from fedpriv.randomness.streams import Randomness

RANDOM = Randomness(0, secret_seed=3, run="a test")
RECORD = Record(2, "gradient", 1, "gaussian", 1.0, "sample", "replace_one")
# RFC 8439, section 2.3.2 has another nonce; appendix A.1, test vectors 1, 2 and 4 have key, counter and nonce of ours
ZERO = bytes(32)
SECOND = bytes([0, 0xFF, *bytes(30)])
PUBLISHED = {
    (ZERO, 0): "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    (ZERO, 1): "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    (SECOND, 2): "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
    "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
}


def as_keys(*keys: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray().join(keys), "<i4")).view(-1, 8)


def cipher(key: bytes, size: int) -> bytes:
    return Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(size))


@pytest.mark.parametrize(("key", "block"), PUBLISHED)
def test_chacha_blocks_equal_rfc8439(key: bytes, block: int) -> None:
    found = chacha.compute_words(as_keys(key), 8 * (block + 1))[0, 8 * block :]
    assert found.numpy().astype("<i8").tobytes().hex() == PUBLISHED[key, block]


@settings(max_examples=60)
@given(st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=5), st.integers(1, 200))
def test_chacha_words_equal_cipher(keys: list[bytes], size: int) -> None:
    found = chacha.compute_words(as_keys(*keys), size)
    assert found.shape == (len(keys), size)
    for row, key in zip(found, keys, strict=True):
        assert row.numpy().astype("<i8").tobytes() == cipher(key, 8 * size)


def test_chacha_long_stream_equals_cipher() -> None:
    size = 2**17 + 3
    keys = [bytes([7] * 32), bytes([255] * 32)]
    for row, key in zip(chacha.compute_words(as_keys(*keys), size), keys, strict=True):
        assert row.numpy().astype("<i8").tobytes() == cipher(key, 8 * size)


@pytest.mark.parametrize("dim", [1, 2, 7, 650, 65_536, 65_537, 140_001])
@pytest.mark.parametrize("draw", [normal_rows, laplace_rows])
def test_device_draws_equal_cpu(draw, dim: int) -> None:
    keys = RANDOM.keys("noise", 0, 0, [4, 9, EVERYBODY])
    here = draw(keys, dim)
    with CountingDevice() as device:
        there = draw(keys.to(DEVICE), dim).cpu()
    torch.testing.assert_close(there, here, rtol=1e-13, atol=1e-15)
    assert device.counts.uploads == 1
    assert here.shape == (3, dim)
    streams = [RANDOM.stream("noise", 0, 0, client) for client in (4, 9, EVERYBODY)]
    if draw is normal_rows:
        for row, stream in zip(here, streams, strict=True):
            assert row.numpy().tolist() == stream.standard_normal(dim).tolist()


def test_device_draws_follow_distribution() -> None:
    keys = RANDOM.keys("noise", 5, 0, range(8))
    with CountingDevice():
        drawn = {draw: draw(keys.to(DEVICE), 40_000).cpu().flatten().numpy() for draw in (normal_rows, laplace_rows)}
    assert stats.kstest(drawn[normal_rows], stats.norm.cdf).pvalue > 1e-3
    assert stats.kstest(drawn[laplace_rows], stats.laplace.cdf).pvalue > 1e-3


@pytest.mark.parametrize("mechanism", [fp.Gaussian(), fp.Laplace()])
@pytest.mark.parametrize("scales", [[0.3] * 5, [0.3, 0.5, 0.7, 1.1, 2.0]], ids=["one scale", "scales"])
def test_device_release_equals_cpu_on_grid(mechanism: Mechanism, scales: list[float]) -> None:
    bounded, clients = torch.randn(5, 700, dtype=torch.float64), [1, 3, 4, 8, 11]
    here = add_noise(bounded, scales, mechanism, RECORD, RANDOM, clients)._value
    with CountingDevice() as device:
        sums = bounded.to(DEVICE)
        before = device.counts.copy()
        there = add_noise(sums, scales, mechanism, RECORD, RANDOM, clients)._value
        assert (device.counts - before).uploads == 1  # keys, scales and grids
        assert (device.counts - before).synchronisations == 0
        there = there.cpu()
    grids = torch.tensor([[2.0 ** (math.ceil(math.log2(scale)) - 20)] for scale in scales], dtype=torch.float64)
    assert torch.equal((there / grids).round() * grids, there)
    # a last place decides between two points of the grid once in a thousand million
    assert torch.equal(there, here)


def test_device_laplace_share_sum_equals_cpu() -> None:
    """Such sums are drawn on the CPU, on every device."""
    bounded = torch.zeros(1, 50, dtype=torch.float64)
    here = add_noise(bounded, [1.0], fp.Laplace(), RECORD, RANDOM, [EVERYBODY], 1.5)._value
    with CountingDevice():
        there = add_noise(bounded.to(DEVICE), [1.0], fp.Laplace(), RECORD, RANDOM, [EVERYBODY], 1.5)._value.cpu()
    assert torch.equal(there, here)


def test_add_noise_in_pieces_equals_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of each row is independent."""
    bounded, clients = torch.zeros(7, 300, dtype=torch.float64), [0, 1, 2, 3, 4, 5, 6]
    whole = add_noise(bounded, [1.0] * 7, fp.Gaussian(), RECORD, RANDOM, clients)._value
    monkeypatch.setattr("fedpriv.privacy.mechanisms._IN_CACHE", 700)
    assert torch.equal(add_noise(bounded, [1.0] * 7, fp.Gaussian(), RECORD, RANDOM, clients)._value, whole)
    assert len(whole.unique(dim=0)) == 7


@dataclass(frozen=True)
class SharedRowGaussian(fp.Gaussian):
    def draw(self, keys: Tensor, dim: int, amount: float = 1.0) -> Tensor:
        return super().draw(keys, dim, amount)[:1]


@pytest.mark.parametrize(
    ("clients", "scales", "mechanism"),
    [
        ([EVERYBODY], [1.0], fp.Gaussian()),
        ([0, 1, 1], [1.0] * 3, fp.Gaussian()),
        ([0, 1, 2], [1.0], fp.Gaussian()),
        ([0, 1, 2, 3], [1.0] * 4, fp.Gaussian()),
        ([0, 1, 2], [1.0] * 3, SharedRowGaussian()),
    ],
)
def test_rows_sharing_noise_raise(clients: list[int], scales: list[float], mechanism: Mechanism) -> None:
    with pytest.raises(PrivacyError, match="row"):
        add_noise(torch.zeros(3, 4, dtype=torch.float64), scales, mechanism, RECORD, RANDOM, clients)


def test_may_draw_by_device() -> None:
    found = [may_draw(torch.device(kind)) for kind in ("cpu", "mps", "cuda", "meta")]
    assert found == [False, False, True, True]  # mps has no float64
