"""Which noise is added in float64 and then rounded to a grid, instead of being rounded as a real number.

Its price is that of real numbers. That the lowest bits show nothing about the values is argued, not proved
(docs/design/0012-exact-noise.md), so epsilon is printed with ``rounding=float64``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedpriv.privacy.mechanisms import Gaussian, Laplace

if TYPE_CHECKING:
    import torch

    from fedpriv.privacy.record import Record
    from fedpriv.privacy.settings import Privacy


def float64_noise(records: Iterable[Record]) -> tuple[str, ...]:
    """Returns the kinds of noise in these records that are added in float64, in words; none if all is rounded exactly.

    Where the noise was drawn, and by whose code, stands in no record: see `float64_noise_of_run`.
    """
    kinds = dict[str, None]()
    for record in records:
        if record.mechanism == "none":
            continue
        if record.time is not None and record.pairs is not None and record.pairs.ratio:
            kinds["noise over time with noise of pairs"] = None
        if record.pairs is not None and record.pairs.ratio and "simulated" in record.trust:
            kinds["simulated noise of pairs"] = None
    return tuple(kinds)


def float64_noise_of_run(privacy: Privacy, device: torch.device) -> tuple[str, ...]:
    """Returns what makes all noise of a run float64 noise and stands in no record: a device, or code of a user."""
    kinds = list[str]()
    if not privacy.private:
        return ()
    if device.type != "cpu":
        kinds.append(f"noise on a device ({device.type})")
    if type(privacy.mechanism) not in (Gaussian, Laplace):
        kinds.append("noise of an own mechanism")
    return tuple(kinds)
