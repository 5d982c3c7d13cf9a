"""Public maps of single images."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from scipy.ndimage import affine_transform
from torch import Tensor

from fedpriv.data.scattering import scattering
from fedpriv.data.transforms import (
    TRANSFORMS,
    apply,
    bandpass,
    center,
    contrast,
    deskew,
    edges,
    products,
    size_norm,
    unit,
)
from fedpriv.errors import ConfigError


@settings(deadline=None, max_examples=40)
@given(
    names=st.lists(st.sampled_from(sorted({*TRANSFORMS} - {"patches", "products"})), max_size=4, unique=True),
    seed=st.integers(0, 99),
)
def test_transforms_act_per_image(names: list[str], seed: int) -> None:
    """A transform is public because another image in the batch changes nothing."""
    # float64: some, as size_norm behind bandpass, magnify the rounding of sums whose order depends on the batch
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    try:
        together = apply(images, names)
    except ConfigError:  # the one before leaves too small an image, or channels without directions
        reject()
    alone = torch.cat([apply(image[None], names) for image in images])
    torch.testing.assert_close(together, alone)


def test_center_and_unit() -> None:
    images = torch.rand(3, 2, 4, 4)
    torch.testing.assert_close(center(images).mean((1, 2, 3)), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(unit(images).flatten(1).norm(dim=1), torch.ones(3))


@pytest.mark.parametrize("name", sorted({*TRANSFORMS} - {"patches"}))
def test_blank_image_stays_blank(name: str) -> None:
    assert torch.equal(TRANSFORMS[name](torch.zeros(1, 24, 8, 8)).unique(), torch.zeros(1))


def test_bandpass_keeps_low_frequencies_only() -> None:
    def wave(frequency: int) -> torch.Tensor:
        row = torch.cos(torch.pi * (torch.arange(28) + 0.5) * frequency / 28)
        return row.expand(28, 28)[None, None].clone()

    energy = [float(bandpass(wave(f)).norm()) for f in (0, 3, 20)]
    assert bandpass(wave(0)).shape == (1, 1, 14, 14)
    assert energy[0] < 1e-4
    assert energy[2] < 1e-4
    assert energy[1] > 1


@pytest.mark.parametrize("eighths", range(8))
def test_edges_separates_directions(eighths: int) -> None:
    """A ramp of slope 1 has all of its gradient in its direction's plane, in every inner cell."""
    angle = eighths * math.pi / 8
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    ramp = x * math.cos(angle) + y * math.sin(angle)
    found = edges(torch.stack([ramp, -ramp])[:, None])
    assert found.shape == (2, 8, 4, 4)
    expected = torch.zeros(8, 2, 2)
    expected[eighths] = 1
    torch.testing.assert_close(found[0, :, 1:3, 1:3], expected, atol=2e-3, rtol=0)
    torch.testing.assert_close(found[1], found[0], atol=2e-3, rtol=0)  # downhill is the same line


def test_edges_interpolates_directions_and_takes_root() -> None:
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    angle = 2.25 * math.pi / 8
    found = edges((4 * (x * math.cos(angle) + y * math.sin(angle)))[None, None])[0, :, 1, 1]
    expected = torch.zeros(8)
    expected[2], expected[3] = math.sqrt(4 * 0.75), math.sqrt(4 * 0.25)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)
    two = torch.rand(3, 2, 8, 8)
    torch.testing.assert_close(edges(two), torch.cat([edges(two[:, :1]), edges(two[:, 1:])], 1))
    with pytest.raises(ConfigError, match="4 pixels"):
        edges(torch.zeros(1, 1, 3, 8))


def test_contrast_scales_by_root_of_deviation() -> None:
    v = torch.tensor([1.0, -1, 2, 0, 0, -2, 1, -1])  # mean 0, root mean square sqrt(1.5)
    image = torch.stack([v, 16 * v + 5])[:, :, None, None]
    wanted = v / 1.5**0.25
    torch.testing.assert_close(contrast(image).squeeze(), torch.stack([wanted, 4 * wanted]))
    shared = torch.rand(1, 1, 3, 3).expand(1, 8, 3, 3)
    torch.testing.assert_close(contrast(torch.cat([shared, image[:1].expand(1, 8, 3, 3)], 1))[:, :8], 0 * shared)


