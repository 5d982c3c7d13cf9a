"""What each transform of an augmentation makes of images."""

from __future__ import annotations

import pytest
import torch
from augmented import EVERYTHING, X, noisy, population, views
from torch import Tensor

import fedpriv as fp
from fedpriv.clients.augmentation import Augmentation, Each, Transform


def test_crop_shifts_within_padding() -> None:
    uniform = torch.tensor([[0.0, 0.0], [0.999999, 0.999999], [0.5, 0.5], [0.5, 0.0]]).double()
    found = fp.Crop(2).views(X[:4], uniform)
    assert torch.equal(found[0][:, 2:, 2:], X[0][:, :4, :4])
    assert not found[0][:, :2].any()
    assert torch.equal(found[1][:, :4, :4], X[1][:, 2:, 2:])
    assert torch.equal(found[2], X[2])
    assert torch.equal(found[3][:, :, 2:], X[3][:, :, :4])


def test_flip_mirrors_with_probability() -> None:
    found = fp.Flip(0.3).views(X[:2], torch.tensor([[0.29], [0.31]]).double())
    assert torch.equal(found[0], X[0].flip(2))
    assert torch.equal(found[1], X[1])


MIDDLE = torch.full((1, 5), 0.5).double()


def at_most(place: int, image: Tensor, **options: float) -> Tensor:
    """A view with the largest value of one option, the middle of all others."""
    numbers = MIDDLE.clone()
    numbers[0, place] = 1.0
    return fp.Affine(**options).views(image, numbers)


def test_affine_identity_at_middle() -> None:
    torch.testing.assert_close(fp.Affine(30, 2, 0.5, 20).views(X[:1], MIDDLE), X[:1])


def test_affine_rotates() -> None:
    torch.testing.assert_close(at_most(0, X[:1], degrees=90), X[:1].rot90(1, (2, 3)), rtol=0, atol=1e-5)


def test_affine_rotation_keeps_aspect_ratio() -> None:
    oblong = torch.zeros(1, 1, 4, 8)
    oblong[..., 1:3, 3:5] = 1
    torch.testing.assert_close(at_most(0, oblong, degrees=90), oblong, rtol=0, atol=1e-5)


def test_affine_shifts_left_and_up() -> None:
    image = X[:1]
    torch.testing.assert_close(at_most(3, image, shift=1)[..., :5], image[..., 1:], rtol=0, atol=1e-5)
    torch.testing.assert_close(at_most(4, image, shift=2)[..., :4, :], image[..., 2:, :], rtol=0, atol=1e-5)


def test_affine_scales() -> None:
    wide = torch.zeros(1, 1, 7, 7)
    wide[..., 2:5, 2:5] = 1
    assert at_most(2, wide, scale=0.6).sum() > 1.5 * wide.sum()


@pytest.mark.parametrize("transform", [*EVERYTHING, Each(noisy)], ids=lambda one: type(one).__name__)
def test_transform_views_per_row(transform: Transform) -> None:
    uniform = torch.rand(6, transform.draws, generator=torch.Generator().manual_seed(1)).double()
    together = transform.views(X[:6], uniform)
    for row in range(6):
        torch.testing.assert_close(transform.views(X[row : row + 1], uniform[row : row + 1])[0], together[row])


def test_in_place_transform_keeps_data() -> None:
    def emptied(x: Tensor) -> Tensor:
        return x.zero_()

    before = X.clone()
    assert not any(view.any() for view in views(population(Augmentation([emptied]))).values())
    assert torch.equal(before, X)
