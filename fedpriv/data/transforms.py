"""Fixed functions of single images. None is fitted to data, so they have no privacy cost.

They help private training more than other training. The noise is equal in all directions, so with short feature
vectors, and with per-example gradients of similar norms, less noise is needed for the same epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.data.dead_leaves import dead_leaves
from fedpriv.data.patches import patches
from fedpriv.data.scattering import CHANNELS, scattering, wavelets
from fedpriv.data.whitening import DRAWN, Whitening
from fedpriv.errors import ConfigError
from fedpriv.settings import suggest_nearest

_AT_ONCE = 4096  # images
_DRAWN_AT_ONCE = 200  # images for which the leaves are drawn in a cache
_PRODUCTS = 4000
_SPREAD = 0.18  # of an image's height: ink then fills about two thirds of it
_PIXEL = 1 / 12  # variance of a position within a pixel
TransformName = Literal[
    "center",
    "unit",
    "bandpass",
    "edges",
    "deskew",
    "size_norm",
    "scattering",
    "wavelets",
    "group_norm",
    "contrast",
    "products",
    "patches",
    "whiten",
]


def center(images: Tensor) -> Tensor:
    """Subtracts each image's own mean: `[n, c, h, w] -> [n, c, h, w]`."""
    return images - images.mean((1, 2, 3), keepdim=True)


def unit(images: Tensor) -> Tensor:
    """Scales each image to l2 norm 1; a blank one stays zero: `[n, c, h, w] -> [n, c, h, w]`."""
    norms = torch.linalg.vector_norm(images, dim=(1, 2, 3), keepdim=True)
    return images / norms.clamp_min(torch.finfo(images.dtype).tiny)


def bandpass(images: Tensor) -> Tensor:
    """Keeps the middle frequencies, at half the resolution: `[n, c, h, w] -> [n, c, h // 2, w // 2]`.

    The lower half of the orthonormal DCT-II coefficients in each axis, with the gain
    `exp(-f^2 / (2 s^2)) (f^2 / (f^2 + b^2))^(3/4)` at frequency f, where s and b are a quarter and 2/7 of the image's
    height. The gain whitens the 1/f spectrum of smooth images and removes their mean brightness.
    """
    height, width = images.shape[-2:]
    rows = _cosines(height).to(images)
    columns = _cosines(width).to(images)
    square = (torch.arange(len(rows))[:, None] ** 2 + torch.arange(len(columns))[None] ** 2).to(images)
    fall = torch.exp(-square / (2 * (height / 4) ** 2))
    rise = (square / (square + (2 * height / 7) ** 2)) ** 0.75
    return torch.einsum("ka,ncab,lb->nckl", rows, images, columns) * (fall * rise)


