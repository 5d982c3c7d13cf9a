"""Gaussian and Laplace noise, and the only function that adds noise to a bounded sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedpriv.distributed import threads
from fedpriv.distributed.devices import move_to_device
from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.privacy.clipping import NormName
from fedpriv.privacy.exact_over_time import CorrelatedRows, PairNoise, UnitNoise
from fedpriv.privacy.exact_rounding import COARSE_GRID_BITS, FINE_GRID_BITS, add_and_round
from fedpriv.privacy.inverse_column import inverse_column
from fedpriv.privacy.ledger import Release
from fedpriv.privacy.noise_history import NoiseHistory
from fedpriv.privacy.real_noise import GaussianRows, LaplaceRows, LaplaceSumRows, RealNoise, SumOfNoise
from fedpriv.privacy.record import NoiseDistributionName, Record
from fedpriv.randomness.rows import laplace_rows, laplace_sum_rows, may_draw, normal_rows
from fedpriv.randomness.streams import Randomness
from fedpriv.settings.checks import validate_arguments


class Mechanism(Protocol):
    """A distribution of noise, at scale 1."""

    @property
    def name(self) -> NoiseDistributionName:
        """The name in ledger records."""
        ...

    @property
    def deviation(self) -> float:
        """Standard deviation of noise of scale 1."""
        ...

    def draw(self, keys: Tensor, dim: int, amount: float = 1.0) -> Tensor:
        """Returns unit noise, one row for each key: `[k, dim]` in float64, on the device of the keys.

        Args:
            keys: Keys of the rows' random streams, `[k, 8]`, from `Randomness.keys`; on the CPU for an amount other
                than 1.
            dim: Number of draws in a row.
            amount: Number of independent copies of the noise that are summed, at least 1; it may be fractional. With
                secure aggregation it is the number of participants divided by `min_honest`, because additional
                participants add additional noise.
        """
        ...


EVERYBODY = -1
"""Replaces the client's index if noise is added to a sum over clients, and not to the row of one client."""

_IN_CACHE, _ON_DEVICE = 2**15, 2**23  # numbers that get noise at once, on the CPU and on other devices
_FLOAT32 = 2**17  # the same on the CPU for independent normal noise, most of which needs float32 only
_OVER_TIME = 2**16  # the same on the CPU for correlated noise, where each block takes more steps


