"""Computes the cost of a release for a group of k units that change together. It is computed directly and not as k
times the cost of one unit.

==========================  ============================================================================================
event                       of a group
==========================  ============================================================================================
not sampled                 k times the shift, exactly
Poisson-sampled, Gaussian   the number of drawn units is binomial (`accounting.mixtures`), exactly
Poisson-sampled, Laplace,   k times the shift, drawn with the probability that any unit is: at most that, by joint
``add_remove``              convexity, and because a smaller shift costs less
an epoch of random          k times the shift of one unsampled answer: all k in one batch, with all batches known
allocation
all others                  k times the shift, drawn with probability ``min(1, k q)``, for the same reasons
==========================  ============================================================================================

Under ``add_remove`` either all units of the group are in the data set, or none is. The units may belong to one client
or to several. The cost is largest if all of them belong to the client with the largest cost.
"""

from __future__ import annotations

import math

from fedpriv.privacy.accounting.events import Event


def scale_to_group(event: Event, k: int) -> Event:
    """Returns the event of a release for a group of k units, from the event of this release for one unit.

    Args:
        event: The event of one unit.
        k: Number of units in the group, at least 1.
    """
    if k == 1 or event.law == "none" or math.isinf(event.noise):
        return event
    if event.selection == "full":
        return event._replace(noise=event.noise / k)
    if event.is_epoch:  # with all batches known: members of one batch move its release by k, members of several by less
        return Event(event.law, event.noise / k)
    if event.selection != "amplified" and event.law == "gaussian":
        return event._replace(group=k)
    inclusion_rate = min(1.0, k * event.rate)
    if event.selection == "poisson":
        inclusion_rate = event._replace(group=k).inclusion_rate
    return Event(event.law, event.noise / k, event.selection if inclusion_rate < 1 else "full", inclusion_rate)
