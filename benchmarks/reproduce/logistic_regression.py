"""Test accuracy on Adult against diffprivlib's logistic regression, at the same epsilon and the same `data_norm`.

    FEDPRIV_DATA=... python benchmarks/reproduce/logistic_regression.py [--peer PYTHON] [--quick]

Compares `PrivateLogisticRegression` with its defaults to `diffprivlib.models.LogisticRegression` with its default C = 1
and with the best C of a grid on the test rows, which a private user could not choose: an advantage for the peer. Both
use the same rows; each adds its own intercept. The guarantees differ: the peer's is pure epsilon (delta 0, by objective
perturbation), and holds for the exact minimum, which L-BFGS approximates; ours is (epsilon, 1e-5), for the computed
iterates. Both protect one row under replace-one. `--peer` names an interpreter with diffprivlib (and suitable versions
of numpy and scikit-learn); by default it is this one. `--quick` has two seeds, and epsilon 1 only.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from fedpriv.data import load
from fedpriv.estimators.logistic_regression import PrivateLogisticRegression

PEER = Path(__file__).with_name("logistic_regression_peer.py")
EPSILONS = (0.5, 1.0, 3.0)
GRID = (1.0, 0.1, 0.01, 0.001)
DATA_NORM = 4.0


def peer(python: str, rows: Path, epsilons: tuple[float, ...], seeds: int) -> list[list[list[float]]] | None:
    """Returns the peer's accuracies `[epsilon][C][seed]`; prints a note and returns None without diffprivlib."""
    task = json.dumps({"rows": str(rows), "norm": DATA_NORM, "epsilons": epsilons, "grid": GRID, "seeds": seeds})
    # without this interpreter's paths: the other has its own numpy
    done = subprocess.run([python, "-I", str(PEER), task], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"
        print(f"diffprivlib was not run by {Path(python).name} ({reason}); name one that has it with --peer")
        return None
    found = json.loads(done.stdout)
    print(f"diffprivlib {found['version']} (scikit-learn {found['sklearn']}) ran in its own process")
    return found["accuracies"]


def cell(values: list[float]) -> str:
    """Mean and standard deviation over seeds, in percent."""
    return f"{100 * np.mean(values):.2f} ± {100 * np.std(values):.2f}"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    epsilons, seeds = ((1.0,), 2) if options.quick else (EPSILONS, 5)
    split = load("adult", bias=False)
    (x, y), (x_test, y_test) = ([part.numpy() for part in half.tensors] for half in (split.train, split.test))
    print(f"{split.description}; data_norm {DATA_NORM:g}, longer rows: {np.mean(norms(x) > DATA_NORM):.1%}")
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.npz"
        np.savez(rows, x=x, y=y, x_test=x_test, y_test=y_test)
        theirs = peer(options.peer, rows, epsilons, seeds)
    print(f"larger class: {100 * max(y_test.mean(), 1 - y_test.mean()):.2f}")
    print("| epsilon | fedpriv, delta 1e-5 | diffprivlib, delta 0, C = 1 | diffprivlib, delta 0, best C |")
    print("|---|---|---|---|")
    for at, epsilon in enumerate(epsilons):
        ours = [fitted(epsilon, seed, x, y).score(x_test, y_test) for seed in range(seeds)]
        cells = ["not run", "not run"]
        if theirs is not None:
            best = max(range(len(GRID)), key=lambda c: np.mean(theirs[at][c]))
            cells = [cell(theirs[at][0]), f"{cell(theirs[at][best])} (C = {GRID[best]:g})"]
        print(f"| {epsilon:g} | {cell(ours)} | {cells[0]} | {cells[1]} |", flush=True)
    print(f"without privacy: {100 * fitted(math.inf, 0, x, y).score(x_test, y_test):.2f}")


def fitted(epsilon: float, seed: int, x: np.ndarray, y: np.ndarray) -> PrivateLogisticRegression:
    """Returns fedpriv's model, fitted with its defaults."""
    return PrivateLogisticRegression(epsilon, data_norm=DATA_NORM, classes=[0, 1], random_state=seed).fit(x, y)


def norms(x: np.ndarray) -> np.ndarray:
    """Returns the norms of rows."""
    return np.linalg.norm(x, axis=1)


if __name__ == "__main__":
    main()
