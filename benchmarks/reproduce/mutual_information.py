"""An eavesdropper's information about one agent's gradient: the M-NMI table of Xie, Liu and Chai (2025, table 4).

    python benchmarks/reproduce/mutual_information.py [--trials 5000] [--rounds 1000] [--quick]

M-NMI (eq 43): the largest over rounds of I(V; I) / I(V; V), with V the gradient of agent 1 at z_1(k) and I the values
that others have: z_1(k), y_1(k), and the noised gradient that the update reveals (eq 44). Three agents, m = p = 1.

Our reading: M_1, v_1 and x(0) are drawn anew in each trial (for one fixed quadratic, z_1 alone determines the
gradient), M uniform on [0, 10]; I(.; .) is the estimator of Kraskov, Stoegbauer and Grassberger (2004) with k = 3, as
in the toolbox NPEET, which returns `psi(trials) - psi(3)` nats for I(V; V). Its true value is infinite, since V is
continuous, so M-NMI falls with the number of trials; the mutual information itself is also printed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib as mpl
import networkx as nx
import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.spatial import cKDTree
from scipy.special import digamma
from sensor_fusion import PAPER, Q2
from sensors import Promise, SensorEngine, Sensors

import fedpriv as fp
from fedpriv.network.rounds import initial_state, run_rounds
from fedpriv.privacy.schedules import Geometric
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.schedules import StepSize

mpl.use("Agg")
CLAIMED = {0.1: (0.047, 3.0e-2), 1.0: (0.24, 2.0e-3), 10.0: (0.52, 1.9e-4)}  # M-NMI, accuracy
NEIGHBOURS = 3


def mutual_information(a: np.ndarray, b: np.ndarray) -> float:
    """Estimates I(a; b) >= 0 in nats from samples `[trials, dims]` (Kraskov et al., eq 8, first estimator).

    Every column is first scaled to deviation 1, which does not change the true value.
    """
    a, b = (_scaled(part) for part in (a, b))
    both = np.concatenate([a, b], 1)
    radius = cKDTree(both).query(both, NEIGHBOURS + 1, p=np.inf)[0][:, -1]
    inside = np.nextafter(radius, 0)
    counts = [cKDTree(part).query_ball_point(part, inside, p=np.inf, return_length=True) for part in (a, b)]
    near = sum(digamma(count).mean() for count in counts)
    return max(0.0, float(digamma(NEIGHBOURS) + digamma(len(a)) - near))


def _scaled(columns: np.ndarray) -> np.ndarray:
    spread = columns.std(0)
    # NPEET adds as little noise to break ties
    jitter = 1e-10 * np.random.default_rng(0).standard_normal(columns.shape)
    return (columns - columns.mean(0)) / np.where(spread > 0, spread, 1.0) + jitter


def own_information(trials: int) -> float:
    """Returns the estimator's value for I(V; V), in nats."""
    return float(digamma(trials) - digamma(NEIGHBOURS))


def leaks(epsilon: float, trials: int, rounds: int, gap: float | None, seed: int = 0) -> dict[str, object]:
    """Returns M-NMI and the accuracy of one setting.

    Args:
        epsilon: As stated in the paper; without `gap` the run spends epsilon / q2 for gradients that move by 1.
        trials: Number of samples of the estimator.
        rounds: K.
        gap: Clips the gradient to half of this in l1 and spends exactly epsilon for any other data.
        seed: Seed of all draws.
    """
    gamma, beta, q1 = PAPER[epsilon]
    sensors = Sensors.drawn(3, 1, 1, problems=trials, seed=seed)
    promise = Promise(Geometric(q1 / Q2), gap or 1.0, enforced=gap is not None)
    multiplier = Q2 / (epsilon * (Q2 - q1)) * (1.0 if gap else Q2)
    engine = SensorEngine(sensors, promise, torch.full((trials,), multiplier), seed + 2)
    draws = np.random.default_rng(seed + 1)
    start = torch.from_numpy(draws.standard_normal((3, trials)))
    if gap is None:
        start += gamma * multiplier / Q2 * torch.from_numpy(draws.laplace(size=start.shape))
    strategy = fp.gradient_tracking(StepSize(gamma, ratio=q1), beta)
    asked = sorted({k for k in (1, 2, 3, 5, 10, 100, rounds) if k <= rounds})
    found: dict[int, float] = {}
    progress = initial_state(strategy, start)
    network = fp.Graph(nx.complete_graph(3))
    for done in run_rounds(strategy, engine.oracle, network, progress, Randomness(seed), rounds=rounds):
        k, before, progress = done.index + 1, progress, done.progress
        if k in asked:
            seen = _seen(before, progress, gamma * q1 ** (k - 1))
            found[k] = mutual_information(engine.exact_gradient[0].numpy(), seen)
    worst = max(found, key=lambda k: found[k])
    facts = {"epsilon": epsilon, "gap": gap, "information": found[worst], "round": worst, "by_round": found}
    residual = float(sensors.residual(progress.models).mean())
    return facts | {"m_nmi": found[worst] / own_information(trials), "accuracy": residual}


def _seen(before, progress, step: float) -> np.ndarray:
    """Returns `(z_1, y_1, (zbar_1 - x_1) / step - y_1)` of a round, eq 44, `[trials, 3]`."""
    sent, y = before.local.sent[0], progress.local.y[0]
    given_away = (before.received[0] - progress.local.sent[0]) / step - y
    return torch.stack([sent, y, given_away], 1).numpy()


def main() -> None:
    """Runs all settings, prints and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="500 trials, 50 rounds")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    trials, rounds = (500, 50) if given.quick else (given.trials, given.rounds)
    print(
        "| variant | epsilon | M-NMI | paper | information, nats | worst round | accuracy | paper |\n"
        + "|---" * 8
        + "|"
    )
    rows: list[dict[str, object]] = []
    for gap in (None, 40.0):
        for epsilon in (10.0, 1.0, 0.1):
            row = leaks(epsilon, trials, rounds, gap)
            rows.append(row)
            name = "as published" if gap is None else f"clipped to {gap / 2:g}"
            claim = CLAIMED[epsilon] if gap is None else ("", "")
            print(
                f"| {name} | {epsilon:g} | {row['m_nmi']:.3f} | {claim[0]} | {row['information']:.3f} | "
                f"{row['round']} | {row['accuracy']:.2g} | {claim[1]} |",
                flush=True,
            )
    draw(rows, given.out)


def draw(rows: list[dict[str, object]], out: Path) -> None:
    """Draws the information against rounds."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "mutual_information.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    figure = Figure(figsize=(6, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for row in rows:
        kind = "as published" if row["gap"] is None else "clipped"
        curve = row["by_round"]
        axes.semilogx(
            list(curve),
            list(curve.values()),
            "o-" if row["gap"] is None else "s--",
            label=f"{row['epsilon']:g}, {kind}",
        )
    axes.set_xlabel("round")
    axes.set_ylabel("I(gradient; what is seen), nats")
    axes.legend(frameon=False, fontsize=8, title="epsilon")
    figure.savefig(out / "mutual_information.png")


if __name__ == "__main__":
    main()
