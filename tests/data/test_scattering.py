"""Scattering coefficients: figures of another implementation, the definition, and what makes them good features."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.signal import fftconvolve

from fedpriv.data.scattering import CHANNELS, scattering, wavelets
from fedpriv.data.transforms import apply
from fedpriv.errors import ConfigError


def waves(side: int = 28) -> torch.Tensor:
    """An image with waves and an edge."""
    i = torch.arange(side, dtype=torch.float64)
    across = torch.sin(0.7 * i)[:, None] * torch.cos(0.31 * i[None] + 0.2 * i[:, None])
    return across + (i[:, None] > i[None])


# by kymatio 0.3.0, Scattering2D(J=2, shape=(28, 28), L=8); its channels of direction k are ours of direction k + 1. It
# keeps every second pixel of the moduli of large wavelets, so those differ in the third digit
KYMATIO = {
    (0, 0, 0): 0.7603169972991021,
    (0, 3, 4): 0.29120654977817223,
    (2, 3, 4): 0.03640465680324313,
    (6, 2, 6): 0.08217394476861949,
    (29, 3, 3): 0.004344906568338472,
    (69, 1, 5): 0.005555172776193961,
}


def test_scattering_matches_kymatio() -> None:
    found = scattering(waves()[None, None])[0]
    assert found.shape == (CHANNELS, 7, 7) == (81, 7, 7)
    for place, wanted in KYMATIO.items():
        assert float(found[place]) == pytest.approx(wanted, abs=3e-5), place
    assert float(found[13, 3, 3]) == pytest.approx(0.1542072458957667, abs=1e-3)  # a large wavelet


def test_scattering_matches_direct_convolution() -> None:
    """By direct convolution with wavelets sampled in space, far from the edges."""

    def bell(spread: float, angle: float, slant: float) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = np.mgrid[-15:16, -15:16].astype(float)
        across = rows * math.sin(angle) + columns * math.cos(angle)
        along = columns * math.sin(angle) - rows * math.cos(angle)
        found = np.exp(-(across**2 + (slant * along) ** 2) / (2 * spread**2)) * slant / (2 * math.pi * spread**2)
        return found, across

    def wavelet(size: float, turn: int) -> np.ndarray:
        under, across = bell(0.8 * size, math.pi * turn / 8, 0.5)
        wave = under * np.exp(0.75j * math.pi / size * across)
        return wave - under * wave.sum() / under.sum()

    image = waves(64).numpy()
    smooth = bell(1.6, 0.0, 1.0)[0]
    first = np.abs(fftconvolve(image, wavelet(1, 3), "same"))
    second = np.abs(fftconvolve(first, wavelet(2, 5), "same"))
    found = scattering(torch.tensor(image)[None, None])[0]
    for channel, layer in ((0, image), (1 + 3, first), (17 + 3 * 8 + 5, second)):
        wanted = fftconvolve(layer, smooth, "same")[::4, ::4]
        np.testing.assert_allclose(found[channel, 6:-6, 6:-6], wanted[6:-6, 6:-6], atol=3e-4)


def test_scattering_under_shifts() -> None:
    image = torch.zeros(1, 1, 48, 48, dtype=torch.float64)
    image[..., 16:32, 20:28] = 1
    still, far, near = (scattering(image.roll(shift, -1)) for shift in (0, 4, 1))
    torch.testing.assert_close(far[..., 3:-3], still.roll(1, -1)[..., 3:-3], atol=2e-4, rtol=0)
    of_images = (image.roll(1, -1) - image).norm() / image.norm()
    assert float((near - still).norm() / still.norm()) < 0.6 * float(of_images)


def test_scattering_of_constant_image() -> None:
    found = scattering(torch.full((1, 2, 12, 9), 0.7))
    assert found.shape == (1, 162, 3, 3)
    for colour in found.split(81, 1):
        torch.testing.assert_close(colour[:, 0], torch.full((1, 3, 3), 0.7))
        assert float(colour[:, 1:].abs().max()) < 1e-6


def test_scattering_does_not_expand_distances() -> None:
    images = torch.rand(6, 1, 20, 20, generator=torch.Generator().manual_seed(0))
    apart, before = torch.pdist(scattering(images).flatten(1)), torch.pdist(images.flatten(1))
    assert bool((apart < before).all())


def test_wavelets_equal_first_scattering_layer() -> None:
    images = torch.rand(3, 2, 20, 13, generator=torch.Generator().manual_seed(0))
    for of_colour, layer in zip(scattering(images).split(81, 1), wavelets(images).split(16, 1), strict=True):
        torch.testing.assert_close(layer, of_colour[:, 1:17])


def test_group_norm_by_three_channels_small_image_raises() -> None:
    found = apply(torch.rand(2, 1, 8, 8), ["scattering", "group_norm"])
    torch.testing.assert_close(found.reshape(2, 27, -1).mean(2), torch.zeros(2, 27), atol=1e-5, rtol=0)
    with pytest.raises(ConfigError, match="number of channels that is a multiple of 3, but images have 1"):
        apply(torch.rand(2, 1, 8, 8), ["group_norm"])
    with pytest.raises(ConfigError, match="at least 8 pixels per side, but images are 4 x 9"):
        apply(torch.rand(2, 1, 4, 9), ["scattering"])
    with pytest.raises(ConfigError, match="'wavelets': needs at least 8 pixels per side, but images are 4 x 9"):
        apply(torch.rand(2, 1, 4, 9), ["wavelets"])