@validate_arguments("privacy.mechanism")
@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise, the default; its scale is the standard deviation. Use it with an l2 clip.

    Examples:
        >>> import fedpriv
        >>> fedpriv.Privacy(epsilon=1.0, mechanism=fedpriv.Gaussian()).mechanism.name
        'gaussian'
    """

    @property
    def name(self) -> NoiseDistributionName:
        """`"gaussian"`."""
        return "gaussian"

    @property
    def deviation(self) -> float:
        """1: the scale is the standard deviation."""
        return 1.0

    def draw(self, keys: Tensor, dim: int, amount: float = 1.0) -> Tensor:
        """Returns normal draws of variance `amount`, on a device. On a CPU, `GaussianRows` is used instead, which draws
        real numbers.
        """
        return normal_rows(keys, dim).mul_(math.sqrt(amount))


@validate_arguments("privacy.mechanism")
@dataclass(frozen=True)
class Laplace:
    """Laplace noise of density `exp(-|x| / b) / 2b`; its scale is b. Use it with an l1 clip; delta may then be 0.

    Examples:
        >>> import fedpriv
        >>> clip = fedpriv.Clip(1.0, norm="l1")
        >>> fedpriv.Privacy(epsilon=1.0, delta=0, clip=clip, mechanism=fedpriv.Laplace()).mechanism.name
        'laplace'
    """

    @property
    def name(self) -> NoiseDistributionName:
        """`"laplace"`."""
        return "laplace"

    @property
    def deviation(self) -> float:
        """`sqrt(2)`."""
        return math.sqrt(2)

    def draw(self, keys: Tensor, dim: int, amount: float = 1.0) -> Tensor:
        """Returns differences of two Gamma(amount) draws, which are Laplace draws for amount 1."""
        if amount == 1:
            return laplace_rows(keys, dim)
        return laplace_sum_rows(keys, dim, amount)


@dataclass(frozen=True)
class NoiseDistribution:
    """The properties of a named noise distribution. The privacy cost of noise is determined by this name.

    Attributes:
        mechanism: Draws the noise.
        norm: Norm of the clip that suits the noise.
        pure: True if the noise has a finite epsilon at delta 0, under that norm.
        within_95: Number of standard deviations that contain at least 95 % of draws, and at least 95 % of means of
            several draws.
    """

    mechanism: Mechanism
    norm: NormName
    pure: bool
    within_95: float


NOISE_DISTRIBUTIONS: dict[NoiseDistributionName, NoiseDistribution] = {
    "gaussian": NoiseDistribution(Gaussian(), "l2", pure=False, within_95=1.959964),
    "laplace": NoiseDistribution(Laplace(), "l1", pure=True, within_95=2.118338),
}
MECHANISMS: dict[str, Mechanism] = {name: law.mechanism for name, law in NOISE_DISTRIBUTIONS.items()}


def is_rounded_exactly(mechanism: Mechanism, device: torch.device, past: NoiseHistory | None) -> bool:
    """True if the noise is known as real numbers, so that sums with it are rounded exactly.

    False for subclasses of `Gaussian` and `Laplace`, which may draw other noise. Noise that is correlated between
    rounds must be Gaussian.
    """
    is_known = type(mechanism) is Gaussian or (type(mechanism) is Laplace and past is None)
    return is_known and device.type == "cpu"


def real_noise(
    mechanism: Mechanism, keys: Sequence[bytes], scales: Sequence[float], dim: int, amount: float
) -> RealNoise:
    """Returns the individual noise of rows as real numbers, for mechanisms that are rounded exactly."""
    if type(mechanism) is Laplace and amount == 1:
        return LaplaceRows(keys, list(scales), dim)
    if type(mechanism) is Laplace:
        # a quotient is rounded: the shares of min_honest participants are one whole draw, or a little more
        return LaplaceSumRows(keys, list(scales), dim, math.nextafter(amount, math.inf))
    return GaussianRows(keys, [scale * math.sqrt(amount) for scale in scales], dim)


def _check_rows(count: int, scales: Sequence[float], clients: Sequence[int]) -> None:
    """Raises an error if rows have no valid noise scale, or if two rows belong to the same client and would have the
    same noise.

    Raises:
        ConfigError: If a scale is not positive and finite.
        PrivacyError: If rows would share noise.
    """
    if not all(0 < scale < math.inf for scale in scales):
        raise ConfigError(
            "noise scale", min(scales), "must be positive and finite; for no noise, set privacy.noise_on to 'none'"
        )
    if not len(set(clients)) == len(clients) == len(scales) == count:
        raise PrivacyError(
            f"{count} rows have {len(scales)} noise scales and the clients {list(clients)}: each row needs one noise "
            "scale and one client of its own"
        )


def add_noise(
    bounded: Tensor,
    scales: Sequence[float],
    mechanism: Mechanism,
    record: Record,
    randomness: Randomness,
    clients: Sequence[int],
    amount: float = 1.0,
    past: NoiseHistory | None = None,
    pair_noise: PairNoise | None = None,
) -> Release:
    """Adds noise to sums of bounded sensitivity.

    Args:
        bounded: Sums of clipped contributions, `[k, dim]`.
        scales: Noise scale of each row, in the units of `bounded`.
        mechanism: Distribution of the noise.
        record: The ledger record of this release; its noise multiplier must belong to `scales`.
        randomness: The run's random streams.
        clients: Index of each row's client in the run, or `EVERYBODY` for a sum over clients.
        amount: Number of copies of the noise that are summed; see `Mechanism.draw`.
        past: Computes correlated noise from the unit noise of this round and of earlier rounds; None if the noise of
            rounds is independent.
        pair_noise: Noise that pairs of clients share. It is added to each row's individual noise and, with `past`,
            filtered together with it; all clients use the same filter, so noise that cancels in a round's sum still
            cancels. All rows with such noise have the same scale.

    Returns:
        The noised rows, in float64, as a `Release` that only a ledger opens.

    Raises:
        ConfigError: If a scale is not positive and finite.
        PrivacyError: If rows would share noise.

    The result is rounded to multiples of about `2**-8` times the scale of independent normal noise, and of about
    `2**-20` times the scale of other noise: the low bits of noise drawn in floating point can reveal the value under it
    (Mironov, 2012). Where `is_rounded_exactly`, the real sum is rounded (`exact_rounding`). Otherwise the float64 sum
    is rounded, which reduces this risk but is not proved to remove it.
    """
    count, dim = bounded.shape
    _check_rows(count, scales, clients)
    is_independent = isinstance(mechanism, Gaussian) and past is None and pair_noise is None
    grid_bits = COARSE_GRID_BITS if is_independent else FINE_GRID_BITS
    grids = [2.0 ** (math.ceil(math.log2(scale)) - grid_bits) for scale in scales]
    if pair_noise is not None and len(set(scales)) > 1:
        raise PrivacyError(
            f"the noise scales {sorted(set(scales))} must be equal, because both clients of a pair add the same "
            "noise; use one scale"
        )
    is_exact = is_rounded_exactly(mechanism, bounded.device, past)
    if is_exact and past is not None:
        unit = UnitNoise(randomness, record.index, clients, dim, pair_noise)
        noised = _rounded_exactly_over_time(bounded, scales, grids, record, unit, amount, past)
    elif is_exact:
        keys = randomness.key_bytes("noise", record.round, record.index, clients)
        noise = real_noise(mechanism, keys, scales, dim, amount)
        shared = None if pair_noise is None else pair_noise(record.round, clients)
        if shared is not None:
            shared = shared.times(scales[0])
            _ = shared.rows  # drawn here, and not by several threads at once
            noise = SumOfNoise(noise, shared)
        noised = _rounded_exactly(bounded, noise, grids, _FLOAT32 if is_independent else _IN_CACHE)
    else:
        noised = _rounded_in_float64(
            bounded, scales, grids, mechanism, record, randomness, clients, amount, past, pair_noise
        )
    if (record.mechanism, record.attempt) != (mechanism.name, randomness.attempt):
        record = replace(record, mechanism=mechanism.name, attempt=randomness.attempt)
    return Release(record, noised)


def _rounded_in_float64(
    bounded: Tensor,
    scales: Sequence[float],
    grids: Sequence[float],
    mechanism: Mechanism,
    record: Record,
    randomness: Randomness,
    clients: Sequence[int],
    amount: float,
    past: NoiseHistory | None,
    pair_noise: PairNoise | None,
) -> Tensor:
    """Returns sums with noise, drawn and added in float64 on their device, and rounded to their grids."""
    count, dim = bounded.shape
    keys = randomness.keys("noise", record.round, record.index, clients)
    scales_and_grids = torch.tensor([scales, grids], dtype=torch.float64).T
    draws_on_device = amount == 1 and may_draw(bounded.device)
    if draws_on_device:
        keys, scales_and_grids = move_to_device(bounded.device, keys, scales_and_grids)
    else:
        (scales_and_grids,) = move_to_device(bounded.device, scales_and_grids)
    noised = torch.empty_like(bounded, dtype=torch.float64)
    blocks = _blocks(count, dim, _IN_CACHE if bounded.device.type == "cpu" else _ON_DEVICE)

    def draw_unit(keys: Tensor, rows: slice) -> Tensor:
        unit = mechanism.draw(keys[rows], dim, amount)
        if unit.shape != noised[rows].shape:
            raise PrivacyError(
                f"the mechanism {mechanism.name} returned noise of shape {tuple(unit.shape)}: it must return one row "
                f"for each key, shape {tuple(noised[rows].shape)}"
            )
        if unit.device == bounded.device:
            return unit
        return move_to_device(bounded.device, unit)[0]

    def shared_in(round_index: int) -> Tensor | None:
        noise = None if pair_noise is None else pair_noise(round_index, clients)
        if noise is None:
            return None
        return noise.in_float64().to(bounded.device)

    def filtered(keys: Tensor, rows: slice, round_index: int, shared_noise: Tensor | None) -> Tensor:
        unit = draw_unit(keys, rows)
        if shared_noise is not None:
            unit.add_(shared_noise[rows])
        if past is None:
            return unit
        return past.filtered(unit, rows, round_index)

    def add(rows: slice) -> None:
        unit = filtered(keys, rows, record.round, current_shared_noise)
        scale, grid = scales_and_grids[rows].split(1, 1)
        exact = (unit * scale).add_(bounded[rows])
        noised[rows] = exact.div_(grid).round_().mul_(grid)

    if past is not None:
        past.begin(record.round, count, dim, bounded.device)
    current_shared_noise = shared_in(record.round)
    if bounded.device.type == "cpu":
        threads.map_in_threads(lambda _, rows: add(rows), blocks)
    else:
        for rows in blocks:
            add(rows)
    if past is not None:
        past.finish(record.round)
    return noised


def _rounded_exactly_over_time(
    bounded: Tensor,
    scales: Sequence[float],
    grids: Sequence[float],
    record: Record,
    unit: UnitNoise,
    amount: float,
    past: NoiseHistory,
) -> Tensor:
    """Returns sums with noise that is correlated between rounds, rounded to their grids as real numbers."""
    count, dim = bounded.shape
    column = inverse_column(past.factor)
    column.absolute_sum(record.round + 1)  # here, and not by several threads at once
    all_scales = [scale * math.sqrt(amount) for scale in scales]

    past.begin(record.round, count, dim, bounded.device)
    noise = CorrelatedRows(past, column, unit, record.round, all_scales)
    _ = noise.new  # as above
    noised = _rounded_exactly(bounded, noise, grids, _OVER_TIME)
    past.finish(record.round)
    return noised


def _blocks(count: int, dim: int, numbers: int) -> list[slice]:
    """Returns slices of rows with about this number of entries."""
    height = max(numbers // max(dim, 1), 1)
    return [slice(top, min(top + height, count)) for top in range(0, count, height)]


def _rounded_exactly(bounded: Tensor, noise: RealNoise, grids: Sequence[float], numbers_at_once: int) -> Tensor:
    """Returns sums with noise, rounded to their grids as real numbers, `[k, dim]` in float64 on the processor."""
    count, dim = bounded.shape
    noised = torch.empty(count, dim, dtype=torch.float64)
    column_of_grids = np.array(grids)[:, None]

    sums = bounded.detach()
    result = noised.numpy()

    def add(_: int, rows: slice) -> None:
        add_and_round(sums[rows].double().numpy(), noise, rows, column_of_grids[rows], result[rows])

    threads.map_in_threads(add, _blocks(count, dim, numbers_at_once))
    return noised
