"""The epsilon that papers state, compared with the epsilon of their noise over a whole run.

There is one function for each paper. If a paper's mechanism is not differentially private, the numbers hold under the
assumption that the paper's sensitivity is a true bound.
"""

from fedpriv.forecast.claim import Claim, NoiseClaim
from fedpriv.papers.claims.admm import inexact_admm, output_perturbed_admm
from fedpriv.papers.claims.decentralised import (
    SubsamplingClaim,
    TrackingNoise,
    dual_averaging,
    dual_averaging_noise,
    dual_averaging_published,
    dual_averaging_stated,
    gradient_tracking,
    gradient_tracking_total,
    two_variable_tracking,
)
from fedpriv.papers.claims.erm import accelerated_mirror_descent, svrg, svrg_deviation

__all__ = [
    "Claim",
    "NoiseClaim",
    "SubsamplingClaim",
    "TrackingNoise",
    "accelerated_mirror_descent",
    "dual_averaging",
    "dual_averaging_noise",
    "dual_averaging_published",
    "dual_averaging_stated",
    "gradient_tracking",
    "gradient_tracking_total",
    "inexact_admm",
    "output_perturbed_admm",
    "svrg",
    "svrg_deviation",
    "two_variable_tracking",
]
