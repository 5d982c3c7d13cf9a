"""Features from drawn images: nothing of a client is in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedpriv.config import load_config
from fedpriv.config.building import load_plan
from fedpriv.data.dead_leaves import dead_leaves
from fedpriv.data.patches import _filters, patches
from fedpriv.data.transforms import apply
from fedpriv.data.whitening import Whitening
from fedpriv.errors import ConfigError


def drawn(n: int, seed: int, shape: tuple[int, int, int] = (3, 32, 32)) -> torch.Tensor:
    return dead_leaves(n, shape, torch.Generator().manual_seed(seed))


def test_dead_leaves_reproducible_and_in_range() -> None:
    images = drawn(20, 0)
    assert torch.equal(images, drawn(20, 0))
    assert not torch.equal(images, drawn(20, 1))
    assert images.min() >= 0
    assert images.max() <= 1
    assert images.std() > 0.1


def test_dead_leaves_spectrum_like_photographs() -> None:
    """Power falls with about the square of the frequency (Field, 1987): white noise would have a slope of 0."""
    images = drawn(200, 0, (1, 32, 32))[:, 0]
    power = torch.fft.rfft2(images - images.mean((1, 2), keepdim=True)).abs().square().mean(0)[0]
    frequency = torch.arange(2, 12)
    slope = torch.log(power[11] / power[2]) / torch.log(frequency[-1] / frequency[0])
    assert -2.8 < slope < -1.4


def test_patch_feature_matches_direct_computation() -> None:
    """Second computation: standardizes one patch at a time and multiplies it by the filter."""
    image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    number = 7

    def strength(picture: torch.Tensor) -> float:
        total = []
        for row in range(5):
            for column in range(5):  # the first of three regions has 5 of 14 positions a side
                patch = picture[0, :, 2 * row : 2 * row + 6, 2 * column : 2 * column + 6]
                scaled = (patch - patch.mean()) / (patch.var(correction=0) + 0.003).sqrt()
                total.append(max(0.0, float((scaled * _filters(3)[number]).sum()) - 0.5))
        return sum(total) / 25

    # the mirrored image's left is the image's right, where the mirrored filter looks
    expected = ((strength(image) + strength(image.flip(-1))) / 2) ** 0.5
    assert patches(image)[0, number, 0, 0].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("channels", [1, 3])
def test_patches_invariant_to_mirroring(channels: int) -> None:
    images = torch.rand(4, channels, 32, 32, generator=torch.Generator().manual_seed(0))
    features = patches(images)
    assert features.shape == (4, 512, 3, 3)
    torch.testing.assert_close(patches(images.flip(-1)), features, atol=1e-4, rtol=1e-4)
    upside_down = patches(images.flip(-2))
    assert (upside_down - features).abs().max() > 0.1


def test_patches_invariant_to_brightness_and_contrast() -> None:
    images = drawn(4, 3)
    torch.testing.assert_close(patches(images * 0.999 + 0.001), patches(images), atol=0.02, rtol=0)
    assert patches(torch.full((1, 3, 8, 8), 0.7)).abs().max() == 0
    with pytest.raises(ConfigError, match="needs at least 6 pixels per side, but images are 5 x 32"):
        patches(torch.rand(1, 3, 5, 32))


def test_whitening_variances_match_formula() -> None:
    """Known answer: variances v become v / (v + r), with r twice their mean."""
    generator = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(4, 4, generator=generator)).Q
    rows = torch.randn(100_000, 4, generator=generator) * torch.tensor([4.0, 2.0, 1.0, 0.1]) @ axes.T + 3
    white = Whitening.of(rows)(rows)
    variances = torch.tensor([16.0, 4.0, 1.0, 0.01])
    expected = variances / (variances + 2 * variances.mean())
    torch.testing.assert_close(white.mean(0), torch.zeros(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.linalg.eigvalsh(white.T.cov()).flip(0), expected, atol=0.02, rtol=0)


@pytest.mark.parametrize("names", [["edges", "whiten", "unit"], ["patches", "unit"]])
def test_patch_transforms_act_per_image(names: list[str]) -> None:
    """Filters and statistics come from synthetic images, so they are public and no other image of the batch matters."""
    images = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    together = apply(images, names)
    alone = torch.cat([apply(image[None], names) for image in images])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    neighbour = apply(torch.cat([images[:2], 100 * torch.rand(1, 1, 16, 16)]), names)
    torch.testing.assert_close(neighbour[:2], together[:2], atol=1e-5, rtol=1e-5)


def test_whiten_fresh_images_variances_match_theory() -> None:
    """Against numpy on fresh images: variances v become about v / (v + r), so a few directions no longer have most."""
    edges = apply(drawn(10_000, 7, (1, 8, 8)), ["edges"]).flatten(1)
    variances = np.linalg.eigvalsh(np.cov(edges.double().numpy().T))
    expected = variances / (variances + 2 * variances.mean())
    white = apply(drawn(10_000, 8, (1, 8, 8)), ["edges", "whiten"]).flatten(1)
    actual = np.linalg.eigvalsh(np.cov(white.double().numpy().T))
    np.testing.assert_allclose(actual, expected, rtol=0.1)


def test_plan_computes_no_whitening_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whitening of 4608 features takes minutes; a plan takes seconds."""

    def refuse(features: torch.Tensor) -> Whitening:
        raise AssertionError(f"statistics of {tuple(features.shape)}")

    monkeypatch.setattr(Whitening, "of", refuse)
    plan = load_plan(load_config(Path(__file__).parents[2] / "configs" / "cifar10_patches_sums.yaml"), 0)
    assert len(plan.records) == 30
    with pytest.raises(AssertionError, match="statistics of"):
        apply(torch.rand(1, 1, 12, 12), ["edges", "whiten"])  # a shape that no other test has cached


def test_whiten_too_many_features_raises() -> None:
    rows = torch.zeros(2, 9000)
    with pytest.raises(ConfigError, match="accepts at most 8192 numbers per image, but images have 9000"):
        Whitening.of(rows)
    with pytest.raises(ConfigError, match="whiten"):
        apply(torch.zeros(1, 1, 8, 8), ["whitn"])


def test_matching_patch_has_largest_response() -> None:
    filters = _filters(3)
    assert filters.shape == (512, 3, 6, 6)
    torch.testing.assert_close(filters.flatten(1).mean(1), torch.zeros(512), atol=1e-6, rtol=0)
    assert torch.equal(filters[256:], filters[:256].flip(-1))
    response = functional.conv2d(0.5 + 0.1 * filters, filters).flatten(1)
    assert (response.argmax(1) == torch.arange(512)).float().mean() > 0.95
