"""The epsilon that papers state, beside the epsilon that their noise gives over a whole run.

One function for each paper. Where a paper's mechanism is not differentially private, the numbers hold if the
sensitivity that the paper assumes were a bound.
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
