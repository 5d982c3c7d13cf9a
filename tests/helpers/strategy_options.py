"""What a strategy needs to run at all, and which make no promise."""

from __future__ import annotations

EXACT = {"proximal_al"}  # makes no promise, and must be refused one
OPTIONS = {
    "dp_svrg": "epoch_length: 2",
    "dp_svrg_plus_plus": "epoch_length: 1",
    "dp_accmd": "radius: 2",
    **dict.fromkeys(("fedavg", "fedopt", "scaffold"), "learning_rate: 0.5, local_steps: 2"),
    "fedprox": "learning_rate: 0.5, proximal_mu: 0.1, local_steps: 2",
}
