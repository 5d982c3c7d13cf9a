"""How much noise stays in a round's mean if sites are absent that nobody expected to be, and which ratio is then best.

A site that is absent after the others have sent leaves the noise of its pairs in their mean. The larger the ratio of
that noise to a site's own, the better each site is hidden, and the more an absence costs
(docs/design/0013-dropouts.md).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import binom

from fedpriv.privacy.accounting import complete

RATIOS = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
"""The ratios that are compared."""


def noise_with_absences(n_sites: int, ratio: float, colluders: int, absent: float) -> float:
    """Returns the deviation of the noise in a round's mean, as a share of that of local noise at the same price.

    All pairs share noise. Each site is absent with the same probability, independently, and unannounced; a round in
    which nobody answers does not count. The value is the root mean square over rounds.

    Args:
        n_sites: Number of sites.
        ratio: Deviation of a pair's noise over that of a site's own.
        colluders: Number of colluders for which the noise is priced.
        absent: Probability that a site is absent from a round.
    """
    n_absent = np.arange(n_sites)
    probability = binom.pmf(n_absent, n_sites, absent)
    n_present = n_sites - n_absent
    own_variance = complete(n_sites, ratio, colluders)  # local noise has 1
    # each of those present has its own noise, and that of its pairs with the absent
    variance = own_variance * (1 + n_absent * ratio**2) / n_present
    expected = float((probability * variance).sum() / probability.sum())
    return math.sqrt(expected * n_sites)


def best_ratio(n_sites: int, colluders: int, absent: float) -> float:
    """Returns that of `RATIOS` with which the least noise stays in the mean; arguments as of `noise_with_absences`."""
    return min(RATIOS, key=lambda ratio: noise_with_absences(n_sites, ratio, colluders, absent))
