"""Optimality gap against gradient evaluations and time at equal true epsilon: DP-SVRG and DP-SVRG++ against DP-GD.

    FEDPRIV_DATA=... python benchmarks/reproduce/covertype.py [--quick]

The experiment of Wang, Ye, Xu (2017, appendix A) on Covertype (class 2 against the rest, logistic loss, rows of norm
1, delta 1e-3), with noise calibrated to the whole run: unit sample, replace-one, one owner. Every row is the mean over
seeds; the optimum is scipy's.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import minimize

import fedpriv as fp
from fedpriv.data import load
from fedpriv.models import LogisticRegression, resolve_loss
from fedpriv.strategies.erm import gradient_descent
from fedpriv.strategies.proximal import L2, Proximal, Zero
from fedpriv.strategies.svrg import AnchorBudget, Epochs, svrg

N_TRAIN = 80_000
LAMBDAS = (1e-2, 0.0)


def optimum(x: np.ndarray, signs: np.ndarray, lam: float) -> float:
    """Smallest objective, by L-BFGS in float64."""

    def value(w):
        margins = signs * (x @ w)
        slopes = -signs / (1 + np.exp(margins))
        return np.logaddexp(0, -margins).mean() + lam / 2 * w @ w, x.T @ slopes / len(x) + lam * w

    options = {"maxiter": 400, "ftol": 1e-13, "gtol": 1e-9}
    return float(minimize(value, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B", options=options).fun)


def contenders(h: Proximal) -> dict[str, tuple[fp.Strategy, int, fp.Privacy]]:
    """Strategy, rounds and privacy without a target."""
    base = fp.Privacy(epsilon=1.0, delta=1e-3)
    if isinstance(h, L2):
        epochs = Epochs(20)
        sampled = replace(base, sampling=fp.Poisson(0.02), schedule=AnchorBudget(epochs, 5.0))
        return {
            "DP-GD, T=10": (gradient_descent(4.0, h), 10, base),
            "DP-GD, T=40": (gradient_descent(4.0, h), 40, base),
            "DP-SVRG, 4 epochs of 20": (svrg(2.0, 20, h, smoothness=0.25), epochs.rounds(4), sampled),
            "DP-SVRG, the same, 2 G": (svrg(2.0, 20, h), epochs.rounds(4), sampled),
        }
    epochs = Epochs(5, True)
    sampled = replace(base, sampling=fp.Poisson(0.02), schedule=AnchorBudget(epochs, 5.0))
    return {
        "DP-GD, T=10": (gradient_descent(4.0, h), 10, base),
        "DP-GD, T=100": (gradient_descent(4.0, h), 100, base),
        "DP-SVRG++, 4 epochs from 10": (svrg(2.0, 5, h, smoothness=0.25, doubling=True), epochs.rounds(4), sampled),
        "DP-SVRG++, the same, 2 G": (svrg(2.0, 5, h, doubling=True), epochs.rounds(4), sampled),
    }


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    quick = "--quick" in sys.argv
    split = load("covertype", n_train=N_TRAIN)
    x, y = split.train.tensors
    inputs, signs = x.double().numpy(), 2.0 * y.numpy() - 1
    print("| lambda | epsilon | method | gap | gradient evaluations / n | seconds | test accuracy |", flush=True)
    print("|---|---|---|---|---|---|---|", flush=True)
    for lam in LAMBDAS:
        low = optimum(inputs, signs, lam)
        for name, (strategy, rounds, privacy) in contenders(L2(lam) if lam else Zero()).items():
            for epsilon in (1.0,) if quick else (0.2, 0.5, 1.0):
                row = measure(split, strategy, rounds, replace(privacy, epsilon=epsilon), low, 1 if quick else 2)
                print(f"| {lam:g} | {epsilon:g} | {name} | {row} |", flush=True)


def measure(split, strategy: fp.Strategy, rounds: int, privacy: fp.Privacy, low: float, seeds: int) -> str:
    """Gap, evaluations, time and accuracy, means over seeds."""
    gaps, accuracies, seconds, evaluations, noise = [], [], [], 0.0, None
    for seed in range(seeds):
        clients = fp.make_clients(LogisticRegression(55), resolve_loss("logistic"), [split.train])
        settings = privacy if noise is None else replace(privacy, noise_multiplier=noise, epsilon=None)
        training = fp.Training(
            clients, strategy, settings, rounds=rounds, seed=seed, test=split.test, optimum=low, evaluate_every=10**6
        )
        noise = training.plan.privacy.noise_multiplier
        start = time.process_time()
        for _ in training:
            pass
        seconds.append(time.process_time() - start)
        params = training.progress.models[0]
        gaps.append(training.measures.optimality_gap(params))
        accuracies.append(training.measures.of_the_one(training.progress)["test_accuracy"])
        evaluations = sum(training.plan.evaluations) / N_TRAIN
    return f"{np.mean(gaps):.2e} | {evaluations:.1f} | {np.mean(seconds):.2f} | {np.mean(accuracies):.2%}"


if __name__ == "__main__":
    main()
