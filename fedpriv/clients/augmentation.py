"""Data augmentation: random views of an example. The mean of the views' gradients is clipped once.

With K views an example's contribution is the clipped mean of K gradients, so the sensitivity is the same as with one
view.
Source: De, Berrada, Hayes, Smith, Balle (2022), arXiv:2204.13650, augmentation multiplicity.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.errors import ConfigError, DataError, summarize_error
from fedpriv.models.nested import Nested, first_leaf, format_structure, list_leaves, map_tree
from fedpriv.randomness.global_rng import global_generators
from fedpriv.settings.checks import Count, Fraction, NonNegative, Probability, validate_arguments
from fedpriv.settings.plugins import Registry, RegistryEntry

Function = Callable[[Any], Any]
"""Maps one example's input to a random view of it; draws from torch's, NumPy's or Python's global generator."""


class Transform(ABC):
    """A random change of inputs: row i of the result depends on row i of the inputs, and on no other row."""

    draws: int
    """Number of random numbers that a view takes."""

    @abstractmethod
    def views(self, inputs: Nested, uniform: Tensor) -> Nested:
        """Returns a view of each row: `[n, ...] -> [n, ...]`.

        Args:
            inputs: The rows; they must not be changed.
            uniform: Random numbers in [0, 1), `[n, draws]` in float64 on the inputs' device.
        """


@validate_arguments("augment")
@dataclass(frozen=True)
class Flip(Transform):
    """Flips images left to right, `[n, c, h, w]`.

    Args:
        p: Probability of a flip; 0.5 by default.

    Examples:
        >>> import fedpriv, torch
        >>> image = torch.tensor([[[[1.0, 2.0]]]])
        >>> fedpriv.Flip(p=1.0).views(image, torch.zeros(1, 1)).tolist()
        [[[[2.0, 1.0]]]]
    """

    p: Probability = 0.5
    draws = 1

    def views(self, inputs: Nested, uniform: Tensor) -> Nested:
        """See `Transform`."""
        images = _images(inputs, "flip")
        return images.flip(3).where((uniform[:, 0] < self.p)[:, None, None, None], images)


@validate_arguments("augment")
@dataclass(frozen=True)
class Crop(Transform):
    """Pads images `[n, c, h, w]` with zeros on all sides, and cuts out a part of the original size at a random
    position.

    Args:
        padding: Number of zero pixels added on each side; an image moves by at most this number of pixels.

    Examples:
        >>> import fedpriv, torch
        >>> image = torch.tensor([[[[1.0, 2.0]]]])
        >>> fedpriv.Crop(padding=1).views(image, torch.tensor([[0.5, 0.0]])).tolist()  # one pixel to the right
        [[[[0.0, 1.0]]]]
    """

    padding: Count
    draws = 2

    def views(self, inputs: Nested, uniform: Tensor) -> Nested:
        """See `Transform`."""
        images = _images(inputs, "crop")
        corners = (uniform * (2 * self.padding + 1)).long()  # top and left corner, [n, 2]
        height, width = images.shape[2:]
        rows = corners[:, :1] + torch.arange(height, device=images.device)  # [n, h]
        columns = corners[:, 1:] + torch.arange(width, device=images.device)  # [n, w]
        padded = functional.pad(images, (self.padding,) * 4).movedim(1, 3)  # [n, h + 2p, w + 2p, c]
        image = torch.arange(len(images), device=images.device)[:, None, None]
        return padded[image, rows[:, :, None], columns[:, None]].movedim(3, 1)


@validate_arguments("augment")
@dataclass(frozen=True)
class Affine(Transform):
    """Rotates, shifts, scales and shears images about their middle, `[n, c, h, w]`; new pixels are 0.

    Each amount is uniform between minus and plus its bound.

    Args:
        degrees: Largest rotation, in degrees; 0 by default, as for the other bounds.
        shift: Largest shift along each axis, in pixels.
        scale: Largest relative change of size, in [0, 1).
        shear: Largest angle of shearing along the width, in degrees.

    Examples:
        >>> import fedpriv, torch
        >>> images = torch.ones(2, 1, 4, 4)
        >>> fedpriv.Affine(degrees=15.0, shift=1.0).views(images, torch.full((2, 5), 0.3)).shape
        torch.Size([2, 1, 4, 4])
    """

    degrees: NonNegative = 0.0
    shift: NonNegative = 0.0
    scale: Fraction = 0.0
    shear: NonNegative = 0.0
    draws = 5

    def views(self, inputs: Nested, uniform: Tensor) -> Nested:
        """See `Transform`."""
        images = _images(inputs, "affine")
        height, width = images.shape[2:]
        turn, slant, size, across, down = (2 * uniform.to(images) - 1).unbind(1)
        turn = turn * math.radians(self.degrees)
        slant = (slant * math.radians(self.shear)).tan()
        size = 1 / (1 + size * self.scale)
        cos = size * turn.cos()
        sin = size * turn.sin()
        # from a pixel of the view to its source, in the units of grid_sample: half a width and half a height are 1
        to_x = cos, (cos * slant - sin) * (height / width), across * self.shift * 2 / width
        to_y = sin * (width / height), cos + sin * slant, down * self.shift * 2 / height
        maps = torch.stack([torch.stack(to_x, 1), torch.stack(to_y, 1)], 1)  # [n, 2, 3]
        grid = functional.affine_grid(maps, list(images.shape), align_corners=False)
        return functional.grid_sample(images, grid, align_corners=False)


@dataclass(frozen=True)
class Each(Transform):
    """A transform that calls a function of one example's input for each view, with newly seeded global generators.

    Args:
        function: The function, such as a transform of `torchvision.transforms.v2`. Its argument is a copy on the CPU.
    """

    function: Function
    draws = 1

    def views(self, inputs: Nested, uniform: Tensor) -> Nested:
        """See `Transform`.

        Raises:
            DataError: If a view has another shape, or the function fails.
        """
        device = first_leaf(inputs).device
        rows = map_tree(Tensor.cpu, inputs)
        views = list[Nested]()
        with global_generators() as seed:
            for row, number in enumerate((uniform[:, 0] * 2**53).long().tolist()):
                seed(number)
                views.append(self._view(map_tree(lambda values, row=row: values[row].clone(), rows)))
        return map_tree(lambda *values: torch.stack(values).to(device), *views)

    def _view(self, example: Nested) -> Nested:
        try:
            view = self.function(example)
        except Exception as error:  # a user's function can raise anything
            raise DataError(
                f"augmentation raises on an example ({summarize_error(error)}): correct the function"
            ) from error
        if _shape_in_words(view) != _shape_in_words(example):
            difference = f"augmentation returns {_shape_in_words(view)} for {_shape_in_words(example)}"
            raise DataError(
                f"{difference}: a view must keep the shape and type of its example, since the model and the test data "
                "have these too"
            )
        return cast("Nested", view)


@validate_arguments("augmentation")
@dataclass(frozen=True)
class Augmentation:
    """Random views of the examples of a client, redrawn whenever an example is used. Test data are never augmented.

    Args:
        transforms: Transforms of an example's input, applied in order: `Flip`, `Crop`, `Affine`, another `Transform`,
            or a function of one input, such as `torchvision.transforms.v2` has, that draws from torch's, NumPy's
            or Python's global generator. They must keep shape and type. None by default.
        multiplicity: Number of views of each example, 1 by default; the mean of their gradients is clipped once. The
            time of a batch is proportional to this number.

    Guarantee: an example changes its client's sum by at most the clip bound, as without augmentation, and does not
    change the views of other examples. The views in a private run are drawn from the same secret as the run's noise.

    Raises:
        ConfigError: If an argument has another type.

    Examples:
        >>> import fedpriv
        >>> views = fedpriv.Augmentation([fedpriv.Flip(), fedpriv.Crop(padding=4)], multiplicity=4)
        >>> views.draws
        3
    """

    transforms: Sequence[Transform | Function] = ()
    multiplicity: Count = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", tuple(self.transforms))
        for transform in self.transforms:
            if not (isinstance(transform, Transform) or callable(transform)) or isinstance(transform, type):
                fix = "must be an object such as Flip(), or a function of the input of one example"
                raise ConfigError("augmentation.transforms", transform, fix)

    @cached_property
    def steps(self) -> tuple[Transform, ...]:
        """The transforms; functions are wrapped in `Each`."""
        return tuple(step if isinstance(step, Transform) else Each(step) for step in self.transforms)

    @property
    def draws(self) -> int:
        """Number of random numbers that a view takes."""
        return sum(step.draws for step in self.steps)

    def views(self, inputs: Nested, uniform: Tensor) -> Nested:
        """Returns a view of each row, `[n, ...] -> [n, ...]`, that is determined by the row's random numbers `[n,
        draws]`.
        """
        if not self.steps:
            return inputs
        widths = [step.draws for step in self.steps]
        for step, numbers in zip(self.steps, uniform.split(widths, 1), strict=True):
            inputs = step.views(inputs, numbers)
        return inputs

    def try_out(self, inputs: Nested) -> None:
        """Raises an error if a transform does not fit inputs of these shapes and types, `[n, ...]`; the values are not
        used.

        Raises:
            ConfigError: If the transforms fail on synthetic numbers, or change their shape or type.
        """
        made_up = map_tree(lambda like: torch.full_like(like[:1], 0.5 if like.is_floating_point() else 0), inputs)
        names = ", ".join(type(step).__name__ for step in self.steps)
        try:
            views = self.views(made_up, torch.full((1, self.draws), 0.5, device=first_leaf(made_up).device).double())
        except DataError as error:
            raise ConfigError("augmentation.transforms", names, str(error)) from error
        if _shape_in_words(views) != _shape_in_words(made_up):
            change = f"{_shape_in_words(made_up)} into {_shape_in_words(views)}"
            fix = f"turn {change}, but views must keep the shape and type of their examples: change the transforms"
            raise ConfigError("augmentation.transforms", names, fix)


def _images(inputs: Nested, name: str) -> Tensor:
    """Returns the inputs if they are images `[n, c, h, w]`; raises for others, with the name of the transform."""
    images = first_leaf(inputs)
    if len(list_leaves(inputs)) != 1 or images.dim() != 4 or not images.is_floating_point():
        mismatch = f"needs images [c, h, w], but an input is {_shape_in_words(inputs, 1)}"
        raise ConfigError(
            "augment", name, f"{mismatch}: leave out data.flat, or use your own function instead of this transform"
        )
    return images


def _shape_in_words(value: object, skip: int = 0) -> str:
    """Formats the nesting, shapes and types of a tree, without its first `skip` dimensions."""
    tree = cast("Nested", value)
    shapes = [f"{tuple(leaf.shape[skip:])} {str(leaf.dtype).removeprefix('torch.')}" for leaf in list_leaves(tree)]
    if len(shapes) == 1 and isinstance(value, Tensor):
        return shapes[0]
    if shapes:
        return f"{format_structure(tree)} of {', '.join(shapes)}"
    return f"a {type(value).__name__} without tensors"


AUGMENTATIONS = Registry(
    {
        "flip": RegistryEntry(Flip, "images left to right"),
        "crop": RegistryEntry(Crop, "images padded with zeros and cropped at a random position"),
        "affine": RegistryEntry(Affine, "images rotated, shifted, scaled and sheared"),
    },
    (Transform,),
    "fedpriv.augmentations",
)
