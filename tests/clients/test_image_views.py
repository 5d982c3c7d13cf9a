"""What each transform of an augmentation makes of images."""

from __future__ import annotations

import pytest
import torch
from augmented import EVERYTHING, X, noisy, population, views
from torch import Tensor

import fedpriv as fp
from fedpriv.clients.augmentation import Augmentation, Each, Transform


def test_a_crop_moves_an_image_by_at_most_the_padding() -> None:
    uniform = torch.tensor([[0.0, 0.0], [0.999999, 0.999999], [0.5, 0.5], [0.5, 0.0]]).double()
    found = fp.Crop(2).views(X[:4], uniform)
    assert torch.equal(found[0][:, 2:, 2:], X[0][:, :4, :4])
    assert not found[0][:, :2].any()
    assert torch.equal(found[1][:, :4, :4], X[1][:, 2:, 2:])
    assert torch.equal(found[2], X[2])
    assert torch.equal(found[3][:, :, 2:], X[3][:, :, :4])


def test_a_flip_turns_images_left_to_right() -> None:
    found = fp.Flip(0.3).views(X[:2], torch.tensor([[0.29], [0.31]]).double())
    assert torch.equal(found[0], X[0].flip(2))
    assert torch.equal(found[1], X[1])


MIDDLE = torch.full((1, 5), 0.5).double()


def at_most(place: int, image: Tensor, **options: float) -> Tensor:
    """A view with the largest value of one option, the middle of all others."""
    numbers = MIDDLE.clone()
    numbers[0, place] = 1.0
    return fp.Affine(**options).views(image, numbers)


def test_affine_changes_of_the_middle_leave_an_image_alone() -> None:
    torch.testing.assert_close(fp.Affine(30, 2, 0.5, 20).views(X[:1], MIDDLE), X[:1])


def test_an_affine_change_turns_an_image() -> None:
    torch.testing.assert_close(at_most(0, X[:1], degrees=90), X[:1].rot90(1, (2, 3)), rtol=0, atol=1e-5)


def test_an_affine_change_turns_a_square_of_an_oblong_image_into_a_square() -> None:
    oblong = torch.zeros(1, 1, 4, 8)
    oblong[..., 1:3, 3:5] = 1
    torch.testing.assert_close(at_most(0, oblong, degrees=90), oblong, rtol=0, atol=1e-5)


def test_an_affine_change_shifts_an_image_to_the_left_and_up() -> None:
    image = X[:1]
    torch.testing.assert_close(at_most(3, image, shift=1)[..., :5], image[..., 1:], rtol=0, atol=1e-5)
    torch.testing.assert_close(at_most(4, image, shift=2)[..., :4, :], image[..., 2:, :], rtol=0, atol=1e-5)


def test_an_affine_change_scales_an_image() -> None:
    wide = torch.zeros(1, 1, 7, 7)
    wide[..., 2:5, 2:5] = 1
    assert at_most(2, wide, scale=0.6).sum() > 1.5 * wide.sum()


@pytest.mark.parametrize("transform", [*EVERYTHING, Each(noisy)], ids=lambda one: type(one).__name__)
def test_a_row_of_views_depends_on_its_own_row_only(transform: Transform) -> None:
    uniform = torch.rand(6, transform.draws, generator=torch.Generator().manual_seed(1)).double()
    together = transform.views(X[:6], uniform)
    for row in range(6):
        torch.testing.assert_close(transform.views(X[row : row + 1], uniform[row : row + 1])[0], together[row])


def test_a_function_may_change_its_copy_in_place() -> None:
    def emptied(x: Tensor) -> Tensor:
        return x.zero_()

    before = X.clone()
    assert not any(view.any() for view in views(population(Augmentation([emptied]))).values())
    assert torch.equal(before, X)