def test_contrast_acts_on_directional_channels() -> None:
    found = scattering(torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
    by_colour = [contrast(colour[:, 1:]) for colour in found.split(81, 1)]
    torch.testing.assert_close(contrast(found), torch.cat(by_colour, 1))
    with pytest.raises(
        ConfigError,
        match="scattering, wavelets or edges produce, but images have 3 channels: put it after one of these",
    ):
        apply(torch.rand(2, 3, 8, 8), ["contrast"])


def test_products_approximate_squared_inner_product() -> None:
    images = unit(torch.randn(6, 2, 5, 5, generator=torch.Generator().manual_seed(0)))
    images[3:] = unit(images[3:] + 2 * images[:3])
    found, flat = products(images).flatten(1), images.flatten(1)
    assert found.shape == (6, 4000)
    torch.testing.assert_close(found @ found.T, (flat @ flat.T) ** 2, atol=5 / 4000**0.5, rtol=0)
    torch.testing.assert_close(products(3 * images), 9 * products(images))
    torch.testing.assert_close(products(images[4:5]), products(images)[4:5])


def test_deskew_matches_scipy_shear() -> None:
    """Against scipy, and: the mixed second moment of the result vanishes and the mass is in the middle."""
    stroke = torch.zeros(1, 1, 28, 28)
    for y in range(6, 22):
        stroke[0, 0, y, 6 + y // 2 : 9 + y // 2] = 1
    upright = deskew(stroke)[0, 0].double()
    y = torch.arange(28.0)[:, None].double() - 13.5
    x = torch.arange(28.0)[None].double() - 13.5
    mass = upright.sum()
    assert abs(float((upright * y).sum() / mass)) < 0.05
    assert abs(float((upright * x).sum() / mass)) < 0.05
    assert abs(float((upright * y * x).sum() / (upright * y * y).sum())) < 0.02

    image = stroke[0, 0].numpy()
    rows = torch.arange(28.0).numpy()
    total = image.sum()
    cy, cx = (image.sum(1) @ rows) / total, (image.sum(0) @ rows) / total
    shear = ((rows - cy) @ image @ (rows - cx)) / (image.sum(1) @ (rows - cy) ** 2)
    matrix = torch.tensor([[1.0, 0.0], [float(shear), 1.0]]).numpy()
    offset = [cy - 13.5, cx - 13.5 - float(shear) * 13.5]
    expected = affine_transform(image, matrix, offset=offset, order=1)
    torch.testing.assert_close(upright.float(), torch.as_tensor(expected), atol=1e-4, rtol=0)


def test_size_norm_equalizes_size_and_position() -> None:
    """Ellipses become the same spread; one twice as tall as wide ends up with the square root of that ratio."""
    y = torch.arange(28.0)[:, None] - 13.5
    x = torch.arange(28.0)[None] - 13.5

    def ellipse(across: float, down: float, left: float, top: float) -> Tensor:
        edge = 1 - (((x - left) / across) ** 2 + ((y - top) / down) ** 2).sqrt()
        return (5 * edge).clamp(0, 1)[None, None]

    def spreads(image: Tensor) -> tuple[float, float]:
        ink = size_norm(image)[0, 0]
        assert abs(float((ink * x).sum() / ink.sum())) < 0.05
        assert abs(float((ink * y).sum() / ink.sum())) < 0.05
        return float(((ink * x**2).sum() / ink.sum()).sqrt()), float(((ink * y**2).sum() / ink.sum()).sqrt())

    for image in (ellipse(5, 5, 0, 0), ellipse(10, 10, 1, -2), ellipse(7, 7, -4, 3)):
        assert spreads(image) == pytest.approx((0.18 * 28, 0.18 * 28), rel=0.02)
    wide, tall = spreads(ellipse(5, 10, 2, 1))
    assert tall / wide == pytest.approx(2**0.5, rel=0.02)
    torch.testing.assert_close(size_norm(ellipse(5, 5, 0, 0)), size_norm(ellipse(5, 5, 4, -3)), atol=0.02, rtol=0)


@pytest.mark.parametrize("transform", [deskew, size_norm])
def test_images_with_little_ink_stay_finite(transform: Callable[[Tensor], Tensor]) -> None:
    blank = torch.zeros(1, 1, 28, 28)
    assert torch.equal(transform(blank), blank)
    dot = blank.clone()
    dot[0, 0, 3, 20] = 1
    line = blank.clone()
    line[0, 0, :, 5] = 1
    for image in (dot, line):
        moved = transform(image)
        assert torch.isfinite(moved).all()
        assert moved.sum() > 0
