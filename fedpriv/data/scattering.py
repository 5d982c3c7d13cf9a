"""The scattering transform of images: moduli of wavelets in eight directions and two sizes, and moduli of these.

The features are stable under small shifts and deformations, and fixed before any data are read. They are short, and so
are the gradients of a linear model on them, which is therefore better than a deep model under the same noise.

Source: Bruna and Mallat (2013), invariant scattering convolution networks; with privacy Tramèr and Boneh (2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, reduce

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.errors import ConfigError

_SIZES, _DIRECTIONS = 2, 8
_BLOCK = 32  # images for which the waves fit in a cache
_STEP = 2**_SIZES  # pixels between outputs
_SLANT = 4 / _DIRECTIONS  # ratio of a wavelet's extent along its waves to its extent across them
CHANNELS = 1 + _SIZES * _DIRECTIONS + _DIRECTIONS**2 * math.comb(_SIZES, 2)
"""Means of the image, of its wavelet moduli, and of the large-wavelet moduli of its small-wavelet moduli."""


def scattering(images: Tensor) -> Tensor:
    """Computes scattering coefficients of two layers: `[n, c, h, w] -> [n, 81 c, ceil(h / 4), ceil(w / 4)]`.

    Morlet wavelets of two sizes and eight directions; moduli are averaged over about 4 pixels and kept at every fourth.

    Raises:
        ConfigError: If an image is smaller than 8 pixels.
    """
    return _by_channel(images, _two_layers, "scattering")


def wavelets(images: Tensor) -> Tensor:
    """Computes the first layer alone, channels 1 to 16 of `scattering`.

    `[n, c, h, w] -> [n, 16 c, ceil(h / 4), ceil(w / 4)]`.

    Raises:
        ConfigError: If an image is smaller than 8 pixels.
    """
    return _by_channel(images, _first_layer, "wavelets")


def _by_channel(images: Tensor, coefficients: Callable[[Tensor], Tensor], name: str) -> Tensor:
    """Computes `coefficients` of each channel, mirrored at its edges, in blocks with waves that fit in a cache."""
    channels, height, width = images.shape[1:]
    if min(height, width) < 2 * _STEP:
        raise ConfigError(
            "data.transforms",
            name,
            f"needs at least 8 pixels per side, but images are {height} x {width}: leave it out",
        )
    # a multiple of 4, and two outputs beyond either edge, where the image is mirrored
    tall = -(-height // _STEP) * _STEP + 2 * _STEP
    wide = -(-width // _STEP) * _STEP + 2 * _STEP
    edges = (_STEP, wide - width - _STEP, _STEP, tall - height - _STEP)
    single = functional.pad(images.reshape(-1, 1, height, width), edges, mode="reflect")[:, 0]
    features = torch.cat([coefficients(block) for block in single.split(_BLOCK)])
    return features[..., 1:-1, 1:-1].reshape(-1, channels * features.shape[1], tall // _STEP - 2, wide // _STEP - 2)


def _two_layers(images: Tensor) -> Tensor:
    """Computes both layers, `[n, h, w] -> [n, 81, h / 4, w / 4]`, of an image taken to be periodic."""
    waves = torch.fft.fft2(images).unsqueeze(1)
    moduli = _moduli(waves)
    smooth = _low_pass(*images.shape[-2:]).to(images)
    large = _wavelets(*images.shape[-2:])[1].to(images)
    # results of large wavelets have no high frequency: half the resolution represents them
    halved = torch.fft.ifft2(_folded(moduli[:, :_DIRECTIONS].unsqueeze(2) * large, 2)).abs().flatten(1, 2)
    means = [_folded(spectrum * smooth, _STEP) for spectrum in (waves, moduli)]
    means.append(_folded(torch.fft.fft2(halved) * _halved(smooth), _STEP // 2))
    return torch.fft.ifft2(torch.cat(means, 1)).real


def _first_layer(images: Tensor) -> Tensor:
    """Computes the first layer, `[n, h, w] -> [n, 16, h / 4, w / 4]`, of an image taken to be periodic."""
    moduli = _moduli(torch.fft.fft2(images).unsqueeze(1))
    return torch.fft.ifft2(_folded(moduli * _low_pass(*images.shape[-2:]).to(images), _STEP)).real


def _moduli(waves: Tensor) -> Tensor:
    """Computes the spectra of the wavelet moduli, for small wavelets first: `[n, 1, h, w] -> [n, 16, h, w]`."""
    filters = torch.cat(_wavelets(*waves.shape[-2:])).to(waves.real)
    return torch.fft.fft2(torch.fft.ifft2(waves * filters).abs())


def _folded(waves: Tensor, factor: int) -> Tensor:
    """Returns the spectrum of every `factor`-th pixel: `[..., h, w] -> [..., h / factor, w / factor]`."""
    for dim in (-2, -1):  # faster than one sum over several dimensions
        waves = reduce(torch.add, waves.chunk(factor, dim)) / factor
    return waves


def _halved(waves: Tensor) -> Tensor:
    """Returns a spectrum without high frequencies at half the resolution: `[h, w] -> [h / 2, w / 2]`."""
    rows, columns = (torch.fft.fftfreq(side // 2, 2 / side).long() for side in waves.shape)
    return waves[rows][:, columns]


@cache
def _wavelets(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Returns the spectra of the Morlet wavelets of each size, `[8, h, w]`: a wave under a bell, without a mean."""
    return tuple(  # pyright: ignore[reportReturnType]
        torch.stack([_morlet(height, width, 2.0**size, math.pi * turn / _DIRECTIONS) for turn in range(_DIRECTIONS)])
        for size in range(_SIZES)
    )


def _morlet(height: int, width: int, size: float, angle: float) -> Tensor:
    wave = 3 / 4 * math.pi / size
    wavelet = _gabor(height, width, 0.8 * size, angle, wave, _SLANT)
    bell = _gabor(height, width, 0.8 * size, angle, 0.0, _SLANT)
    return torch.fft.fft2(wavelet - bell * (wavelet.sum() / bell.sum())).real


@cache
def _low_pass(height: int, width: int) -> Tensor:
    """Returns the spectrum of a bell that covers about 4 pixels, `[h, w]`."""
    return torch.fft.fft2(_gabor(height, width, 0.8 * _STEP / 2, 0.0, 0.0, 1.0)).real


def _gabor(height: int, width: int, spread: float, angle: float, wave: float, slant: float) -> Tensor:
    """Returns a wave of `wave` radians a pixel under a bell of mass 1, summed over periods, `[h, w]`."""
    rows = torch.arange(-2 * height, 3 * height, dtype=torch.float64)
    columns = torch.arange(-2 * width, 3 * width, dtype=torch.float64)
    across = rows[:, None] * math.sin(angle) + columns[None] * math.cos(angle)
    along = columns[None] * math.sin(angle) - rows[:, None] * math.cos(angle)
    bell = torch.exp(-(across**2 + (slant * along) ** 2) / (2 * spread**2))
    wavelet = bell * torch.exp(1j * wave * across) * (slant / (2 * math.pi * spread**2))
    return wavelet.unflatten(1, (5, width)).unflatten(0, (5, height)).sum((0, 2))
