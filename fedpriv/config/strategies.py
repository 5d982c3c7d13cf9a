"""The strategies that a configuration can name.

To add one: write its file in `fedpriv/strategies/`, then add a row to `STRATEGIES`. Its options are the factory's
parameters, with their bounds and defaults; of `CONTEXT` it is given what it has parameters for. How YAML writes what is
no number, word or dataclass is in `spelling`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedpriv.config.spelling import spread, wrapped
from fedpriv.plugins import Entry, Registry
from fedpriv.privacy import claims
from fedpriv.privacy.claims import NoiseClaim
from fedpriv.published import admm, decentralised, erm
from fedpriv.published.recipe import Recipe
from fedpriv.strategies.adaptive_clipping import adaptive_clipping
from fedpriv.strategies.admm import Prox, Trust, inexact_admm
from fedpriv.strategies.augmented_lagrangian import proximal_al
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.dpsgd import decentralized_sgd
from fedpriv.strategies.dual_averaging import dual_averaging
from fedpriv.strategies.fedavg import fedavg, fedopt, fedprox
from fedpriv.strategies.lagrangian import Outer
from fedpriv.strategies.private_augmented_lagrangian import private_al
from fedpriv.strategies.scaffold import scaffold
from fedpriv.strategies.tracking import gradient_tracking, gradient_tracking_pair

CONTEXT = ("rounds", "epsilon_bar", "active_fraction")


@dataclass(frozen=True)
class StrategyEntry(Entry[Strategy | Recipe]):
    """One row.

    Args:
        build: Makes the sound variant from typed keyword options.
        description: One line for `fedpriv list`.
        published: Makes the variant that the paper publishes, from its own options.
        after: What a bare strategy asks of the noise.
        formula: What the paper would call a noise, from (its deviation over the clip, rounds, examples of a client,
            active fraction), when one example a round is drawn.
    """

    published: Callable[..., Recipe] | None = None
    after: Callable[[Strategy], Recipe] = Recipe
    formula: Callable[[float, int, int, float], NoiseClaim] | None = None


_PROX, _TRUST = spread(inexact_admm, step=Prox), spread(inexact_admm, step=Trust)
_ROWS = {
    "iadmm_prox": StrategyEntry(_PROX, "inexact ADMM, proximal step (Ryu and Kim, ObjP)", admm.published_prox),
    "iadmm_trust": StrategyEntry(_TRUST, "inexact ADMM, trust-region step (Ryu and Kim, ObjT)", admm.published_trust),
    "iadmm_output": StrategyEntry(
        _PROX,
        "inexact ADMM with noise on its output (Huang et al., the baseline)",
        admm.published_output,
        after=admm.constant_on_output,
    ),
    "proximal_al": StrategyEntry(
        spread(proximal_al, outer=Outer),
        "proximal augmented Lagrangian for constraints (He, Peng and Sun), exact: needs at: none",
    ),
    "private_al": StrategyEntry(
        private_al, "augmented Lagrangian for constraints with private values and gradients, a fixed number of rounds"
    ),
    "dual_averaging": StrategyEntry(
        dual_averaging,
        "dual averaging on a graph, with node subsampling (Liu, Johansson, Shi)",
        decentralised.published_dual_averages,
        formula=claims.dual_averaging_stated,
    ),
    "gradient_tracking": StrategyEntry(
        gradient_tracking,
        "gradient tracking on a graph, one exchanged variable (Xie, Liu, Chai)",
        decentralised.published_tracking,
    ),
    "gradient_tracking_pair": StrategyEntry(
        gradient_tracking_pair,
        "gradient tracking on a graph, two exchanged variables (the family of PP-DOAGT, Diff-TV-AB)",
    ),
    "decentralized_sgd": StrategyEntry(
        decentralized_sgd, "decentralised gradient descent on a graph (Lian et al., D-PSGD)"
    ),
    "dpop": StrategyEntry(
        decentralised.dpop,
        "the same with geometric steps and noise (Huang, Mitra, Vaidya, DPOP)",
        decentralised.published_dpop,
    ),
    "pp_doagt": StrategyEntry(
        decentralised.pp_doagt,
        "gradient tracking that sends two variables, in our reading (PP-DOAGT)",
        decentralised.published_pp_doagt,
    ),
    "diff_tv_ab": StrategyEntry(
        decentralised.pp_doagt,
        "the same iteration; as published with its own price (Diff-TV-AB)",
        decentralised.published_diff_tv_ab,
    ),
    "fedavg": StrategyEntry(
        wrapped(fedavg, adaptive_clip=adaptive_clipping),
        "federated averaging (McMahan et al.); with one local step, FedSGD",
    ),
    "fedprox": StrategyEntry(
        wrapped(fedprox, adaptive_clip=adaptive_clipping),
        "FedAvg with local steps held near the received model (Li et al.)",
    ),
    "fedopt": StrategyEntry(
        wrapped(fedopt, adaptive_clip=adaptive_clipping),
        "FedAvg with an adaptive server: Adagrad, Adam or Yogi (Reddi et al.)",
    ),
    "scaffold": StrategyEntry(scaffold, "FedAvg with control variates against client drift (Karimireddy et al.)"),
    "dp_gd": StrategyEntry(erm.dp_gd, "proximal gradient descent on private gradients (Wang, Ye, Xu, DP-GD)"),
    "dp_svrg": StrategyEntry(
        erm.dp_svrg, "variance reduction with anchors (Wang, Ye, Xu, DP-SVRG)", erm.published_svrg
    ),
    "dp_svrg_plus_plus": StrategyEntry(
        erm.dp_svrg_plus_plus,
        "the same with doubling epochs (Wang, Ye, Xu, DP-SVRG++)",
        erm.published_svrg_plus_plus,
    ),
    "dp_accmd": StrategyEntry(
        erm.dp_accmd,
        "accelerated mirror descent on an l2 or l1 ball (Wang, Ye, Xu, DP-AccMD)",
        erm.published_accmd,
    ),
}
STRATEGIES = Registry(_ROWS, (Strategy, Recipe), "fedpriv.strategies", StrategyEntry)
