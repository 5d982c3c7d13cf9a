"""Noise that is added in float64 and then rounded to a grid, instead of being rounded as a real number.

The cost of such noise is computed for real numbers. There is an argument, but no proof, that the lowest bits reveal
nothing about the values (docs/design/0012-exact-noise.md), so epsilon is printed with ``rounding=float64``. The header
of a ledger, and not its records, contains the device and the code that drew the noise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpriv.privacy.mechanisms import Gaussian, Laplace

if TYPE_CHECKING:
    import torch

    from fedpriv.privacy.settings import Privacy


def float64_noise_of_run(privacy: Privacy, device: torch.device) -> tuple[str, ...]:
    """Returns the reason why all noise of a run is float64 noise, in words; it is a device or custom code."""
    kinds = list[str]()
    if not privacy.private:
        return ()
    if device.type != "cpu":
        kinds.append(f"noise on a device ({device.type})")
    if type(privacy.mechanism) not in (Gaussian, Laplace):
        kinds.append("noise of an own mechanism")
    return tuple(kinds)
