"""The noise in a round's mean if sites are unexpectedly absent, and the best ratio of pair noise in that case.

If a site is absent after the others have sent their messages, the noise of its pairs remains in the mean. With a larger
ratio of pair noise to individual noise each site is better hidden, but an absence costs more
(docs/design/0013-dropouts.md).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import binom

from fedpriv.privacy.accounting import compute_complete_exposure

RATIOS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
"""The ratios that are compared."""


def compute_noise_with_absences(n_sites: int, ratio: float, colluders: int, absent: float) -> float:
    """Returns the deviation of the noise in a round's mean, relative to local noise at the same privacy cost.

    All pairs share noise. Each site is absent with the same probability, independently and unannounced; a round without
    any reply does not count. The value is the root mean square over rounds.

    Args:
        n_sites: Number of sites.
        ratio: Deviation of a pair's noise over the deviation of a site's individual noise.
        colluders: Number of colluders for which the privacy cost is computed.
        absent: Probability that a site is absent from a round.
    """
    n_absent = np.arange(n_sites)
    probability = binom.pmf(n_absent, n_sites, absent)
    n_present = n_sites - n_absent
    own_variance = compute_complete_exposure(n_sites, ratio, colluders)  # local noise has 1
    # each present site has its individual noise, and the noise of its pairs with absent sites
    variance = own_variance * (1 + n_absent * ratio**2) / n_present
    expected = float((probability * variance).sum() / probability.sum())
    return math.sqrt(expected * n_sites)


def find_best_ratio(n_sites: int, colluders: int, absent: float) -> float:
    """Returns the ratio in `RATIOS` with the least noise in the mean.

    See `compute_noise_with_absences` for the arguments.
    """
    return min(RATIOS, key=lambda ratio: compute_noise_with_absences(n_sites, ratio, colluders, absent))