def edges(images: Tensor) -> Tensor:
    """Computes edge strengths in eight directions per cell of 4 x 4 pixels: `[n, c, h, w] -> [n, 8c, h/4, w/4]`.

    The length of the Sobel gradient is divided between the two nearest of eight directions modulo pi and averaged over
    the cell; its square root keeps strong edges from hiding weak ones. Use `center` and `unit` after it.

    Raises:
        ConfigError: If an image is smaller than a cell.

    Source: Dalal and Triggs (2005), histograms of oriented gradients; the root is Arandjelovic and Zisserman's (2012).
    """
    if min(images.shape[-2:]) < 4:
        raise ConfigError(
            "data.transforms",
            "edges",
            f"needs at least 4 pixels per side, but images are {images.shape[-2]} x {images.shape[-1]}: leave it out",
        )
    n, channels, height, width = images.shape
    sobel = images.new_tensor([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
    single = functional.pad(images.reshape(-1, 1, height, width), (1, 1, 1, 1), mode="replicate")  # -> [n c, 1, h, w]
    across, down = functional.conv2d(single, torch.stack([sobel, sobel.T])[:, None]).split(1, 1)
    directions = torch.arange(8).to(images)[:, None, None]
    turns = torch.atan2(down, across) * 8 / torch.pi - directions  # [n c, 8, h, w], in eighths of pi
    near = (1 - ((turns + 4) % 8 - 4).abs()).clamp_min(0)
    cells = functional.avg_pool2d((across**2 + down**2).sqrt() * near, 4)
    return cells.sqrt().reshape(n, 8 * channels, *cells.shape[-2:])  # [n c, 8, h/4, w/4]


def deskew(images: Tensor) -> Tensor:
    """Centres each image and makes it upright, by a shear from its own second moments: `[n, c, h, w] -> [n, c, h, w]`.

    Source: LeCun, Bottou, Bengio, Haffner (1998), in which digits are deskewed for a linear classifier.
    """
    ink = _Ink.of(images)
    spread = ink.mean_y2
    shear = torch.where(spread > 0, ink.mean_xy / spread.clamp_min(1e-12), 0 * spread)
    source_x = ink.middle_x + ink.x + shear * ink.y
    source_y = ink.middle_y + ink.y
    return _resampled(images, source_x, source_y)


def size_norm(images: Tensor) -> Tensor:
    """Centres each image and scales its ink to one size, by its own second moments: `[n, c, h, w] -> [n, c, h, w]`.

    The root mean square distance of the ink from its middle, over both axes, becomes 0.18 of the image's height. A tall
    or wide shape is also brought half of the way (in logarithms) to equal spreads along both axes. An image without ink
    stays blank. Small shapes are interpolated between their pixels; the original size is lost. Put `deskew` before it.

    Source: Casey (1970), moment normalization of handprinted characters.
    """
    ink = _Ink.of(images)
    # ink in one row, or one pixel, is as thick as a pixel
    spread_x = (ink.mean_x2 + _PIXEL).sqrt()
    spread_y = (ink.mean_y2 + _PIXEL).sqrt()
    both = ((ink.mean_x2 + ink.mean_y2) / 2 + _PIXEL).sqrt()
    scale = both / (_SPREAD * images.shape[2])
    source_x = ink.middle_x + ink.x * scale * (spread_x / both).sqrt()
    source_y = ink.middle_y + ink.y * scale * (spread_y / both).sqrt()
    return _resampled(images, source_x, source_y)


def group_norm(images: Tensor) -> Tensor:
    """Scales groups of three channels of each image to mean 0 and variance 1: `[n, c, h, w] -> [n, c, h, w]`.

    Raises:
        ConfigError: If the number of channels is not divisible by three, as it is for `scattering`.

    Source: Tramèr and Boneh (2021), who normalise scattering coefficients this way without noise.
    """
    if images.shape[1] % 3:
        raise ConfigError(
            "data.transforms",
            "group_norm",
            f"needs a number of channels that is a multiple of 3, but images have {images.shape[1]}: leave it out",
        )
    return functional.group_norm(images, images.shape[1] // 3)


def contrast(images: Tensor) -> Tensor:
    """Computes the contrast between eight directions at each position: `[n, 8 k, h, w] -> [n, 8 k, h, w]`.

    For each position, the mean of its eight numbers, one per direction, is subtracted, and the result is divided by the
    root of its root mean square. The mean over directions shows the position of ink, which is similar in most images,
    and the root keeps strong edges from hiding weak ones. For the channels of `scattering`, `[n, 81 c, h, w] -> [n, 80
    c, h, w]`, the first has no direction and is omitted.

    Raises:
        ConfigError: If the channels do not come from `scattering`, `wavelets` or `edges`.

    Source: local contrast normalisation of Jarrett, Kavukcuoglu, Ranzato and LeCun (2009), here over directions alone;
    the root is Arandjelovic and Zisserman's (2012).
    """
    if images.shape[1] % CHANNELS == 0:
        images = images.unflatten(1, (-1, CHANNELS))[:, :, 1:].flatten(1, 2)
    if images.shape[1] % 8:
        fix = (
            f"needs the channels that scattering, wavelets or edges produce, but images have {images.shape[1]} "
            "channels: put it after one of these transforms"
        )
        raise ConfigError("data.transforms", "contrast", fix)
    directions = images.unflatten(1, (-1, 8))
    differences = directions - directions.mean(2, keepdim=True)
    spread = differences.square().mean(2, keepdim=True).sqrt()
    return (differences / spread.clamp_min(1e-6).sqrt()).flatten(1, 2)  # rounding errors of a blank position stay small


def products(images: Tensor) -> Tensor:
    """Computes 4000 products of two random sums of an image's numbers: `[n, c, h, w] -> [n, 4000, 1, 1]`.

    The signs in the sums are the same for all images and runs. The inner product of two results is, up to sampling, the
    squared inner product of the images: a linear model on them is quadratic in the image. Use `unit` after it.

    Source: Kar and Karnick (2012), random feature maps for dot product kernels.
    """
    flat = images.flatten(1)
    generator = torch.Generator().manual_seed(0)
    shape = (flat.shape[1], _PRODUCTS)

    def random_sums() -> Tensor:
        signs = 2 * torch.randint(2, shape, generator=generator, dtype=torch.int8) - 1
        return flat @ signs.to(flat)

    return (random_sums() * random_sums() / math.sqrt(_PRODUCTS))[:, :, None, None]


def apply(images: Tensor, names: Sequence[TransformName]) -> Tensor:
    """Applies the transforms with these names, in order: `[n, c, h, w] -> [n, c', h', w']`.

    `whiten` uses the statistics of the preceding transforms on drawn images of the same shape, so it depends on them;
    like all others, it maps one image at a time.

    Raises:
        ConfigError: If a name is unknown.
    """
    for name in names:
        if name not in TRANSFORMS and name != "whiten":
            raise ConfigError("data.transforms", name, f"unknown{suggest_nearest(name, [*TRANSFORMS, 'whiten'])}")
    if not names:
        return images
    channels, height, width = images.shape[1:]
    steps: list[Callable[[Tensor], Tensor]] = []
    for index, name in enumerate(names):
        if name == "whiten":
            steps.append(_whitening(tuple(names[:index]), (channels, height, width)))
        else:
            steps.append(TRANSFORMS[name])
    # in blocks, so that intermediate results are in memory for some images at a time
    return torch.cat([reduce(lambda x, step: step(x), steps, block) for block in images.split(_AT_ONCE)])


def list_reshaping_transforms(names: Sequence[TransformName]) -> list[TransformName]:
    """Returns the transforms that can change a shape: all but `whiten`, with statistics that take minutes."""
    return [name for name in names if name != "whiten"]


@lru_cache(maxsize=1)  # a map of 4608 numbers an image has 85 MB
def _whitening(names: tuple[TransformName, ...], shape: tuple[int, int, int]) -> Whitening:
    """Returns the map that whitens the results of these transforms on drawn images of this shape."""
    generator = torch.Generator().manual_seed(1)  # other images than the ones for the filters
    blocks = [min(_DRAWN_AT_ONCE, DRAWN - start) for start in range(0, DRAWN, _DRAWN_AT_ONCE)]
    return Whitening.of(torch.cat([apply(dead_leaves(n, shape, generator), names) for n in blocks]))


TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "center": center,
    "unit": unit,
    "bandpass": bandpass,
    "edges": edges,
    "deskew": deskew,
    "size_norm": size_norm,
    "scattering": scattering,
    "wavelets": wavelets,
    "group_norm": group_norm,
    "contrast": contrast,
    "products": products,
    "patches": patches,
}
"""Functions of single images that depend on nothing else; `whiten` depends on the transforms before it."""


@dataclass(frozen=True)
class _Ink:
    """The position of the ink of each image, summed over channels; for an image without ink, the image's middle.

    Attributes:
        x: Columns from the image's middle, `[1, w]`.
        y: Rows from the image's middle, `[h, 1]`.
        middle_x: Mean of `x` over the ink, `[n, 1, 1]`.
        middle_y: Mean of `y` over the ink, `[n, 1, 1]`.
        mean_x2: Variance of `x` over the ink, `[n, 1, 1]`.
        mean_y2: Variance of `y` over the ink, `[n, 1, 1]`.
        mean_xy: Their covariance, `[n, 1, 1]`.
    """

    x: Tensor
    y: Tensor
    middle_x: Tensor
    middle_y: Tensor
    mean_x2: Tensor
    mean_y2: Tensor
    mean_xy: Tensor

    @classmethod
    def of(cls, images: Tensor) -> _Ink:
        """Computes the moments of `images [n, c, h, w]`."""
        height, width = images.shape[-2:]
        y = torch.arange(height).to(images)[:, None] - (height - 1) / 2
        x = torch.arange(width).to(images)[None] - (width - 1) / 2
        ink = images.abs().sum(1)
        mass = ink.sum((1, 2), keepdim=True).clamp_min(torch.finfo(images.dtype).tiny)

        def mean(values: Tensor) -> Tensor:
            return (ink * values).sum((1, 2), keepdim=True) / mass

        middle_x = mean(x)
        middle_y = mean(y)
        from_x = x - middle_x
        from_y = y - middle_y
        return cls(x, y, middle_x, middle_y, mean(from_x**2), mean(from_y**2), mean(from_x * from_y))


def _resampled(images: Tensor, source_x: Tensor, source_y: Tensor) -> Tensor:
    """Reads each pixel at a position of its image, relative to the image's middle: both broadcast to `[n, h, w]`."""
    height, width = images.shape[-2:]
    shape = (len(images), height, width)
    # grid_sample expects (x, y) in [-1, 1] from the first pixel's centre to the last's
    across = (source_x * 2 / max(width - 1, 1)).expand(shape)
    down = (source_y * 2 / max(height - 1, 1)).expand(shape)
    return functional.grid_sample(images, torch.stack([across, down], -1), align_corners=True)


def _cosines(length: int) -> Tensor:
    """Returns the lower half of the DCT-II basis, `[length // 2, length]`."""
    from scipy.fft import dct  # slow to import, and only needed here

    basis = dct(torch.eye(length, dtype=torch.float64).numpy(), axis=0, norm="ortho")
    return torch.as_tensor(basis)[: length // 2]
